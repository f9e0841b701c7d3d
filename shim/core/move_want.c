// SPDX-License-Identifier: Apache-2.0
//
// Before out-of-memory: the daemon may make room. One thread of the process asks at a time. The page's word about
// orders changes with each verdict, so that a thread sleeps on it.

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "doorbell.h"
#include "fork.h"
#include "gate.h"
#include "move_internal.h"
#include "session.h"

enum {
  VERDICT_NS = 200000000, /* a daemon that has not answered by then will not */
  RETRY_NS = 2000000,
  JOIN_NS = 1000000000, /* a daemon that has not let the program in by then is too slow to ask */
};

static XSI_FORK_STATE uint32_t turn; // 1: a thread asks; and the futex word

static void nap(uint32_t *word, uint32_t value, long ns) {
  const struct timespec limit = {.tv_nsec = ns};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

static void reset_in_child(void) { turn = 0; }

static bool take_turn(void) {
  static uint32_t registered;
  if (!__atomic_exchange_n(&registered, 1, __ATOMIC_SEQ_CST)) xsi_at_fork_child(reset_in_child);
  while (__atomic_exchange_n(&turn, 1, __ATOMIC_SEQ_CST) != 0) {
    if (xsi_gate_silent(xsi_now_ns())) return false;
    nap(&turn, 1, RETRY_NS);
  }
  return true;
}

// A program may allocate before its first session has begun, a few milliseconds after its start.
static void await_session(void) {
  uint64_t limit = xsi_now_ns() + JOIN_NS;
  while (__atomic_load_n(&xsi_session_undecided, __ATOMIC_ACQUIRE) != 0 && xsi_now_ns() < limit)
    nap(&xsi_session_undecided, 1, RETRY_NS);
}

static void publish(const struct xsi_move_want *want, uint64_t bytes, uint64_t room) {
  struct xsw_memory_device *entry = xsi_memory_edit(want->place);
  if (!entry) return;
  entry->wanted = bytes;
  entry->wanted_ns = bytes != 0 ? want->wanted_ns : 0;
  if (bytes != 0) entry->room = room;
  xsi_memory_edited(entry);
}

// The verdict that is in the page now.
static enum xsw_memory_verdict verdict(const struct xsi_move_want *want) {
  int index = xsi_memory_index(want->place);
  if (index < 0) return XSW_VERDICT_FAIL;
  const struct xsw_memory_order *order = &xsi_page_memory()->orders[index];
  if (__atomic_load_n(&order->answered_ns, __ATOMIC_ACQUIRE) != want->wanted_ns)
    return XSW_VERDICT_NONE;
  return __atomic_load_n(&order->verdict, __ATOMIC_ACQUIRE);
}

static bool await_verdict(struct xsi_move_want *want) {
  for (;;) {
    uint32_t *orders = &xsi_header()->memory_orders;
    uint32_t seen = __atomic_load_n(orders, __ATOMIC_SEQ_CST);
    uint64_t now = xsi_now_ns();
    switch (verdict(want)) {
    case XSW_VERDICT_WAIT:
      if (want->granted) nap(orders, seen, RETRY_NS);
      want->granted = true;
      return !xsi_gate_silent(now);
    case XSW_VERDICT_NONE:
      // One that was granted has an answer, unless the daemon has gone.
      if (want->granted || now >= want->wanted_ns + VERDICT_NS || xsi_gate_silent(now))
        return false;
      nap(orders, seen, RETRY_NS);
      break;
    default: return false;
    }
  }
}

bool xsi_move_wants(struct xsi_move_want *want, struct xsi_memory_place place, uint64_t bytes,
                    uint64_t room) {
  int saved = errno;
  if (xsi_move_inside()) return false;
  await_session();
  errno = saved;
  if (xsi_gate_silent(xsi_now_ns()) || xsi_header()->version < 5) return false;
  bool first = want->wanted_ns == 0;
  if (first) {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &want->cancel_state);
    if (!take_turn()) {
      pthread_setcancelstate(want->cancel_state, NULL);
      errno = saved;
      return false;
    }
    want->place = place;
    want->wanted_ns = xsi_now_ns();
  }
  publish(want, bytes, room);
  if (first) xsi_doorbell_ring();
  bool again = await_verdict(want);
  errno = saved;
  return again;
}

void xsi_move_wanted(struct xsi_move_want *want) {
  if (want->wanted_ns == 0) return;
  int saved = errno;
  publish(want, 0, 0);
  __atomic_store_n(&turn, 0, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &turn, FUTEX_WAKE, 1, NULL, NULL, 0);
  xsi_doorbell_ring(); // the daemon stops making room
  pthread_setcancelstate(want->cancel_state, NULL);
  *want = (struct xsi_move_want){0};
  errno = saved;
}
