/* SPDX-License-Identifier: Apache-2.0
 *
 * The null HIP runtime: a libamdhip64.so whose functions only return success, or a result set by a
 * test. With -DXSN_STATIC it is linked into a test together with the hooks. */
#ifndef XSCHED_NULL_HIP_H
#define XSCHED_NULL_HIP_H

#include <stdbool.h>

#include "runtime/hip/abi.h"

#ifndef XSI_HIP_EXPORT
#define XSI_HIP_EXPORT
#endif
#ifdef XSN_STATIC
#define XSN_NAME(name) null_##name
#define XSN_EXPORT
#include "runtime/hip/hooks_gen.h"
#else
#define XSN_NAME(name) name
#define XSN_EXPORT __attribute__((visibility("default")))
#pragma GCC visibility push(default)
#include "runtime/hip/hooks_gen.h"
#endif

struct xsn_symbol {
  const char *name;
  void *function;
};
extern const struct xsn_symbol xsn_symbols[XSI_HIP_SLOTS] __attribute__((visibility("hidden")));

/* Counts a call of that function and returns the result set by the test. */
int xsn_called(unsigned slot) __attribute__((visibility("hidden")));

/* For tests: number of calls that reached a function; result of all functions from now on; whether
 * streams and events are complete; the current device; the bus of device 0. */
XSN_EXPORT uint64_t xsn_calls(const char *symbol);
XSN_EXPORT void xsn_answer(int code);
XSN_EXPORT void xsn_busy(bool busy);
XSN_EXPORT void *xsn_plain(const char *symbol);

#endif /* XSCHED_NULL_HIP_H */
