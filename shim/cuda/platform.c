// SPDX-License-Identifier: Apache-2.0
//
// What the busy/idle bookkeeping asks of CUDA. Only real driver functions are called here, never
// hooks.

#include "account.h"

#include "core/pci.h"

#include <errno.h>

// Makes the context current for one question. The application's thread has it current already,
// mostly.
static CUresult push(CUcontext context, bool *pushed) {
  *pushed = false;
  if (xsi_cu_current() == context) return XSI_CU_SUCCESS;
  CUresult result = xsi_cu_call_real(cuCtxPushCurrent_v2, context);
  *pushed = result == XSI_CU_SUCCESS;
  return result;
}

static void pop(bool pushed) {
  CUcontext context;
  if (pushed) xsi_cu_call_real(cuCtxPopCurrent_v2, &context);
}

static uintptr_t context_of(uintptr_t stream) {
  CUcontext context = NULL;
  if (xsi_cu_call_real(cuStreamGetCtx, (CUstream)stream, &context) != XSI_CU_SUCCESS || !context)
    context = xsi_cu_current();
  return (uintptr_t)context;
}

static int describe(uintptr_t context, struct xsi_work_device *device) {
  bool pushed;
  CUdevice_v1 ordinal;
  char name[32] = "";
  if (push((CUcontext)context, &pushed) != XSI_CU_SUCCESS) return -ENODEV;
  CUresult result = xsi_cu_call_real(cuCtxGetDevice, &ordinal);
  if (result == XSI_CU_SUCCESS)
    result = xsi_cu_call_real(cuDeviceGetPCIBusId, name, (int)sizeof name - 1, ordinal);
  pop(pushed);
  if (result != XSI_CU_SUCCESS) return -ENODEV;
  return xsi_pci_parse(name, &device->pci_domain, &device->pci_bus_slot);
}

static enum xsi_work_answer answer(CUresult result) {
  if (result == XSI_CU_SUCCESS) return XSI_WORK_DONE;
  if (result == XSI_CU_NOT_READY) return XSI_WORK_PENDING;
  if (result == XSI_CU_NOT_FOUND) return XSI_WORK_UNKNOWN; // the driver lacks the question
  if (result >= XSI_CU_CAPTURE_FIRST && result <= XSI_CU_CAPTURE_LAST) return XSI_WORK_UNKNOWN;
  return XSI_WORK_DONE; // the stream, the context or the device failed: nothing runs there any more
}

static enum xsi_work_answer query(uintptr_t context, uintptr_t stream) {
  bool pushed;
  CUresult result = push((CUcontext)context, &pushed);
  if (result != XSI_CU_SUCCESS) return answer(result);
  // Another thread's default stream has no handle here; the legacy stream waits for all of them,
  // and its answer covers them.
  CUstream asked = stream == XSI_WORK_THREAD ? XSI_CU_LEGACY : (CUstream)stream;
  CUstreamCaptureStatus status = XSI_CU_CAPTURE_NONE;
  if (stream > XSI_WORK_THREAD) result = xsi_cu_call_real(cuStreamIsCapturing, asked, &status);
  if (result == XSI_CU_NOT_FOUND) result = XSI_CU_SUCCESS; // a driver without captures
  enum xsi_work_answer got = XSI_WORK_UNKNOWN;
  if (result != XSI_CU_SUCCESS)
    got = answer(result);
  else if (status == XSI_CU_CAPTURE_NONE)
    got = answer(xsi_cu_call_real(cuStreamQuery, asked));
  pop(pushed);
  return got;
}

static enum xsi_work_answer event_query(uintptr_t context, uintptr_t event) {
  bool pushed;
  CUresult result = push((CUcontext)context, &pushed);
  if (result == XSI_CU_SUCCESS) result = xsi_cu_call_real(cuEventQuery, (CUevent)event);
  pop(pushed);
  return answer(result);
}

// Around calls of ours on an application's thread: in relaxed mode they can't break a capture that
// another thread has just begun.
static void relax(CUstreamCaptureMode *mode) {
  *mode = XSI_CU_CAPTURE_RELAXED;
  xsi_cu_call_real(cuThreadExchangeStreamCaptureMode, mode);
}

static void unrelax(CUstreamCaptureMode *mode) {
  xsi_cu_call_real(cuThreadExchangeStreamCaptureMode, mode);
}

static int event_record(uintptr_t context, uintptr_t *event, uintptr_t stream) {
  bool pushed;
  CUstreamCaptureMode mode;
  relax(&mode);
  CUresult result = push((CUcontext)context, &pushed);
  if (result == XSI_CU_SUCCESS && !*event) {
    CUevent made = NULL;
    result = xsi_cu_call_real(cuEventCreate, &made, (unsigned)XSI_CU_EVENT_FLAGS);
    if (result == XSI_CU_SUCCESS) *event = (uintptr_t)made;
  }
  if (result == XSI_CU_SUCCESS)
    result = xsi_cu_call_real(cuEventRecord, (CUevent)*event, (CUstream)stream);
  pop(pushed);
  unrelax(&mode);
  return result == XSI_CU_SUCCESS ? 0 : -EIO;
}

static int event_wait(uintptr_t event) {
  CUstreamCaptureMode mode;
  relax(&mode);
  CUresult result = xsi_cu_call_real(cuEventSynchronize, (CUevent)event);
  unrelax(&mode);
  return result == XSI_CU_SUCCESS ? 0 : -EIO;
}

static int synchronize(uintptr_t context, uintptr_t stream) {
  bool pushed;
  CUresult result = push((CUcontext)context, &pushed);
  if (result == XSI_CU_SUCCESS) result = xsi_cu_call_real(cuStreamSynchronize, (CUstream)stream);
  pop(pushed);
  return result == XSI_CU_SUCCESS ? 0 : -EIO;
}

static bool capturing(uintptr_t stream) { return xsi_cu_captured((CUstream)stream); }

// CUDA counts downwards: -1 is more important than 0.
static int32_t priority_of(uintptr_t stream) {
  int priority = 0;
  if (xsi_cu_call_real(cuStreamGetPriority, (CUstream)stream, &priority) != XSI_CU_SUCCESS)
    return 0;
  return priority < -XSW_PRIORITY_MAX || priority > XSW_PRIORITY_MAX ? 0 : -priority;
}

// What this thread asks is then never taken for a part of somebody's capture.
static void watcher_starts(void) {
  CUstreamCaptureMode mode;
  relax(&mode); // for the rest of its life
}

const struct xsi_work_platform xsi_cu_platform = {
    .context_of = context_of,
    .describe = describe,
    .query = query,
    .event_query = event_query,
    .event_record = event_record,
    .event_wait = event_wait,
    .synchronize = synchronize,
    .capturing = capturing,
    .priority_of = priority_of,
    .watcher_starts = watcher_starts,
    .has_current = true,
};
