// SPDX-License-Identifier: Apache-2.0
//
// Launches and calls about memory from several threads, while memory leaves and returns thousands of times. The fake
// device counts what touches memory that is away.

#include <sched.h>

#include "test_move_fake.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MOVES = 300, SHUT_MS = 2000 };
#else
enum { MOVES = 2000, SHUT_MS = 3000 };
#endif
enum { THREADS = 4, STREAMS = 3, BLOCKS = 4 };

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;
static struct fake_stream streams[STREAMS];
static uint32_t stop;
static uint64_t launches[BLOCKS], allocations;

static uint64_t address_of(unsigned block) { return BASE + block * 4 * GRANULE; }

static void *submit(void *argument) {
  uint32_t seed = (uint32_t)(uintptr_t)argument;
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
    seed = seed * 1664525u + 1013904223u;
    unsigned block = seed >> 8 & (BLOCKS - 1);
    // Mostly its own stream, so that streams have owners.
    unsigned stream = (seed >> 16 & 15) == 0 ? seed >> 20 : (unsigned)(uintptr_t)argument;
    fake_launch(&streams[stream % STREAMS], address_of(block), seed >> 28);
    __atomic_fetch_add(&launches[block], 1, __ATOMIC_SEQ_CST);
  }
  return NULL;
}

static void *allocate(void *argument) {
  (void)argument;
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
    CHECK(fake_allocate(address_of(BLOCKS), 2 * GRANULE) == 0);
    fake_free(address_of(BLOCKS));
    __atomic_fetch_add(&allocations, 1, __ATOMIC_SEQ_CST);
    test_sleep_ms(1);
  }
  return NULL;
}

static uint64_t sum(void) {
  uint64_t all = 0;
  for (unsigned i = 0; i < BLOCKS; i++)
    all += __atomic_load_n(&launches[i], __ATOMIC_SEQ_CST);
  return all;
}

static void move_while_threads_work(void) {
  pthread_t threads[THREADS + 1];
  for (unsigned i = 0; i < BLOCKS; i++)
    CHECK(fake_allocate(address_of(i), (1 + i % 2) * GRANULE) == 0);
  for (uintptr_t i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, submit, (void *)i) == 0);
  CHECK(pthread_create(&threads[THREADS], NULL, allocate, NULL) == 0);
  EVENTUALLY(sum() > 100);
  unsigned moved = 0;
  for (unsigned i = 0; i < MOVES; i++) {
    uint64_t before = sum();
    DONE(fake_give(d, XSW_WANT_OUT, i % 3 == 0 ? GRANULE : 0));
    CHECK(ENTRY(result) == XSW_MOVE_DONE && ENTRY(residency) == XSW_AWAY && ENTRY(away) != 0);
    moved += ENTRY(result) == XSW_MOVE_DONE;
    DONE(fake_give(d, XSW_WANT_BACK, 0));
    CHECK(ENTRY(residency) == XSW_RESIDENT && ENTRY(away) == 0);
    if (i % 16 == 0) EVENTUALLY(sum() > before); // nobody is stuck
  }
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  for (unsigned i = 0; i <= THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(moved == MOVES && allocations > 0);
  CHECK(__atomic_load_n(&fake_missed, __ATOMIC_SEQ_CST) == 0);
  for (unsigned i = 0; i < BLOCKS; i++)
    CHECK(fake_word(address_of(i)) == launches[i]);
}

// ---- the gate alone, as often as possible --------------------------------------------------------------

static uint32_t away;      // memory is
static uint64_t intruders; // submissions that were in the driver then

static void *submit_often(void *argument) {
  struct fake_stream *stream = argument;
  struct xsi_work_stream *work = xsi_work_find(&fake_work, 0, (uintptr_t)stream);
  while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
    xsi_work_submit(work, XSI_WORK_OTHER);
    for (volatile unsigned i = 0; i < 200; i++)
      if (__atomic_load_n(&away, __ATOMIC_RELAXED)) {
        __atomic_fetch_add(&intruders, 1, __ATOMIC_SEQ_CST);
        break;
      }
    xsi_work_landed(work);
  }
  return NULL;
}

static void shut_often(void) {
  pthread_t threads[2];
  stop = 0;
  for (unsigned i = 0; i < 2; i++)
    CHECK(pthread_create(&threads[i], NULL, submit_often, &streams[i]) == 0);
  for (uint64_t until = xsi_now_ns() + SHUT_MS * 1000000ull; xsi_now_ns() < until;) {
    CHECK(xsi_work_shut());
    while (!xsi_work_quiet())
      sched_yield();
    __atomic_store_n(&away, 1, __ATOMIC_SEQ_CST);
    for (volatile unsigned spin = 0; spin < 50; spin++)
      continue;
    __atomic_store_n(&away, 0, __ATOMIC_SEQ_CST);
    xsi_work_reopen();
  }
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  for (unsigned i = 0; i < 2; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(intruders == 0);
}

// The context goes while a launch into it waits at the gate: the driver will refuse the launch, so it passes.
static void *submit_once(void *stream) {
  struct xsi_work_stream *work = xsi_work_find(&fake_work, 0, (uintptr_t)stream);
  xsi_work_submit(work, XSI_WORK_OTHER);
  xsi_work_withdraw(work);
  return NULL;
}

static void context_goes(void) {
  pthread_t thread;
  CHECK(xsi_work_find(&fake_work, 0, (uintptr_t)&streams[0]) && xsi_work_shut());
  CHECK(pthread_create(&thread, NULL, submit_once, &streams[0]) == 0);
  test_sleep_ms(50);
  xsi_work_context_drop(FAKE_CONTEXT);
  xsi_work_reopen();
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 10;
  CHECK(pthread_timedjoin_np(thread, NULL, &until) == 0);
}

int main(void) {
  alarm(300);
  test_daemon_place(d);
  CHECK(setenv("XSCHED_MOVABLE", "1", 1) == 0);
  xsi_options_init();
  CHECK(xsi_work_start(&fake_work));
  context_goes();
  shut_often();
  test_daemon_listen(d);
  stop = 0;
  CHECK(fake_allocate(address_of(BLOCKS + 1), GRANULE) == 0);
  fake_launch(&streams[0], address_of(BLOCKS + 1), 0);
  test_session_start(d, 1);
  test_heart_start(d);
  fake_budget(d, 256 * MIB);
  move_while_threads_work();
  // Nothing moves any more once there was work that nobody can wait for.
  xsi_move_never("a test");
  DONE(fake_give(d, XSW_WANT_OUT, 0));
  CHECK(ENTRY(result) == XSW_MOVE_REFUSED && ENTRY(residency) == XSW_RESIDENT);
  test_heart_stop(d);
  test_session_end(d);
  test_daemon_remove(d);
  puts("ok move race");
  return 0;
}
