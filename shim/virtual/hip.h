/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of the stand-in libamdhip64.so. HIP's interface uses the streams, events, graphs and
 * memory of the CUDA stand-in (cuda_*.c, hidden here) on queues of /dev/kfd (hip_kfd.c). Both
 * interfaces share error numbers.
 */
#ifndef XSCHED_VIRTUAL_HIP_H
#define XSCHED_VIRTUAL_HIP_H

#include "standin.h"

typedef int hipError_t;
typedef CUstream hipStream_t;
typedef CUevent hipEvent_t;
typedef CUfunction hipFunction_t;
typedef CUmodule hipModule_t;
typedef CUgraph hipGraph_t;
typedef CUgraphExec hipGraphExec_t;
typedef void *hipDeviceptr_t;
struct dim3 {
  uint32_t x, y, z;
};

enum {
  HIP_INVALID_DEVICE_FUNCTION = 98,
  HIP_LAUNCH_FAILURE = 719,
};

struct hip_gpu {
  uint32_t id, location, domain, render_minor, gfx;
  uint32_t dies, save_bytes, stack_bytes; /* of one die's save area, and its control stack */
  int units, render;                      /* render: the open file, or -1 */
  uint64_t total;                         /* bytes of VRAM */
  unsigned char *memory;
};
const struct hip_gpu *hip_gpu_at(int ordinal);

/* hip_device.c: prepares the calling thread's device; converts the result of a call. */
hipError_t hip_enter(void);
hipError_t hip_said(hipError_t result);
int hip_device(void);

/* An entry point that needs a device and consists of one call. */
#define HIP_CALL(name, parameters, call)                                                           \
  VG_EXPORT hipError_t name parameters {                                                           \
    hipError_t result = hip_enter();                                                               \
    return hip_said(result == CUDA_SUCCESS ? (hipError_t)(call) : result);                         \
  }
/* Its variant with per-thread stream 0. */
#define HIP_BOTH(name, parameters, call, call_spt)                                                 \
  HIP_CALL(name, parameters, call)                                                                 \
  HIP_CALL(name##_spt, parameters, call_spt)

/* The functions of cuda_*.c that are called here. */
CUresult cuInit(unsigned int flags);
CUresult cuDeviceGetCount(int *count);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamQuery_ptsz(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags);
CUresult cuStreamGetPriority(CUstream stream, int *priority);
CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority);
CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags);
CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int *flags);
CUresult cuStreamGetDevice(CUstream stream, CUdevice *device);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventDestroy(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphGetNodes(CUgraph graph, void **nodes, size_t *count);
CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes);
CUresult cuMemFree(CUdeviceptr address);
CUresult cuMemHostRegister_v2(void *page, size_t bytes, unsigned int flags);
CUresult cuMemHostUnregister(void *page);
CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags);
CUresult cuMemFreeHost(void *address);
CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                            unsigned int element);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address);
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes);
struct properties;
struct access_of;
CUresult cuMemGetAllocationGranularity(size_t *bytes, const struct properties *properties,
                                       int option);
CUresult cuMemCreate(unsigned long long *handle, size_t bytes, const struct properties *properties,
                     unsigned long long flags);
CUresult cuMemRelease(unsigned long long handle);
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, unsigned long long handle,
                  unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const struct access_of *list,
                        size_t count);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream);
CUresult cuMemsetD8Async_ptsz(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream);
CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream);
CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void **params, void **extra);
CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                             unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                             unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                             void **params, void **extra);

#endif /* XSCHED_VIRTUAL_HIP_H */
