// SPDX-License-Identifier: Apache-2.0
//
// The parts of the HIP entry points that are not on the way of a launch.

#include "account.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "core/fork.h"
#include "core/options.h"

int xsi_hip_state = XSI_HIP_FRESH;
_Thread_local bool xsi_hip_entered __attribute__((tls_model("initial-exec")));
_Thread_local hipStream_t xsi_hip_early __attribute__((tls_model("initial-exec")));
bool xsi_hip_alive;
bool xsi_hip_graph_events;

// The runtime does not survive a fork; a child that starts one anew begins like any process.
static void reset_in_child(void) {
  xsi_hip_entered = false;
  xsi_hip_alive = false;
  xsi_hip_streams_reset();
}

void xsi_hip_first(hipError_t result) {
  hipStream_t early = xsi_hip_early;
  xsi_hip_early = NULL;
  if (result != XSI_HIP_SUCCESS) return;
  xsi_hip_entered = true;
  __atomic_store_n(&xsi_hip_alive, true, __ATOMIC_RELEASE);
  struct xsi_work_stream *work = early ? xsi_hip_work(early) : NULL;
  if (!work) return;
  xsi_work_submit(work, XSI_WORK_OTHER);
  xsi_work_landed(work);
}

bool xsi_hip_start(void) {
  static bool registered;
  xsi_runtime_init();
  bool active = !xsi_options.disabled;
  if (active) xsi_runtime_bind_all(&xsi_hip_runtime);
  active = active && xsi_work_start(&xsi_hip_platform);
  if (active && !__atomic_exchange_n(&registered, true, __ATOMIC_SEQ_CST))
    xsi_at_fork_child(reset_in_child);
  int state = active ? XSI_HIP_ACTIVE : XSI_HIP_DISABLED;
  __atomic_store_n(&xsi_hip_state, state, __ATOMIC_RELEASE);
  return state == XSI_HIP_ACTIVE;
}

static bool is_capturing(uintptr_t stream) {
  hipStreamCaptureStatus status = XSI_HIP_CAPTURE_NONE;
  return xsi_hip_call_real(hipStreamIsCapturing, xsi_hip_plain(stream), &status) ==
             XSI_HIP_SUCCESS &&
         status != XSI_HIP_CAPTURE_NONE;
}

struct question {
  uintptr_t stream;
  bool capturing;
};
static void *ask(void *argument) {
  struct question *question = argument;
  question->capturing = is_capturing(question->stream);
  return NULL;
}

// What hipGetLastError says is a thread's own, and in some versions a call that succeeds changes
// it: the question is put by a thread that nobody else has. A thread's own default stream is known
// to that thread alone.
static bool still_capturing(uintptr_t stream) {
  struct question question = {stream, true};
  pthread_t thread;
  sigset_t all, before;
  int saved_errno = errno, cancellable;
  // A thread can be cancelled while it waits for another: not this one, which holds a lock.
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellable);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool alone = stream <= XSI_WORK_THREAD || pthread_create(&thread, NULL, ask, &question) != 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (alone)
    ask(&question);
  else
    pthread_join(thread, NULL);
  pthread_setcancelstate(cancellable, &cancellable);
  errno = saved_errno;
  return question.capturing;
}

/* What had landed in the stream when this thread's launch with events began. */
static _Thread_local uint64_t before_ext __attribute__((tls_model("initial-exec")));

struct xsi_call xsi_hip_begin_ext(hipStream_t stream, hipEvent_t start, hipEvent_t stop) {
  struct xsi_call call = xsi_hip_begin_launch(stream);
  if (call.mode == XSI_PLAIN) return call;
  if (start) xsi_work_event_forget((uintptr_t)start);
  if (stop) xsi_work_event_forget((uintptr_t)stop);
  if (call.work) before_ext = xsi_work_mark(call.work);
  return call;
}

hipError_t xsi_hip_end_ext(struct xsi_call call, hipEvent_t stop, hipError_t result) {
  xsi_end_launch(call, result);
  // What other threads have put behind the kernel meanwhile is not over when the event is.
  if (call.work && stop && result == XSI_HIP_SUCCESS)
    xsi_work_event_recorded((uintptr_t)stop, call.work, before_ext + 1);
  return result;
}

bool xsi_hip_waits_batch(unsigned count, const hipStreamBatchMemOpParams *operations) {
  for (unsigned i = 0; operations && i < count && i < 256; i++) // the runtime takes no more
    if (operations[i].operation == XSI_HIP_OP_WAIT_32 ||
        operations[i].operation == XSI_HIP_OP_WAIT_64)
      return true;
  return false;
}

struct xsi_call xsi_hip_begin(uintptr_t stream) {
  return xsi_hip_begin_launch((hipStream_t)stream);
}

static bool enter(void) { return xsi_hip_enter(); }
static struct xsi_work_stream *work(uintptr_t stream) { return xsi_hip_work((hipStream_t)stream); }
static void unknown(uintptr_t stream) {
  if (stream <= XSI_WORK_THREAD)
    xsi_hip_early = (hipStream_t)stream; // before any memory of the process
  else
    xsi_work_unrecorded();
}

const struct xsi_account xsi_hip_account = {
    .enter = enter,
    .enter_submit = enter,
    .begin = xsi_hip_begin,
    .work = work,
    .is_capturing = is_capturing,
    .still_capturing = still_capturing,
    .unknown = unknown,
    .not_ready = XSI_HIP_NOT_READY,
};
