/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the OpenCL runtime share. A context of the bookkeeping is a device, a stream a
 * command queue.
 */
#ifndef XSCHED_OPENCL_H
#define XSCHED_OPENCL_H

#include "calls.h"
#include "runtime/account.h"
#include "runtime/runtime.h"

extern const struct xsi_runtime xsi_cl_runtime;        /* opencl.c */
extern const struct xsi_work_platform xsi_cl_platform; /* platform.c */

void *xsi_cl_slot(unsigned slot); /* the real function; NULL: the library has none */
#define XSI_CL_REAL(name) __typeof__(&name) real = (__typeof__(&name))xsi_cl_slot(XSI_CL_##name)
/* Calls the real function. */
#define xsi_cl_call(name, ...)                                                                     \
  ({                                                                                               \
    __typeof__(&name) real_ = (__typeof__(&name))xsi_cl_slot(XSI_CL_##name);                       \
    real_ ? real_(__VA_ARGS__) : CL_INVALID_OPERATION;                                             \
  })

/* Forgets what the watcher knows of a queue that is about to go. */
void xsi_cl_marker_drop(cl_command_queue queue);
void xsi_cl_markers_reset(void); /* in the child of a fork */

#endif /* XSCHED_OPENCL_H */
