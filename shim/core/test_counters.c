// SPDX-License-Identifier: Apache-2.0
//
// Counters are exact: eight threads that count while others publish, threads that come and go, and
// counts made while a thread ends.

#include "test_support.h"

enum { THREADS = 8, CALLS = 200000, SHORT_LIVED = 500 };

static uint32_t stop;
static pthread_key_t late_key;

static void *count(void *argument) {
  (void)argument;
  for (int i = 0; i < CALLS; i++) {
    xsi_count(hooked_calls, 1);
    xsi_count(launches, 2);
  }
  return NULL;
}

// The thread sanitizer is gone after the first round.
#ifdef __SANITIZE_THREAD__
enum { LATE_ROUNDS = 1 };
#else
enum { LATE_ROUNDS = 3 };
#endif

// Runs in a destructor of thread-specific data, possibly after ours: up to four rounds of them.
static void count_late(void *argument) {
  uintptr_t round = (uintptr_t)argument;
  xsi_count(syncs, 1);
  if (round < LATE_ROUNDS) pthread_setspecific(late_key, (void *)(round + 1));
}

static void *live_shortly(void *argument) {
  xsi_count(copies, (uint64_t)(uintptr_t)argument);
  pthread_setspecific(late_key, (void *)1);
  return NULL;
}

static void *publish(void *argument) {
  (void)argument;
  uint64_t last = 0;
  struct xsi_counters total;
  while (__atomic_load_n(&stop, __ATOMIC_ACQUIRE) == 0) {
    xsi_counters_publish();
    xsi_counters_sum(&total);
    CHECK(total.hooked_calls >= last);
    last = total.hooked_calls;
  }
  return NULL;
}

int main(void) {
  alarm(60);
  pthread_t threads[THREADS], publisher;
  CHECK(pthread_key_create(&late_key, count_late) == 0);
  CHECK(pthread_create(&publisher, NULL, publish, NULL) == 0);
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, count, NULL) == 0);
  for (uintptr_t i = 1; i <= SHORT_LIVED; i++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, live_shortly, (void *)i) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  count(NULL);
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  CHECK(pthread_join(publisher, NULL) == 0);
  struct xsi_counters total;
  xsi_counters_sum(&total);
  CHECK(total.hooked_calls == (uint64_t)CALLS * (THREADS + 1));
  CHECK(total.launches == 2 * (uint64_t)CALLS * (THREADS + 1));
  CHECK(total.copies == (uint64_t)SHORT_LIVED * (SHORT_LIVED + 1) / 2);
  CHECK(total.syncs == LATE_ROUNDS * SHORT_LIVED);
  puts("ok counters");
  return 0;
}
