// SPDX-License-Identifier: Apache-2.0
//
// All ways of a program to the driver, on the null driver. test_preload.sh builds and runs it, with
// the shim (XSCHED_TEST_SHIM=1) and without. -DLINKED: linked with the driver.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

#ifdef LINKED
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void **, void **);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
#endif

typedef CUresult (*launch_function)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    unsigned, unsigned, CUstream, void **, void **);
typedef CUresult (*proc_v1)(const char *, void **, int, cuuint64_t);
typedef CUresult (*proc_v2)(const char *, void **, int, cuuint64_t, int *);

static int failures;
static const char *hooked; /* where a hooked function is to be found */
static const char *driver_name = "libcuda.so.1";
static int disabled;

static const char *library_of(void *address) {
  static char name[256];
  Dl_info info;
  if (!address) return "nowhere";
  if (!dladdr(address, &info) || !info.dli_fname) return "unknown";
  const char *slash = strrchr(info.dli_fname, '/');
  snprintf(name, sizeof name, "%s", slash ? slash + 1 : info.dli_fname);
  return name;
}

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #condition);                                  \
      failures++;                                                                                  \
    }                                                                                              \
  } while (0)
#define IS_IN(address, library)                                                                    \
  do {                                                                                             \
    const char *in_ = library_of(address);                                                         \
    if (strcmp(in_, (library)) != 0) {                                                             \
      printf("FAIL %s:%d: %s is in %s, not in %s\n", __FILE__, __LINE__, #address, in_,            \
             (library));                                                                           \
      failures++;                                                                                  \
    }                                                                                              \
  } while (0)

static uint64_t driver_calls(void *driver, const char *symbol) {
  uint64_t (*calls)(const char *) = (uint64_t(*)(const char *))dlsym(driver, "xsn_calls");
  return calls ? calls(symbol) : UINT64_MAX;
}

static void launch_once(void *function) {
  CHECK(function && ((launch_function)function)(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == 0);
}

static void make_context(void *driver) {
  CUcontext context;
  CUresult (*create)(CUcontext *, unsigned, CUdevice) =
      (CUresult(*)(CUcontext *, unsigned, CUdevice))dlsym(driver, "cuCtxCreate_v2");
  CHECK(create && create(&context, 0, 0) == 0);
}

// Before any driver is loaded everything answers as if there were no shim.
static void test_no_driver(void) {
  dlerror();
  CHECK(dlsym(RTLD_DEFAULT, "cuLaunchKernel") == NULL);
  const char *error = dlerror();
  CHECK(error && strstr(error, "undefined symbol: cuLaunchKernel"));
  CHECK(dlerror() == NULL);
  void *program = dlopen(NULL, RTLD_NOW);
  CHECK(program && dlsym(program, "cuLaunchKernel") == NULL && dlerror() != NULL);
  CHECK(dlsym(RTLD_DEFAULT, "cuNothingOfTheKind") == NULL && dlerror() != NULL);
  CHECK(dlsym(RTLD_DEFAULT, "strlen") != NULL && dlerror() == NULL);
  CHECK(dlsym(RTLD_DEFAULT, "c") == NULL && dlerror() != NULL);
  CHECK(dlsym(RTLD_DEFAULT, "") == NULL && dlerror() != NULL);
}

static void test_dlopen(int flags) {
  void *driver = dlopen(driver_name, RTLD_NOW | flags);
  CHECK(driver);
  if (!driver) return;
  make_context(driver);
  void *launch = dlsym(driver, "cuLaunchKernel");
  IS_IN(launch, hooked);
  CHECK(dlerror() == NULL);
  uint64_t before = driver_calls(driver, "cuLaunchKernel");
  launch_once(launch);
  launch_once(dlvsym(driver, "cuLaunchKernel", "NULL_1"));
  CHECK(driver_calls(driver, "cuLaunchKernel") == before + 2);
  IS_IN(dlvsym(driver, "cuLaunchKernel", "NULL_1"), hooked);
  CHECK(dlvsym(driver, "cuLaunchKernel", "NULL_2") == NULL && dlerror() != NULL);
  IS_IN(dlsym(driver, "cuLaunchKernel_ptsz"), hooked);
  IS_IN(dlsym(driver, "cuMemcpyHtoD_v2_ptds"), hooked);
  IS_IN(dlsym(driver, "cuInit"), driver_name);             // returns at once: untouched
  IS_IN(dlsym(driver, "cuDriverGetVersion"), driver_name); // the same
  IS_IN(dlsym(driver, "cuNewCall"), hooked);               // unknown: a stub
  CHECK(dlsym(driver, "cuFromTheFuture_v9") == NULL);
  const char *error = dlerror();
  CHECK(error && strstr(error, driver_name) &&
        strstr(error, ": undefined symbol: cuFromTheFuture_v9"));
  if (flags & RTLD_GLOBAL) {
    void *anywhere = dlsym(RTLD_DEFAULT, "cuLaunchKernel");
    IS_IN(anywhere, hooked);
    CHECK(dlerror() == NULL);
    launch_once(anywhere);
    IS_IN(dlsym(dlopen(NULL, RTLD_NOW), "cuStreamSynchronize"), hooked);
    void *next = dlsym(RTLD_NEXT, "cuLaunchKernel");
    // The next definition after the program is the first of all: ours, if only to pass the call on.
    IS_IN(next, disabled ? "libxsched.so" : hooked);
    launch_once(next);
    CHECK(driver_calls(driver, "cuLaunchKernel") == before + 4);
  }
}

static void test_proc_address(void) {
  void *driver = dlopen(driver_name, RTLD_NOW | RTLD_LOCAL), *found;
  make_context(driver);
  proc_v1 v1 = (proc_v1)dlsym(driver, "cuGetProcAddress");
  proc_v2 v2 = (proc_v2)dlsym(driver, "cuGetProcAddress_v2");
  int status = -1;
  CHECK(v1("cuLaunchKernel", &found, 4000, 0) == 0);
  IS_IN(found, hooked);
  uint64_t legacy = driver_calls(driver, "cuLaunchKernel");
  uint64_t thread = driver_calls(driver, "cuLaunchKernel_ptsz");
  launch_once(found);
  CHECK(v2("cuLaunchKernel", &found, 7000, 2, &status) == 0 && status == 0);
  IS_IN(found, hooked);
  launch_once(found);
  CHECK(v2("cuLaunchKernel", &found, 13000, 0, &status) == 0);
  launch_once(found);
  CHECK(driver_calls(driver, "cuLaunchKernel") == legacy + 2);
  CHECK(driver_calls(driver, "cuLaunchKernel_ptsz") == thread + 1);
  // The version picks the interface: two parameters here, one there.
  CHECK(v2("cuStreamBeginCapture", &found, 10000, 0, &status) == 0);
  ((CUresult(*)(CUstream))found)(NULL);
  CHECK(driver_calls(driver, "cuStreamBeginCapture") == 1);
  CHECK(v2("cuStreamBeginCapture", &found, 10010, 0, &status) == 0);
  ((CUresult(*)(CUstream, int))found)(NULL, 0);
  CHECK(driver_calls(driver, "cuStreamBeginCapture_v2") == 1);
  // Itself, through itself.
  CHECK(v2("cuGetProcAddress", &found, 11030, 0, &status) == 0);
  IS_IN(found, hooked);
  CHECK(((proc_v1)found)("cuStreamQuery", &found, 2000, 0) == 0);
  IS_IN(found, hooked);
  CHECK(v1("cuGetProcAddress", &found, 12000, 0) == 0);
  CHECK(((proc_v2)found)("cuStreamQuery", &found, 2000, 0, &status) == 0);
  IS_IN(found, hooked);
  // The driver's refusals and unknown names come through.
  CHECK(v2("cuLaunchKernel", &found, 3000, 0, &status) == 500 && found == NULL && status == 1);
  CHECK(v2("cuMemHostAlloc", &found, 2020, 0, &status) == 0);
  IS_IN(found, hooked); // not hooked, and may wait: a stub
  CHECK(v2("cuDeviceGetCount", &found, 2000, 0, &status) == 0);
  IS_IN(found, driver_name);
}

// Every question the CUDA 13 libraries ask: the answer is the driver's own, or our hook for that
// very one.
static void test_replay(const char *path, const char *own) {
  void *driver = dlopen(driver_name, RTLD_NOW | RTLD_LOCAL);
  void *(*real_dlsym)(void *, const char *) =
      (void *(*)(void *, const char *))dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym");
  proc_v2 ask = (proc_v2)dlsym(driver, "cuGetProcAddress_v2");
  proc_v2 really = (proc_v2)real_dlsym(driver, "cuGetProcAddress_v2");
  FILE *file = fopen(path, "r");
  CHECK(file && ask && really);
  char name[128];
  int version, pairs = 0, hooks = 0, stubs = 0;
  while (file && fscanf(file, "%127s %d", name, &version) == 2)
    for (cuuint64_t flags = 0; flags <= 2; flags++, pairs++) {
      void *answer = NULL, *truth = NULL;
      int status, true_status;
      CUresult result = ask(name, &answer, version, flags, &status);
      CHECK(result == really(name, &truth, version, flags, &true_status) && status == true_status);
      if (answer == truth) continue;
      hooks++, stubs++;
      IS_IN(answer, own);
      // Our hook has the name of the driver's function, ending included.
      Dl_info ours, theirs;
      CHECK(dladdr(answer, &ours) && dladdr(truth, &theirs));
      if (!ours.dli_sname || ours.dli_saddr != answer) continue; // a stub, which has no name
      stubs--;
      if (!getenv("XSN_INTERNAL") && strcmp(ours.dli_sname, theirs.dli_sname) != 0) {
        printf("FAIL %s %d %d: %s for %s\n", name, version, (int)flags, ours.dli_sname,
               theirs.dli_sname);
        failures++;
      }
    }
  printf("replayed %d questions, %d of them hooked, %d stubs\n", pairs, hooks - stubs, stubs);
  CHECK(pairs > 1200);
  CHECK(strcmp(own, hooked) != 0 ? hooks == 0 : hooks - stubs > 200);
}

#ifdef LINKED
static void test_linked(int where) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  CUcontext context;
  CHECK(driver && cuCtxCreate_v2(&context, 0, 0) == 0);
  for (int i = 0; i < 3; i++)
    CHECK(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == 0);
  CHECK(driver_calls(driver, "cuLaunchKernel") ==
        3); // each once: nothing is called twice or twisted
  if (!where) return;
  IS_IN(dlsym(RTLD_DEFAULT, "cuLaunchKernel"), hooked);
  IS_IN(dlsym(RTLD_NEXT, "cuLaunchKernel"), hooked);
}
#endif

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "", *shim = getenv("XSCHED_TEST_SHIM");
  disabled = getenv("XSCHED_DISABLE") != NULL;
  if (getenv("XSCHED_CUDA_LIB")) driver_name = getenv("XSCHED_CUDA_LIB");
  hooked = shim && *shim == '1' ? "libxsched.so" : driver_name;
  if (strcmp(what, "replay") == 0 && argc > 2) test_replay(argv[2], "libxsched.so");
#ifdef LINKED
  else if (strcmp(what, "linked") == 0)
    test_linked(1);
  else if (strcmp(what, "counts") == 0) // another library may stand between
    test_linked(0);
#endif
  else if (strcmp(what, "local") == 0)
    test_no_driver(), test_dlopen(RTLD_LOCAL);
  else if (strcmp(what, "global") == 0)
    test_no_driver(), test_dlopen(RTLD_GLOBAL);
  else if (strcmp(what, "proc") == 0)
    test_proc_address();
  else
    return 2;
  if (failures == 0) printf("ok reach %s\n", what);
  return failures != 0;
}
