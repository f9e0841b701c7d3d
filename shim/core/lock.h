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

#endif /* XSCHED_LOCK_H */
