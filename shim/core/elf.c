// SPDX-License-Identifier: Apache-2.0
//
// libc's own dlvsym. The library exports dlsym and dlvsym, so asking for either by name would find
// ourselves; the symbol table of the loaded libc.so.6 (before glibc 2.34: libdl.so.2) can't lie.

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

#include "parts.h"

struct search {
  const char *name;
  const char *library;
  void *found;
};

static uint32_t gnu_hash(const char *name) {
  uint32_t hash = 5381;
  for (; *name != 0; name++)
    hash = hash * 33 + (unsigned char)*name;
  return hash;
}

// The loader adds the base to addresses in the dynamic section, except where that section is
// read-only.
static const void *address(const struct dl_phdr_info *object, ElfW(Addr) value) {
  return (const void *)(value < object->dlpi_addr ? value + object->dlpi_addr : value);
}

static void *lookup(const struct dl_phdr_info *object, const char *name) {
  const ElfW(Dyn) *dynamic = NULL;
  for (unsigned i = 0; i < object->dlpi_phnum; i++)
    if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
      dynamic = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
  if (dynamic == NULL) return NULL;

  const ElfW(Sym) *symbols = NULL;
  const char *strings = NULL;
  const uint32_t *table = NULL;
  for (; dynamic->d_tag != DT_NULL; dynamic++) {
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
        (symbol->st_info & 0xf) == STT_FUNC && strcmp(strings + symbol->st_name, name) == 0)
      return (void *)(object->dlpi_addr + symbol->st_value);
    if ((entry & 1) != 0) break;
  }
  return NULL;
}

static int visit(struct dl_phdr_info *object, size_t size, void *argument) {
  (void)size;
  struct search *search = argument;
  const char *path = object->dlpi_name;
  if (path == NULL) return 0;
  const char *slash = strrchr(path, '/');
  if (strcmp(slash == NULL ? path : slash + 1, search->library) != 0) return 0;
  search->found = lookup(object, search->name);
  return search->found != NULL;
}

void *xsi_elf_libc_function(const char *name) {
  static const char *const libraries[] = {"libc.so.6", "libdl.so.2"};
  struct search search = {.name = name};
  for (unsigned i = 0; i < sizeof libraries / sizeof *libraries && search.found == NULL; i++) {
    search.library = libraries[i];
    dl_iterate_phdr(visit, &search);
  }
  return search.found;
}
