// SPDX-License-Identifier: Apache-2.0
//
// The runtimes of the library, one line each.

#include "runtime.h"

// clang-format off
#define RUNTIMES(runtime) \
  runtime(xsi_cu_runtime) \
  runtime(xsi_hip_runtime) \
  runtime(xsi_cl_runtime) \
  /* end */
// clang-format on

#define DECLARE(name) extern const struct xsi_runtime name;
#define REFER(name) &name,
RUNTIMES(DECLARE)
const struct xsi_runtime *const xsi_runtimes[] = {RUNTIMES(REFER) NULL};
