/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounting of HIP calls. Stream 0 is made explicit first (xsi_hip_legacy, xsi_hip_thread).
 *
 * A context of work.h is a device. On the program's threads the shim calls only functions without side
 * effects: nearly every HIP function writes to AMD_LOG and sets the last error. hipGetStreamDeviceId
 * does neither, but older runtimes crash in it for an invalid stream, or on a thread that has not used
 * HIP yet. Therefore stream.c records the streams, and each thread whether it has used HIP.
 */
#ifndef XSCHED_HIP_ACCOUNT_H
#define XSCHED_HIP_ACCOUNT_H

#include "library.h"
#include "runtime/account.h"

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
/* Is a copy of that kind over when the call returns? Only what the host receives must be. */
static inline bool xsi_hip_waits(hipMemcpyKind kind) { return kind == XSI_HIP_DEVICE_TO_HOST; }

/* Does one of these operations wait for a value? */
bool xsi_hip_waits_batch(unsigned count, const hipStreamBatchMemOpParams *operations);

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

extern const struct xsi_account xsi_hip_account;        /* account.c */
struct xsi_call xsi_hip_begin(uintptr_t stream);        /* begin_launch, not inlined */
extern const struct xsi_work_platform xsi_hip_platform; /* platform.c */
uintptr_t xsi_hip_context(int device);                  /* 0: none of that number */
struct xsi_memory_place;
bool xsi_hip_place_of(uintptr_t context, struct xsi_memory_place *place); /* memory.c */
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

/* A graph may record events, also those that stand for work in a stream: none does after its launch. */
extern bool xsi_hip_graph_events; /* atomic */
static inline void xsi_hip_graph_launches(void) {
  if (XSI_UNLIKELY(__atomic_load_n(&xsi_hip_graph_events, __ATOMIC_RELAXED)))
    xsi_work_events_forget_all();
}
static inline void xsi_hip_record_flags(unsigned flags) {
  if (XSI_UNLIKELY((flags & XSI_HIP_RECORD_EXTERNAL) != 0))
    __atomic_store_n(&xsi_hip_graph_events, true, __ATOMIC_RELAXED);
}

/* ---- work ------------------------------------------------------------------------- */

/* Launches have it inlined, as far as it is the same stream again and again. Whose a default stream
 * is has to be asked every time. */
XSI_INLINE struct xsi_call xsi_hip_begin_launch(hipStream_t stream) {
  uintptr_t handle = (uintptr_t)stream;
  struct xsi_call call = {NULL, XSI_COUNTED};
  if (handle > XSI_WORK_THREAD && xsi_hip_active()) call.work = xsi_work_same(0, handle);
  if (XSI_UNLIKELY(!call.work)) return xsi_begin_work(&xsi_hip_account, handle, XSI_WORK_OTHER);
  xsi_count(hooked_calls, 1);
  xsi_work_submit(call.work, XSI_WORK_OTHER);
  return call;
}

/* A launch that records start before the kernel and stop behind it. */
struct xsi_call xsi_hip_begin_ext(hipStream_t stream, hipEvent_t start, hipEvent_t stop);
hipError_t xsi_hip_end_ext(struct xsi_call call, hipEvent_t stop, hipError_t result);

hipError_t xsi_hip_stream_created(hipError_t result, hipStream_t *stream);
void xsi_hip_stream_destroying(hipStream_t stream);
int xsi_hip_stream_device(hipStream_t stream); /* -1: not one we saw being made */
void xsi_hip_stream_adopt(hipStream_t stream); /* records it, on a thread that has used HIP */
void xsi_hip_streams_forget(int device);
void xsi_hip_streams_reset(void); /* in the child of a fork */

#endif /* XSCHED_HIP_ACCOUNT_H */
