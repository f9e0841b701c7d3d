/* SPDX-License-Identifier: Apache-2.0
 *
 * The null driver: a libcuda.so.1 that does nothing and says that it went well. For the cost of a
 * hook and for tests of how programs reach the driver. */
#ifndef XSCHED_NULL_H
#define XSCHED_NULL_H

#include "runtime/cuda/abi.h"

#define XSI_CU_EXPORT __attribute__((visibility("default")))
#pragma GCC visibility push(default)
#include "runtime/cuda/hooks_gen.h"
#pragma GCC visibility pop

struct xsn_symbol {
  const char *name, *api;
  void *exported, *internal;
  int since, thread;
};
extern const struct xsn_symbol xsn_symbols[XSI_CU_SLOTS];

/* Counts a call of that function; 0. */
CUresult xsn_called(unsigned slot);

#endif /* XSCHED_NULL_H */
