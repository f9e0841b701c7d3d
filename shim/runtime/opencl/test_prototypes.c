/* SPDX-License-Identifier: Apache-2.0
 *
 * Declares every call of hooks.table after Khronos' CL/cl.h has declared it: a difference is a compile
 * error. So is one of a constant. Compiled by `hookgen -check path/to/CL/cl.h` only.
 */
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>

enum theirs {
  SUCCESS = CL_SUCCESS,
  INVALID = CL_INVALID_OPERATION,
  COMPLETE = CL_COMPLETE,
  DEVICE = CL_QUEUE_DEVICE,
  PROPERTIES = CL_QUEUE_PROPERTIES,
  PRIORITY = CL_QUEUE_PRIORITY_KHR,
  HIGH = CL_QUEUE_PRIORITY_HIGH_KHR,
  LOW = CL_QUEUE_PRIORITY_LOW_KHR,
  ANY_ORDER = CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
  NAME = CL_DEVICE_NAME,
  PLATFORM = CL_DEVICE_PLATFORM,
  STATUS = CL_EVENT_COMMAND_EXECUTION_STATUS,
  PCI = CL_DEVICE_PCI_BUS_INFO_KHR,
  TOPOLOGY = CL_DEVICE_TOPOLOGY_AMD,
};

#include "callbacks.h"
#define XSI_CL_EXPORT
#include "hooks_gen.h"

/* Our header, with its own names of the types out of the way. */

#undef CL_SUCCESS
#undef CL_INVALID_OPERATION
#undef CL_COMPLETE
#undef CL_QUEUE_DEVICE
#undef CL_QUEUE_PROPERTIES
#undef CL_QUEUE_PRIORITY_KHR
#undef CL_QUEUE_PRIORITY_HIGH_KHR
#undef CL_QUEUE_PRIORITY_LOW_KHR
#undef CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE
#undef CL_DEVICE_NAME
#undef CL_DEVICE_PLATFORM
#undef CL_EVENT_COMMAND_EXECUTION_STATUS
#undef CL_DEVICE_PCI_BUS_INFO_KHR
#undef CL_DEVICE_TYPE_ALL
#undef CL_DEVICE_PCI_DOMAIN_ID_NV
#undef CL_DEVICE_TOPOLOGY_AMD
#define cl_int our_cl_int
#define cl_uint our_cl_uint
#define cl_bool our_cl_bool
#define cl_ulong our_cl_ulong
#define cl_bitfield our_cl_bitfield
#define cl_properties our_cl_properties
#define cl_map_flags our_cl_map_flags
#define cl_mem_migration_flags our_cl_mem_migration_flags
#define cl_command_queue_properties our_cl_command_queue_properties
#define cl_device_type our_cl_device_type
#define cl_queue_properties our_cl_queue_properties
#define cl_command_queue_info our_cl_command_queue_info
#define cl_event_info our_cl_event_info
#define cl_device_info our_cl_device_info
#define cl_platform_id our_cl_platform_id
#define cl_device_id our_cl_device_id
#define cl_context our_cl_context
#define cl_command_queue our_cl_command_queue
#define cl_mem our_cl_mem
#define cl_kernel our_cl_kernel
#define cl_event our_cl_event
#include "abi.h"

#define SAME(ours, value) _Static_assert((int)(ours) == (int)(value), #value)
SAME(CL_SUCCESS, SUCCESS);
SAME(CL_INVALID_OPERATION, INVALID);
SAME(CL_COMPLETE, COMPLETE);
SAME(CL_QUEUE_DEVICE, DEVICE);
SAME(CL_QUEUE_PROPERTIES, PROPERTIES);
SAME(CL_QUEUE_PRIORITY_KHR, PRIORITY);
SAME(CL_QUEUE_PRIORITY_HIGH_KHR, HIGH);
SAME(CL_QUEUE_PRIORITY_LOW_KHR, LOW);
SAME(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, ANY_ORDER);
SAME(CL_DEVICE_NAME, NAME);
SAME(CL_DEVICE_PLATFORM, PLATFORM);
SAME(CL_EVENT_COMMAND_EXECUTION_STATUS, STATUS);
SAME(CL_DEVICE_PCI_BUS_INFO_KHR, PCI);
SAME(CL_DEVICE_TOPOLOGY_AMD, TOPOLOGY);
