/* SPDX-License-Identifier: Apache-2.0
 *
 * The session with the daemon. Only the helper thread calls these, with the session lock held, except
 * where a comment says otherwise.
 */
#ifndef XSCHED_CORE_SESSION_H
#define XSCHED_CORE_SESSION_H

#include "base.h"
#include "liveness.h"

extern struct xsi_session_retry { uint32_t first_ms, last_ms, refused_ms; } xsi_session_retry;

void xsi_session_lock(void); /* so that a fork copies no descriptor we do not know of */
void xsi_session_unlock(void);
void xsi_session_prepare(void);         /* in the application's thread, before the helper starts */
void xsi_session_unprepared(int error); /* it did not start */
int xsi_session_poll(short *events);
/* One step. True if the caller must drop the lock, recover the drivers as *recovery says, and report
 * the outcome with xsi_session_recovered. */
bool xsi_session_step(uint64_t now_ns, short revents, uint64_t *next_ns,
                      struct xsi_recovery *recovery);
void xsi_session_recovered(uint64_t now_ns, const struct xsi_recovery *recovery, bool done);
void xsi_session_reset(void);
/* In any thread: 1 from the helper's start until its first attempt to join has ended. */
extern uint32_t xsi_session_undecided;
/* In any thread, without the lock: a daemon accepts connections where a session would begin. */
bool xsi_daemon_listens(void);

#endif /* XSCHED_CORE_SESSION_H */
