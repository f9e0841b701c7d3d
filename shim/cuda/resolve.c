// SPDX-License-Identifier: Apache-2.0
//
// What dlsym and dlvsym answer. The exported functions are in dlsym.S: they ask here only for names
// that begin with "cu", and otherwise jump to the real function, which then sees the application as
// its caller.

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
__attribute__((visibility("hidden"))) struct xsi_dl_answer xsi_dlsym_resolve(void *handle,
                                                                             const char *name);
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

/* version may be NULL: dlsym. The last real call decides what dlerror() says, so it is the one
 * answered. */
static void *ask(void *handle, const char *name, const char *version) {
  return version ? xsi_real_dlvsym(handle, name, version) : xsi_real_dlsym(handle, name);
}

static bool driver_loaded(void) {
  void *handle = dlopen(xsi_options.cuda_library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle) dlclose(handle);
  return handle != NULL;
}

// Ours is in the global scope, so that directly linked programs find it: RTLD_DEFAULT and the
// handle of the main program can answer it where they would not without us.
static void *without_us(unsigned slot, const char *name, const char *version) {
  if (!xsi_options.disabled && driver_loaded() && xsi_cu_bind(slot)) {
    ask(xsi_cu_library(), name, version); // leaves no error behind
    return xsi_cu_symbols[slot].hook;
  }
  return ask(RTLD_NEXT, name, version);
}

static struct xsi_dl_answer resolve(void *handle, const char *name, const char *version) {
  struct xsi_dl_answer answer = {NULL, 0};
  int slot = xsi_cu_find(name);
  if (slot < 0) return answer;
  xsi_init();
  answer.decided = 1;
  answer.address = ask(handle, name, version);
  if (answer.address ? xsi_cu_in_shim(answer.address) : handle == RTLD_DEFAULT)
    answer.address = without_us((unsigned)slot, name, version);
  if (answer.address && !xsi_options.disabled && xsi_cu_in_driver(answer.address)) {
    xsi_cu_bind_to((unsigned)slot, answer.address);
    answer.address = xsi_cu_symbols[slot].hook;
  }
  return answer;
}

struct xsi_dl_answer xsi_dlsym_resolve(void *handle, const char *name) {
  return resolve(handle, name, NULL);
}

struct xsi_dl_answer xsi_dlvsym_resolve(void *handle, const char *name, const char *version) {
  if (!version) return (struct xsi_dl_answer){NULL, 0};
  return resolve(handle, name, version);
}
