/* SPDX-License-Identifier: Apache-2.0
 *
 * For programs that include upstream's individual headers.
 */
#ifndef XSCHED_CUDA_HAL_H
#define XSCHED_CUDA_HAL_H

#include "xsched/xsched.h"

#endif /* XSCHED_CUDA_HAL_H */
