/* SPDX-License-Identifier: Apache-2.0 */
#ifndef XSCHED_CORE_INIT_H
#define XSCHED_CORE_INIT_H

/* Idempotent and thread-safe. The constructor calls it, and so does each hook that may run earlier,
 * before it uses anything else of the core. */
void xsi_init(void);

#endif /* XSCHED_CORE_INIT_H */
