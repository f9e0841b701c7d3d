// SPDX-License-Identifier: Apache-2.0
//
// CUDA streams as hardware queues.

#include "api/api.h"
#include "account.h"

// The context and stream as the bookkeeping names them. Without a driver or a context there can be
// no such stream.
static struct xsi_api_stream locate(CUstream stream) {
  struct xsi_api_stream place = {
      .platform = &xsi_cu_platform,
      .stream = (uintptr_t)(stream == NULL ? XSI_CU_LEGACY : stream),
  };
  if (!xsi_cu_active()) {
    place.found = true; // switched off: any number will do
    return place;
  }
  if (xsi_cu_runtime.library() == NULL &&
      xsi_cu_call_real(cuCtxGetCurrent, &(CUcontext){NULL}) != 0)
    return place;
  (void)xsi_runtime_rebind();
  place.context = place.stream > XSI_WORK_THREAD ? xsi_cu_platform.context_of(place.stream)
                                                 : (uintptr_t)xsi_cu_current();
  place.found = place.context != 0;
  return place;
}

XSI_EXPORT XResult CudaQueueCreate(HwQueueHandle *hwq, CUstream stream) {
  return hwq == NULL ? kXSchedErrorInvalidValue : xsi_api_hardware_create(hwq, locate(stream));
}

XSI_EXPORT XResult CudaQueueGet(HwQueueHandle *hwq, CUstream stream) {
  return hwq == NULL ? kXSchedErrorInvalidValue : xsi_api_hardware_get(hwq, locate(stream));
}
