// SPDX-License-Identifier: Apache-2.0
//
// The lock that is released by a plain store: exclusive, and nobody waits for ever, with far more
// threads than cores and with holders that sleep.

#include "test_support.h"

#include "lock.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { THREADS = 16, ROUNDS = 5000 };
#else
enum { THREADS = 16, ROUNDS = 50000 };
#endif

static struct xsi_lock lock;
static uint64_t counted, inside; // under the lock

static void *count(void *argument) {
  unsigned mine = (unsigned)(uintptr_t)argument;
  errno = 1234;
  for (unsigned i = 0; i < ROUNDS; i++) {
    xsi_lock_take(&lock);
    CHECK(++inside == 1);
    counted++;
    // Now and then a holder that is put to sleep, so that the others go to sleep too.
    if ((i + mine * 131) % 2500 == 0) test_sleep_ms(1);
    inside--;
    xsi_lock_give(&lock);
  }
  CHECK(errno == 1234);
  return NULL;
}

// One that waits in the kernel goes on soon after the lock is free: by a wake-up, or by itself.
static void *wait_once(void *until) {
  xsi_lock_take(&lock);
  *(uint64_t *)until = xsi_now_ns();
  xsi_lock_give(&lock);
  return NULL;
}

static void wakes(void) {
  uint64_t best = UINT64_MAX;
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    uint64_t until = 0;
    xsi_lock_take(&lock);
    CHECK(pthread_create(&thread, NULL, wait_once, &until) == 0);
    EVENTUALLY(__atomic_load_n(&lock.waiters, __ATOMIC_SEQ_CST) == 1);
    uint64_t given = xsi_now_ns();
    xsi_lock_give(&lock);
    CHECK(pthread_join(thread, NULL) == 0);
    if (until - given < best) best = until - given;
  }
  CHECK(lock.waiters == 0 && lock.held == 0);
  CHECK(best < 50000000);
}

int main(void) {
  alarm(60);
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, count, (void *)i) == 0);
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(counted == (uint64_t)THREADS * ROUNDS && inside == 0);
  CHECK(lock.waiters == 0 && lock.held == 0);
  wakes();
  puts("ok lock");
  return 0;
}
