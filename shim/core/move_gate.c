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
#include <unistd.h>

#include "fork.h"
#include "move_internal.h"
#include "options.h"
#include "wake.h"
#include "work.h"

#define MOVING (1u << 31)
#define CLOSED (1u << 30)
#define INSIDE (CLOSED - 1)

static XSI_FORK_STATE uint32_t state; // and the futex word
static XSI_FORK_STATE bool said;      // by the daemon; stays when it goes
static bool on;                       // somebody asked once

static XSI_THREAD struct {
  unsigned depth;
  bool counted;
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

static void leave(void) {
  uint32_t now = __atomic_sub_fetch(&state, 1, __ATOMIC_SEQ_CST);
  if (XSI_UNLIKELY((now & MOVING) != 0 && (now & INSIDE) == 0))
    syscall(SYS_futex, &state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void await(uint32_t closed) {
  uint32_t now;
  while (((now = __atomic_load_n(&state, __ATOMIC_SEQ_CST)) & closed) != 0)
    syscall(SYS_futex, &state, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
}

static void enter(uint32_t closed) {
  if (mine.depth > 0) {
    mine.depth++;
    return;
  }
  if (XSI_LIKELY(!__atomic_load_n(&on, __ATOMIC_RELAXED)) && !turn_on()) return;
  if (xsi_wake_is_helper()) return;
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
