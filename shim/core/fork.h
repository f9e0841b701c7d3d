/* SPDX-License-Identifier: Apache-2.0 */
#ifndef XSCHED_CORE_FORK_H
#define XSCHED_CORE_FORK_H

#include "base.h"

void xsi_fork_init(void);
/* Runs in the child of a fork, in the order of registration, while it has one thread. */
void xsi_at_fork_child(void (*reset)(void));
/* The child of a fork gets zeros for the whole pages of a table, without a fault for each. False: the
 * kernel can't, so the child has to clear them. */
bool xsi_forget_in_child(void *table, size_t bytes);
/* Taken before and released after fork in the parent, so that no lock is copied held. */
void xsi_at_fork_locks(void (*lock)(void), void (*unlock)(void));

#endif /* XSCHED_CORE_FORK_H */
