/* SPDX-License-Identifier: Apache-2.0
 *
 * A lock for critical sections of a few stores on the way of a launch that is waited for. Unlike a
 * mutex it is released by a plain store: one locked instruction less. A waiter that comes at that
 * very moment may miss its wake-up, so waiters look again by themselves.
 */
#ifndef XSCHED_LOCK_H
#define XSCHED_LOCK_H

#include "base.h"

struct xsi_lock {
  uint32_t held; /* and the futex word */
  uint32_t waiters;
};

void xsi_lock_wait(struct xsi_lock *lock) __attribute__((cold));
void xsi_lock_wake(struct xsi_lock *lock) __attribute__((cold));

static inline void xsi_lock_take(struct xsi_lock *lock) {
  if (XSI_UNLIKELY(__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE) != 0)) xsi_lock_wait(lock);
}
static inline void xsi_lock_give(struct xsi_lock *lock) {
  __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
  if (XSI_UNLIKELY(__atomic_load_n(&lock->waiters, __ATOMIC_RELAXED) != 0)) xsi_lock_wake(lock);
}

/* The same for locks that are a value of a word: sleeps until the bits of mask are not value. waiters says that
 * somebody sleeps: who changes the word then calls xsi_lock_wake_word. */
void xsi_lock_await(uint32_t *word, uint32_t mask, uint32_t value, uint32_t *waiters)
    __attribute__((cold));
void xsi_lock_wake_word(uint32_t *word) __attribute__((cold));

#endif /* XSCHED_LOCK_H */
