/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters, one block per thread, summed into the page: counting never writes a shared cache line.
 */
#ifndef XSCHED_CORE_COUNTERS_H
#define XSCHED_CORE_COUNTERS_H

#include "per_thread.h"

void xsi_counters_enlist(void); /* slow path of the first count in a thread */
void xsi_counters_publish(void);
void xsi_counters_sum(struct xsi_counters *total);

static inline struct xsi_counters *xsi_counters_mine(void) {
  if (XSI_UNLIKELY(!xsi_thread.counters.listed)) xsi_counters_enlist();
  return &xsi_thread.counters;
}
/* Single writer, read by the publisher: a relaxed store, no locked instruction. */
#define xsi_count(field, amount)                                                                   \
  do {                                                                                             \
    struct xsi_counters *mine_ = xsi_counters_mine();                                              \
    __atomic_store_n(&mine_->field, mine_->field + (amount), __ATOMIC_RELAXED);                    \
  } while (0)

/* ---- for the session and fork ------------------------------------------------------- */

void xsi_counters_init(void);
void xsi_counters_lock(void);
void xsi_counters_unlock(void);
void xsi_counters_idle(void);         /* a queue went idle: publish if that is cheap */
void xsi_counters_publish_last(void); /* at exit: gives up rather than wait for a lock for long */
void xsi_counters_reset(void);

#endif /* XSCHED_CORE_COUNTERS_H */
