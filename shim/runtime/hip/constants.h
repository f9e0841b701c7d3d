/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of AMD's hip_runtime_api.h under names of ours, so that test_prototypes.c can compare the
 * two.
 */
#ifndef XSCHED_HIP_CONSTANTS_H
#define XSCHED_HIP_CONSTANTS_H

enum xsi_hip_constants {
  XSI_HIP_SUCCESS = 0,
  XSI_HIP_INVALID_VALUE = 1,
  XSI_HIP_OUT_OF_MEMORY = 2,
  XSI_HIP_NOT_FOUND = 500,
  XSI_HIP_NOT_READY = 600,
  XSI_HIP_CAPTURE_FIRST = 900, /* errors 900 to 908 are about captures */
  XSI_HIP_CAPTURE_LAST = 908,
  XSI_HIP_CAPTURE_NONE = 0,
  XSI_HIP_CAPTURE_RELAXED = 2,
  XSI_HIP_EVENT_FLAGS = 3, /* blocking sync, no timing */
  XSI_HIP_HOST_TO_DEVICE = 1,
  XSI_HIP_DEVICE_TO_HOST = 2,
  XSI_HIP_RECORD_EXTERNAL = 1,
  XSI_HIP_OP_WAIT_32 = 1,
  XSI_HIP_OP_WAIT_64 = 4,
  XSI_HIP_VERSION_6 = 60000000, /* of hipRuntimeGetVersion */
  XSI_HIP_PINNED = 1,           /* types of memory, of places and of access */
  XSI_HIP_LOCATION_DEVICE = 1,
  XSI_HIP_ACCESS_BOTH = 3,
  XSI_HIP_PORTABLE = 1,     /* registered host memory */
  XSI_HIP_NON_BLOCKING = 1, /* streams */
  XSI_HIP_POINTER_RANGE_START = 11,
  XSI_HIP_POINTER_RANGE_SIZE = 12,
};

#endif /* XSCHED_HIP_CONSTANTS_H */
