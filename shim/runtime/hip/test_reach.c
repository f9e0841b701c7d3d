// SPDX-License-Identifier: Apache-2.0
//
// All ways of a program to the HIP runtime, on the null runtime. test_preload.sh builds and runs
// it, with the shim (XSCHED_TEST_SHIM=1) and without. -DLINKED: linked with the runtime, by its
// versions.

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test_invoke.h"
#include "xsched/xsched.h"

static int failures;
static const char *runtime_name = "libamdhip64.so.6", *hooked; /* where a hooked function is */

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #condition);                                  \
      failures++;                                                                                  \
    }                                                                                              \
  } while (0)

static const char *library_of(void *address) {
  static char name[256];
  Dl_info info;
  if (!address) return "nowhere";
  if (!dladdr(address, &info) || !info.dli_fname) return "unknown";
  const char *slash = strrchr(info.dli_fname, '/');
  snprintf(name, sizeof name, "%s", slash ? slash + 1 : info.dli_fname);
  return name;
}
static void is_in(const char *what, void *address, const char *library) {
  const char *in = library_of(address);
  if (strcmp(in, library) == 0) return;
  printf("FAIL %s is in %s, not in %s\n", what, in, library);
  failures++;
}

static uint64_t calls_of(void *runtime, const char *symbol) {
  uint64_t (*calls)(const char *) = (uint64_t(*)(const char *))dlsym(runtime, "xsn_calls");
  return calls ? calls(symbol) : UINT64_MAX;
}

static int is_runtime(struct dl_phdr_info *object, size_t bytes, void *count) {
  (void)bytes;
  if (object->dlpi_name &&
      (strstr(object->dlpi_name, "libamdhip64") || strstr(object->dlpi_name, runtime_name)))
    ++*(int *)count;
  return 0;
}
static int copies(void) {
  int count = 0;
  dl_iterate_phdr(is_runtime, &count);
  return count;
}

static bool shim_is_here(void) { return strcmp(hooked, "libxsched.so") == 0; }

/* Work of the first queue that the shim has counted. */
static uint64_t submitted(void) {
  uint32_t (*queues)(xs_queue_info *, uint32_t) =
      (uint32_t(*)(xs_queue_info *, uint32_t))dlsym(RTLD_DEFAULT, "xs_queues");
  xs_queue_info list[4];
  return queues && queues(list, 4) > 0 ? list[0].submitted : 0;
}

static struct invocation_arguments with;

static hipError_t call(void *runtime, const char *symbol) {
  for (int i = 0; i < XSI_HIP_HOOKS; i++)
    if (strcmp(invocations[i].symbol, symbol) == 0)
      return invocations[i].call(dlsym(runtime, symbol), &with);
  return -1;
}

static void test_no_runtime(void) {
  dlerror();
  CHECK(dlsym(RTLD_DEFAULT, "hipLaunchKernel") == NULL);
  const char *error = dlerror();
  CHECK(error && strstr(error, "undefined symbol: hipLaunchKernel"));
  CHECK(dlerror() == NULL);
  CHECK(dlsym(RTLD_DEFAULT, "hipNothingOfTheKind") == NULL && dlerror() != NULL);
  CHECK(dlsym(RTLD_DEFAULT, "h") == NULL && dlsym(RTLD_DEFAULT, "_") == NULL);
  CHECK(dlsym(RTLD_DEFAULT, "_ZNothing") == NULL && dlerror() != NULL);
  CHECK(copies() == 0);
}

// Each symbol by itself: hooked, by dlsym and by dlvsym with the version that the runtime gives it.
static void test_symbols(void *runtime) {
  int known = 0;
  for (int i = 0; i < XSI_HIP_HOOKS; i++) {
    const char *symbol = invocations[i].symbol;
    void *found = dlsym(runtime, symbol);
    if (!found) continue; // an older runtime
    known++;
    is_in(symbol, found, hooked);
    CHECK(dlerror() == NULL);
    Dl_info info;
    CHECK(dladdr(found, &info) && info.dli_sname && strcmp(info.dli_sname, symbol) == 0);
    CHECK(dlvsym(runtime, symbol, invocations[i].node) == found);
    CHECK(dlvsym(runtime, symbol, "hip_9.9") == NULL && dlerror() != NULL);
  }
  CHECK(known == XSI_HIP_HOOKS);
  is_in("hipStreamGetPriority", dlsym(runtime, "hipStreamGetPriority"), runtime_name);
  CHECK(dlsym(runtime, "hipFromTheFuture") == NULL);
  const char *error = dlerror();
  CHECK(error && strstr(error, runtime_name) &&
        strstr(error, "undefined symbol: hipFromTheFuture"));
}

// A runtime that uses its own names meets the shim there: what the program asked for counts once.
static void test_nested(void *runtime) {
  uint64_t copies_before = calls_of(runtime, "hipMemcpy");
  CHECK(call(runtime, "hipSetDevice") == 0);
  CHECK(call(runtime, "hipMemcpyDtoD") == 0 && call(runtime, "hipStreamSynchronize") == 0);
  CHECK(calls_of(runtime, "hipMemcpy") == copies_before + 1);
  CHECK(calls_of(runtime, "hipMemcpyDtoDAsync") == 1);
  CHECK(submitted() == (shim_is_here() ? 1 : 0));
}

static void test_dlopen(int flags) {
  void *runtime = dlopen(runtime_name, RTLD_NOW | flags);
  CHECK(runtime);
  if (!runtime) return;
  test_symbols(runtime);
  test_nested(runtime);
  uint64_t before = calls_of(runtime, "hipModuleLaunchKernel");
  CHECK(call(runtime, "hipModuleLaunchKernel") == 0);
  CHECK(calls_of(runtime, "hipModuleLaunchKernel") == before + 1);
  CHECK(call(runtime, "_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_"
                      "tPPvS4_P11ihipEvent_tS6_j") == 0);
  if (flags & RTLD_GLOBAL) {
    is_in("anywhere", dlsym(RTLD_DEFAULT, "hipLaunchKernel"), hooked);
    is_in("the program's", dlsym(dlopen(NULL, RTLD_NOW), "hipMemcpy"), hooked);
    CHECK(dlvsym(RTLD_DEFAULT, "hipLaunchKernel", "hip_9.9") == NULL && dlerror() != NULL);
    is_in("versioned", dlvsym(RTLD_DEFAULT, "hipLaunchKernel", "hip_4.2"), hooked);
  }
  CHECK(copies() == 1);
}

// As Triton does: local, and everything through hipGetProcAddress.
static void test_proc_address(void) {
  void *runtime = dlopen(runtime_name, RTLD_NOW | RTLD_LOCAL), *found = NULL;
  hipError_t (*ask)(const char *, void **, int, uint64_t, int *) =
      (hipError_t(*)(const char *, void **, int, uint64_t, int *))dlsym(runtime,
                                                                        "hipGetProcAddress");
  hipError_t (*entry)(const char *, void **, unsigned long long, int *) = (hipError_t(*)(
      const char *, void **, unsigned long long, int *))dlsym(runtime, "hipGetDriverEntryPoint");
  int status = -1;
  CHECK(ask && ask("hipModuleLaunchKernel", &found, 60200000, 0, &status) == 0 && status == 0);
  is_in("launch", found, hooked);
  CHECK(found == dlsym(runtime, "hipModuleLaunchKernel"));
  CHECK(ask("hipLaunchKernel", &found, 60200000, 2, &status) == 0);
  CHECK(found == dlsym(runtime, "hipLaunchKernel_spt"));
  CHECK(ask("hipModuleLaunchKernel", &found, 60200000, 2, &status) == 0); // there is no _spt
  CHECK(found == dlsym(runtime, "hipModuleLaunchKernel"));
  CHECK(ask("hipStreamGetPriority", &found, 60200000, 0, &status) == 0);
  is_in("not hooked", found, runtime_name);
  CHECK(ask("hipNothing", &found, 60200000, 0, &status) == 500 && status == 1 && !found);
  // Itself, through itself.
  CHECK(ask("hipGetProcAddress", &found, 60200000, 0, NULL) == 0 && found == (void *)ask);
  CHECK(entry && entry("hipMemcpyAsync", &found, 0, &status) == 0);
  CHECK(found == dlsym(runtime, "hipMemcpyAsync"));
  CHECK(entry("hipMemcpyAsync", &found, 2, &status) == 0);
  CHECK(found == dlsym(runtime, "hipMemcpyAsync_spt"));
  CHECK(copies() == 1);
}

// A second copy that the program loads itself stays what it is: its streams are not the first's.
static void test_two(const char *path) {
  void *first = dlopen(runtime_name, RTLD_NOW | RTLD_LOCAL);
  void *launch = dlsym(first, "hipModuleLaunchKernel");
  void *second = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(second && second != first && copies() == 2);
  is_in("first", launch, hooked);
  const char *slash = strrchr(path, '/');
  is_in("second", dlsym(second, "hipModuleLaunchKernel"), slash ? slash + 1 : path);
  CHECK(call(second, "hipModuleLaunchKernel") == 0);
  CHECK(calls_of(second, "hipModuleLaunchKernel") == 1);
  CHECK(calls_of(first, "hipModuleLaunchKernel") == 0);
  // Nor does it leave itself where it uses its own names, which lead to us.
  CHECK(call(second, "hipMemcpyDtoD") == 0);
  CHECK(calls_of(second, "hipMemcpy") == 1 && calls_of(first, "hipMemcpy") == 0);
}

// And a library that is linked with the second reaches the second, though its names lead to us.
static void test_foreign(const char *path, const char *second_name) {
  void *first = dlopen(runtime_name, RTLD_NOW | RTLD_LOCAL);
  CHECK(first && call(first, "hipSetDevice") == 0 && call(first, "hipMemcpyAsync") == 0);
  CHECK(call(first, "hipStreamSynchronize") == 0 && copies() == 1);
  void *extension = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  int (*work)(int) = extension ? (int (*)(int))dlsym(extension, "extension_work") : NULL;
  CHECK(work && copies() == 2);
  if (!work) return;
  CHECK(work(5) == 0 && work(5) == 0);
  void *second = dlopen(second_name, RTLD_NOW | RTLD_NOLOAD);
  CHECK(second && calls_of(second, "hipLaunchKernel") == 10);
  CHECK(calls_of(second, "hipSetDevice") == 2 && calls_of(second, "hipStreamCreate") == 2);
  CHECK(calls_of(first, "hipLaunchKernel") == 0 && calls_of(first, "hipSetDevice") == 1);
  // Even what the first is too old to have.
  int (*batch)(void) = (int (*)(void))dlsym(extension, "extension_batch");
  CHECK(batch && batch() == 0 && calls_of(second, "hipMemcpyBatchAsync") == 1);
  // The first is scheduled as before.
  CHECK(call(first, "hipMemcpyAsync") == 0 && call(first, "hipStreamSynchronize") == 0);
  CHECK(submitted() == (shim_is_here() ? 2 : 0));
}

// Loaded by a relative path, from a folder that is not the current one any more.
static void test_moved(const char *path) {
  void *runtime = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(runtime && chdir("/") == 0);
  if (!runtime) return;
  is_in("launch", dlsym(runtime, "hipModuleLaunchKernel"), hooked);
  CHECK(call(runtime, "hipSetDevice") == 0 && call(runtime, "hipMemcpyAsync") == 0);
  CHECK(call(runtime, "hipStreamSynchronize") == 0 && copies() == 1);
  CHECK(submitted() == (shim_is_here() ? 1 : 0));
}

// A library that is linked with the runtime and loaded for itself alone, with the runtime: as an
// extension of Python.
static void test_extension(const char *path) {
  void *extension = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  int (*work)(int) = extension ? (int (*)(int))dlsym(extension, "extension_work") : NULL;
  CHECK(work && copies() == 1 && dlsym(RTLD_DEFAULT, "xsn_calls") == NULL);
  if (!work) return;
  CHECK(work(5) == 0);
  CHECK(calls_of(dlopen(runtime_name, RTLD_NOW | RTLD_NOLOAD), "hipLaunchKernel") == 5);
  CHECK(submitted() == (shim_is_here() ? 5 : 0) && copies() == 1);
}

#ifdef EXTENSION
int extension_work(int count) {
  hipStream_t stream;
  const dim3 one = {1, 1, 1};
  int result = hipSetDevice(0) | hipStreamCreate(&stream);
  for (int i = 0; i < count; i++)
    result |= hipLaunchKernel(NULL, one, one, NULL, 0, stream);
  return result | hipStreamSynchronize(stream);
}
int extension_batch(void) {
  return hipMemcpyBatchAsync(NULL, NULL, NULL, 0, NULL, NULL, 0, NULL, NULL);
}
#endif

#ifdef LINKED
static void test_linked(bool counted) {
  void *runtime = dlopen(runtime_name, RTLD_NOW | RTLD_NOLOAD);
  CHECK(runtime && copies() == 1);
  if (!runtime) return;
  hipStream_t stream;
  const dim3 one = {1, 1, 1};
  CHECK(hipSetDevice(0) == 0 && hipStreamCreate(&stream) == 0);
  for (int i = 0; i < 3; i++)
    CHECK(hipLaunchKernel(NULL, one, one, NULL, 0, stream) == 0);
  CHECK(hipMemcpyAsync_spt(NULL, NULL, 0, 3, stream) == 0);
  CHECK(hipStreamSynchronize(stream) == 0);
  CHECK(calls_of(runtime, "hipLaunchKernel") == 3 && calls_of(runtime, "hipMemcpyAsync_spt") == 1);
  CHECK(submitted() == (counted && shim_is_here() ? 4 : 0));
  is_in("launch", (void *)hipLaunchKernel, shim_is_here() ? hooked : runtime_name);
  is_in("next", dlsym(RTLD_NEXT, "hipLaunchKernel"), shim_is_here() ? hooked : runtime_name);
}
#endif

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "", *shim = getenv("XSCHED_TEST_SHIM");
  if (getenv("XSCHED_TEST_RUNTIME")) runtime_name = getenv("XSCHED_TEST_RUNTIME");
  hooked = shim && *shim == '1' ? "libxsched.so" : runtime_name;
  if (strcmp(what, "local") == 0)
    test_no_runtime(), test_dlopen(RTLD_LOCAL);
  else if (strcmp(what, "global") == 0)
    test_no_runtime(), test_dlopen(RTLD_GLOBAL);
  else if (strcmp(what, "proc") == 0)
    test_proc_address();
  else if (strcmp(what, "two") == 0 && argc > 2)
    test_two(argv[2]);
  else if (strcmp(what, "foreign") == 0 && argc > 3)
    test_foreign(argv[2], argv[3]);
  else if (strcmp(what, "extension") == 0 && argc > 2)
    test_extension(argv[2]);
  else if (strcmp(what, "moved") == 0 && argc > 2)
    test_moved(argv[2]);
#ifdef LINKED
  else if (strcmp(what, "linked") == 0)
    test_linked(true);
  else if (strcmp(what, "other") == 0) // another maker's runtime
    test_linked(false);
#endif
  else
    return 2;
  if (failures == 0) printf("ok reach %s\n", what);
  return failures != 0;
}
