/* SPDX-License-Identifier: Apache-2.0
 *
 * OpenCL command queues as hardware queues. Works with and without OpenCL's own headers, which come first.
 */
#ifndef XSCHED_OPENCL_HAL_H
#define XSCHED_OPENCL_HAL_H

#include "xsched/xsched.h"

#ifdef __cplusplus
extern "C" {
#endif

#if !defined(__OPENCL_CL_H) && !defined(OPENCL_CL_H_)
typedef struct _cl_command_queue *cl_command_queue;
#endif
/* A command queue of any device. Destroy the hardware queue first. */
XResult OclQueueCreate(HwQueueHandle *hwq, cl_command_queue queue);
XResult OclQueueGet(HwQueueHandle *hwq, cl_command_queue queue);

#ifdef __cplusplus
}
#endif

#endif /* XSCHED_OPENCL_HAL_H */
