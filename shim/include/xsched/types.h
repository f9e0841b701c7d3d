/* SPDX-License-Identifier: Apache-2.0
 *
 * For programs that include upstream's individual headers.
 */
#ifndef XSCHED_TYPES_H
#define XSCHED_TYPES_H

#include "xsched/xsched.h"

#endif /* XSCHED_TYPES_H */
