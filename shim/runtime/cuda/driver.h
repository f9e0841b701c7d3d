/* SPDX-License-Identifier: Apache-2.0
 *
 * The real CUDA driver: where its functions are, and which of them are hooked.
 */
#ifndef XSCHED_CUDA_DRIVER_H
#define XSCHED_CUDA_DRIVER_H

#include "abi.h"
#include "constants.h"
#include "core/core.h"

#define XSI_CU_EXPORT XSI_EXPORT
#include "hooks_gen.h"

struct xsi_cu_symbol {
  const char *name;
  const char *api; /* what cuGetProcAddress calls it */
  void *hook;      /* NULL: not hooked */
  int since;
  int thread; /* stream 0 is the calling thread's own */
};
extern const struct xsi_cu_symbol xsi_cu_symbols[XSI_CU_SLOTS];
extern const uint16_t xsi_cu_by_api[XSI_CU_HOOKS];

extern void *xsi_cu_real[XSI_CU_SLOTS]; /* NULL until it is asked for */
void *xsi_cu_bind(unsigned slot);       /* finds the real function; NULL: the driver has none */
static inline void *xsi_cu_slot(unsigned slot) {
  void *real = __atomic_load_n(&xsi_cu_real[slot], __ATOMIC_ACQUIRE);
  return XSI_LIKELY(real != NULL) ? real : xsi_cu_bind(slot);
}
/* Takes an address for the real function unless there is one already. */
void xsi_cu_bind_to(unsigned slot, void *address);

/* The hook of that symbol, or -1. */
int xsi_cu_find(const char *symbol);
/* The driver library if it is loaded, kept loaded from then on. */
void *xsi_cu_library(void);
/* Does the address lie in a CUDA driver library? */
bool xsi_cu_in_driver(void *address);
bool xsi_cu_in_shim(void *address);
/* What dlsym (version NULL) or dlvsym says about one of our names; see dl/dl.h. */
void *xsi_cu_resolve(unsigned slot, void *handle, const char *version);
/* The hook for what the driver answered to cuGetProcAddress(api, version, flags); or that answer.
 */
void *xsi_cu_match(const char *api, int version, cuuint64_t flags, void *address);

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

/* Ends one: a name for it that no other library can take over. */
#define XSI_CU_HIDDEN __attribute__((visibility("hidden")))
#define XSI_CU_HOOK(symbol)                                                                        \
  extern __typeof__(symbol) xsi_hook_##symbol XSI_CU_HIDDEN __attribute__((alias(#symbol)));

#endif /* XSCHED_CUDA_DRIVER_H */
