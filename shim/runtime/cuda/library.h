/* SPDX-License-Identifier: Apache-2.0
 *
 * The real CUDA driver: where its functions are, and which of them are hooked.
 */
#ifndef XSCHED_CUDA_LIBRARY_H
#define XSCHED_CUDA_LIBRARY_H

#include "abi.h"
#include "constants.h"
#include "runtime/runtime.h"

#define XSI_CU_EXPORT XSI_EXPORT
#include "runtime/cuda/hooks_gen.h"

extern const struct xsi_symbol xsi_cu_symbols[XSI_CU_SLOTS];
/* What cuGetProcAddress calls a hook, and since which version. */
struct xsi_cu_api {
  const char *name;
  int since;
  int thread; /* stream 0 is the calling thread's own */
};
extern const struct xsi_cu_api xsi_cu_apis[XSI_CU_HOOKS];
extern const uint16_t xsi_cu_by_api[];
extern const int xsi_cu_apis_count;

extern const struct xsi_runtime xsi_cu_runtime;
extern char xsi_cu_library_name[64]; /* XSCHED_CUDA_LIB */
extern void *xsi_cu_real[XSI_CU_SLOTS];
static inline void *xsi_cu_slot(unsigned slot) {
  void *real = __atomic_load_n(&xsi_cu_real[slot], __ATOMIC_ACQUIRE);
  return XSI_LIKELY(real != NULL) ? real : xsi_runtime_bind(&xsi_cu_runtime, slot);
}

/* The hook for what the driver answered to cuGetProcAddress(api, version, flags); or that answer.
 */
void *xsi_cu_match(const char *api, int version, cuuint64_t flags, void *address);

/* What a program gets for a function of the driver that is not hooked: its stub (stub.c), or the address. The name
 * is the function's, or that of cuGetProcAddress; an unknown one may wait. */
void *xsi_cu_stub_for(const char *name, void *address);

/* A typed call of the real function, where the application's own error does not matter. */
#define xsi_cu_call_real(symbol, ...)                                                              \
  ({                                                                                               \
    __typeof__(&symbol) real_ = (__typeof__(&symbol))xsi_cu_slot(XSI_CU_##symbol);                 \
    real_ ? real_(__VA_ARGS__) : XSI_CU_NOT_FOUND;                                                 \
  })

/* Begins an entry point. */
#define XSI_CU_REAL(symbol)                                                                        \
  __typeof__(&symbol) real = (__typeof__(&symbol))xsi_cu_slot(XSI_CU_##symbol);                    \
  if (XSI_UNLIKELY(!real)) return XSI_CU_NOT_FOUND

#endif /* XSCHED_CUDA_LIBRARY_H */
