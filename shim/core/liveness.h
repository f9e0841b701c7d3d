/* SPDX-License-Identifier: Apache-2.0
 *
 * Fail open: heartbeat and leases of the daemon, as the helper thread checks them.
 */
#ifndef XSCHED_CORE_LIVENESS_H
#define XSCHED_CORE_LIVENESS_H

#include "base.h"
#include "driver.h"

enum { XSI_LEASES = XSW_MAX_LEASES + 1 }; /* those of single devices, and last the shared one */

/* A recovery: of one device whose lease ended, or of the whole process. */
struct xsi_recovery {
  bool all;
  bool first;                  /* more than a repetition */
  struct xsi_lease lease;      /* of the one device */
  uint64_t epochs[XSI_LEASES]; /* that it answers; 0: none */
};

void xsi_liveness_join(uint64_t now_ns);
void xsi_liveness_leave(void); /* native from here on */
/* True if the drivers are to be recovered now; *next_ns: when to check again. */
bool xsi_liveness_check(uint64_t now_ns, uint64_t *next_ns, struct xsi_recovery *recovery);
/* The recovery of the whole process, before the drivers do it. */
struct xsi_recovery xsi_liveness_all(void);
bool xsi_liveness_any_lease(const struct xsi_recovery *recovery);
/* After the drivers have done it, or failed: then it is tried again soon. */
void xsi_liveness_recovered(const struct xsi_recovery *recovery);
void xsi_liveness_failed(const struct xsi_recovery *recovery, uint64_t now_ns);
/* True while a suspension under that lease is valid; 0: the shared lease, else 1 + its index. */
bool xsi_liveness_valid(uint32_t number, uint64_t now_ns);
void xsi_liveness_reset(void);

#endif /* XSCHED_CORE_LIVENESS_H */
