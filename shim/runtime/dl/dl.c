// SPDX-License-Identifier: Apache-2.0
//
// Who answers for a name. The exported functions are in dlsym.S: they ask here only for names that
// may be hooked, and otherwise jump to the real function, which then sees the application as its
// caller.

#include "dl.h"
#include "core/compat.h"
#include "core/parts.h"

#include <stddef.h>

/* Where dlsym.S jumps to; NULL until the library is initialised. */
__attribute__((visibility("hidden"))) void *xsi_dlsym_target, *xsi_dlvsym_target;

/* In two registers: the answer, and whether it is one. */
struct xsi_dl_answer {
  void *address;
  uintptr_t decided;
};
__attribute__((visibility("hidden"))) struct xsi_dl_answer xsi_dlsym_resolve(void *handle,
                                                                             const char *name);
__attribute__((visibility("hidden"))) struct xsi_dl_answer
xsi_dlvsym_resolve(void *handle, const char *name, const char *version);
__attribute__((visibility("hidden"))) void *xsi_dlsym_prepare(void);
__attribute__((visibility("hidden"))) void *xsi_dlvsym_prepare(void);

// The rest of the library starts later: in its constructor, or in the first hook that needs it.
void *xsi_dlsym_prepare(void) {
  xsi_real_find_dlsym();
  __atomic_store_n(&xsi_dlsym_target, (void *)xsi_real_dlsym, __ATOMIC_RELEASE);
  return (void *)xsi_real_dlsym;
}

void *xsi_dlvsym_prepare(void) {
  xsi_real_find_dlsym();
  __atomic_store_n(&xsi_dlvsym_target, (void *)xsi_real_dlvsym, __ATOMIC_RELEASE);
  return (void *)xsi_real_dlvsym;
}

/* The hooked libraries: which name is whose, and the answer. */
static const struct {
  int (*find)(const char *name);
  void *(*resolve)(unsigned slot, void *handle, const char *version);
} libraries[] = {{xsi_cu_find, xsi_cu_resolve}, {xsi_hip_find, xsi_hip_resolve}};

static struct xsi_dl_answer resolve(void *handle, const char *name, const char *version) {
  bool cuda = name[0] == 'c';
  int slot = libraries[!cuda].find(name);
  if (slot < 0) return (struct xsi_dl_answer){NULL, 0};
  return (struct xsi_dl_answer){libraries[!cuda].resolve((unsigned)slot, handle, version), 1};
}

struct xsi_dl_answer xsi_dlsym_resolve(void *handle, const char *name) {
  return resolve(handle, name, NULL);
}

struct xsi_dl_answer xsi_dlvsym_resolve(void *handle, const char *name, const char *version) {
  if (!version) return (struct xsi_dl_answer){NULL, 0};
  return resolve(handle, name, version);
}
