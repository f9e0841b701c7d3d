// SPDX-License-Identifier: Apache-2.0
//
// What dlsym and dlvsym answer for names of HIP; dl/ asks.

#include "driver.h"

#include "core/compat.h"

#include <dlfcn.h>
#include <stddef.h>

/* The last real call decides what dlerror() says, so it is the one answered. */
static void *ask(void *handle, const char *name, const char *version) {
  return version ? xsi_real_dlvsym(handle, name, version) : xsi_real_dlsym(handle, name);
}

// Ours is in the global scope, so that directly linked programs find it: RTLD_DEFAULT and the
// handle of the main program can answer it where they would not without us.
static void *without_us(unsigned slot, const char *name, const char *version) {
  if (!xsi_options.disabled && xsi_hip_library() && xsi_hip_bind(slot)) {
    if (ask(xsi_hip_library(), name, version)) return xsi_hip_symbols[slot].hook;
    return NULL; // it has none of that version
  }
  return ask(RTLD_NEXT, name, version);
}

void *xsi_hip_resolve(unsigned slot, void *handle, const char *version) {
  const char *name = xsi_hip_symbols[slot].name;
  xsi_init();
  void *address = ask(handle, name, version);
  if (address ? xsi_hip_in_shim(address) : handle == RTLD_DEFAULT)
    address = without_us(slot, name, version);
  if (address && !xsi_options.disabled && xsi_hip_in_runtime(address) &&
      xsi_hip_bind_to(slot, address))
    address = xsi_hip_symbols[slot].hook;
  return address;
}
