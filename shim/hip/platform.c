// SPDX-License-Identifier: Apache-2.0
//
// What the busy/idle bookkeeping asks of HIP. Only real functions of the runtime are called here,
// never hooks.

#include "account.h"

#include "core/pci.h"

#include <errno.h>

/* A device's place here is what stands for it: an address that is no one else's. */
static const char places[XSI_HIP_DEVICES];

uintptr_t xsi_hip_context(int device) {
  return device >= 0 && device < XSI_HIP_DEVICES ? (uintptr_t)&places[device] : 0;
}

static int device_of(uintptr_t context) { return (int)((const char *)context - places); }

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

// Makes the device the thread's for one question, where that matters.
static hipError_t turn_to(uintptr_t context, int *before) {
  int device = device_of(context);
  *before = -1;
  if (xsi_hip_current() == context) return XSI_HIP_SUCCESS;
  int now = xsi_hip_entered ? xsi_hip_call_real(hipGetStreamDeviceId, NULL) : 0;
  hipError_t result = xsi_hip_done(xsi_hip_call_real(hipSetDevice, device));
  if (result == XSI_HIP_SUCCESS) *before = now < 0 ? 0 : now;
  return result;
}

static void turn_back(int before) {
  if (before >= 0) xsi_hip_call_real(hipSetDevice, before);
}

static enum xsi_work_answer answer(hipError_t result) {
  if (result == XSI_HIP_SUCCESS) return XSI_WORK_DONE;
  if (result == XSI_HIP_NOT_READY) return XSI_WORK_PENDING;
  if (result == XSI_HIP_NOT_FOUND) return XSI_WORK_UNKNOWN; // the runtime lacks the question
  if (result >= XSI_HIP_CAPTURE_FIRST && result <= XSI_HIP_CAPTURE_LAST) return XSI_WORK_UNKNOWN;
  return XSI_WORK_DONE; // the stream or the device failed: nothing runs there any more
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
  hipError_t result = turn_to(context, &before);
  if (result == XSI_HIP_SUCCESS) result = xsi_hip_call_real(hipStreamQuery, NULL);
  turn_back(before);
  return answer(result);
}

static enum xsi_work_answer event_query(uintptr_t context, uintptr_t event) {
  (void)context;
  return answer(xsi_hip_call_real(hipEventQuery, (hipEvent_t)event));
}

// Around calls of ours on an application's thread: in relaxed mode they can't break a capture that
// another thread has just begun.
static void relax(hipStreamCaptureMode *mode) {
  *mode = XSI_HIP_CAPTURE_RELAXED;
  xsi_hip_call_real(hipThreadExchangeStreamCaptureMode, mode);
}

static void unrelax(hipStreamCaptureMode *mode) {
  xsi_hip_call_real(hipThreadExchangeStreamCaptureMode, mode);
}

// An event belongs to the device it was made on.
static int event_record(uintptr_t context, uintptr_t *event, uintptr_t stream) {
  int before;
  hipStreamCaptureMode mode;
  relax(&mode);
  hipError_t result = turn_to(context, &before);
  if (result == XSI_HIP_SUCCESS && !*event) {
    hipEvent_t made = NULL;
    result = xsi_hip_call_real(hipEventCreateWithFlags, &made, (unsigned)XSI_HIP_EVENT_FLAGS);
    if (result == XSI_HIP_SUCCESS) *event = (uintptr_t)made;
  }
  if (result == XSI_HIP_SUCCESS)
    result = xsi_hip_call_real(hipEventRecord, (hipEvent_t)*event, xsi_hip_plain(stream));
  turn_back(before);
  unrelax(&mode);
  return result == XSI_HIP_SUCCESS ? 0 : -EIO;
}

static int event_wait(uintptr_t event) {
  hipStreamCaptureMode mode;
  relax(&mode);
  hipError_t result = xsi_hip_call_real(hipEventSynchronize, (hipEvent_t)event);
  unrelax(&mode);
  return result == XSI_HIP_SUCCESS ? 0 : -EIO;
}

static int synchronize(uintptr_t context, uintptr_t stream) {
  int before;
  hipError_t result = turn_to(context, &before);
  if (result == XSI_HIP_SUCCESS)
    result = xsi_hip_call_real(hipStreamSynchronize, xsi_hip_plain(stream));
  turn_back(before);
  return result == XSI_HIP_SUCCESS ? 0 : -EIO;
}

static bool capturing(uintptr_t stream) { return xsi_hip_captured((hipStream_t)stream); }

// HIP counts downwards: -1 is more important than 0, and 0 than 1.
static int32_t priority_of(uintptr_t stream) {
  int priority = 0;
  if (xsi_hip_call_real(hipStreamGetPriority, (hipStream_t)stream, &priority) != XSI_HIP_SUCCESS)
    return 0;
  return priority < -XSW_PRIORITY_MAX || priority > XSW_PRIORITY_MAX ? 0 : -priority;
}

// What this thread asks is then never taken for a part of somebody's capture.
static void watcher_starts(void) {
  hipStreamCaptureMode mode;
  relax(&mode); // for the rest of its life
}

const struct xsi_work_platform xsi_hip_platform = {
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
    .waits_at_thread_exit = true,
    .query_joins = true, // by a marker, and the others' next work waits for that
};
