// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver's library, and what cuGetProcAddress answers.

#include "library.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "core/counters.h"
#include "core/log.h"
#include "core/options.h"

char xsi_cu_library_name[64] = "libcuda.so.1";
void *xsi_cu_real[XSI_CU_SLOTS];
static bool missing[XSI_CU_SLOTS];
static void *library;

static void read_options(void) {
  char name[sizeof xsi_cu_library_name];
  if (xsi_option_text("XSCHED_CUDA_LIB", name, sizeof name) && name[0] != 0)
    memcpy(xsi_cu_library_name, name, sizeof name);
}

static bool is_library(const char *path) {
  const char *name = xsi_base_name(path);
  return strncmp(name, "libcuda.so", strlen("libcuda.so")) == 0 ||
         strcmp(name, xsi_base_name(xsi_cu_library_name)) == 0;
}

static void *find_library(void) {
  void *handle = __atomic_load_n(&library, __ATOMIC_ACQUIRE);
  if (handle != NULL) return handle;
  char path[XSI_PATH_BYTES];
  xsi_runtime_init();
  bool behind = xsi_runtime_behind(&xsi_cu_runtime, path);
  return xsi_runtime_loaded(&library, behind ? path : xsi_cu_library_name);
}

// A driver loaded under another name than the one configured: its other functions come from it, too.
static bool adopt(unsigned slot, void *address) {
  (void)slot;
  Dl_info info;
  if (!find_library() && dladdr(address, &info) && info.dli_fname)
    xsi_runtime_loaded(&library, info.dli_fname);
  return true;
}

static const char *const prefixes[] = {"cu", NULL};

const struct xsi_runtime xsi_cu_runtime = {
    .name = "cuda",
    .prefixes = prefixes,
    .known = xsi_known_cuda,
    .known_count = &xsi_known_cuda_count,
    .symbols = xsi_cu_symbols,
    .hooks = XSI_CU_HOOKS,
    .slots = XSI_CU_SLOTS,
    .real = xsi_cu_real,
    .missing = missing,
    .read_options = read_options,
    .is_library = is_library,
    .library = find_library,
    .adopt = adopt,
    .unhooked = xsi_cu_stub_for,
};

// ---- cuGetProcAddress -----------------------------------------------------------------------

static int first_of_api(const char *api) {
  int low = 0, high = xsi_cu_apis_count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (strcmp(xsi_cu_apis[xsi_cu_by_api[middle]].name, api) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < xsi_cu_apis_count && strcmp(xsi_cu_apis[xsi_cu_by_api[low]].name, api) == 0 ? low
                                                                                           : -1;
}

// A function that also goes by another one's name with a newer version, under its own.
static void *by_symbol(const char *name, void *address) {
  int slot = xsi_runtime_find(&xsi_cu_runtime, name);
  if (slot < 0 || !xsi_cu_apis[slot].name) return NULL;
  void *hook = xsi_cu_symbols[slot].hook;
  return address == hook || xsi_cu_slot((unsigned)slot) == address ? hook : NULL;
}

void *xsi_cu_match(const char *api, int version, cuuint64_t flags, void *address) {
  int first = first_of_api(api);
  if (first < 0) {
    void *hook = by_symbol(api, address);
    if (hook) return hook;
    if (xsi_runtime_suspects(&xsi_cu_runtime, api)) xsi_runtime_unknown(api);
    return xsi_cu_stub_for(api, address);
  }
  bool thread = flags & XSI_CU_PROC_PER_THREAD;
  int best = -1;
  for (int i = first; i < xsi_cu_apis_count; i++) {
    int slot = xsi_cu_by_api[i];
    const struct xsi_cu_api *known = &xsi_cu_apis[slot];
    if (strcmp(known->name, api) != 0) break;
    // A driver that is linked to look for its own names may have found ours.
    void *hook = xsi_cu_symbols[slot].hook;
    if (address == hook || xsi_cu_slot((unsigned)slot) == address) return hook;
    if (known->since <= version &&
        (best < 0 || known->since > xsi_cu_apis[best].since ||
         (known->since == xsi_cu_apis[best].since && known->thread == thread)) &&
        (!known->thread || thread))
      best = slot;
  }
  // An address the driver does not export under a name of ours. If it has another name, or may be
  // newer than the table, its parameters are not known to us.
  Dl_info info;
  bool named = dladdr(address, &info) && info.dli_sname && info.dli_saddr == address;
  if (best >= 0 && !named && version <= XSI_CU_NEWEST && !xsi_in_shim(address)) {
    xsi_runtime_bind_to(&xsi_cu_runtime, (unsigned)best, address);
    return xsi_cu_symbols[best].hook;
  }
  xsi_count(unhooked, 1);
  xsi_log(XSI_WARN, "%s of version %d passes unhooked: the driver's answer is not known", api,
          version);
  return xsi_cu_stub_for(api, address);
}
