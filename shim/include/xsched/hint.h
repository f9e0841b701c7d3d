/* SPDX-License-Identifier: Apache-2.0
 *
 * For programs that include upstream's headers one by one.
 */
#ifndef XSCHED_HINT_H
#define XSCHED_HINT_H

#include "xsched/xsched.h"

#endif /* XSCHED_HINT_H */
