/* SPDX-License-Identifier: Apache-2.0
 *
 * Fail open: heartbeat and lease of the daemon, as the helper thread checks them.
 */
#ifndef XSCHED_CORE_LIVENESS_H
#define XSCHED_CORE_LIVENESS_H

#include "base.h"

void xsi_liveness_join(uint64_t now_ns);
void xsi_liveness_leave(void); /* native from here on */
/* True if the drivers are to be recovered now; *next_ns: when to check again. */
bool xsi_liveness_check(uint64_t now_ns, uint64_t *next_ns);
/* Before and after that recovery. */
uint64_t xsi_liveness_epoch(void);
void xsi_liveness_recovered(uint64_t epoch, bool first);
void xsi_liveness_failed(uint64_t now_ns); /* try again soon */
void xsi_liveness_reset(void);

#endif /* XSCHED_CORE_LIVENESS_H */
