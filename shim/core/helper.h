/* SPDX-License-Identifier: Apache-2.0
 *
 * The one thread that the library adds; lower layers start and wake it through wake.h.
 */
#ifndef XSCHED_CORE_HELPER_H
#define XSCHED_CORE_HELPER_H

void xsi_helper_start(void);
void xsi_helper_lock(void);
void xsi_helper_unlock(void);
void xsi_helper_reset(void);

#endif /* XSCHED_CORE_HELPER_H */
