// SPDX-License-Identifier: Apache-2.0
//
// Who may use movable memory. One word has the number of threads in calls about memory, and two bits that make
// further ones wait: CLOSED while memory is not resident, MOVING while the mover works.
//
// A thread in the middle of a submission passes: the mover waits for the end of that anyway, and the call must not
// wait for the mover. Cancellation is off from enter to leave, because a thread that ended in between would count
// for ever.

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "fork.h"
#include "move_internal.h"
#include "options.h"
#include "wake.h"
#include "work.h"

enum { STEP_NS = 10000000 };

#define MOVING (1u << 31)
#define CLOSED (1u << 30)
#define INSIDE (CLOSED - 1)

static XSI_FORK_STATE uint32_t state; // and the futex word
static XSI_FORK_STATE bool said;      // by the daemon; stays when it goes
static bool on;                       // somebody asked once

static void (*on_wait)(bool begins);

static XSI_THREAD struct {
  unsigned depth;
  bool counted;
  bool passes;
  int cancel_state;
} mine;

// ---- is it asked for? ------------------------------------------------------------------------------

bool xsi_move_asked(void) {
  if (xsi_options.hint.movable != 0) return true;
  if (__atomic_load_n(&xsi_header()->memory_movable, __ATOMIC_RELAXED) != 0)
    __atomic_store_n(&said, true, __ATOMIC_RELAXED);
  return __atomic_load_n(&said, __ATOMIC_RELAXED);
}

static void reset_in_child(void) {
  state = 0;
  said = false;
  mine.depth = 0;
}

static bool turn_on(void) {
  if (!xsi_move_asked()) return false;
  if (!__atomic_exchange_n(&on, true, __ATOMIC_SEQ_CST)) xsi_at_fork_child(reset_in_child);
  return true;
}

// ---- calls about memory ---------------------------------------------------------------------------

static void wake(void) { syscall(SYS_futex, &state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }

static void leave(void) {
  uint32_t now = __atomic_sub_fetch(&state, 1, __ATOMIC_SEQ_CST);
  if (XSI_UNLIKELY((now & MOVING) != 0 && (now & INSIDE) == 0)) wake();
}

static void await(uint32_t closed) {
  uint32_t now;
  void (*callback)(bool) =
      (closed & CLOSED) != 0 ? __atomic_load_n(&on_wait, __ATOMIC_ACQUIRE) : NULL;
  if (callback) callback(true);
  while (((now = __atomic_load_n(&state, __ATOMIC_SEQ_CST)) & closed) != 0)
    syscall(SYS_futex, &state, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
  if (callback) callback(false);
}

static void enter(uint32_t closed) {
  if (mine.depth > 0) {
    mine.depth++;
    return;
  }
  if (XSI_LIKELY(!__atomic_load_n(&on, __ATOMIC_RELAXED)) && !turn_on()) return;
  if (mine.passes || xsi_wake_is_helper()) return;
  int saved = errno;
  mine.depth = 1;
  mine.counted = xsi_thread.work.calling == 0 || !xsi_thread.work.listed;
  if (mine.counted) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mine.cancel_state);
    while (XSI_UNLIKELY((__atomic_fetch_add(&state, 1, __ATOMIC_SEQ_CST) & closed) != 0)) {
      leave();
      await(closed);
    }
  }
  errno = saved;
}

void xsi_move_enter(void) { enter(MOVING | CLOSED); }
void xsi_move_enter_to_free(void) { enter(MOVING); }

void xsi_move_leave(void) {
  if (mine.depth == 0 || --mine.depth > 0 || !mine.counted) return;
  int saved = errno;
  leave();
  pthread_setcancelstate(mine.cancel_state, NULL);
  errno = saved;
}

bool xsi_move_inside(void) { return mine.depth > 0; }

// ---- the mover ------------------------------------------------------------------------------------

void xsi_move_passes(void) { mine.passes = true; }

void xsi_move_on_wait(void (*callback)(bool begins)) {
  __atomic_store_n(&on_wait, callback, __ATOMIC_RELEASE);
  xsi_work_on_wait(callback);
}

bool xsi_move_begin(uint64_t until_ns) {
  uint32_t before = __atomic_fetch_or(&state, MOVING | CLOSED, __ATOMIC_SEQ_CST), now;
  const struct timespec step = {.tv_nsec = STEP_NS};
  while (((now = __atomic_load_n(&state, __ATOMIC_SEQ_CST)) & INSIDE) != 0) {
    if (xsi_now_ns() >= until_ns) {
      xsi_move_end((before & CLOSED) == 0);
      return false;
    }
    syscall(SYS_futex, &state, FUTEX_WAIT_PRIVATE, now, &step, NULL, 0);
  }
  return true;
}

void xsi_move_end(bool open) {
  __atomic_fetch_and(&state, ~(MOVING | (open ? CLOSED : 0)), __ATOMIC_SEQ_CST);
  wake();
}
