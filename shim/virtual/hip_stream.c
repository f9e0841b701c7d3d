/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, events, captures and graphs.
 */
#include "hip.h"

HIP_CALL(hipStreamCreateWithPriority, (hipStream_t * stream, unsigned int flags, int priority),
         cuStreamCreateWithPriority(stream, flags, priority))
HIP_CALL(hipStreamCreateWithFlags, (hipStream_t * stream, unsigned int flags),
         cuStreamCreateWithPriority(stream, flags, 0))
HIP_CALL(hipStreamCreate, (hipStream_t * stream), cuStreamCreateWithPriority(stream, 0, 0))
HIP_CALL(hipExtStreamCreateWithCUMask, (hipStream_t * stream, uint32_t words, const uint32_t *mask),
         words &&mask ? cuStreamCreateWithPriority(stream, 0, 0) : CUDA_ERROR_INVALID_VALUE)
HIP_CALL(hipStreamDestroy, (hipStream_t stream), cuStreamDestroy(stream))

HIP_BOTH(hipStreamQuery, (hipStream_t stream), cuStreamQuery(stream), cuStreamQuery_ptsz(stream))
HIP_BOTH(hipStreamSynchronize, (hipStream_t stream), cuStreamSynchronize(stream),
         cuStreamSynchronize_ptsz(stream))
HIP_BOTH(hipStreamWaitEvent, (hipStream_t stream, hipEvent_t event, unsigned int flags),
         cuStreamWaitEvent(stream, event, flags), cuStreamWaitEvent_ptsz(stream, event, flags))
HIP_BOTH(hipStreamGetPriority, (hipStream_t stream, int *priority),
         cuStreamGetPriority(stream, priority), cuStreamGetPriority_ptsz(stream, priority))
HIP_BOTH(hipStreamGetFlags, (hipStream_t stream, unsigned int *flags),
         cuStreamGetFlags(stream, flags), cuStreamGetFlags_ptsz(stream, flags))
HIP_CALL(hipStreamGetDevice, (hipStream_t stream, int *device), cuStreamGetDevice(stream, device))
/* The older name; returns the device, or -1. */
VG_EXPORT int hipGetStreamDeviceId(hipStream_t stream) {
  int device = -1;
  if (hip_enter() == CUDA_SUCCESS && cuStreamGetDevice(stream, &device) != CUDA_SUCCESS)
    device = -1;
  return device;
}

/* ---- events ------------------------------------------------------------------------------ */

HIP_CALL(hipEventCreateWithFlags, (hipEvent_t * event, unsigned int flags),
         cuEventCreate(event, flags))
HIP_CALL(hipEventCreate, (hipEvent_t * event), cuEventCreate(event, 0))
HIP_CALL(hipEventDestroy, (hipEvent_t event), cuEventDestroy(event))
HIP_BOTH(hipEventRecord, (hipEvent_t event, hipStream_t stream), cuEventRecord(event, stream),
         cuEventRecord_ptsz(event, stream))
HIP_CALL(hipEventRecordWithFlags, (hipEvent_t event, hipStream_t stream, unsigned int flags),
         flags > 1 ? CUDA_ERROR_INVALID_VALUE : cuEventRecord(event, stream))
HIP_CALL(hipEventQuery, (hipEvent_t event), cuEventQuery(event))
HIP_CALL(hipEventSynchronize, (hipEvent_t event), cuEventSynchronize(event))
HIP_CALL(hipEventElapsedTime, (float *milliseconds, hipEvent_t start, hipEvent_t end),
         cuEventElapsedTime(milliseconds, start, end))

/* ---- captures and graphs -------------------------------------------------------------------- */

HIP_CALL(hipThreadExchangeStreamCaptureMode, (int *mode), cuThreadExchangeStreamCaptureMode(mode))
HIP_BOTH(hipStreamBeginCapture, (hipStream_t stream, int mode),
         cuStreamBeginCapture_v2(stream, mode), cuStreamBeginCapture_v2_ptsz(stream, mode))
HIP_BOTH(hipStreamEndCapture, (hipStream_t stream, hipGraph_t *graph),
         cuStreamEndCapture(stream, graph), cuStreamEndCapture_ptsz(stream, graph))
HIP_BOTH(hipStreamIsCapturing, (hipStream_t stream, int *status),
         cuStreamIsCapturing(stream, status), cuStreamIsCapturing_ptsz(stream, status))
HIP_CALL(hipGraphInstantiate,
         (hipGraphExec_t * exec, hipGraph_t graph, void *error_node, char *log, size_t bytes),
         ((void)error_node, (void)log, (void)bytes, cuGraphInstantiateWithFlags(exec, graph, 0)))
HIP_CALL(hipGraphInstantiateWithFlags,
         (hipGraphExec_t * exec, hipGraph_t graph, unsigned long long flags),
         cuGraphInstantiateWithFlags(exec, graph, flags))
HIP_BOTH(hipGraphLaunch, (hipGraphExec_t exec, hipStream_t stream), cuGraphLaunch(exec, stream),
         cuGraphLaunch_ptsz(exec, stream))
HIP_CALL(hipGraphDestroy, (hipGraph_t graph), cuGraphDestroy(graph))
HIP_CALL(hipGraphExecDestroy, (hipGraphExec_t exec), cuGraphExecDestroy(exec))
HIP_CALL(hipGraphGetNodes, (hipGraph_t graph, void **nodes, size_t *count),
         cuGraphGetNodes(graph, nodes, count))
