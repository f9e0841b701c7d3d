// SPDX-License-Identifier: Apache-2.0
//
// The mover: a thread of its own that carries out the daemon's orders about memory, and brings memory back when there
// is no daemon. It sleeps on the page's word about orders, and looks by itself now and then.

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "annotate.h"
#include "clock.h"
#include "doorbell.h"
#include "fork.h"
#include "gate.h"
#include "log.h"
#include "move_internal.h"
#include "teardown.h"
#include "thread.h"
#include "work.h"

enum {
  STACK_BYTES = 1024 * 1024, /* runtimes answer here, as to the watcher */
  LOOK_NS = 100000000,
  PIN_PAUSE_NS = 10000000, /* between two slabs, for the rest of the program */
  EXIT_MS = 200,
};
#define SURPLUS_NS 10000000000u
#define RETRY_NS 1000000000u

static XSI_FORK_STATE struct xsi_mover movers[XSW_MEMORY_DEVICES];
static XSI_FORK_STATE unsigned mover_count; // atomic; those before it are complete
static XSI_FORK_STATE struct xsi_lock lock; // for adding one, and for starting the thread
static XSI_FORK_STATE bool started;
static XSI_FORK_STATE uint64_t retry_ns; // the thread could not be started: not before this
static XSI_FORK_STATE uint32_t wakes;

// Threads that wait for memory; under its lock.
static XSI_FORK_STATE struct {
  struct xsi_lock lock;
  unsigned count;
  uint64_t since_ns;
} waiters;

// At the end of the process the runtime goes. What the thread that ends it still needs is brought back; nothing else
// is asked of the runtime any more.
static bool stopping, needed; // atomic
static uint32_t working;      // atomic; the mover may be in the runtime
static XSI_THREAD bool ends_process;

// ---- the page ----------------------------------------------------------------------------------------

static void publish_waiting(const struct xsi_mover *mover) {
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (!entry) return;
  bool resident = __atomic_load_n(&mover->residency, __ATOMIC_RELAXED) == XSW_RESIDENT;
  entry->waiting_ns = resident ? 0 : waiters.since_ns;
  xsi_memory_edited(entry);
}

static void note_wait(bool begins) {
  if (begins && ends_process) __atomic_store_n(&needed, true, __ATOMIC_SEQ_CST);
  xsi_lock_take(&waiters.lock);
  waiters.count += begins ? 1 : -1u;
  bool changed = waiters.count == (begins ? 1 : 0);
  if (changed) {
    waiters.since_ns = begins ? xsi_now_ns() : 0;
    unsigned count = __atomic_load_n(&mover_count, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < count; i++)
      publish_waiting(&movers[i]);
  }
  xsi_lock_give(&waiters.lock);
  if (!begins) return;
  if (changed) xsi_doorbell_ring();
  xsi_mover_wake();
}

void xsi_mover_say(struct xsi_mover *mover, enum xsw_residency residency) {
  uint64_t room = 0;
  bool asked = (residency == XSW_AWAY || residency == XSW_RESIDENT) &&
               mover->platform->room(&mover->device, &room) == 0;
  xsi_lock_take(&waiters.lock);
  __atomic_store_n(&mover->residency, residency, __ATOMIC_SEQ_CST);
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (entry) {
    entry->residency = residency;
    entry->waiting_ns = residency == XSW_RESIDENT ? 0 : waiters.since_ns;
    if (asked) entry->room = room;
    xsi_memory_edited(entry);
  }
  xsi_lock_give(&waiters.lock);
  xsi_doorbell_ring();
}

void xsi_mover_done(struct xsi_mover *mover, uint64_t sequence, enum xsw_move_result result) {
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (!entry) return;
  entry->result = result;
  if (sequence != 0) entry->order = sequence;
  xsi_memory_edited(entry);
  if (sequence != 0) xsi_doorbell_ring();
}

// The sequence is written last: fields of the next order belong to no order that is done already.
struct xsi_goal xsi_mover_goal(const struct xsi_mover *mover) {
  struct xsi_goal goal = {.want = XSW_WANT_BACK};
  int index = xsi_memory_index(mover->place);
  if (index < 0 || !xsi_page_joined() || xsi_header()->version < 5 || xsi_gate_silent(xsi_now_ns()))
    return goal;
  const struct xsw_memory_order *order = &xsi_page_memory()->orders[index];
  goal.obeyed = true;
  goal.host_bytes = __atomic_load_n(&order->host_bytes, __ATOMIC_RELAXED);
  uint64_t sequence = __atomic_load_n(&order->sequence, __ATOMIC_ACQUIRE);
  if (sequence == 0) return goal;
  goal.want = __atomic_load_n(&order->want, __ATOMIC_RELAXED);
  goal.bytes = __atomic_load_n(&order->bytes, __ATOMIC_RELAXED);
  if (sequence != __atomic_load_n(&xsi_page_memory()->devices[index].order, __ATOMIC_RELAXED)) {
    goal.sequence = sequence;
    return goal;
  }
  goal.want = mover->comes_back ? XSW_WANT_BACK : XSW_WANT_NOTHING;
  return goal;
}

// ---- movers ------------------------------------------------------------------------------------------

bool xsi_mover_all_resident(void) {
  unsigned count = __atomic_load_n(&mover_count, __ATOMIC_ACQUIRE);
  for (unsigned i = 0; i < count; i++)
    if (__atomic_load_n(&movers[i].residency, __ATOMIC_SEQ_CST) != XSW_RESIDENT) return false;
  return true;
}

bool xsi_mover_stopping(void) {
  return __atomic_load_n(&stopping, __ATOMIC_SEQ_CST) &&
         (!__atomic_load_n(&needed, __ATOMIC_SEQ_CST) || xsi_mover_all_resident());
}

void xsi_mover_wake(void) {
  int saved = errno;
  __atomic_fetch_add(&wakes, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &xsi_header()->memory_orders, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  errno = saved;
}

static void reset_in_child(void) {
  memset(movers, 0, sizeof movers); // slabs are not mapped here
  mover_count = 0;
  lock = waiters.lock = (struct xsi_lock){0};
  waiters.count = 0;
  waiters.since_ns = retry_ns = 0;
  started = false;
  xsi_arena_reset();
}

// ---- one step ----------------------------------------------------------------------------------------

// Host memory for the whole of it, as far as the daemon allows. What is too much goes slowly: it may be needed again,
// and pinning costs far more.
static uint64_t tend_host(struct xsi_mover *mover, const struct xsi_goal *goal, uint64_t now) {
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (!entry) return now + LOOK_NS;
  uint64_t wanted = entry->movable;
  xsi_memory_edited(entry);
  if (!goal->obeyed) return now + LOOK_NS;
  if (wanted > goal->host_bytes) wanted = goal->host_bytes;
  uint64_t pinned = __atomic_load_n(&mover->arena.pinned, __ATOMIC_RELAXED);
  if (pinned < wanted && pinned + XSI_MOVE_CHUNK <= goal->host_bytes) {
    mover->surplus_ns = 0;
    return now + (xsi_mover_pin(mover) ? PIN_PAUSE_NS : RETRY_NS);
  }
  if (pinned < wanted + XSI_MOVE_CHUNK)
    mover->surplus_ns = 0;
  else if (mover->surplus_ns == 0)
    mover->surplus_ns = now;
  else if (now - mover->surplus_ns >= SURPLUS_NS)
    xsi_mover_unpin(mover);
  return now + LOOK_NS;
}

static bool nothing_away(const struct xsi_mover *mover) {
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (!entry) return false;
  bool nothing = entry->away == 0;
  xsi_memory_edited(entry);
  return nothing;
}

static uint64_t step(struct xsi_mover *mover, uint64_t now) {
  struct xsi_goal goal = xsi_mover_goal(mover);
  if (mover->residency == XSW_RESIDENT) {
    if (goal.sequence != 0 && goal.want == XSW_WANT_OUT) {
      xsi_mover_out(mover, &goal);
      return xsi_now_ns();
    }
    if (goal.sequence != 0) xsi_mover_done(mover, goal.sequence, XSW_MOVE_DONE);
    return tend_host(mover, &goal, now);
  }
  if (goal.want == XSW_WANT_BACK || nothing_away(mover)) return xsi_mover_back(mover, &goal);
  if (mover->residency == XSW_RETURNING && goal.sequence != 0) xsi_mover_undo(mover);
  if (goal.sequence != 0 && goal.want == XSW_WANT_OUT)
    xsi_mover_out(mover, &goal);
  else if (goal.sequence != 0)
    xsi_mover_done(mover, goal.sequence, XSW_MOVE_DONE);
  return now + LOOK_NS;
}

// ---- the thread --------------------------------------------------------------------------------------

static void sleep_until(uint64_t time_ns, uint32_t orders, uint32_t seen) {
  uint64_t now = xsi_now_ns();
  if (time_ns <= now || __atomic_load_n(&wakes, __ATOMIC_SEQ_CST) != seen) return;
  struct timespec wait = {.tv_nsec = (long)(time_ns - now)};
  if (time_ns - now > LOOK_NS) wait.tv_nsec = LOOK_NS;
  syscall(SYS_futex, &xsi_header()->memory_orders, FUTEX_WAIT, orders, &wait, NULL, 0);
}

// While a checkpoint has the memory, nothing is asked of the runtime.
static uint64_t step_all(bool woken) {
  uint64_t now = xsi_now_ns(), next = now + LOOK_NS;
  unsigned count = __atomic_load_n(&mover_count, __ATOMIC_ACQUIRE);
  for (unsigned i = 0; i < count; i++) {
    struct xsi_mover *mover = &movers[i];
    if ((woken || mover->next_ns <= now) && xsi_teardown_ask()) {
      __atomic_store_n(&working, 1, __ATOMIC_SEQ_CST);
      if (!xsi_mover_stopping()) mover->next_ns = step(mover, now);
      __atomic_store_n(&working, 0, __ATOMIC_SEQ_CST);
      xsi_teardown_asked();
    }
    if (mover->next_ns < next) next = mover->next_ns;
  }
  return next;
}

static void *run(void *unused) {
  (void)unused;
  pthread_setname_np(pthread_self(), "xsched-move");
  xsi_annotate_ignore(true);
  xsi_move_passes();
  uint32_t last_seen = 0, last_orders = 0;
  for (unsigned greeted = 0;;) {
    greeted = xsi_work_greet(greeted);
    uint32_t seen = __atomic_load_n(&wakes, __ATOMIC_SEQ_CST);
    uint32_t orders = __atomic_load_n(&xsi_header()->memory_orders, __ATOMIC_SEQ_CST);
    uint64_t next = step_all(seen != last_seen || orders != last_orders);
    last_seen = seen;
    last_orders = orders;
    sleep_until(next, orders, seen);
  }
  return NULL;
}

static void stop_at_exit(void) {
  const struct timespec pause = {.tv_nsec = 1000000};
  ends_process = true;
  __atomic_store_n(&stopping, true, __ATOMIC_SEQ_CST);
  for (int i = 0; i < EXIT_MS && __atomic_load_n(&working, __ATOMIC_SEQ_CST) != 0; i++)
    nanosleep(&pause, NULL);
}

// Under the lock.
static void start(void) {
  static bool registered;
  uint64_t now = xsi_now_ns();
  if (started || now < retry_ns) return;
  int error = xsi_thread_start(STACK_BYTES, run);
  started = error == 0;
  retry_ns = now + RETRY_NS;
  if (!started) xsi_log(XSI_WARN, "no thread that moves memory: errno=%d", -error);
  if (!started || registered) return;
  registered = true;
  atexit(stop_at_exit);
  xsi_at_fork_child(reset_in_child);
  xsi_move_on_wait(note_wait);
}

struct xsi_mover *xsi_mover_of(const struct xsi_move_platform *platform,
                               const struct xsi_move_device *device) {
  struct xsi_mover *mover = NULL;
  xsi_lock_take(&lock);
  unsigned at = 0;
  while (at < mover_count && !xsi_move_same(movers[at].place, device->place))
    at++;
  if (at < XSW_MEMORY_DEVICES) {
    mover = &movers[at];
    if (at == mover_count) {
      mover->platform = platform;
      mover->place = device->place;
      mover->device = *device;
      __atomic_store_n(&mover_count, at + 1, __ATOMIC_RELEASE);
    }
    start();
  }
  xsi_lock_give(&lock);
  return mover;
}

void xsi_move_never(const char *why) {
  if (!xsi_work_has_unrecorded()) xsi_log(XSI_WARN, "memory does not move any more: %s", why);
  xsi_work_unrecorded();
}
