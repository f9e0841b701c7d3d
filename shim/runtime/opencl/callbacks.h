/* SPDX-License-Identifier: Apache-2.0
 *
 * Names for the functions that commands of OpenCL call, for which CL/cl.h has none.
 */
#ifndef XSCHED_OPENCL_CALLBACKS_H
#define XSCHED_OPENCL_CALLBACKS_H

typedef void (*xsi_cl_native)(void *);
typedef void (*xsi_cl_free)(cl_command_queue, cl_uint, void **, void *);

#endif /* XSCHED_OPENCL_CALLBACKS_H */
