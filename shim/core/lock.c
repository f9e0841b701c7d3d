// SPDX-License-Identifier: Apache-2.0
//
// The slow half of lock.h.

#include "lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Critical sections take a few dozen nanoseconds: a holder that takes longer has been descheduled.
enum { SPINS = 100, LOOK_AGAIN_NS = 100000 };

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static bool try_take(struct xsi_lock *lock) {
  return __atomic_load_n(&lock->held, __ATOMIC_RELAXED) == 0 &&
         __atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE) == 0;
}

static void nap(uint32_t *word, uint32_t value) {
  const struct timespec limit = {.tv_nsec = LOOK_AGAIN_NS};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &limit, NULL, 0);
}

void xsi_lock_wait(struct xsi_lock *lock) {
  for (int i = 0; i < SPINS; i++) {
    if (try_take(lock)) return;
    relax();
  }
  int saved = errno;
  __atomic_add_fetch(&lock->waiters, 1, __ATOMIC_SEQ_CST);
  while (!try_take(lock))
    nap(&lock->held, 1);
  __atomic_sub_fetch(&lock->waiters, 1, __ATOMIC_SEQ_CST);
  errno = saved;
}

void xsi_lock_wake(struct xsi_lock *lock) { xsi_lock_wake_word(&lock->held); }

void xsi_lock_await(uint32_t *word, uint32_t mask, uint32_t value, uint32_t *waiters) {
  for (int i = 0; i < SPINS; i++) {
    if ((__atomic_load_n(word, __ATOMIC_RELAXED) & mask) != value) return;
    relax();
  }
  int saved = errno;
  uint32_t now;
  __atomic_add_fetch(waiters, 1, __ATOMIC_SEQ_CST);
  while (((now = __atomic_load_n(word, __ATOMIC_RELAXED)) & mask) == value)
    nap(word, now);
  __atomic_sub_fetch(waiters, 1, __ATOMIC_SEQ_CST);
  errno = saved;
}

void xsi_lock_wake_word(uint32_t *word) {
  int saved = errno;
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  errno = saved;
}
