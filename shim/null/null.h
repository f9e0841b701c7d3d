/* SPDX-License-Identifier: Apache-2.0
 *
 * The null driver: a libcuda.so.1 whose functions only return success. Used to measure the cost of
 * a hook and to test the ways in which programs call the driver. */
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

/* Counts a call of that function and returns 0. */
CUresult xsn_called(unsigned slot);

#endif /* XSCHED_NULL_H */
