// SPDX-License-Identifier: Apache-2.0
//
// What dlsym and dlvsym answer for names of CUDA; dl/ asks.

#include "driver.h"

#include "core/compat.h"

#include <dlfcn.h>
#include <stddef.h>

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

void *xsi_cu_resolve(unsigned slot, void *handle, const char *version) {
  const char *name = xsi_cu_symbols[slot].name;
  xsi_init();
  void *address = ask(handle, name, version);
  if (address ? xsi_cu_in_shim(address) : handle == RTLD_DEFAULT)
    address = without_us(slot, name, version);
  if (address && !xsi_options.disabled && xsi_cu_in_driver(address)) {
    xsi_cu_bind_to(slot, address);
    address = xsi_cu_symbols[slot].hook;
  }
  return address;
}
