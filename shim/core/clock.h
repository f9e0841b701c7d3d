/* SPDX-License-Identifier: Apache-2.0 */
#ifndef XSCHED_CORE_CLOCK_H
#define XSCHED_CORE_CLOCK_H

#include "base.h"

uint64_t xsi_now_ns(void); /* CLOCK_MONOTONIC */

#endif /* XSCHED_CORE_CLOCK_H */
