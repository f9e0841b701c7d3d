// SPDX-License-Identifier: Apache-2.0
//
// CUDA streams as hardware queues.

#include "api/api.h"
#include "account.h"

// The context and stream as the bookkeeping names them.
static bool locate(CUstream stream, uintptr_t *context, uintptr_t *handle) {
  *handle = (uintptr_t)(stream == NULL ? XSI_CU_LEGACY : stream);
  *context = 0;
  if (!xsi_cu_active()) return true; // switched off: any number will do
  if (xsi_cu_runtime.library() == NULL &&
      xsi_cu_call_real(cuCtxGetCurrent, &(CUcontext){NULL}) != 0)
    return false;
  *context =
      *handle > XSI_WORK_THREAD ? xsi_cu_platform.context_of(*handle) : (uintptr_t)xsi_cu_current();
  return *context != 0;
}

XSI_EXPORT XResult CudaQueueCreate(HwQueueHandle *hwq, CUstream stream) {
  struct xsi_api_object hardware = {.kind = XSI_API_HARDWARE,
                                    .hardware.platform = &xsi_cu_platform};
  if (hwq == NULL) return kXSchedErrorInvalidValue;
  // Without a driver or a context there can be no such stream.
  if (!locate(stream, &hardware.hardware.context, &hardware.hardware.stream))
    return kXSchedErrorInvalidValue;
  if (xsi_api_find_hardware(hardware.hardware.context, hardware.hardware.stream) != 0)
    return kXSchedErrorNotAllowed;
  uint64_t handle = xsi_api_add(&hardware);
  if (handle == 0) return kXSchedErrorUnknown;
  *hwq = handle;
  return kXSchedSuccess;
}

XSI_EXPORT XResult CudaQueueGet(HwQueueHandle *hwq, CUstream stream) {
  uintptr_t context, handle;
  if (hwq == NULL) return kXSchedErrorInvalidValue;
  uint64_t found = locate(stream, &context, &handle) ? xsi_api_find_hardware(context, handle) : 0;
  if (found == 0) return kXSchedErrorNotFound;
  *hwq = found;
  return kXSchedSuccess;
}
