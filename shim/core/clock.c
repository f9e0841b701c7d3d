// SPDX-License-Identifier: Apache-2.0
//
// The one clock: the shared page, leases and watch times are all CLOCK_MONOTONIC.

#include "clock.h"

#include <time.h>

uint64_t xsi_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
