/* SPDX-License-Identifier: Apache-2.0
 *
 * The helper thread as lower layers see it: they start it and wake it.
 */
#ifndef XSCHED_CORE_WAKE_H
#define XSCHED_CORE_WAKE_H

#include "base.h"

/* Starts the helper thread if there is none. */
void xsi_wake_start(void);
/* The same if it was asked for before and failed. */
void xsi_wake_again(void);
/* What the helper thread also does, at least every few 100 ms: for a layer above it. */
void xsi_wake_set_duty(void (*duty)(void));
/* Makes the helper look again at everything. No cancellation point: callers hold locks. */
void xsi_wake_helper(void);
bool xsi_wake_is_helper(void); /* is this the helper thread? */

/* ---- for helper.c ---------------------------------------------------------------- */

void xsi_wake_set_start(void (*start)(void));
void xsi_wake_enter(void); /* this thread is the helper */
void xsi_wake_duty(void);
int xsi_wake_open(void); /* 0 or -errno */
int xsi_wake_fd(void);   /* to poll, or -1 */
void xsi_wake_drain(short revents);
void xsi_wake_reset(void);

#endif /* XSCHED_CORE_WAKE_H */
