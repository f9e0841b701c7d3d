// SPDX-License-Identifier: Apache-2.0
//
// What the busy/idle bookkeeping asks of OpenCL. Only real functions are called here, never hooks.

#include "library.h"

#include <string.h>

// ---- devices ------------------------------------------------------------------------

static bool device_info(cl_device_id device, cl_device_info name, void *value, size_t bytes) {
  return xsi_cl_call(clGetDeviceInfo, device, name, bytes, value, NULL) == CL_SUCCESS;
}

static uint32_t bus_slot(uint32_t bus, uint32_t device, uint32_t function) {
  return (bus & 255) << 8 | (device & 31) << 3 | (function & 7);
}

static uint32_t hash(const char *text) {
  uint32_t sum = 2166136261u;
  for (; *text; text++)
    sum = (sum ^ (unsigned char)*text) * 16777619u;
  return sum;
}

// A device without a PCI address is known by its name, and by its place among devices of that name:
// the same in every process that has the same platform.
static int nameless(cl_device_id wanted, uint32_t *slot) {
  char name[256] = "", other[256];
  cl_platform_id platform = NULL;
  cl_device_id devices[64];
  cl_uint count = 0;
  uint32_t place = 0;
  if (!device_info(wanted, CL_DEVICE_NAME, name, sizeof name - 1) ||
      !device_info(wanted, CL_DEVICE_PLATFORM, &platform, sizeof platform) ||
      xsi_cl_call(clGetDeviceIDs, platform, CL_DEVICE_TYPE_ALL, 64, devices, &count) != CL_SUCCESS)
    return -ENODEV;
  for (cl_uint i = 0; i < count && i < 64 && devices[i] != wanted; i++) {
    memset(other, 0, sizeof other);
    if (device_info(devices[i], CL_DEVICE_NAME, other, sizeof other - 1) &&
        strcmp(name, other) == 0)
      place++;
  }
  *slot = (hash(name) & 255) << 8 | (place & 255);
  return 0;
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
    return nameless(device, &to->pci_bus_slot);
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

// ---- events -----------------------------------------------------------------------------

// An event can't be recorded again: each record returns the one behind the last command.
static int event_record(uintptr_t context, uintptr_t *event, uintptr_t queue) {
  (void)context;
  cl_event last = xsi_cl_queue_last((cl_command_queue)queue);
  (void)xsi_cl_call(clFlush, (cl_command_queue)queue);
  *event = (uintptr_t)last;
  return last ? 0 : -EIO;
}

static void event_drop(uintptr_t event) { xsi_cl_release_later((cl_event)event); }

static enum xsi_work_answer event_query(uintptr_t context, uintptr_t event) {
  (void)context;
  return xsi_cl_status((cl_event)event);
}

static enum xsi_work_answer query(uintptr_t context, uintptr_t queue) {
  (void)context;
  return xsi_cl_queue_query((cl_command_queue)queue);
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
    .poll = query,
    .event_record = event_record,
    .event_poll = event_query,
    .event_drop = event_drop,
    .synchronize = synchronize,
    .capturing = capturing,
    .priority_of = priority_of,
    .watcher_starts = watcher_starts,
};
