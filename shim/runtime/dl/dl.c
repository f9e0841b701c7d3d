// SPDX-License-Identifier: Apache-2.0
//
// Answers dlsym and dlvsym for hooked names. The exported functions are in dlsym.S: they ask here
// first, and otherwise jump to the real function, which then sees the application as its caller.

#include "core/options.h"
#include "core/real.h"
#include "runtime/runtime.h"

#define HIDDEN __attribute__((visibility("hidden")))

/* Where dlsym.S jumps to; NULL until the first call. */
HIDDEN void *xsi_dlsym_target, *xsi_dlvsym_target;
/* First letters of hooked names. */
HIDDEN unsigned char xsi_dl_first[256];

/* In two registers: the answer, and whether it is one. */
struct xsi_dl_answer {
  void *address;
  uintptr_t decided;
};
HIDDEN struct xsi_dl_answer xsi_dlsym_resolve(void *handle, const char *name);
HIDDEN struct xsi_dl_answer xsi_dlvsym_resolve(void *handle, const char *name, const char *version);
HIDDEN void xsi_dl_prepare(void);

// The first dlsym of the process: it calls nothing of libc (core/elf.c). The rest of the library
// starts later, in its constructor or in the first hook that needs it.
void xsi_dl_prepare(void) {
  xsi_real_find_dlsym();
  for (const struct xsi_runtime *const *at = xsi_runtimes; *at != NULL; at++)
    for (const char *const *prefix = (*at)->prefixes; *prefix != NULL; prefix++)
      xsi_dl_first[(unsigned char)**prefix] = 1;
  __atomic_store_n(&xsi_dlvsym_target, (void *)xsi_real_dlvsym, __ATOMIC_RELEASE);
  __atomic_store_n(&xsi_dlsym_target, (void *)xsi_real_dlsym, __ATOMIC_RELEASE);
}

static struct xsi_dl_answer unlisted(const struct xsi_runtime *runtime, void *handle,
                                     const char *name, const char *version) {
  struct xsi_dl_answer answer = {NULL, 0}; // asked again, so that it sees its real caller
  void *address =
      version != NULL ? xsi_real_dlvsym(handle, name, version) : xsi_real_dlsym(handle, name);
  if (address == NULL || !xsi_runtime_has(runtime, address)) return answer;
  xsi_runtime_init();
  if (xsi_runtime_suspects(runtime, name)) xsi_runtime_unknown(name);
  if (runtime->unhooked != NULL && !xsi_options.disabled)
    answer = (struct xsi_dl_answer){runtime->unhooked(name, address), 1};
  return answer;
}

static struct xsi_dl_answer resolve(void *handle, const char *name, const char *version) {
  for (const struct xsi_runtime *const *at = xsi_runtimes; *at != NULL; at++) {
    int slot = xsi_runtime_find(*at, name);
    if (slot >= 0)
      return (struct xsi_dl_answer){xsi_runtime_resolve(*at, (unsigned)slot, handle, version), 1};
    if (xsi_runtime_unlisted(*at, name)) return unlisted(*at, handle, name, version);
  }
  return (struct xsi_dl_answer){NULL, 0};
}

struct xsi_dl_answer xsi_dlsym_resolve(void *handle, const char *name) {
  return resolve(handle, name, NULL);
}

struct xsi_dl_answer xsi_dlvsym_resolve(void *handle, const char *name, const char *version) {
  if (version == NULL) return (struct xsi_dl_answer){NULL, 0};
  return resolve(handle, name, version);
}
