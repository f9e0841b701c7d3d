// SPDX-License-Identifier: Apache-2.0
//
// The gate of the whole process, for memory that moves. It is the shim's own: neither the daemon nor its silence
// opens it. It costs a launch nothing, because a launch looks at the slot of its stream anyway: shutting gives every
// stream a slot whose gate is closed. A launch counts before it looks, and a membarrier lies between the new slots and
// the first look at the counts. So each launch either finds the gate closed, or is seen in its stream's counts until
// it has returned from the driver.
//
// A thread that waits here counts as no work. A call within another call passes: the mover waits for the outer one.

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "work_internal.h"

struct xsw_queue xsi_work_shut_slot = {.gate = XSW_GATE_HELD};
XSI_FORK_STATE bool xsi_work_is_shut; // under the work lock
static XSI_FORK_STATE uint32_t
    shut; // 1 from before the first slot until after the last; the futex word
static XSI_FORK_STATE bool unrecorded;
static void (*on_wait)(bool begins);

void xsi_work_on_wait(void (*callback)(bool begins)) {
  __atomic_store_n(&on_wait, callback, __ATOMIC_RELEASE);
}

static void choose_slots(bool now) {
  xsi_work_lock();
  xsi_work_is_shut = now;
  for (struct xsi_work_context *context = xsi_work_contexts; context; context = context->next)
    for (struct xsi_work_stream *stream = context->streams; stream; stream = stream->next)
      xsi_work_choose_slot(stream);
  xsi_work_unlock();
}

bool xsi_work_shut(void) {
  if (!xsi_work_owners()) return false;
  __atomic_store_n(&shut, 1, __ATOMIC_SEQ_CST);
  __atomic_fetch_or(&xsi_work_closed, XSI_WORK_CLOSED_SHUT, __ATOMIC_SEQ_CST);
  choose_slots(true);
  if (xsi_work_meet_all() && !__atomic_load_n(&unrecorded, __ATOMIC_SEQ_CST)) return true;
  xsi_work_reopen();
  return false;
}

// The slots before the wake-up: a woken launcher finds the daemon's.
void xsi_work_reopen(void) {
  choose_slots(false);
  __atomic_fetch_and(&xsi_work_closed, ~XSI_WORK_CLOSED_SHUT, __ATOMIC_SEQ_CST);
  __atomic_store_n(&shut, 0, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &shut, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool xsi_work_quiet(void) {
  xsi_work_lock();
  bool quiet = !xsi_work_any_calls();
  for (struct xsi_work_context *context = xsi_work_contexts; context; context = context->next)
    for (struct xsi_work_stream *stream = context->streams; stream; stream = stream->next)
      quiet = quiet && xsi_work_submitted(stream) == xsi_work_mark(stream);
  xsi_work_unlock();
  return quiet;
}

void xsi_work_await_open(void) {
  int cancel_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state); // who waits is counted
  void (*callback)(bool) = __atomic_load_n(&on_wait, __ATOMIC_ACQUIRE);
  if (callback) callback(true);
  while (__atomic_load_n(&shut, __ATOMIC_SEQ_CST) != 0)
    syscall(SYS_futex, &shut, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
  if (callback) callback(false);
  pthread_setcancelstate(cancel_state, NULL);
}

// A record whose stream or context has gone meanwhile keeps the closed slot: the driver judges that call.
bool xsi_work_shut_out(const struct xsi_work_stream *stream) {
  const struct xsi_work_thread *mine = &xsi_thread.work;
  return xsi_work_slot(stream) == &xsi_work_shut_slot &&
         __atomic_load_n(&shut, __ATOMIC_SEQ_CST) != 0 && (mine->calling <= 1 || !mine->listed);
}

// The flag before the look: shutting does the reverse, so that one sees the other.
void xsi_work_unrecorded(void) {
  int saved_errno = errno;
  __atomic_store_n(&unrecorded, true, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&shut, __ATOMIC_SEQ_CST) != 0) xsi_work_await_open();
  errno = saved_errno;
}

bool xsi_work_has_unrecorded(void) { return __atomic_load_n(&unrecorded, __ATOMIC_SEQ_CST); }

void xsi_work_shut_reset(void) {
  xsi_work_is_shut = unrecorded = false;
  shut = xsi_work_closed = 0;
}
