/* SPDX-License-Identifier: Apache-2.0
 *
 * A private scheduler: a daemon for this program alone, which the library starts when the program or
 * its environment asks for the local scheduler. `xsched run --local` starts one itself; then there
 * is nothing to do here.
 *
 * A guest must not surprise its host. The daemon is no child of the program: no SIGCHLD, and nothing
 * for wait() to find, unless the program adopts orphans. It ends with the program. Until it is ready,
 * and if it can't be started, the program runs natively.
 */
#ifndef XSCHED_CORE_PRIVATE_H
#define XSCHED_CORE_PRIVATE_H

#include "base.h"

/* At load, after the options. */
void xsi_private_init(void);
/* The environment names a private scheduler that runs already. */
bool xsi_private_given(void);
/* The program wants one that the library must start. */
bool xsi_private_wanted(void);
/* 0 if the xsched program was found; else -errno, which is logged. */
int xsi_private_find(void);

/* ---- for the helper thread, with the session lock held -------------------------------- */

/* Starts it, or looks whether it is ready. Returns when to come again. */
uint64_t xsi_private_step(uint64_t now_ns);
const char *xsi_private_directory(void); /* where it listens; NULL: not ready */
void xsi_private_reset(void);            /* in the child of a fork, which shares it */

#endif /* XSCHED_CORE_PRIVATE_H */
