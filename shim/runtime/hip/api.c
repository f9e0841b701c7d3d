// SPDX-License-Identifier: Apache-2.0
//
// HIP streams as hardware queues.

#include "api/api.h"
#include "account.h"

#include "xsched/hip/hal.h"

// If the program's calls bypass the hooks, nothing recorded the stream, so the runtime is asked.
// hipGetDevice comes first: hipGetStreamDeviceId needs a thread that has used HIP.
static void adopt_unhooked(hipStream_t stream) {
  struct xsi_counters total;
  int device;
  xsi_counters_sum(&total);
  if (total.hooked_calls == 0 &&
      xsi_hip_done(xsi_hip_call_real(hipGetDevice, &device)) == XSI_HIP_SUCCESS &&
      (uintptr_t)stream > XSI_WORK_THREAD && xsi_hip_stream_device(stream) < 0)
    xsi_hip_stream_adopt(stream);
}

// The context and stream as the bookkeeping names them.
static struct xsi_api_stream locate(hipStream_t stream) {
  struct xsi_api_stream place = {.platform = &xsi_hip_platform,
                                 .stream = (uintptr_t)xsi_hip_legacy(stream)};
  if (!xsi_hip_active()) {
    place.found = true; // switched off: any number will do
    return place;
  }
  if (xsi_hip_runtime.library() == NULL && xsi_hip_slot(XSI_HIP_hipGetDevice) == NULL) return place;
  (void)xsi_runtime_rebind();
  adopt_unhooked(stream);
  place.context = place.stream > XSI_WORK_THREAD ? xsi_hip_platform.context_of(place.stream)
                                                 : xsi_hip_current();
  place.found = place.context != 0;
  return place;
}

XSI_EXPORT XResult HipQueueCreate(HwQueueHandle *hwq, hipStream_t stream) {
  return hwq == NULL ? kXSchedErrorInvalidValue : xsi_api_hardware_create(hwq, locate(stream));
}

XSI_EXPORT XResult HipQueueGet(HwQueueHandle *hwq, hipStream_t stream) {
  return hwq == NULL ? kXSchedErrorInvalidValue : xsi_api_hardware_get(hwq, locate(stream));
}
