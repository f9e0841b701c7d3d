/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that the program marks, for the SLO policy. The request lock is above the queue lock.
 */
#ifndef XSCHED_CORE_REQUEST_H
#define XSCHED_CORE_REQUEST_H

#include "base.h"

/* Returns 0 for a request that could not be marked; it may be ended, too. */
uint64_t xsi_request_begin(const char *name);
void xsi_request_end(uint64_t request);

void xsi_request_lock(void);
void xsi_request_unlock(void);
void xsi_request_publish(void); /* lock held: into a page just joined */
void xsi_request_reset(void);

#endif /* XSCHED_CORE_REQUEST_H */
