/* SPDX-License-Identifier: Apache-2.0 */
#ifndef XSCHED_CLOCK_H
#define XSCHED_CLOCK_H

#include <stdint.h>

void xsi_clock_init(void);
/* CLOCK_MONOTONIC of the initial time namespace, which is the daemon's. Not for absolute timeouts. */
uint64_t xsi_now_ns(void);

#endif /* XSCHED_CLOCK_H */
