/* SPDX-License-Identifier: Apache-2.0
 *
 * For programs that include upstream's individual headers.
 */
#ifndef XSCHED_XQUEUE_H
#define XSCHED_XQUEUE_H

#include "xsched/xsched.h"

#endif /* XSCHED_XQUEUE_H */
