// SPDX-License-Identifier: Apache-2.0
//
// The quiet doorbell: silent while the daemon says so, no change lost when it stops saying so, and
// the time with work exact all the while.

#include <sched.h>

#include "test_support.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { ROUNDS = 20000, PERIODS = 5000, BATCHES = 50 };
#else
enum { ROUNDS = 200000, PERIODS = 50000, BATCHES = 50 };
#endif

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;
static int queue;

static struct xsw_queue *slot(void) { return test_slot(d, (unsigned)queue); }

static void set_quiet(bool quiet) {
  __atomic_store_n(&slot()->quiet, quiet ? 1u : 0u, __ATOMIC_SEQ_CST);
}
static uint64_t transitions(void) {
  return __atomic_load_n(&slot()->transitions, __ATOMIC_SEQ_CST);
}
static int64_t worked(void) { return (int64_t)__atomic_load_n(&slot()->busy_ns, __ATOMIC_ACQUIRE); }

static void forget_rings(void) {
  while (test_rung(d))
    continue;
}

static void silent_while_quiet(void) {
  forget_rings();
  set_quiet(true);
  xsi_count(launches, 7);
  test_set_busy(queue, true);
  CHECK(!test_rung(d) && transitions() == 1);
  CHECK(worked() < 0 && worked() + (int64_t)xsi_now_ns() >= 0);
  test_set_busy(queue, false);
  CHECK(!test_rung(d) && transitions() == 2 && worked() >= 0);
  // The helper's tick has what nobody was in a hurry for.
  EVENTUALLY(__atomic_load_n(&test_header(d)->launches, __ATOMIC_ACQUIRE) == 7);
  // A queue that comes or goes is told of all the same.
  int other = xsi_queue_open(0, 0x0200, 0);
  CHECK(other >= 0 && test_rung(d));
  xsi_queue_close(other);
  CHECK(test_rung(d));
  set_quiet(false);
  test_set_busy(queue, true);
  CHECK(test_rung(d));
  test_set_busy(queue, false);
  CHECK(test_rung(d));
}

// ---- one change against the end of the quiet, both started at the same moment -------------

static uint32_t ready, done;

// The daemon's side has little to do and so waits for longer, up to a few microseconds.
static void meet(uint32_t round, uint32_t *seed, unsigned shift) {
  __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
  for (unsigned n = 0; __atomic_load_n(&ready, __ATOMIC_SEQ_CST) < 2 * round; n++)
    if (n > 1000) sched_yield(); // the other one does not run just now
  *seed = *seed * 1664525u + 1013904223u;
  for (uint32_t spin = *seed >> shift; spin > 0; spin--)
    __asm__ volatile("");
}

static void *change(void *argument) {
  (void)argument;
  uint32_t seed = 1;
  for (uint32_t round = 1; round <= ROUNDS; round++) {
    meet(round, &seed, 25);
    test_set_busy(queue, round % 2 == 1);
    __atomic_store_n(&done, round, __ATOMIC_SEQ_CST);
  }
  return NULL;
}

// Adds up in how many rounds the change rang no bell, and in how many the daemon saw it.
static void rounds(uint32_t seed, unsigned *silent, unsigned *seen) {
  pthread_t thread;
  uint64_t before = transitions();
  ready = done = 0;
  set_quiet(true);
  CHECK(pthread_create(&thread, NULL, change, NULL) == 0);
  for (uint32_t round = 1; round <= ROUNDS; round++) {
    meet(round, &seed, 20);
    set_quiet(false);
    bool sees = transitions() == before + round;
    while (__atomic_load_n(&done, __ATOMIC_SEQ_CST) < round)
      sched_yield();
    bool rings = test_rung(d);
    CHECK(sees || rings);
    *silent += !rings;
    *seen += sees;
    set_quiet(true);
  }
  CHECK(pthread_join(thread, NULL) == 0);
}

// On a busy machine the two may miss each other for as long as they share a core.
static void loses_nothing(void) {
  unsigned silent = 0, seen = 0, total = 0;
  for (uint32_t batch = 0; batch < BATCHES; batch++) {
    rounds(2 + batch, &silent, &seen);
    total += ROUNDS;
    if (silent > 0 && silent < total && seen > 0) return;
  }
  CHECK(!"the two never met");
}

// ---- a daemon that looks now and then: the time never runs back, and none is missing --------

static void *work(void *sum) {
  uint64_t total = 0;
  for (int i = 0; i < PERIODS; i++) {
    test_set_busy(queue, true);
    uint64_t begun = __atomic_load_n(&slot()->changed_ns, __ATOMIC_RELAXED);
    test_set_busy(queue, false);
    total += __atomic_load_n(&slot()->changed_ns, __ATOMIC_RELAXED) - begun;
  }
  *(uint64_t *)sum = total;
  __atomic_store_n(&done, 0, __ATOMIC_SEQ_CST);
  return NULL;
}

static void time_is_exact(void) {
  pthread_t thread;
  uint64_t sum = 0;
  int64_t first = worked(), last = first;
  __atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
  CHECK(pthread_create(&thread, NULL, work, &sum) == 0);
  for (unsigned i = 0; __atomic_load_n(&done, __ATOMIC_SEQ_CST) != 0; i++) {
    set_quiet(i % 3 != 0);
    int64_t now = worked();
    if (now < 0) now += (int64_t)xsi_now_ns(); // after the word: never too little
    CHECK(now >= first && now - first <= (int64_t)10 * 1000000000);
    int64_t past = worked();
    if (past >= 0) {
      CHECK(past >= last);
      last = past;
    }
  }
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(worked() - first == (int64_t)sum);
  // The slot's next queue goes on counting, and what ended with work in it is in.
  test_set_busy(queue, true);
  last = worked() + (int64_t)xsi_now_ns();
  xsi_queue_close(queue);
  CHECK(worked() >= last);
  last = worked();
  CHECK(xsi_queue_open(0, 0x0100, 0) == queue && worked() == last);
}

// ---- a change while a new daemon is shown all queues: it ends up with the newest --------------

static void shows_the_newest(void) {
  pthread_t thread;
  uint32_t seed = 3;
  uint64_t before = transitions();
  ready = done = 0;
  CHECK(pthread_create(&thread, NULL, change, NULL) == 0);
  for (uint32_t round = 1; round <= ROUNDS; round++) {
    meet(round, &seed, 23);
    xsi_queue_lock();
    xsi_queue_publish_all();
    xsi_queue_unlock();
    while (__atomic_load_n(&done, __ATOMIC_SEQ_CST) < round)
      sched_yield();
    CHECK(transitions() == before + round);
  }
  CHECK(pthread_join(thread, NULL) == 0);
}

int main(void) {
  test_daemon_place(d);
  xsi_options_init(); // the constructor ran before the socket was named
  alarm(100);
  test_daemon_listen(d);
  queue = xsi_queue_open(0, 0x0100, 0);
  CHECK(queue == 0);
  test_session_start(d, 1);
  test_heart_start(d);
  silent_while_quiet();
  loses_nothing();
  time_is_exact();
  set_quiet(true);
  shows_the_newest();
  test_heart_stop(d);
  test_session_end(d);
  test_daemon_remove(d);
  puts("ok quiet");
  return 0;
}
