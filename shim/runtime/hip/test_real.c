// SPDX-License-Identifier: Apache-2.0
//
// AMD's real runtime on a machine without a GPU: what every entry point answers and where every
// name leads. test_real.sh compares what this prints, and the runtime's own log, with the shim and
// without. -DLINKED: linked with the runtime, by its versions.

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test_invoke.h"

#define RUNTIME "libamdhip64.so.5"

static struct invocation_arguments with;

/* Where a name leads: the place in the runtime, or "hook" for one of the shim's of that name. */
static void where(const char *symbol, void *address) {
  Dl_info info;
  if (!address)
    printf("%s: none\n", symbol);
  else if (!dladdr(address, &info))
    printf("%s: unknown\n", symbol);
  else if (strstr(info.dli_fname, "libxsched.so"))
    printf("%s: %s\n", symbol,
           info.dli_sname && strcmp(info.dli_sname, symbol) == 0 ? "hook" : "?");
  else
    printf("%s: %s+%lx\n", symbol, strrchr(info.dli_fname, '/') + 1,
           (unsigned long)((char *)address - (char *)info.dli_fbase));
}

static int count_runtime(struct dl_phdr_info *object, size_t bytes, void *count) {
  (void)bytes;
  if (object->dlpi_name && strstr(object->dlpi_name, "libamdhip64")) ++*(int *)count;
  return 0;
}

static void names(void *runtime, const char *path) {
  char line[256], symbol[200], node[16], version[24];
  FILE *file = fopen(path, "r");
  if (!file) exit(3);
  while (fgets(line, sizeof line, file)) {
    if (line[0] == '#' || sscanf(line, "%15s %199s", node, symbol) != 2) continue;
    where(symbol, dlsym(runtime, symbol));
    snprintf(version, sizeof version, "hip_%s", node);
    void *versioned = dlvsym(runtime, symbol, version);
    if (versioned != dlsym(runtime, symbol)) printf("%s: another by version\n", symbol);
  }
  fclose(file);
}

/* Calls of every hooked function there is. Without a device they all end before they look at what
 * they were given. */
static void answers(void *runtime) {
  hipError_t (*last)(void) = (hipError_t(*)(void))dlsym(runtime, "hipGetLastError");
  for (int i = 0; i < XSI_HIP_HOOKS; i++) {
    void *function = dlsym(runtime, invocations[i].symbol);
    if (!function) continue;
    fprintf(stderr, "== %s\n", invocations[i].symbol);
    hipError_t result = invocations[i].call(function, &with);
    printf("%s = %d, last %d\n", invocations[i].symbol, result, last());
  }
}

#ifdef LINKED
static void linked(void) {
  const dim3 one = {1, 1, 1};
  void *memory = NULL;
  hipStream_t stream = NULL;
  printf("hipInit = %d\n", hipInit(0));
  printf("hipSetDevice = %d\n", hipSetDevice(0));
  printf("hipMalloc = %d\n", hipMalloc(&memory, 64));
  printf("hipStreamCreate = %d\n", hipStreamCreate(&stream));
  printf("hipLaunchKernel = %d\n", hipLaunchKernel((void *)linked, one, one, NULL, 0, stream));
  printf("hipMemcpyAsync = %d\n", hipMemcpyAsync(memory, &memory, 8, 1, stream));
  printf("hipDeviceSynchronize = %d\n", hipDeviceSynchronize());
}
#endif

int main(int argc, char **argv) {
  if (argc < 2) return 2;
#ifdef LINKED
  linked();
#endif
  void *runtime = dlopen(RUNTIME, RTLD_NOW | RTLD_LOCAL);
  if (!runtime) {
    printf("%s\n", dlerror());
    return 3;
  }
  with.symbol = "hipInit";
  names(runtime, argv[1]);
  answers(runtime);
  int copies = 0;
  dl_iterate_phdr(count_runtime, &copies);
  printf("copies of the runtime: %d\n", copies);
  return 0;
}
