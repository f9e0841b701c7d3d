/* SPDX-License-Identifier: Apache-2.0
 *
 * For programs that include upstream's individual headers.
 */
#ifndef XSCHED_HIP_HAL_HAL_H
#define XSCHED_HIP_HAL_HAL_H

#include "xsched/hip/hal.h"

#endif /* XSCHED_HIP_HAL_HAL_H */
