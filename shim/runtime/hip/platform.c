// SPDX-License-Identifier: Apache-2.0
//
// struct xsi_work_platform for HIP. Only real functions of the runtime are called here, never hooks.

#include "move.h"

#include "runtime/pci.h"

#include <errno.h>

/* A device's place here is what stands for it: an address that is no one else's. */
static const char places[XSI_HIP_DEVICES];

uintptr_t xsi_hip_context(int device) {
  return device >= 0 && device < XSI_HIP_DEVICES ? (uintptr_t)&places[device] : 0;
}

static int device_of(uintptr_t context) { return (int)((const char *)context - places); }

hipError_t xsi_hip_turn_to(uintptr_t context, int *before) {
  int device = device_of(context);
  *before = -1;
  if (xsi_hip_current() == context) return XSI_HIP_SUCCESS;
  int now = xsi_hip_entered ? xsi_hip_call_real(hipGetStreamDeviceId, NULL) : 0;
  hipError_t result = xsi_hip_done(xsi_hip_call_real(hipSetDevice, device));
  if (result == XSI_HIP_SUCCESS) *before = now < 0 ? 0 : now;
  return result;
}

void xsi_hip_turn_back(int before) {
  if (before >= 0) xsi_hip_call_real(hipSetDevice, before);
}

#define turn_to xsi_hip_turn_to
#define turn_back xsi_hip_turn_back
#define P(name) xsi_hip_##name
#define C(name) XSI_HIP_##name
#define REAL(name, ...) xsi_hip_call_real(hip##name, __VA_ARGS__)
#define XSI_RESULT hipError_t
#define XSI_STREAM hipStream_t
#define XSI_EVENT hipEvent_t
#define XSI_CAPTURE_MODE hipStreamCaptureMode
#define XSI_EVENT_CREATE(event, flags) REAL(EventCreateWithFlags, event, flags)
#define XSI_HANDLE(stream) xsi_hip_plain(stream)
#include "runtime/platform.inc"

static uintptr_t context_of(uintptr_t stream) {
  // Of a stream that we did not see being made nothing is known, not even that it is one.
  return xsi_hip_context(xsi_hip_stream_device((hipStream_t)stream));
}

static int describe(uintptr_t context, struct xsi_work_device *device) {
  char name[64] = "";
  if (xsi_hip_call_real(hipDeviceGetPCIBusId, name, (int)sizeof name - 1, device_of(context)) !=
      XSI_HIP_SUCCESS)
    return -ENODEV;
  return xsi_pci_parse(name, &device->pci_domain, &device->pci_bus_slot);
}

static enum xsi_work_answer query(uintptr_t context, uintptr_t stream) {
  // Another thread's default stream has no handle here, and no other stream answers for it: the
  // program's own waits, or the thread's end, tell.
  if (stream == XSI_WORK_THREAD) return XSI_WORK_UNKNOWN;
  if (stream > XSI_WORK_THREAD) {
    hipStreamCaptureStatus status = XSI_HIP_CAPTURE_NONE;
    hipError_t result = xsi_hip_call_real(hipStreamIsCapturing, (hipStream_t)stream, &status);
    if (result != XSI_HIP_SUCCESS && result != XSI_HIP_NOT_FOUND) return answer(result);
    if (status != XSI_HIP_CAPTURE_NONE) return XSI_WORK_UNKNOWN;
    return answer(xsi_hip_call_real(hipStreamQuery, (hipStream_t)stream));
  }
  int before;
  hipError_t result = xsi_hip_turn_to(context, &before);
  if (result == XSI_HIP_SUCCESS) result = xsi_hip_call_real(hipStreamQuery, NULL);
  xsi_hip_turn_back(before);
  return answer(result);
}

static enum xsi_work_answer event_query(uintptr_t context, uintptr_t event) {
  (void)context;
  return answer(xsi_hip_call_real(hipEventQuery, (hipEvent_t)event));
}

const struct xsi_work_platform xsi_hip_platform = {
    .context_of = context_of,
    .describe = describe,
    .query = query,
    .event_query = event_query,
    .poll = poll,
    .event_record = event_record,
    .event_poll = event_poll,
    .synchronize = synchronize,
    .capturing = capturing,
    .priority_of = priority_of,
    .watcher_starts = watcher_starts,
    .waits_at_thread_exit = true,
    .query_joins = true, // by a marker, and the others' next work waits for that
};
