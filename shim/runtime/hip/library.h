/* SPDX-License-Identifier: Apache-2.0
 *
 * The real HIP runtime: where its functions are, and which of them are hooked.
 */
#ifndef XSCHED_HIP_LIBRARY_H
#define XSCHED_HIP_LIBRARY_H

#include "abi.h"
#include "constants.h"
#include "runtime/runtime.h"

#define XSI_HIP_EXPORT XSI_EXPORT
#include "runtime/hip/hooks_gen.h"

extern const struct xsi_symbol xsi_hip_symbols[XSI_HIP_SLOTS];
/* The runtime is never loaded by us, neither again nor anew: a second copy would know nothing of the
 * first one's streams. */
extern const struct xsi_runtime xsi_hip_runtime;
extern void *xsi_hip_real[XSI_HIP_SLOTS];
static inline void *xsi_hip_slot(unsigned slot) {
  void *real = __atomic_load_n(&xsi_hip_real[slot], __ATOMIC_ACQUIRE);
  return XSI_LIKELY(real != NULL) ? real : xsi_runtime_bind(&xsi_hip_runtime, slot);
}
/* Disabled by XSCHED_DISABLE, or because the library is not AMD's. */
enum xsi_hip_state { XSI_HIP_FRESH, XSI_HIP_ACTIVE, XSI_HIP_DISABLED };
extern int xsi_hip_state;

/* The hook for what the runtime answered when asked for a name, or that answer. */
void *xsi_hip_match(const char *symbol, bool per_thread, void *address);

/* Where the runtime's code and ours lie; empty until it is bound. */
struct xsi_hip_code {
  uintptr_t runtime, runtime_bytes, shim, shim_bytes;
};
extern const struct xsi_hip_code *xsi_hip_code;
/* Is this a call of the runtime by itself? It uses its own exported names, directly or by a jump
 * out of a function that we called. What the program asked for is counted already. */
static inline bool xsi_hip_inside(const void *return_address) {
  const struct xsi_hip_code *code = __atomic_load_n(&xsi_hip_code, __ATOMIC_ACQUIRE);
  uintptr_t at = (uintptr_t)return_address;
  return at - code->runtime < code->runtime_bytes || at - code->shim < code->shim_bytes;
}

/* A program may have loaded a second copy of the runtime. Calls of its users are recognized by their
 * return address and pass through unscheduled. Checked in functions that programs call before they
 * submit work, because loading a library is not hooked. */
extern uint32_t xsi_hip_several; /* there is more than one */
void xsi_hip_look(void);
void *xsi_hip_foreign(unsigned slot, void *return_address); /* NULL: not a user of another copy */

/* Begins every entry point. A function that the hooked copy lacks may exist in another. */
#define XSI_HIP_GUARD(symbol, ...)                                                                 \
  do {                                                                                             \
    if (XSI_UNLIKELY(!real)) {                                                                     \
      real = (__typeof__(real))xsi_hip_foreign(XSI_HIP_##symbol, __builtin_return_address(0));     \
      return real ? real(__VA_ARGS__) : XSI_HIP_NOT_FOUND;                                         \
    }                                                                                              \
    if (XSI_UNLIKELY(xsi_hip_inside(__builtin_return_address(0)))) return real(__VA_ARGS__);       \
    if (XSI_UNLIKELY(__atomic_load_n(&xsi_hip_several, __ATOMIC_RELAXED))) {                       \
      __typeof__(real) other_ =                                                                    \
          (__typeof__(real))xsi_hip_foreign(XSI_HIP_##symbol, __builtin_return_address(0));        \
      if (other_) return other_(__VA_ARGS__);                                                      \
    }                                                                                              \
  } while (0)

/* A typed call of the real function, where the application's own error does not matter. */
#define xsi_hip_call_real(symbol, ...)                                                             \
  ({                                                                                               \
    __typeof__(&symbol) real_ = (__typeof__(&symbol))xsi_hip_slot(XSI_HIP_##symbol);               \
    real_ ? real_(__VA_ARGS__) : XSI_HIP_NOT_FOUND;                                                \
  })

/* Begins an entry point; XSI_HIP_GUARD follows. */
#define XSI_HIP_REAL(symbol)                                                                       \
  __typeof__(&symbol) real = (__typeof__(&symbol))xsi_hip_slot(XSI_HIP_##symbol)

#endif /* XSCHED_HIP_LIBRARY_H */
