/* SPDX-License-Identifier: Apache-2.0
 *
 * What a HIP entry point does before and after the real call: the generated ones are made of
 * these. Streams come with stream 0 made explicit (xsi_hip_legacy, xsi_hip_thread).
 *
 * A context of the bookkeeping is a device. The runtime is asked as little as possible, and on the
 * program's threads only what leaves no trace: nearly every HIP function writes to AMD_LOG and sets
 * what hipGetLastError says. hipGetStreamDeviceId does neither, but older runtimes crash in it if
 * the stream is none, or if the thread has not used HIP yet; hence the table of streams (stream.c)
 * and the notes on who has.
 */
#ifndef XSCHED_HIP_ACCOUNT_H
#define XSCHED_HIP_ACCOUNT_H

#include "core/work.h"
#include "library.h"

#define XSI_HIP_LEGACY ((hipStream_t)XSI_WORK_LEGACY)
#define XSI_HIP_THREAD ((hipStream_t)XSI_WORK_THREAD)
#define XSI_HIP_DEVICES 64

static inline hipStream_t xsi_hip_legacy(hipStream_t stream) {
  return stream ? stream : XSI_HIP_LEGACY;
}
static inline hipStream_t xsi_hip_thread(hipStream_t stream) {
  return stream ? stream : XSI_HIP_THREAD;
}
/* As a runtime without a name for the default stream knows it. */
static inline hipStream_t xsi_hip_plain(uintptr_t handle) {
  return handle == XSI_WORK_LEGACY ? NULL : (hipStream_t)handle;
}
/* Of either kind of configuration. */
static inline hipStream_t xsi_hip_config_stream(const void *config) {
  return config ? ((const hipLaunchConfig_t *)config)->stream : NULL;
}
/* Is a copy of that kind over when the call returns? Between host and device it is. */
static inline bool xsi_hip_waits(hipMemcpyKind kind) {
  return kind == XSI_HIP_HOST_TO_DEVICE || kind == XSI_HIP_DEVICE_TO_HOST;
}

bool xsi_hip_start(void) __attribute__((cold));
/* False: XSCHED_DISABLE, every entry point is the plain call. */
static inline bool xsi_hip_active(void) {
  int state = __atomic_load_n(&xsi_hip_state, __ATOMIC_ACQUIRE);
  return XSI_LIKELY(state == XSI_HIP_ACTIVE) || (state == XSI_HIP_FRESH && xsi_hip_start());
}

/* Counts the call; false: plain. */
static inline bool xsi_hip_enter(void) {
  if (XSI_UNLIKELY(!xsi_hip_active())) return false;
  xsi_count(hooked_calls, 1);
  return true;
}

/* A call of this thread has succeeded: the runtime is up, and knows the thread's device. */
extern _Thread_local bool xsi_hip_entered __attribute__((tls_model("initial-exec")));
extern bool xsi_hip_alive; /* the same of any thread */
/* The default stream that work goes to before any call has succeeded; it is counted when it has. */
extern _Thread_local hipStream_t xsi_hip_early __attribute__((tls_model("initial-exec")));
void xsi_hip_first(hipError_t result) __attribute__((cold));
static inline hipError_t xsi_hip_done(hipError_t result) {
  if (XSI_UNLIKELY(!xsi_hip_entered)) xsi_hip_first(result);
  return result;
}

/* From before the real call to after it. Work is kept in registers, the rest in memory. */
enum xsi_hip_mode { XSI_HIP_PLAIN, XSI_HIP_COUNTED, XSI_HIP_CAPTURED };
struct xsi_hip_call {
  struct xsi_work_stream *work; /* NULL: not accounted for */
  enum xsi_hip_mode mode;
};
struct xsi_hip_wait {
  struct xsi_hip_call call;
  uint64_t mark;
};

extern const struct xsi_work_platform xsi_hip_platform; /* platform.c */
uintptr_t xsi_hip_context(int device);                  /* 0: none of that number */
/* Of the calling thread. A thread that has not used HIP yet is on the first one. */
static inline uintptr_t xsi_hip_current(void) {
  if (XSI_UNLIKELY(!__atomic_load_n(&xsi_hip_alive, __ATOMIC_ACQUIRE))) return 0;
  int device = xsi_hip_entered ? xsi_hip_call_real(hipGetStreamDeviceId, NULL) : 0;
  return xsi_hip_context(device < 0 || device >= XSI_HIP_DEVICES ? 0 : device);
}

static inline struct xsi_work_stream *xsi_hip_work(hipStream_t stream) {
  uintptr_t handle = (uintptr_t)stream;
  if (handle > XSI_WORK_THREAD) return xsi_work_find(&xsi_hip_platform, 0, handle);
  uintptr_t context = xsi_hip_current();
  return XSI_LIKELY(context) ? xsi_work_find(&xsi_hip_platform, context, handle) : NULL;
}

/* Asked only while there are captures: does what goes into the stream become part of a graph? */
bool xsi_hip_is_capturing(hipStream_t stream) __attribute__((cold));
static inline bool xsi_hip_captured(hipStream_t stream) {
  return XSI_UNLIKELY(__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) != 0) &&
         xsi_hip_is_capturing(stream);
}

/* ---- work ------------------------------------------------------------------------- */

#define XSI_HIP_INLINE static inline __attribute__((always_inline))

struct xsi_hip_call xsi_hip_begin_work(hipStream_t stream);
hipError_t xsi_hip_end_work(struct xsi_hip_call call, hipError_t result);

/* Launches have it inlined, as far as it is the same stream again and again. Whose a default stream
 * is has to be asked every time. */
XSI_HIP_INLINE struct xsi_hip_call xsi_hip_begin_launch(hipStream_t stream) {
  uintptr_t handle = (uintptr_t)stream;
  struct xsi_hip_call call = {NULL, XSI_HIP_COUNTED};
  if (handle > XSI_WORK_THREAD && xsi_hip_active()) call.work = xsi_work_same(0, handle);
  if (XSI_UNLIKELY(!call.work)) return xsi_hip_begin_work(stream);
  xsi_count(hooked_calls, 1);
  xsi_work_submit(call.work);
  return call;
}

XSI_HIP_INLINE hipError_t xsi_hip_end_launch(struct xsi_hip_call call, hipError_t result) {
  if (XSI_UNLIKELY(result != XSI_HIP_SUCCESS)) {
    if (call.work) xsi_work_withdraw(call.work);
    return result;
  }
  if (XSI_LIKELY(call.mode == XSI_HIP_COUNTED))
    xsi_count(launches, 1);
  else if (call.mode == XSI_HIP_CAPTURED)
    xsi_count(captured, 1);
  if (XSI_LIKELY(call.work != NULL)) xsi_work_landed(call.work);
  return result;
}

/* A launch that records start before the kernel and stop behind it. */
struct xsi_hip_call xsi_hip_begin_ext(hipStream_t stream, hipEvent_t start, hipEvent_t stop);
hipError_t xsi_hip_end_ext(struct xsi_hip_call call, hipEvent_t stop, hipError_t result);

struct xsi_hip_call xsi_hip_begin_copy(hipStream_t stream);
hipError_t xsi_hip_end_copy(struct xsi_hip_call call, hipError_t result);

/* Copies that are over when the call returns, and so is all that was in their stream before. */
void xsi_hip_begin_wait(struct xsi_hip_wait *wait, hipStream_t stream);
hipError_t xsi_hip_end_wait(struct xsi_hip_wait *wait, hipError_t result);

/* ---- waits and events ---------------------------------------------------------------- */

void xsi_hip_begin_sync(struct xsi_hip_wait *wait, hipStream_t stream);
hipError_t xsi_hip_end_sync(struct xsi_hip_wait *wait, hipError_t result);
void xsi_hip_begin_record(struct xsi_hip_wait *wait, hipEvent_t event, hipStream_t stream);
hipError_t xsi_hip_end_record(struct xsi_hip_wait *wait, hipEvent_t event, hipError_t result);

/* ---- streams (stream.c) and captures ---------------------------------------------------- */

hipError_t xsi_hip_stream_created(hipError_t result, hipStream_t *stream);
void xsi_hip_stream_destroying(hipStream_t stream);
int xsi_hip_stream_device(hipStream_t stream); /* -1: not one we saw being made */
void xsi_hip_streams_forget(int device);
void xsi_hip_streams_reset(void); /* in the child of a fork */
void xsi_hip_capture_begin(struct xsi_hip_wait *wait, hipStream_t stream);
hipError_t xsi_hip_capture_begin_done(struct xsi_hip_wait *wait, hipError_t result);
void xsi_hip_capture_end(struct xsi_hip_wait *wait, hipStream_t stream);
hipError_t xsi_hip_capture_end_done(struct xsi_hip_wait *wait, hipError_t result);
bool xsi_hip_capture_wait(void);
hipError_t xsi_hip_capture_wait_done(bool excluded, hipError_t result);

#endif /* XSCHED_HIP_ACCOUNT_H */
