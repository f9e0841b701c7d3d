// SPDX-License-Identifier: Apache-2.0
//
// Finds the real functions of a runtime: from its library's own handle, so that load order and other
// preloaded libraries can't lead back to us.

#include "runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <string.h>

#include "core/counters.h"
#include "core/init.h"
#include "core/log.h"
#include "core/options.h"
#include "core/real.h"

static void read_options(void) {
  xsi_init();
  if (xsi_options.disabled) return;
  for (const struct xsi_runtime *const *at = xsi_runtimes; *at != NULL; at++)
    if ((*at)->read_options != NULL) (*at)->read_options();
}

void xsi_runtime_init(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_options);
}

// At load: reading the environment later would race with the application's setenv.
__attribute__((constructor)) static void load(void) {
  xsi_runtime_init();
  if (!xsi_options.disabled) (void)xsi_runtime_rebind();
}

const char *xsi_base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

bool xsi_in_shim(void *address) {
  Dl_info theirs, ours;
  return dladdr(address, &theirs) && dladdr((void *)xsi_runtimes, &ours) &&
         theirs.dli_fbase == ours.dli_fbase;
}

bool xsi_runtime_has(const struct xsi_runtime *runtime, void *address) {
  Dl_info info;
  return dladdr(address, &info) && info.dli_fname != NULL && runtime->is_library(info.dli_fname);
}

void *xsi_runtime_loaded(void **handle, const char *name) {
  void *found = __atomic_load_n(handle, __ATOMIC_ACQUIRE);
  if (found != NULL) return found;
  found = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (found != NULL)
    __atomic_store_n(handle, found, __ATOMIC_RELEASE);
  else
    dlerror(); // ours, not the application's
  return found;
}

// ---- stand-ins ----------------------------------------------------------------------

bool xsi_runtime_stands_in(const struct dl_phdr_info *object) {
  for (unsigned i = 0; i < object->dlpi_phnum; i++)
    if (object->dlpi_phdr[i].p_type == PT_LOAD && (object->dlpi_phdr[i].p_flags & PF_X) != 0)
      return false;
  return true;
}

struct behind {
  const struct xsi_runtime *runtime;
  char *path; /* of the first that is the runtime */
  bool stand_in;
};

static int look_behind(struct dl_phdr_info *object, size_t size, void *argument) {
  (void)size;
  struct behind *behind = argument;
  const char *name = object->dlpi_name;
  if (name == NULL || !behind->runtime->is_library(name)) return 0;
  if (xsi_runtime_stands_in(object))
    behind->stand_in = true;
  else if (behind->path[0] == 0 && strlen(name) < XSI_PATH_BYTES)
    strcpy(behind->path, name);
  return 0;
}

bool xsi_runtime_behind(const struct xsi_runtime *runtime, char path[XSI_PATH_BYTES]) {
  struct behind behind = {.runtime = runtime, .path = path};
  path[0] = 0;
  dl_iterate_phdr(look_behind, &behind);
  return behind.stand_in && path[0] != 0;
}

// The hashes of names that were reported; a full table reports no more.
static bool is_new(const char *name) {
  static uint64_t reported[64]; // atomic
  uint64_t hash = 14695981039346656037u;
  for (; *name != 0; name++)
    hash = (hash ^ (unsigned char)*name) * 1099511628211u;
  for (unsigned i = 0; i < sizeof reported / sizeof *reported; i++) {
    uint64_t before = 0;
    if (__atomic_compare_exchange_n(&reported[i], &before, hash, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
      return true;
    if (before == hash) return false;
  }
  return false;
}

void xsi_runtime_unknown(const char *name) {
  xsi_runtime_init();
  if (xsi_options.disabled || !is_new(name)) return;
  xsi_count(unhooked, 1);
  xsi_log(XSI_WARN, "%s is newer than this library: its work is not accounted for", name);
}

// ---- binding ------------------------------------------------------------------------

bool xsi_runtime_bind_to(const struct xsi_runtime *runtime, unsigned slot, void *address) {
  void *unbound = NULL;
  if (runtime->adopt != NULL && !runtime->adopt(slot, address)) return false;
  __atomic_compare_exchange_n(&runtime->real[slot], &unbound, address, false, __ATOMIC_ACQ_REL,
                              __ATOMIC_ACQUIRE);
  return true;
}

void *xsi_runtime_bind(const struct xsi_runtime *runtime, unsigned slot) {
  void *real = __atomic_load_n(&runtime->real[slot], __ATOMIC_ACQUIRE);
  if (real != NULL || __atomic_load_n(&runtime->missing[slot], __ATOMIC_RELAXED)) return real;
  int saved_errno = errno;
  void *handle = runtime->library();
  if (handle != NULL) {
    // Without a version: the newest that the library has under that name.
    real = xsi_real_dlsym(handle, runtime->symbols[slot].name);
    if (real == NULL) dlerror(); // ours, not the application's
    if (real != NULL && xsi_in_shim(real)) real = NULL;
    if (real == NULL || !xsi_runtime_bind_to(runtime, slot, real))
      __atomic_store_n(&runtime->missing[slot], true, __ATOMIC_RELAXED);
    real = __atomic_load_n(&runtime->real[slot], __ATOMIC_ACQUIRE);
  } else if (runtime->absent != NULL) {
    real = runtime->absent(slot);
  }
  errno = saved_errno;
  return real;
}

void xsi_runtime_bind_all(const struct xsi_runtime *runtime) {
  for (unsigned slot = 0; slot < runtime->slots; slot++)
    xsi_runtime_bind(runtime, slot);
}

// ---- dlsym --------------------------------------------------------------------------

// The last real call decides what dlerror() says, so its answer is the one returned.
static void *ask(void *handle, const char *name, const char *version) {
  return version != NULL ? xsi_real_dlvsym(handle, name, version) : xsi_real_dlsym(handle, name);
}

// The hook is in the global scope, so that directly linked programs find it. RTLD_DEFAULT and the handle
// of the main program can return it where they would return nothing without us.
static void *without_us(const struct xsi_runtime *runtime, unsigned slot, const char *version) {
  const char *name = runtime->symbols[slot].name;
  void *library = xsi_options.disabled ? NULL : runtime->library();
  if (library != NULL && xsi_runtime_bind(runtime, slot) != NULL)
    return ask(library, name, version) != NULL ? runtime->symbols[slot].hook : NULL;
  return ask(RTLD_NEXT, name, version);
}

void *xsi_runtime_resolve(const struct xsi_runtime *runtime, unsigned slot, void *handle,
                          const char *version) {
  xsi_runtime_init();
  void *address = ask(handle, runtime->symbols[slot].name, version);
  if (address != NULL ? xsi_in_shim(address) : handle == RTLD_DEFAULT)
    address = without_us(runtime, slot, version);
  if (address != NULL && !xsi_options.disabled && xsi_runtime_has(runtime, address) &&
      xsi_runtime_bind_to(runtime, slot, address))
    address = runtime->symbols[slot].hook;
  return address;
}
