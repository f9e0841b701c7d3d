/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the OpenCL interface that the shim uses. Names and values are those of CL/cl.h and
 * CL/cl_ext.h; test_prototypes.c compares them, but for the NV ones, which Debian does not have.
 */
#ifndef XSCHED_OPENCL_ABI_H
#define XSCHED_OPENCL_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint, cl_bool;
typedef uint64_t cl_ulong, cl_bitfield, cl_properties;
typedef cl_bitfield cl_map_flags, cl_mem_migration_flags, cl_command_queue_properties,
    cl_device_type;
typedef cl_properties cl_queue_properties;
typedef cl_uint cl_command_queue_info, cl_event_info, cl_device_info;
typedef struct _cl_platform_id *cl_platform_id;
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_mem *cl_mem;
typedef struct _cl_kernel *cl_kernel;
typedef struct _cl_event *cl_event;

#define CL_SUCCESS 0
#define CL_INVALID_OPERATION (-59)
#define CL_COMPLETE 0
#define CL_QUEUE_DEVICE 0x1091
#define CL_QUEUE_PROPERTIES 0x1093
#define CL_QUEUE_PRIORITY_KHR 0x1096
#define CL_QUEUE_PRIORITY_HIGH_KHR 1u
#define CL_QUEUE_PRIORITY_LOW_KHR 4u
#define CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE 1u
#define CL_DEVICE_NAME 0x102B
#define CL_DEVICE_PLATFORM 0x1031
#define CL_EVENT_COMMAND_EXECUTION_STATUS 0x11D3
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFu
#define CL_DEVICE_PCI_BUS_INFO_KHR 0x410F /* four words: domain, bus, device, function */
#define CL_DEVICE_PCI_BUS_ID_NV 0x4008
#define CL_DEVICE_PCI_SLOT_ID_NV 0x4009
#define CL_DEVICE_PCI_DOMAIN_ID_NV 0x400A
#define CL_DEVICE_TOPOLOGY_AMD 0x4037 /* 24 bytes: type 1, ..., bus, device, function at the end */

#endif /* XSCHED_OPENCL_ABI_H */
