// SPDX-License-Identifier: Apache-2.0
//
// Finds the real driver functions: from the driver library's own handle, so that load order and
// other preloaded libraries can't lead back to us.

#include "driver.h"

#include "core/compat.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

void *xsi_cu_real[XSI_CU_SLOTS];
static bool missing[XSI_CU_SLOTS]; /* the driver was asked and has none */
static void *library;

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool xsi_cu_in_shim(void *address) {
  Dl_info theirs, ours;
  return dladdr(address, &theirs) && dladdr((void *)xsi_cu_symbols, &ours) &&
         theirs.dli_fbase == ours.dli_fbase;
}

static bool is_driver_file(const char *path) {
  const char *name = base_name(path);
  return strncmp(name, "libcuda.so", strlen("libcuda.so")) == 0 ||
         strcmp(name, base_name(xsi_options.cuda_library)) == 0;
}

bool xsi_cu_in_driver(void *address) {
  Dl_info info;
  return dladdr(address, &info) && info.dli_fname && is_driver_file(info.dli_fname);
}

void *xsi_cu_library(void) {
  void *handle = __atomic_load_n(&library, __ATOMIC_ACQUIRE);
  if (handle) return handle;
  xsi_init();
  handle = dlopen(xsi_options.cuda_library, RTLD_LAZY | RTLD_NOLOAD);
  if (handle)
    __atomic_store_n(&library, handle, __ATOMIC_RELEASE);
  else
    dlerror(); // ours, not the application's
  return handle;
}

void xsi_cu_bind_to(unsigned slot, void *address) {
  void *none = NULL;
  __atomic_compare_exchange_n(&xsi_cu_real[slot], &none, address, false, __ATOMIC_ACQ_REL,
                              __ATOMIC_ACQUIRE);
  if (__atomic_load_n(&library, __ATOMIC_ACQUIRE)) return;
  // A driver loaded under another name than the one configured: its other functions come from it
  // too.
  Dl_info info;
  if (xsi_cu_library() || !dladdr(address, &info) || !info.dli_fname) return;
  void *handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (handle)
    __atomic_store_n(&library, handle, __ATOMIC_RELEASE);
  else
    dlerror();
}

void *xsi_cu_bind(unsigned slot) {
  void *real = __atomic_load_n(&xsi_cu_real[slot], __ATOMIC_ACQUIRE);
  if (real || __atomic_load_n(&missing[slot], __ATOMIC_RELAXED)) return real;
  int saved_errno = errno;
  void *handle = xsi_cu_library();
  if (handle) {
    real = xsi_real_dlsym(handle, xsi_cu_symbols[slot].name);
    if (!real) dlerror();
    if (real && xsi_cu_in_shim(real)) real = NULL; // a driver that is us is none
    if (real)
      xsi_cu_bind_to(slot, real);
    else
      __atomic_store_n(&missing[slot], true, __ATOMIC_RELAXED);
    real = __atomic_load_n(&xsi_cu_real[slot], __ATOMIC_ACQUIRE);
  }
  errno = saved_errno;
  return real;
}

int xsi_cu_find(const char *symbol) {
  int low = 0, high = XSI_CU_HOOKS;
  while (low < high) {
    int middle = (low + high) / 2;
    int order = strcmp(symbol, xsi_cu_symbols[middle].name);
    if (order == 0) return middle;
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return -1;
}

// ---- cuGetProcAddress -----------------------------------------------------------------------

static int first_of_api(const char *api) {
  int low = 0, high = XSI_CU_HOOKS;
  while (low < high) {
    int middle = (low + high) / 2;
    if (strcmp(xsi_cu_symbols[xsi_cu_by_api[middle]].api, api) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < XSI_CU_HOOKS && strcmp(xsi_cu_symbols[xsi_cu_by_api[low]].api, api) == 0 ? low : -1;
}

void *xsi_cu_match(const char *api, int version, cuuint64_t flags, void *address) {
  int first = first_of_api(api);
  if (first < 0) return address;
  bool thread = flags & XSI_CU_PROC_PER_THREAD;
  int best = -1;
  for (int i = first; i < XSI_CU_HOOKS; i++) {
    int slot = xsi_cu_by_api[i];
    const struct xsi_cu_symbol *symbol = &xsi_cu_symbols[slot];
    if (strcmp(symbol->api, api) != 0) break;
    // A driver that is linked to look for its own names may have found ours.
    if (address == symbol->hook || xsi_cu_slot((unsigned)slot) == address) return symbol->hook;
    if (symbol->since <= version &&
        (best < 0 || symbol->since > xsi_cu_symbols[best].since ||
         (symbol->since == xsi_cu_symbols[best].since && symbol->thread == thread)) &&
        (!symbol->thread || thread))
      best = slot;
  }
  // An address the driver does not export under a name of ours. If it has another name, or may be
  // newer than the table, its parameters are not known to us.
  Dl_info info;
  bool named = dladdr(address, &info) && info.dli_sname && info.dli_saddr == address;
  if (best >= 0 && !named && version <= XSI_CU_NEWEST && !xsi_cu_in_shim(address)) {
    xsi_cu_bind_to((unsigned)best, address);
    return xsi_cu_symbols[best].hook;
  }
  xsi_count(unhooked, 1);
  xsi_log(XSI_WARN, "%s of version %d passes unhooked: the driver's answer is not known", api,
          version);
  return address;
}
