// SPDX-License-Identifier: Apache-2.0
//
// OpenCL command queues as hardware queues.

#include "api/api.h"
#include "library.h"

#include "xsched/opencl/hal.h"

// The device and queue as the bookkeeping names them.
static struct xsi_api_stream locate(cl_command_queue queue) {
  struct xsi_api_stream place = {.platform = &xsi_cl_platform, .stream = (uintptr_t)queue};
  if (!xsi_cl_active()) {
    place.found = true; // switched off: any number will do
    return place;
  }
  if (queue == NULL || xsi_cl_runtime.library() == NULL) return place;
  (void)xsi_runtime_rebind();
  place.context = xsi_cl_platform.context_of(place.stream);
  place.found = place.context != 0;
  return place;
}

XSI_EXPORT XResult OclQueueCreate(HwQueueHandle *hwq, cl_command_queue queue) {
  return hwq == NULL ? kXSchedErrorInvalidValue : xsi_api_hardware_create(hwq, locate(queue));
}

XSI_EXPORT XResult OclQueueGet(HwQueueHandle *hwq, cl_command_queue queue) {
  return hwq == NULL ? kXSchedErrorInvalidValue : xsi_api_hardware_get(hwq, locate(queue));
}
