/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's eventfd, which the library writes when the page changes.
 */
#ifndef XSCHED_CORE_DOORBELL_H
#define XSCHED_CORE_DOORBELL_H

#include "base.h"

int xsi_doorbell_init(void);
int xsi_doorbell_attach(int eventfd); /* does not take eventfd over */
void xsi_doorbell_detach(void);
void xsi_doorbell_ring(void); /* any thread; no cancellation point */
void xsi_doorbell_reset(void);

#endif /* XSCHED_CORE_DOORBELL_H */
