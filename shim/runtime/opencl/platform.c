// SPDX-License-Identifier: Apache-2.0
//
// What the busy/idle bookkeeping asks of OpenCL. Only real functions are called here, never hooks.

#include "opencl.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/queue.h"

// ---- devices ------------------------------------------------------------------------

static bool device_info(cl_device_id device, cl_device_info name, void *value, size_t bytes) {
  return xsi_cl_call(clGetDeviceInfo, device, name, bytes, value, NULL) == CL_SUCCESS;
}

static uint32_t bus_slot(uint32_t bus, uint32_t device, uint32_t function) {
  return (bus & 255) << 8 | (device & 31) << 3 | (function & 7);
}

// The place of a device among all devices, which is the same in every process of this machine.
static int ordinal(cl_device_id wanted, uint32_t *place) {
  cl_platform_id platforms[16];
  cl_device_id devices[64];
  cl_uint platform_count = 0, device_count = 0;
  *place = 0;
  if (xsi_cl_call(clGetPlatformIDs, 16, platforms, &platform_count) != CL_SUCCESS) return -ENODEV;
  for (cl_uint p = 0; p < platform_count && p < 16; p++) {
    if (xsi_cl_call(clGetDeviceIDs, platforms[p], CL_DEVICE_TYPE_ALL, 64, devices, &device_count) !=
        CL_SUCCESS)
      continue;
    for (cl_uint d = 0; d < device_count && d < 64; d++, ++*place)
      if (devices[d] == wanted) return 0;
  }
  return -ENODEV;
}

// The first that answers: the KHR extension, NVIDIA's, AMD's. A CPU device has none of them.
static int describe(uintptr_t context, struct xsi_work_device *to) {
  cl_device_id device = (cl_device_id)context;
  uint32_t khr[4] = {0}, domain = 0, bus = 0, slot = 0;
  struct {
    uint32_t type;
    char unused[17];
    unsigned char bus, device, function;
  } __attribute__((packed)) topology = {0};
  if (device_info(device, CL_DEVICE_PCI_BUS_INFO_KHR, khr, sizeof khr)) {
    to->pci_domain = khr[0];
    to->pci_bus_slot = bus_slot(khr[1], khr[2], khr[3]);
  } else if (device_info(device, CL_DEVICE_PCI_BUS_ID_NV, &bus, sizeof bus) &&
             device_info(device, CL_DEVICE_PCI_SLOT_ID_NV, &slot, sizeof slot)) {
    device_info(device, CL_DEVICE_PCI_DOMAIN_ID_NV, &domain, sizeof domain);
    to->pci_domain = domain;
    to->pci_bus_slot = bus_slot(bus, slot >> 3, slot);
  } else if (device_info(device, CL_DEVICE_TOPOLOGY_AMD, &topology, sizeof topology) &&
             topology.type == 1) {
    to->pci_domain = 0;
    to->pci_bus_slot = bus_slot(topology.bus, topology.device, topology.function);
  } else {
    to->pci_domain = XSW_NO_PCI_DOMAIN;
    return ordinal(device, &to->pci_bus_slot);
  }
  return 0;
}

static bool queue_info(uintptr_t queue, cl_command_queue_info name, void *value, size_t bytes) {
  return xsi_cl_call(clGetCommandQueueInfo, (cl_command_queue)queue, name, bytes, value, NULL) ==
         CL_SUCCESS;
}

static uintptr_t context_of(uintptr_t queue) {
  cl_device_id device = NULL;
  return queue_info(queue, CL_QUEUE_DEVICE, &device, sizeof device) ? (uintptr_t)device : 0;
}

static int32_t priority_of(uintptr_t queue) {
  cl_uint priority = 0;
  if (!queue_info(queue, CL_QUEUE_PRIORITY_KHR, &priority, sizeof priority)) return 0;
  if (priority == CL_QUEUE_PRIORITY_HIGH_KHR) return 1;
  return priority == CL_QUEUE_PRIORITY_LOW_KHR ? -1 : 0;
}

// ---- events of ours -------------------------------------------------------------------

static void release(cl_event event) {
  if (event) (void)xsi_cl_call(clReleaseEvent, event);
}

static enum xsi_work_answer status(cl_event event) {
  cl_int now = CL_COMPLETE;
  cl_int result =
      xsi_cl_call(clGetEventInfo, event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof now, &now, NULL);
  // An event that failed, or that can't be asked any more, waits for nothing.
  return result != CL_SUCCESS || now <= CL_COMPLETE ? XSI_WORK_DONE : XSI_WORK_PENDING;
}

// A marker completes after all commands before it and holds up none behind it, in queues of either
// order. It needs a flush to be executed without one of the program's.
static cl_event put_marker(uintptr_t queue) {
  cl_event marker = NULL;
  if (xsi_cl_call(clEnqueueMarkerWithWaitList, (cl_command_queue)queue, 0, NULL, &marker) !=
      CL_SUCCESS)
    return NULL;
  (void)xsi_cl_call(clFlush, (cl_command_queue)queue);
  return marker;
}

static int event_record(uintptr_t context, uintptr_t *event, uintptr_t queue) {
  (void)context;
  release((cl_event)*event);
  *event = (uintptr_t)put_marker(queue);
  return *event ? 0 : -EIO;
}

static int event_wait(uintptr_t event) {
  cl_event one = (cl_event)event;
  return xsi_cl_call(clWaitForEvents, 1, &one) == CL_SUCCESS ? 0 : -EIO;
}

static enum xsi_work_answer event_query(uintptr_t context, uintptr_t event) {
  (void)context;
  return status((cl_event)event);
}

// ---- is a queue's work over? -----------------------------------------------------------

/* OpenCL has no question for that: the watcher keeps one marker in a queue that it looks at. */
struct marker {
  uintptr_t queue;
  cl_event event;
  uint64_t submitted; /* to the queue when the marker was put there */
  struct marker *next;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct marker *markers;

static struct marker **find(uintptr_t queue) {
  struct marker **at = &markers;
  while (*at && (*at)->queue != queue)
    at = &(*at)->next;
  return at;
}

static enum xsi_work_answer query(uintptr_t context, uintptr_t queue) {
  (void)context;
  struct xsi_work_stream *work = xsi_work_find(&xsi_cl_platform, 0, queue);
  if (!work) return XSI_WORK_UNKNOWN;
  enum xsi_work_answer answer = XSI_WORK_UNKNOWN;
  uint64_t submitted = xsi_work_submitted(work);
  pthread_mutex_lock(&lock);
  struct marker *mine = *find(queue);
  if (!mine && (mine = calloc(1, sizeof *mine))) {
    mine->queue = queue;
    mine->next = markers;
    markers = mine;
  }
  if (mine && mine->event && status(mine->event) == XSI_WORK_PENDING) {
    answer = XSI_WORK_PENDING;
  } else if (mine) {
    bool covers_all = mine->event && mine->submitted == submitted;
    release(mine->event);
    mine->event = covers_all ? NULL : put_marker(queue);
    mine->submitted = submitted;
    answer = covers_all ? XSI_WORK_DONE : mine->event ? status(mine->event) : XSI_WORK_UNKNOWN;
  }
  pthread_mutex_unlock(&lock);
  return answer;
}

void xsi_cl_marker_drop(cl_command_queue queue) {
  pthread_mutex_lock(&lock);
  struct marker **at = find((uintptr_t)queue), *mine = *at;
  if (mine) *at = mine->next;
  pthread_mutex_unlock(&lock);
  if (mine) release(mine->event);
  free(mine);
}

void xsi_cl_markers_reset(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  markers = NULL;
}

static int synchronize(uintptr_t context, uintptr_t queue) {
  (void)context;
  return xsi_cl_call(clFinish, (cl_command_queue)queue) == CL_SUCCESS ? 0 : -EIO;
}

static bool capturing(uintptr_t queue) {
  (void)queue;
  return false; // queues have no capture mode
}

static void watcher_starts(void) {}

const struct xsi_work_platform xsi_cl_platform = {
    .context_of = context_of,
    .describe = describe,
    .query = query,
    .event_query = event_query,
    .event_record = event_record,
    .event_wait = event_wait,
    .synchronize = synchronize,
    .capturing = capturing,
    .priority_of = priority_of,
    .watcher_starts = watcher_starts,
};
