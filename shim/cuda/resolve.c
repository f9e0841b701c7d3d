// SPDX-License-Identifier: Apache-2.0
//
// What dlsym and dlvsym answer. The exported functions are in dlsym.S: they ask here only for names that
// begin with "cu", and otherwise jump to the real function, which then sees the application as its caller.

#include "driver.h"

#include "core/compat.h"

#include <dlfcn.h>
#include <stddef.h>

/* Where dlsym.S jumps to; NULL until the library is initialised. */
__attribute__((visibility("hidden"))) void *xsi_dlsym_target, *xsi_dlvsym_target;

/* In two registers: the answer, and whether it is one. */
struct xsi_dl_answer {
  void *address;
  uintptr_t decided;
};
__attribute__((visibility("hidden"))) struct xsi_dl_answer
xsi_dlsym_resolve(void *handle, const char *name);
__attribute__((visibility("hidden"))) struct xsi_dl_answer
xsi_dlvsym_resolve(void *handle, const char *name, const char *version);
__attribute__((visibility("hidden"))) void *xsi_dlsym_prepare(void);
__attribute__((visibility("hidden"))) void *xsi_dlvsym_prepare(void);

void *xsi_dlsym_prepare(void) {
  xsi_init();
  __atomic_store_n(&xsi_dlsym_target, (void *)xsi_real_dlsym, __ATOMIC_RELEASE);
  return (void *)xsi_real_dlsym;
}

void *xsi_dlvsym_prepare(void) {
  xsi_init();
  __atomic_store_n(&xsi_dlvsym_target, (void *)xsi_real_dlvsym, __ATOMIC_RELEASE);
  return (void *)xsi_real_dlvsym;
}

/* version may be NULL: dlsym. The real call is always the last one, so that dlerror() says what it would. */
static void *ask(void *handle, const char *name, const char *version) {
  return version ? xsi_real_dlvsym(handle, name, version) : xsi_real_dlsym(handle, name);
}

static bool driver_loaded(void) {
  void *handle = dlopen(xsi_options.cuda_library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle) dlclose(handle);
  return handle != NULL;
}

static struct xsi_dl_answer resolve(void *handle, const char *name, const char *version) {
  struct xsi_dl_answer pass = {NULL, 0};
  int slot = xsi_cu_find(name);
  if (slot < 0) return pass;
  xsi_init();
  void *hook = xsi_cu_symbols[slot].hook;
  bool loaded = driver_loaded();
  // Ours is in the global scope, so that directly linked programs find it: RTLD_DEFAULT and the handle of
  // the main program can answer it where they would not without us.
  void *found = ask(handle, name, version);
  bool ours = found && xsi_cu_in_shim(found);
  if (ours || (!found && handle == RTLD_DEFAULT)) {
    if (loaded && !xsi_options.disabled && xsi_cu_bind((unsigned)slot)) {
      ask(xsi_cu_library(), name, version); // no error is left behind
      return (struct xsi_dl_answer){hook, 1};
    }
    found = ask(RTLD_NEXT, name, version); // as if we were not there
  }
  if (found && !xsi_options.disabled && xsi_cu_in_driver(found)) {
    xsi_cu_bind_to((unsigned)slot, found);
    found = hook;
  }
  return (struct xsi_dl_answer){found, 1};
}

struct xsi_dl_answer xsi_dlsym_resolve(void *handle, const char *name) {
  return resolve(handle, name, NULL);
}

struct xsi_dl_answer xsi_dlvsym_resolve(void *handle, const char *name, const char *version) {
  if (!version) return (struct xsi_dl_answer){NULL, 0};
  return resolve(handle, name, version);
}
