// SPDX-License-Identifier: Apache-2.0
//
// A thousand queues from many threads, while the daemon comes and goes under them.

#include "test_support.h"

enum { THREADS = 8, SESSIONS = 25 };

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;
static uint32_t stop;
static uint64_t rounds;

static void *use(void *argument) {
  (void)argument;
  enum { MINE = XSW_MAX_QUEUES / THREADS };
  int queues[MINE];
  while (__atomic_load_n(&stop, __ATOMIC_ACQUIRE) == 0) {
    for (uint32_t i = 0; i < MINE; i++) {
      queues[i] = xsi_queue_open(i, i << 8, 0);
      CHECK(queues[i] >= 0);
    }
    for (int i = 0; i < MINE; i++) {
      test_set_busy(queues[i], true);
      xsi_queue_add(queues[i], (struct xsi_tally){.submitted = (uint64_t)i});
      xsi_gate_pass(queues[i]);
      if (i % 2 == 0) test_set_busy(queues[i], false);
      xsi_count(launches, 1);
    }
    for (int i = 0; i < MINE; i++)
      xsi_queue_close(queues[i]);
    __atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

static void limits(void) {
  static int queues[XSW_MAX_QUEUES];
  for (int i = 0; i < XSW_MAX_QUEUES; i++) {
    queues[i] = xsi_queue_open(0, 0, 0);
    CHECK(queues[i] == i);
  }
  CHECK(xsi_queue_open(0, 0, 0) == -ENOSPC);
  xsi_queue_close(500);
  CHECK(xsi_queue_open(0, 0, 0) == 500);
  test_set_busy(-ENOSPC, true);
  test_set_busy(XSW_MAX_QUEUES, true);
  xsi_queue_close(-1);
  xsi_queue_close(XSW_MAX_QUEUES);
  xsi_gate_wait(-1);
  for (int i = 0; i < XSW_MAX_QUEUES; i++) {
    xsi_queue_close(i);
    xsi_queue_close(i);
    test_set_busy(i, true); // closed: nothing
  }
}

// ---- one queue, a stream in each thread -------------------------------------------------

enum { PERIODS = 20000 };
static int shared_queue;

static void *use_a_stream(void *argument) {
  (void)argument;
  for (uint64_t i = 0; i < PERIODS; i++) {
    if (xsi_queue_enter(shared_queue)) xsi_queue_changed(shared_queue);
    if (xsi_queue_leave(shared_queue, (struct xsi_tally){3, 2, i % 2}))
      xsi_queue_changed(shared_queue);
  }
  return NULL;
}

// Whoever came last, the queue ends idle and nothing is missing.
static void streams_share_a_queue(void) {
  pthread_t threads[THREADS];
  shared_queue = xsi_queue_open(1, 2, 3);
  CHECK(shared_queue >= 0);
  const struct xsw_queue *slot = xsi_slot((uint32_t)shared_queue);
  const struct xsw_progress *progress = xsi_progress((uint32_t)shared_queue);
  for (int round = 1; round <= 3; round++) {
    for (int i = 0; i < THREADS; i++)
      CHECK(pthread_create(&threads[i], NULL, use_a_stream, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
      CHECK(pthread_join(threads[i], NULL) == 0);
    struct xsi_queue_info info;
    CHECK(xsi_queue_describe((uint32_t)shared_queue, &info) && !info.busy);
    CHECK((slot->transitions & 1) == 0 && slot->transitions > 0 && (int64_t)slot->busy_ns > 0);
    CHECK(progress->launches == (uint64_t)round * THREADS * PERIODS * 2);
    CHECK(info.submitted == (uint64_t)round * THREADS * PERIODS * 3);
    CHECK(xsi_queue_enter(shared_queue) && (slot->transitions & 1) == 1);
    CHECK(!xsi_queue_enter(shared_queue) && !xsi_queue_leave(shared_queue, (struct xsi_tally){0}));
    CHECK((slot->transitions & 1) == 1);
    CHECK(xsi_queue_leave(shared_queue, (struct xsi_tally){0}) && (slot->transitions & 1) == 0);
  }
  xsi_queue_close(shared_queue);
}

int main(void) {
  test_daemon_place(d);
  xsi_options_init(); // the constructor ran before the socket was named
  alarm(60);
  xsi_session_retry.first_ms = xsi_session_retry.last_ms = 5;
  test_daemon_listen(d);
  limits();
  streams_share_a_queue();
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, use, NULL) == 0);
  uint64_t id = 0;
  while (id < SESSIONS) {
    test_session_start(d, ++id);
    test_sleep_ms(3);
    test_session_end(d);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  int queue = xsi_queue_open(3, 4, 5);
  test_session_start(d, ++id);
  unsigned open = 0;
  for (unsigned i = 0; i < XSW_MAX_QUEUES; i++)
    open += test_slot(d, i)->generation & 1;
  CHECK(open == 1 && test_slot(d, (unsigned)queue)->pci_domain == 3);
  CHECK(test_header(d)->launches == rounds * (XSW_MAX_QUEUES / THREADS));
  test_session_end(d);
  test_daemon_remove(d);
  puts("ok queue");
  return 0;
}
