/* SPDX-License-Identifier: Apache-2.0
 *
 * The OpenCL calls that the shim knows.
 *
 * CALL(kind, name, blocking, event, parameters, arguments): a command goes into `queue`.
 *   kind      LAUNCH, COPY or WORK: how it is counted
 *   blocking  the parameter that makes the call wait for its command, or 0. A blocking write may return
 *             when its data is copied, before earlier commands are complete: it counts as none.
 *   event     the parameter that returns the command's event, or NULL
 * HAND(result, name, parameters): written by hand in opencl.c
 * USE(result, name, parameters): not hooked; the shim calls it
 */
#ifndef XSCHED_OPENCL_CALLS_H
#define XSCHED_OPENCL_CALLS_H

#include "abi.h"

#define XSI_CL_TAIL cl_uint waits, const cl_event *wait_list, cl_event *event

/* Hooked calls in the order of their names: xsi_runtime_find searches by halves. */
#define XSI_CL_HOOKED(CALL, HAND)                                                                  \
  HAND(cl_command_queue, clCreateCommandQueue,                                                     \
       (cl_context context, cl_device_id device, cl_command_queue_properties properties,           \
        cl_int * error))                                                                           \
  HAND(cl_command_queue, clCreateCommandQueueWithProperties,                                       \
       (cl_context context, cl_device_id device, const cl_queue_properties *properties,            \
        cl_int *error))                                                                            \
  CALL(WORK, clEnqueueBarrier, 0, NULL, (cl_command_queue queue), (queue))                         \
  CALL(WORK, clEnqueueBarrierWithWaitList, 0, event, (cl_command_queue queue, XSI_CL_TAIL),        \
       (queue, waits, wait_list, event))                                                           \
  CALL(COPY, clEnqueueCopyBuffer, 0, event,                                                        \
       (cl_command_queue queue, cl_mem from, cl_mem to, size_t from_offset, size_t to_offset,      \
        size_t bytes, XSI_CL_TAIL),                                                                \
       (queue, from, to, from_offset, to_offset, bytes, waits, wait_list, event))                  \
  CALL(COPY, clEnqueueCopyBufferRect, 0, event,                                                    \
       (cl_command_queue queue, cl_mem from, cl_mem to, const size_t *from_origin,                 \
        const size_t *to_origin, const size_t *region, size_t from_row, size_t from_slice,         \
        size_t to_row, size_t to_slice, XSI_CL_TAIL),                                              \
       (queue, from, to, from_origin, to_origin, region, from_row, from_slice, to_row, to_slice,   \
        waits, wait_list, event))                                                                  \
  CALL(COPY, clEnqueueCopyBufferToImage, 0, event,                                                 \
       (cl_command_queue queue, cl_mem from, cl_mem to, size_t offset, const size_t *origin,       \
        const size_t *region, XSI_CL_TAIL),                                                        \
       (queue, from, to, offset, origin, region, waits, wait_list, event))                         \
  CALL(COPY, clEnqueueCopyImage, 0, event,                                                         \
       (cl_command_queue queue, cl_mem from, cl_mem to, const size_t *from_origin,                 \
        const size_t *to_origin, const size_t *region, XSI_CL_TAIL),                               \
       (queue, from, to, from_origin, to_origin, region, waits, wait_list, event))                 \
  CALL(COPY, clEnqueueCopyImageToBuffer, 0, event,                                                 \
       (cl_command_queue queue, cl_mem from, cl_mem to, const size_t *origin,                      \
        const size_t *region, size_t offset, XSI_CL_TAIL),                                         \
       (queue, from, to, origin, region, offset, waits, wait_list, event))                         \
  CALL(COPY, clEnqueueFillBuffer, 0, event,                                                        \
       (cl_command_queue queue, cl_mem to, const void *pattern, size_t pattern_bytes,              \
        size_t offset, size_t bytes, XSI_CL_TAIL),                                                 \
       (queue, to, pattern, pattern_bytes, offset, bytes, waits, wait_list, event))                \
  CALL(COPY, clEnqueueFillImage, 0, event,                                                         \
       (cl_command_queue queue, cl_mem to, const void *color, const size_t *origin,                \
        const size_t *region, XSI_CL_TAIL),                                                        \
       (queue, to, color, origin, region, waits, wait_list, event))                                \
  HAND(void *, clEnqueueMapBuffer,                                                                 \
       (cl_command_queue queue, cl_mem buffer, cl_bool blocking, cl_map_flags flags,               \
        size_t offset, size_t bytes, XSI_CL_TAIL, cl_int * error))                                 \
  HAND(void *, clEnqueueMapImage,                                                                  \
       (cl_command_queue queue, cl_mem image, cl_bool blocking, cl_map_flags flags,                \
        const size_t *origin, const size_t *region, size_t *row, size_t *slice, XSI_CL_TAIL,       \
        cl_int *error))                                                                            \
  CALL(WORK, clEnqueueMarker, 0, event, (cl_command_queue queue, cl_event * event),                \
       (queue, event))                                                                             \
  CALL(WORK, clEnqueueMarkerWithWaitList, 0, event, (cl_command_queue queue, XSI_CL_TAIL),         \
       (queue, waits, wait_list, event))                                                           \
  CALL(COPY, clEnqueueMigrateMemObjects, 0, event,                                                 \
       (cl_command_queue queue, cl_uint count, const cl_mem *objects,                              \
        cl_mem_migration_flags flags, XSI_CL_TAIL),                                                \
       (queue, count, objects, flags, waits, wait_list, event))                                    \
  CALL(LAUNCH, clEnqueueNDRangeKernel, 0, event,                                                   \
       (cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,        \
        const size_t *global, const size_t *local, XSI_CL_TAIL),                                   \
       (queue, kernel, dimensions, offset, global, local, waits, wait_list, event))                \
  CALL(LAUNCH, clEnqueueNativeKernel, 0, event,                                                    \
       (cl_command_queue queue, void (*function)(void *), void *arguments, size_t bytes,           \
        cl_uint count, const cl_mem *objects, const void **places, XSI_CL_TAIL),                   \
       (queue, function, arguments, bytes, count, objects, places, waits, wait_list, event))       \
  CALL(COPY, clEnqueueReadBuffer, blocking, event,                                                 \
       (cl_command_queue queue, cl_mem from, cl_bool blocking, size_t offset, size_t bytes,        \
        void *to, XSI_CL_TAIL),                                                                    \
       (queue, from, blocking, offset, bytes, to, waits, wait_list, event))                        \
  CALL(COPY, clEnqueueReadBufferRect, blocking, event,                                             \
       (cl_command_queue queue, cl_mem from, cl_bool blocking, const size_t *origin,               \
        const size_t *host_origin, const size_t *region, size_t row, size_t slice,                 \
        size_t host_row, size_t host_slice, void *to, XSI_CL_TAIL),                                \
       (queue, from, blocking, origin, host_origin, region, row, slice, host_row, host_slice, to,  \
        waits, wait_list, event))                                                                  \
  CALL(COPY, clEnqueueReadImage, blocking, event,                                                  \
       (cl_command_queue queue, cl_mem from, cl_bool blocking, const size_t *origin,               \
        const size_t *region, size_t row, size_t slice, void *to, XSI_CL_TAIL),                    \
       (queue, from, blocking, origin, region, row, slice, to, waits, wait_list, event))           \
  CALL(WORK, clEnqueueSVMFree, 0, event,                                                           \
       (cl_command_queue queue, cl_uint count, void **pointers,                                    \
        void (*free_function)(cl_command_queue, cl_uint, void **, void *), void *data,             \
        XSI_CL_TAIL),                                                                              \
       (queue, count, pointers, free_function, data, waits, wait_list, event))                     \
  CALL(COPY, clEnqueueSVMMap, blocking, event,                                                     \
       (cl_command_queue queue, cl_bool blocking, cl_map_flags flags, void *at, size_t bytes,      \
        XSI_CL_TAIL),                                                                              \
       (queue, blocking, flags, at, bytes, waits, wait_list, event))                               \
  CALL(COPY, clEnqueueSVMMemFill, 0, event,                                                        \
       (cl_command_queue queue, void *to, const void *pattern, size_t pattern_bytes, size_t bytes, \
        XSI_CL_TAIL),                                                                              \
       (queue, to, pattern, pattern_bytes, bytes, waits, wait_list, event))                        \
  CALL(COPY, clEnqueueSVMMemcpy, blocking, event,                                                  \
       (cl_command_queue queue, cl_bool blocking, void *to, const void *from, size_t bytes,        \
        XSI_CL_TAIL),                                                                              \
       (queue, blocking, to, from, bytes, waits, wait_list, event))                                \
  CALL(COPY, clEnqueueSVMMigrateMem, 0, event,                                                     \
       (cl_command_queue queue, cl_uint count, const void **pointers, const size_t *bytes,         \
        cl_mem_migration_flags flags, XSI_CL_TAIL),                                                \
       (queue, count, pointers, bytes, flags, waits, wait_list, event))                            \
  CALL(WORK, clEnqueueSVMUnmap, 0, event, (cl_command_queue queue, void *at, XSI_CL_TAIL),         \
       (queue, at, waits, wait_list, event))                                                       \
  CALL(LAUNCH, clEnqueueTask, 0, event, (cl_command_queue queue, cl_kernel kernel, XSI_CL_TAIL),   \
       (queue, kernel, waits, wait_list, event))                                                   \
  CALL(WORK, clEnqueueUnmapMemObject, 0, event,                                                    \
       (cl_command_queue queue, cl_mem object, void *at, XSI_CL_TAIL),                             \
       (queue, object, at, waits, wait_list, event))                                               \
  CALL(WORK, clEnqueueWaitForEvents, 0, NULL,                                                      \
       (cl_command_queue queue, cl_uint waits, const cl_event *wait_list),                         \
       (queue, waits, wait_list))                                                                  \
  CALL(COPY, clEnqueueWriteBuffer, 0, event,                                                       \
       (cl_command_queue queue, cl_mem to, cl_bool blocking, size_t offset, size_t bytes,          \
        const void *from, XSI_CL_TAIL),                                                            \
       (queue, to, blocking, offset, bytes, from, waits, wait_list, event))                        \
  CALL(COPY, clEnqueueWriteBufferRect, 0, event,                                                   \
       (cl_command_queue queue, cl_mem to, cl_bool blocking, const size_t *origin,                 \
        const size_t *host_origin, const size_t *region, size_t row, size_t slice,                 \
        size_t host_row, size_t host_slice, const void *from, XSI_CL_TAIL),                        \
       (queue, to, blocking, origin, host_origin, region, row, slice, host_row, host_slice, from,  \
        waits, wait_list, event))                                                                  \
  CALL(COPY, clEnqueueWriteImage, 0, event,                                                        \
       (cl_command_queue queue, cl_mem to, cl_bool blocking, const size_t *origin,                 \
        const size_t *region, size_t row, size_t slice, const void *from, XSI_CL_TAIL),            \
       (queue, to, blocking, origin, region, row, slice, from, waits, wait_list, event))           \
  HAND(cl_int, clFinish, (cl_command_queue queue))                                                 \
  HAND(cl_int, clGetEventInfo,                                                                     \
       (cl_event event, cl_event_info name, size_t bytes, void *value, size_t *returned))          \
  HAND(void *, clGetExtensionFunctionAddress, (const char *name))                                  \
  HAND(void *, clGetExtensionFunctionAddressForPlatform,                                           \
       (cl_platform_id platform, const char *name))                                                \
  HAND(cl_int, clReleaseCommandQueue, (cl_command_queue queue))                                    \
  HAND(cl_int, clRetainCommandQueue, (cl_command_queue queue))                                     \
  HAND(cl_int, clWaitForEvents, (cl_uint count, const cl_event *events))

#define XSI_CL_USED(USE)                                                                           \
  USE(cl_int, clFlush, (cl_command_queue queue))                                                   \
  USE(cl_int, clGetCommandQueueInfo,                                                               \
      (cl_command_queue queue, cl_command_queue_info name, size_t bytes, void *value,              \
       size_t *returned))                                                                          \
  USE(cl_int, clGetDeviceIDs,                                                                      \
      (cl_platform_id platform, cl_device_type type, cl_uint room, cl_device_id * devices,         \
       cl_uint * count))                                                                           \
  USE(cl_int, clGetDeviceInfo,                                                                     \
      (cl_device_id device, cl_device_info name, size_t bytes, void *value, size_t *returned))     \
  USE(cl_int, clReleaseEvent, (cl_event event))                                                    \
  USE(cl_int, clRetainEvent, (cl_event event))

#define XSI_CL_SLOT_CALL(kind, name, ...) XSI_CL_##name,
#define XSI_CL_SLOT(result, name, parameters) XSI_CL_##name,
enum {
  XSI_CL_HOOKED(XSI_CL_SLOT_CALL, XSI_CL_SLOT) XSI_CL_HOOKS,
  XSI_CL_BEFORE_USED = XSI_CL_HOOKS - 1,
  XSI_CL_USED(XSI_CL_SLOT) XSI_CL_SLOTS
};

#define XSI_CL_DECLARE_CALL(kind, name, blocking, event, parameters, arguments)                    \
  cl_int name parameters;
#define XSI_CL_DECLARE(result, name, parameters) result name parameters;
XSI_CL_HOOKED(XSI_CL_DECLARE_CALL, XSI_CL_DECLARE)
XSI_CL_USED(XSI_CL_DECLARE)

#endif /* XSCHED_OPENCL_CALLS_H */
