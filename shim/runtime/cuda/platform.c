// SPDX-License-Identifier: Apache-2.0
//
// struct xsi_work_platform for CUDA. Only real driver functions are called here, never hooks.

#include "account.h"

#include "core/real.h"
#include "core/teardown.h"
#include "runtime/pci.h"

#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

// Makes the context current for one question. The application's thread has it current already,
// mostly.
static CUresult turn_to(uintptr_t context, int *pushed) {
  *pushed = 0;
  if ((uintptr_t)xsi_cu_current() == context) return XSI_CU_SUCCESS;
  CUresult result = xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)context);
  *pushed = result == XSI_CU_SUCCESS;
  return result;
}

static void turn_back(int pushed) {
  CUcontext context;
  if (pushed) xsi_cu_call_real(cuCtxPopCurrent_v2, &context);
}

#define P(name) xsi_cu_##name
#define C(name) XSI_CU_##name
#define REAL(name, ...) xsi_cu_call_real(cu##name, __VA_ARGS__)
#define XSI_RESULT CUresult
#define XSI_STREAM CUstream
#define XSI_EVENT CUevent
#define XSI_CAPTURE_MODE CUstreamCaptureMode
#define XSI_EVENT_CREATE(event, flags) REAL(EventCreate, event, flags)
#define XSI_HANDLE(stream) (CUstream)(stream)
#include "runtime/platform.inc"

static uintptr_t context_of(uintptr_t stream) {
  CUcontext context = NULL;
  if (xsi_cu_call_real(cuStreamGetCtx, (CUstream)stream, &context) != XSI_CU_SUCCESS || !context)
    context = xsi_cu_current();
  return (uintptr_t)context;
}

static int describe(uintptr_t context, struct xsi_work_device *device) {
  int pushed;
  CUdevice_v1 ordinal;
  char name[32] = "";
  if (turn_to(context, &pushed) != XSI_CU_SUCCESS) return -ENODEV;
  CUresult result = xsi_cu_call_real(cuCtxGetDevice, &ordinal);
  if (result == XSI_CU_SUCCESS)
    result = xsi_cu_call_real(cuDeviceGetPCIBusId, name, (int)sizeof name - 1, ordinal);
  turn_back(pushed);
  if (result != XSI_CU_SUCCESS) return -ENODEV;
  return xsi_pci_parse(name, &device->pci_domain, &device->pci_bus_slot);
}

static enum xsi_work_answer query(uintptr_t context, uintptr_t stream) {
  int pushed;
  CUresult result = turn_to(context, &pushed);
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
  turn_back(pushed);
  return got;
}

static enum xsi_work_answer event_query(uintptr_t context, uintptr_t event) {
  int pushed;
  CUresult result = turn_to(context, &pushed);
  if (result == XSI_CU_SUCCESS) result = xsi_cu_call_real(cuEventQuery, (CUevent)event);
  turn_back(pushed);
  return answer(result);
}

// Drivers since 570 say which of their threads does checkpoints.
static void watcher_begins(void) {
  int (*restore_thread)(int pid, int *thread) = NULL;
  void *library = xsi_cu_runtime.library();
  int thread = 0;
  watcher_starts();
  if (library != NULL)
    *(void **)&restore_thread = xsi_real_dlsym(library, "cuCheckpointProcessGetRestoreThreadId");
  if (restore_thread == NULL)
    dlerror(); // ours, not the application's
  else if (restore_thread(getpid(), &thread) == XSI_CU_SUCCESS)
    xsi_teardown_set_thread(thread);
}

// The page is ours and stays, so that a store to it is harmless after the context has gone.
static int batch_share(uintptr_t context, void *page, size_t bytes, uint64_t *address) {
  int pushed;
  CUstreamCaptureMode mode;
  CUdeviceptr_v2 seen = 0;
  relax(&mode);
  CUresult result = turn_to(context, &pushed);
  if (result == XSI_CU_SUCCESS)
    result = xsi_cu_call_real(cuMemHostRegister_v2, page, bytes, (unsigned)XSI_CU_HOST_MAPPED);
  if (result == XSI_CU_SUCCESS)
    result = xsi_cu_call_real(cuMemHostGetDevicePointer_v2, &seen, page, 0u);
  turn_back(pushed);
  unrelax(&mode);
  *address = seen;
  return result == XSI_CU_SUCCESS ? 0 : -EIO;
}

static int batch_hold(uintptr_t context, uintptr_t stream, uint64_t address, uint32_t value) {
  int pushed;
  CUresult result = turn_to(context, &pushed);
  if (result == XSI_CU_SUCCESS)
    result = xsi_cu_call_real(cuStreamWaitValue32_v2, (CUstream)stream, address, value,
                              (unsigned)XSI_CU_WAIT_VALUE_GEQ);
  turn_back(pushed);
  return result == XSI_CU_SUCCESS ? 0 : -EIO;
}

const struct xsi_work_platform xsi_cu_platform = {
    .context_of = context_of,
    .describe = describe,
    .query = query,
    .event_query = event_query,
    .poll = poll,
    .event_record = event_record,
    .event_poll = event_poll,
    .synchronize = synchronize,
    .capturing = capturing,
    .priority_of = priority_of,
    .batch_share = batch_share,
    .batch_hold = batch_hold,
    .watcher_starts = watcher_begins,
    .has_current = true,
};
