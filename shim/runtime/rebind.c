// SPDX-License-Identifier: Apache-2.0
//
// A program may be linked with a runtime before this library (-lamdhip64 -lpreempt). The loader then
// binds its calls to the runtime, and no hook sees them. This part redirects them: in each object it
// points the entries of the global offset table that name a hooked function to the hook. It acts only
// where this library is in the program's own scope, that is, linked or preloaded.

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/log.h"
#include "core/options.h"
#include "core/real.h"
#include "runtime.h"

#if defined(__x86_64__)
enum { CALL = R_X86_64_JUMP_SLOT, POINTER = R_X86_64_GLOB_DAT };
#else
enum { CALL = R_AARCH64_JUMP_SLOT, POINTER = R_AARCH64_GLOB_DAT };
#endif

/* The tables of one object. */
struct object {
  uintptr_t start, end;             /* of its memory */
  uintptr_t protected, unprotected; /* the part that the loader made read-only, in whole pages */
  const ElfW(Sym) * symbols;
  const char *strings;
  const ElfW(Rela) * tables[2];
  size_t counts[2];
  uintptr_t base;
};

struct rebinding {
  const struct xsi_runtime *runtime; /* NULL: ioctl alone, */
  void *ioctl;                       /* from this definition */
  unsigned redirected, failed;
};

// The loader relocates addresses in the dynamic section, except where that section is read-only.
static const void *address(const struct object *object, ElfW(Addr) value) {
  return (const void *)(value < object->base ? value + object->base : value);
}

static void read_dynamic(struct object *object, const ElfW(Dyn) * dynamic) {
  for (; dynamic->d_tag != DT_NULL; dynamic++) {
    const void *at = address(object, dynamic->d_un.d_ptr);
    if (dynamic->d_tag == DT_SYMTAB) object->symbols = at;
    if (dynamic->d_tag == DT_STRTAB) object->strings = at;
    if (dynamic->d_tag == DT_RELA) object->tables[0] = at;
    if (dynamic->d_tag == DT_JMPREL) object->tables[1] = at;
    if (dynamic->d_tag == DT_RELASZ) object->counts[0] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
    if (dynamic->d_tag == DT_PLTRELSZ) object->counts[1] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
  }
}

static bool read_object(struct object *object, const struct dl_phdr_info *info) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  const ElfW(Dyn) *dynamic = NULL;
  *object = (struct object){.base = info->dlpi_addr, .start = UINTPTR_MAX};
  for (unsigned i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    uintptr_t first = info->dlpi_addr + part->p_vaddr, end = first + part->p_memsz;
    if (part->p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)first;
    if (part->p_type == PT_GNU_RELRO) {
      object->protected = first & ~(page - 1);
      object->unprotected = end & ~(page - 1);
    }
    if (part->p_type != PT_LOAD) continue;
    if (first < object->start) object->start = first;
    if (end > object->end) object->end = end;
  }
  if (dynamic != NULL) read_dynamic(object, dynamic);
  return object->symbols != NULL && object->strings != NULL;
}

// Stores a hook in a table entry that the loader may have made read-only.
static bool redirect(const struct object *object, void **entry, void *hook) {
  bool locked = (uintptr_t)entry >= object->protected && (uintptr_t)entry < object->unprotected;
  size_t bytes = object->unprotected - object->protected;
  if (locked && mprotect((void *)object->protected, bytes, PROT_READ | PROT_WRITE) != 0)
    return false;
  __atomic_store_n(entry, hook, __ATOMIC_RELEASE);
  if (locked) (void)mprotect((void *)object->protected, bytes, PROT_READ);
  return true;
}

// Redirects the entry of one relocation if it leads to the runtime, or is not bound yet. One that leads
// elsewhere belongs to another library that replaces functions.
static void rebind_entry(struct rebinding *to, const struct object *object,
                         const ElfW(Rela) * relocation) {
  unsigned type = ELF64_R_TYPE(relocation->r_info);
  if (type != CALL && type != POINTER) return;
  const ElfW(Sym) *symbol = &object->symbols[ELF64_R_SYM(relocation->r_info)];
  const char *name = object->strings + symbol->st_name;
  void *real = to->ioctl, *hook = (void *)xsi_hook_ioctl;
  if (to->runtime != NULL) {
    int slot = xsi_runtime_find(to->runtime, name);
    if (slot < 0) return;
    real = __atomic_load_n(&to->runtime->real[slot], __ATOMIC_ACQUIRE);
    hook = to->runtime->symbols[slot].hook;
  } else if (strcmp(name, "ioctl") != 0) {
    return;
  }
  void **entry = (void **)(object->base + relocation->r_offset);
  uintptr_t bound = (uintptr_t)__atomic_load_n(entry, __ATOMIC_ACQUIRE);
  bool lazy = type == CALL && symbol->st_shndx == SHN_UNDEF && bound >= object->start &&
              bound < object->end;
  if (real == NULL || (!lazy && bound != (uintptr_t)real)) return;
  if (redirect(object, entry, hook))
    to->redirected++;
  else
    to->failed++;
}

static int rebind_object(struct dl_phdr_info *info, size_t size, void *argument) {
  (void)size;
  struct rebinding *to = argument;
  struct object object;
  if (!read_object(&object, info)) return 0;
  uintptr_t ours = (uintptr_t)xsi_runtimes;
  if (ours >= object.start && ours < object.end) return 0;
  if (info->dlpi_name != NULL && to->runtime != NULL && to->runtime->is_library(info->dlpi_name))
    return 0;
  for (unsigned table = 0; table < 2; table++)
    for (size_t i = 0; object.tables[table] != NULL && i < object.counts[table]; i++)
      rebind_entry(to, &object, &object.tables[table][i]);
  return 0;
}

// What the program's own scope has under a name: a library that was opened for one caller alone is
// not in it.
static void *in_program(void *program, const char *name) {
  void *found = xsi_real_dlsym(program, name);
  if (found == NULL) dlerror(); // ours, not the application's
  return found;
}

static bool comes_first(void *program, const struct xsi_runtime *runtime) {
  for (unsigned slot = 0; slot < runtime->hooks; slot++) {
    void *found = in_program(program, runtime->symbols[slot].name);
    if (found != NULL && !xsi_in_shim(found)) return xsi_runtime_has(runtime, found);
    if (found != NULL && runtime->library() != NULL &&
        xsi_runtime_bind(runtime, slot) != NULL) // the library has it, and we precede it
      return false;
  }
  return false;
}

/* Whether a runtime and a stand-in for one are loaded, and how many objects ever were. */
struct loaded {
  unsigned long long objects;
  bool runtime, stand_in;
};

static int read_loaded(struct dl_phdr_info *info, size_t size, void *argument) {
  struct loaded *loaded = argument;
  if (size >= offsetof(struct dl_phdr_info, dlpi_adds) + sizeof info->dlpi_adds)
    loaded->objects = info->dlpi_adds;
  for (const struct xsi_runtime *const *at = xsi_runtimes; *at != NULL; at++)
    if (info->dlpi_name != NULL && (*at)->is_library(info->dlpi_name))
      *(xsi_runtime_stands_in(info) ? &loaded->stand_in : &loaded->runtime) = true;
  return 0;
}

// A stand-in brings this library behind libc, or for one caller alone: then libc's ioctl comes first.
static void rebind_ioctl(void *program, bool in_scope) {
  struct rebinding to = {.ioctl = in_program(program, "ioctl")};
  bool reaches_us = in_scope && xsi_next_ioctl != NULL; // from the first one
  if (to.ioctl == NULL || xsi_hook_ioctl == NULL || xsi_in_shim(to.ioctl) || reaches_us) return;
  __atomic_store_n(&xsi_next_ioctl, (int (*)(int, unsigned long, ...))to.ioctl, __ATOMIC_RELEASE);
  dl_iterate_phdr(rebind_object, &to);
  xsi_log(XSI_DEBUG, "%u calls of ioctl redirected, %u not", to.redirected, to.failed);
}

static bool rebind_all(bool stand_in) {
  void *program = dlopen(NULL, RTLD_LAZY);
  void *mine = program != NULL ? in_program(program, "xs_api_version") : NULL;
  bool in_scope = mine != NULL && xsi_in_shim(mine), all = in_scope || stand_in;
  if (stand_in && program != NULL) rebind_ioctl(program, in_scope);
  if (!all)
    xsi_log(XSI_WARN, "opened by dlopen: no call of the GPU runtime passes this library; start the "
                      "program with `xsched run`");
  for (const struct xsi_runtime *const *at = xsi_runtimes; in_scope && *at != NULL; at++) {
    if ((*at)->library() == NULL || !comes_first(program, *at)) continue;
    struct rebinding to = {.runtime = *at};
    xsi_runtime_bind_all(*at);
    dl_iterate_phdr(rebind_object, &to);
    all = all && to.failed == 0;
    xsi_log(to.failed == 0 ? XSI_INFO : XSI_WARN,
            "the program is linked with %s before this library: %u calls redirected, %u not",
            (*at)->name, to.redirected, to.failed);
  }
  if (program != NULL) dlclose(program);
  return all;
}

bool xsi_runtime_rebind(void) {
  static unsigned long long seen; // objects at the last time
  static bool reached;
  struct loaded loaded = {.runtime = false};
  dl_iterate_phdr(read_loaded, &loaded);
  if (!loaded.runtime) return true;
  if (loaded.objects == 0 || __atomic_load_n(&seen, __ATOMIC_ACQUIRE) != loaded.objects) {
    __atomic_store_n(&reached, rebind_all(loaded.stand_in), __ATOMIC_RELEASE);
    __atomic_store_n(&seen, loaded.objects, __ATOMIC_RELEASE);
  }
  return __atomic_load_n(&reached, __ATOMIC_ACQUIRE);
}
