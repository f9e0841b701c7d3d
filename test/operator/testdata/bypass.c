/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that finds the driver's functions by itself, in the symbol table of the loaded library, so that
 * neither a preloaded symbol nor dlsym is involved. It launches kernels until its standard input ends.
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ElfW(Sym) * symbols;
static const char *names;
static ElfW(Addr) base;

static void open_library(const char *name) {
  struct link_map *map = dlopen(name, RTLD_NOW);
  if (map == NULL) exit(2);
  base = map->l_addr;
  for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
    if (d->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)d->d_un.d_ptr;
    if (d->d_tag == DT_STRTAB) names = (const char *)d->d_un.d_ptr;
  }
}

/* The linker puts the strings behind the symbols. */
static void *find(const char *name) {
  for (const ElfW(Sym) *s = symbols; (const char *)s < names; s++)
    if (s->st_value != 0 && strcmp(names + s->st_name, name) == 0) return (void *)(base + s->st_value);
  fprintf(stderr, "%s is not in the library\n", name);
  exit(2);
}

static void check(const char *what, int code) {
  if (code == 0) return;
  fprintf(stderr, "%s: %d\n", what, code);
  exit(1);
}

int main(void) {
  open_library("libcuda.so.1");
  int (*init)(unsigned) = find("cuInit");
  int (*create)(void **, unsigned, int) = find("cuCtxCreate_v2");
  int (*load)(void **, const void *) = find("cuModuleLoadData");
  int (*function)(void **, void *, const char *) = find("cuModuleGetFunction");
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                void **) = find("cuLaunchKernel");
  int (*wait)(void) = find("cuCtxSynchronize");
  int (*allocate)(uint64_t *, size_t) = find("cuMemAlloc_v2");
  void *context, *module, *spin;
  uint64_t memory;
  uint32_t us = 1000, seed = 1;
  void *parameters[] = {&memory, &us, &seed};
  check("cuInit", init(0));
  check("cuCtxCreate", create(&context, 0, 0));
  check("cuModuleLoadData", load(&module, ".visible .entry xs_spin()"));
  check("cuModuleGetFunction", function(&spin, module, "xs_spin"));
  check("cuMemAlloc", allocate(&memory, 4096));
  puts("R");
  fflush(stdout);
  for (struct pollfd in = {.fd = 0, .events = POLLIN}; poll(&in, 1, 10) == 0;) {
    check("cuLaunchKernel", launch(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
    check("cuCtxSynchronize", wait());
  }
  return 0;
}
