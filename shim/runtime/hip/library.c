// SPDX-License-Identifier: Apache-2.0
//
// Finds the real runtime: the libamdhip64 that is loaded, whatever its version, its folder and its
// scope. Programs load it by different names (libamdhip64.so.5, .6, .7, a wheel's own copy), and
// Python loads it for itself alone, where RTLD_NEXT does not look.

#include "library.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "core/counters.h"
#include "core/environment.h"
#include "core/hint.h"
#include "core/log.h"
#include "core/options.h"
#include "core/real.h"
#include "core/work.h"

#define RUNTIME "libamdhip64"

void *xsi_hip_real[XSI_HIP_SLOTS];
static bool missing[XSI_HIP_SLOTS];
static char configured[64]; /* XSCHED_HIP_LIB: the file name, if it is not libamdhip64* */
static void *library;
static void *base; /* of the copy that is hooked */
uint32_t xsi_hip_several;
static const struct xsi_hip_code nothing;
const struct xsi_hip_code *xsi_hip_code = &nothing;

// AMD_QUEUE_TAG and AMD_QUEUE_PRIORITY tell online from offline programs, as in libgpreempt: the tag
// comes first. The driver's normal priority is 7.
static void read_priority(void) {
  enum { ONLINE = 10, OFFLINE = -10, NORMAL = 7, MAXIMUM = 15 };
  char tag[64] = "", text[16] = "";
  long value;
  if ((xsi_options.hint.said & XSW_HINT_PRIORITY) != 0) return; // XSched's own variable is set
  if (xsi_option_text("AMD_QUEUE_TAG", tag, sizeof tag) && strncasecmp(tag, "ONLINE", 6) == 0) {
    value = ONLINE;
  } else if (strncasecmp(tag, "OFFLINE", 7) == 0) {
    value = OFFLINE;
  } else if (xsi_option_text("AMD_QUEUE_PRIORITY", text, sizeof text) && text[0] != 0) {
    if (!xsi_parse_decimal(text, 0, MAXIMUM, &value)) {
      xsi_log(XSI_ERROR, "AMD_QUEUE_PRIORITY=%s is ignored; give 0 to 15", text);
      return;
    }
    value -= NORMAL;
  } else {
    return;
  }
  const struct xsw_hint hint = {.said = XSW_HINT_PRIORITY, .priority = (int32_t)value};
  xsi_hint_process(&hint, NULL);
}

static void read_options(void) {
  if (!xsi_option_text("XSCHED_HIP_LIB", configured, sizeof configured)) configured[0] = 0;
  read_priority();
}

// libamdhip64.so, .so.6 and .so.6.2.41134, or libamdhip64-1a2b3c.so as repaired wheels name it.
static bool is_library(const char *path) {
  const char *name = xsi_base_name(path);
  if (configured[0] && strcmp(name, xsi_base_name(configured)) == 0) return true;
  size_t length = strlen(RUNTIME);
  return strncmp(name, RUNTIME, length) == 0 && (name[length] == '.' || name[length] == '-') &&
         strstr(name + length, ".so") != NULL;
}

static void *base_of(void *address) {
  Dl_info info;
  return dladdr(address, &info) ? info.dli_fbase : NULL;
}

/* A runtime, or the object with this address; where it lies, and how many runtimes there are. */
struct search {
  void *inside;
  char path[4096];
  uintptr_t start, bytes;
  unsigned runtimes;
};

static int visit(struct dl_phdr_info *object, size_t size, void *argument) {
  (void)size;
  struct search *search = argument;
  uintptr_t first = UINTPTR_MAX, end = 0;
  for (unsigned i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &object->dlpi_phdr[i];
    if (part->p_type != PT_LOAD) continue;
    uintptr_t start = object->dlpi_addr + part->p_vaddr;
    if (start < first) first = start;
    if (start + part->p_memsz > end) end = start + part->p_memsz;
  }
  const char *name = object->dlpi_name ? object->dlpi_name : "";
  uintptr_t at = (uintptr_t)search->inside;
  if (search->inside ? at < first || at >= end : !is_library(name) || xsi_runtime_stands_in(object))
    return 0;
  if (strlen(name) >= sizeof search->path) return 0;
  if (search->runtimes++ == 0) {
    strcpy(search->path, name);
    search->start = first;
    search->bytes = end - first;
  }
  return search->inside != NULL;
}

static void note_code(void *address) {
  static struct xsi_hip_code found;
  static bool noting;
  struct search runtime = {.inside = address}, shim = {.inside = (void *)xsi_hip_symbols};
  if (__atomic_exchange_n(&noting, true, __ATOMIC_ACQ_REL)) return;
  if (!dl_iterate_phdr(visit, &runtime) || !dl_iterate_phdr(visit, &shim)) return;
  found = (struct xsi_hip_code){runtime.start, runtime.bytes, shim.start, shim.bytes};
  __atomic_store_n(&xsi_hip_code, &found, __ATOMIC_RELEASE);
}

static void *find_library(void) {
  void *handle = __atomic_load_n(&library, __ATOMIC_ACQUIRE);
  xsi_hip_look(); // the caller may be a second copy
  if (handle) return handle;
  xsi_runtime_init();
  struct search search = {.inside = NULL};
  // By the very path the loader has it under: any other could load it once more. A relative one may
  // mean something else by now; then by the library's own name.
  static const char *const names[] = {RUNTIME ".so.7", RUNTIME ".so.6", RUNTIME ".so.5"};
  dl_iterate_phdr(visit, &search);
  if (search.runtimes > 0) {
    handle = xsi_runtime_loaded(&library, search.path);
    for (unsigned i = 0; !handle && i < sizeof names / sizeof *names; i++)
      handle = xsi_runtime_loaded(&library, names[i]);
  }
  return handle;
}

// The copy that is met first is the one that is hooked.
static bool is_first(void *address) {
  Dl_info info;
  void *none = NULL;
  if (!dladdr(address, &info)) return false;
  if (!__atomic_compare_exchange_n(&base, &none, info.dli_fbase, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE))
    return none == info.dli_fbase;
  void *handle = NULL; // may replace one that was found by name
  if (xsi_runtime_loaded(&handle, info.dli_fname))
    __atomic_store_n(&library, handle, __ATOMIC_RELEASE);
  return true;
}

// Work of another copy passes: memory does not move beside it.
static void several(void) {
  __atomic_store_n(&xsi_hip_several, 1, __ATOMIC_RELAXED);
  xsi_work_unrecorded();
}

static bool adopt(unsigned slot, void *address) {
  if (is_first(address)) {
    note_code(address);
    return true;
  }
  several(); // its own calls of itself meet us, too
  xsi_count(unhooked, 1);
  xsi_log(XSI_WARN, "%s of a second copy of the HIP runtime passes unhooked",
          xsi_hip_symbols[slot].name);
  return false;
}

// HIP is also an interface that others than AMD implement. Their functions are called as if we were
// not there: what we know of the runtime holds for AMD's only.
static void *of_another_make(unsigned slot) {
  void *real = xsi_real_dlsym(RTLD_NEXT, xsi_hip_symbols[slot].name);
  if (!real) {
    dlerror();
    return NULL;
  }
  if (__atomic_exchange_n(&xsi_hip_state, XSI_HIP_DISABLED, __ATOMIC_ACQ_REL) != XSI_HIP_DISABLED)
    xsi_log(XSI_WARN, "a HIP runtime that is not AMD's runs unscheduled");
  __atomic_store_n(&xsi_hip_real[slot], real, __ATOMIC_RELEASE);
  return real;
}

static const char *const prefixes[] = {"hip", "_Z24hip", NULL};

const struct xsi_runtime xsi_hip_runtime = {
    .name = "hip",
    .prefixes = prefixes,
    .known = xsi_known_hip,
    .known_count = &xsi_known_hip_count,
    .symbols = xsi_hip_symbols,
    .hooks = XSI_HIP_HOOKS,
    .slots = XSI_HIP_SLOTS,
    .real = xsi_hip_real,
    .missing = missing,
    .read_options = read_options,
    .is_library = is_library,
    .library = find_library,
    .adopt = adopt,
    .absent = of_another_make,
};

// The runtime looks for NAME_spt first where per-thread streams are asked for. It may have asked
// the loader, which asked us: then the answer is a hook already.
void *xsi_hip_match(const char *symbol, bool per_thread, void *address) {
  char spt[128];
  size_t length = strlen(symbol);
  bool hooked = false;
  for (int plain = !per_thread; plain <= 1; plain++) {
    const char *name = symbol;
    if (!plain) {
      if (length + sizeof "_spt" > sizeof spt) continue;
      memcpy(spt, symbol, length);
      memcpy(spt + length, "_spt", sizeof "_spt");
      name = spt;
    }
    int slot = xsi_runtime_find(&xsi_hip_runtime, name);
    if (slot >= 0 && xsi_hip_slot((unsigned)slot) == address) return xsi_hip_symbols[slot].hook;
    hooked = hooked || slot >= 0;
  }
  if (!hooked && xsi_runtime_suspects(&xsi_hip_runtime, symbol)) xsi_runtime_unknown(symbol);
  return address;
}

// ---- a second copy ----------------------------------------------------------------------------

// The number of libraries ever loaded, which the loader reports with each object.
static int read_loads(struct dl_phdr_info *object, size_t size, void *loads) {
  if (size >= offsetof(struct dl_phdr_info, dlpi_adds) + sizeof object->dlpi_adds)
    *(uint64_t *)loads = object->dlpi_adds;
  return 1;
}

void xsi_hip_look(void) {
  static uint64_t seen;
  uint64_t loads = 0;
  if (__atomic_load_n(&xsi_hip_several, __ATOMIC_RELAXED)) return;
  dl_iterate_phdr(read_loads, &loads);
  if (loads != 0 && __atomic_exchange_n(&seen, loads, __ATOMIC_RELAXED) == loads) return;
  struct search search = {.inside = NULL};
  dl_iterate_phdr(visit, &search);
  if (search.runtimes < 2) return;
  several();
  xsi_log(XSI_WARN, "%u copies of the HIP runtime are loaded; one of them is scheduled",
          search.runtimes);
}

// The function of that name in the calling object and its dependencies, which do not include us.
void *xsi_hip_foreign(unsigned slot, void *return_address) {
  static _Thread_local uintptr_t start, bytes; // of the last caller that is no user of another copy
  if ((uintptr_t)return_address - start < bytes) return NULL;
  int saved_errno = errno;
  struct search caller = {.inside = return_address};
  void *found = NULL;
  if (dl_iterate_phdr(visit, &caller) && caller.path[0]) { // "" is the program: it sees us first
    void *handle = dlopen(caller.path, RTLD_LAZY | RTLD_NOLOAD);
    if (handle) found = xsi_real_dlsym(handle, xsi_hip_symbols[slot].name);
    if (!found) dlerror();
    if (handle) dlclose(handle);
  }
  if (found && (!xsi_runtime_has(&xsi_hip_runtime, found) ||
                base_of(found) == __atomic_load_n(&base, __ATOMIC_ACQUIRE)))
    found = NULL;
  if (found) {
    xsi_count(unhooked, 1);
  } else if (__atomic_load_n(&xsi_hip_real[slot], __ATOMIC_ACQUIRE)) { // else nobody may have it
    start = caller.start;
    bytes = caller.bytes;
  }
  errno = saved_errno;
  return found;
}
