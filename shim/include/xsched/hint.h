/* SPDX-License-Identifier: Apache-2.0
 *
 * For programs that include upstream's individual headers.
 */
#ifndef XSCHED_HINT_H
#define XSCHED_HINT_H

#include "xsched/xsched.h"

#endif /* XSCHED_HINT_H */
