/* SPDX-License-Identifier: Apache-2.0
 *
 * Hints about the process, and who schedules it.
 */
#ifndef XSCHED_CORE_HINT_H
#define XSCHED_CORE_HINT_H

#include "base.h"
#include "xsched/wire.h"

void xsi_hint_init(void); /* from the options */
/* Sets hints of the process; policy may be NULL. The current daemon and later ones are told. */
void xsi_hint_process(const struct xsw_hint *hint, const char *policy);
/* The scheduler of this process: from the environment, unless the program chose another. */
uint32_t xsi_scheduler(void);
void xsi_set_scheduler(uint32_t scheduler);
bool xsi_joined(void); /* a daemon schedules this process now */

/* ---- for the session --------------------------------------------------------------- */

void xsi_hint_hello(struct xsw_hello *hello);           /* all hints in force; then none is due */
bool xsi_hint_next_frame(struct xsw_hint_frame *frame); /* what has changed since; false: nothing */
void xsi_hint_reset(void);

#endif /* XSCHED_CORE_HINT_H */
