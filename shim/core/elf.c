// SPDX-License-Identifier: Apache-2.0
//
// Finds libc's own dlsym and dlvsym by reading libc's symbol table. The library exports both names,
// so asking for them by name would return our own.
//
// This runs inside the first dlsym of a process. A sanitizer makes that call before it has bound the
// functions that it replaces, and it replaces most of libc. So with glibc this file calls nothing: it
// walks the loader's list of objects and compares strings itself.
//
// A program with another C library than glibc inherits LD_PRELOAD, too, from the one that started it. The
// library loads there because it needs no name that musl lacks, and does nothing.

#include "elf.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>

// Keeps the compiler from turning a loop into a call of strlen or memset.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif

// Weak: musl has neither. A strong reference to the first would also make the library need glibc's loader.
extern struct r_debug _r_debug __attribute__((weak));
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *)
    __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

bool xsi_elf_glibc(void) { return &_r_debug != NULL && __register_atfork != NULL; }

void xsi_elf_at_fork(void (*before)(void), void (*parent)(void), void (*child)(void)) {
  if (__register_atfork != NULL) __register_atfork(before, parent, child, &__dso_handle);
}

static bool same(const char *a, const char *b) {
  for (; *a == *b; a++, b++)
    if (*a == 0) return true;
  return false;
}

static const char *base_name(const char *path) {
  const char *base = path;
  for (; *path != 0; path++)
    if (*path == '/') base = path + 1;
  return base;
}

static uint32_t gnu_hash(const char *name) {
  uint32_t hash = 5381;
  for (; *name != 0; name++)
    hash = hash * 33 + (unsigned char)*name;
  return hash;
}

// The loader relocates addresses in the dynamic section, except where that section is read-only.
static const void *address(const struct link_map *object, ElfW(Addr) value) {
  return (const void *)(value < object->l_addr ? value + object->l_addr : value);
}

static void *lookup(const struct link_map *object, const char *name) {
  const ElfW(Sym) *symbols = NULL;
  const char *strings = NULL;
  const uint32_t *table = NULL;
  for (const ElfW(Dyn) *dynamic = object->l_ld; dynamic != NULL && dynamic->d_tag != DT_NULL;
       dynamic++) {
    if (dynamic->d_tag == DT_SYMTAB) symbols = address(object, dynamic->d_un.d_ptr);
    if (dynamic->d_tag == DT_STRTAB) strings = address(object, dynamic->d_un.d_ptr);
    if (dynamic->d_tag == DT_GNU_HASH) table = address(object, dynamic->d_un.d_ptr);
  }
  if (symbols == NULL || strings == NULL || table == NULL || table[0] == 0) return NULL;

  uint32_t buckets = table[0], first = table[1], bloom_words = table[2];
  const uint32_t *bucket = table + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t *chain = bucket + buckets;
  uint32_t hash = gnu_hash(name);
  for (uint32_t i = bucket[hash % buckets]; i >= first && i != 0; i++) {
    uint32_t entry = chain[i - first];
    const ElfW(Sym) *symbol = symbols + i;
    if ((entry | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
        (symbol->st_info & 0xf) == STT_FUNC && same(strings + symbol->st_name, name))
      return (void *)(object->l_addr + symbol->st_value);
    if ((entry & 1) != 0) break;
  }
  return NULL;
}

struct search {
  const char *name;
  void *found;
};

static int visit(struct dl_phdr_info *info, size_t size, void *argument) {
  (void)size;
  struct search *search = argument;
  struct link_map object = {.l_addr = info->dlpi_addr};
  bool ours = false;
  for (unsigned i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    uintptr_t at = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_DYNAMIC) object.l_ld = (ElfW(Dyn) *)at;
    if (part->p_type == PT_LOAD) ours |= (uintptr_t)visit - at < part->p_memsz;
  }
  if (!ours) search->found = lookup(&object, search->name);
  return search->found != NULL;
}

// libc was loaded at program start and is never unloaded, so its place in the list is stable.
void *xsi_elf_libc_function(const char *name) {
  if (!xsi_elf_glibc()) {
    struct search search = {.name = name};
    dl_iterate_phdr(visit, &search);
    return search.found;
  }
  static const char *const libraries[] = {"libc.so.6", "libdl.so.2"};
  for (unsigned i = 0; i < sizeof libraries / sizeof *libraries; i++)
    for (const struct link_map *object = _r_debug.r_map; object != NULL; object = object->l_next) {
      if (object->l_name == NULL || !same(base_name(object->l_name), libraries[i])) continue;
      void *found = lookup(object, name);
      if (found != NULL) return found;
    }
  return NULL;
}
