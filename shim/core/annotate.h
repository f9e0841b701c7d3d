/* SPDX-License-Identifier: Apache-2.0
 *
 * Annotations for an application that is built with ThreadSanitizer.
 */
#ifndef XSCHED_CORE_ANNOTATE_H
#define XSCHED_CORE_ANNOTATE_H

#include "base.h"

void xsi_annotate_init(void);
/* At the start and at the end of a thread of the library. ThreadSanitizer does not see how a driver
 * synchronizes its threads, and would report a race between calls of this thread and the application's.
 */
void xsi_annotate_ignore(bool begin);

#endif /* XSCHED_CORE_ANNOTATE_H */
