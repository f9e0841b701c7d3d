// SPDX-License-Identifier: Apache-2.0
//
// The drivers of the library, one line each.

#include "core/driver.h"

// clang-format off
#define DRIVERS(driver) \
  driver(xsi_rm_driver) \
  driver(xsi_kfd_driver) \
  /* end */
// clang-format on

#define DECLARE(name) extern const struct xsi_driver name;
#define REFER(name) &name,
DRIVERS(DECLARE)
const struct xsi_driver *const xsi_drivers[] = {DRIVERS(REFER) NULL};
