/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of NVIDIA's cuda.h under names of ours, so that test_prototypes.c can compare the two.
 */
#ifndef XSCHED_CUDA_CONSTANTS_H
#define XSCHED_CUDA_CONSTANTS_H

enum xsi_cu_constants {
  XSI_CU_SUCCESS = 0,
  XSI_CU_INVALID_VALUE = 1,
  XSI_CU_DEINITIALIZED = 4,
  XSI_CU_INVALID_CONTEXT = 201,
  XSI_CU_NOT_FOUND = 500,
  XSI_CU_NOT_READY = 600,
  XSI_CU_CONTEXT_IS_DESTROYED = 709,
  XSI_CU_CAPTURE_FIRST = 900, /* errors 900 to 908 are about captures */
  XSI_CU_CAPTURE_LAST = 908,
  XSI_CU_CAPTURE_NONE = 0,
  XSI_CU_CAPTURE_RELAXED = 2,
  XSI_CU_EVENT_FLAGS = 3, /* blocking sync, no timing */
  XSI_CU_PROC_PER_THREAD = 2,
  XSI_CU_POINTER_MEMORY_TYPE = 2,
  XSI_CU_MEMORY_HOST = 1,
  XSI_CU_MEMORY_UNIFIED = 4,
  XSI_CU_OPERAND_POINTER = 1,
  XSI_CU_OP_WAIT_32 = 1,
  XSI_CU_OP_WAIT_64 = 4,
  XSI_CU_HOST_MAPPED = 3, /* portable, mapped */
  XSI_CU_WAIT_VALUE_GEQ = 0,
  XSI_CU_RECORD_EXTERNAL = 1, /* in a capture, the graph records the event */
  XSI_CU_ATTRIBUTE_COOPERATIVE = 2,
  XSI_CU_ATTRIBUTE_PROGRAMMATIC_EVENT = 7,
  XSI_CU_ATTRIBUTE_COMPLETION_EVENT = 12,
};

#endif /* XSCHED_CUDA_CONSTANTS_H */
