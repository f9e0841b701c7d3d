/* SPDX-License-Identifier: Apache-2.0
 *
 * Every hooked function of the table, to be called by tests (test_invoke_gen.c).
 */
#ifndef XSCHED_HIP_TEST_INVOKE_H
#define XSCHED_HIP_TEST_INVOKE_H

#include "abi.h"

#ifndef XSI_HIP_EXPORT
#define XSI_HIP_EXPORT
#endif
#include "runtime/hip/hooks_gen.h"

struct invocation_arguments {
  hipStream_t stream, created;
  hipEvent_t event;
  hipMemcpyKind kind;
  const char *symbol;
  hipLaunchConfig_t config;
  hipLaunchParams list;
  hipFunctionLaunchParams functions;
  hipStreamBatchMemOpParams *operations;
  void *pointers[8];
};

struct invocation {
  const char *symbol, *kind, *detail, *node;
  int per_thread;
  hipError_t (*call)(void *function, struct invocation_arguments *with);
};
extern const struct invocation invocations[XSI_HIP_HOOKS];

#endif /* XSCHED_HIP_TEST_INVOKE_H */
