// SPDX-License-Identifier: Apache-2.0
//
// Names that programs look up: which are suspected of submitting, and that each is counted once.

#include <string.h>

#include "runtime/cuda/test_fake.h"

extern const struct xsi_runtime xsi_hip_runtime, xsi_cl_runtime;

static void test_suspects(void) {
  static const struct {
    const struct xsi_runtime *runtime;
    const char *name;
    bool suspect;
  } cases[] = {
      {&xsi_cu_runtime, "cuStreamBeginNewCapture", true},
      {&xsi_cu_runtime, "cuStreamBeginNewRecaptureToGraph_ptsz", true},
      {&xsi_cu_runtime, "cuStreamWaitNew", true},
      {&xsi_cu_runtime, "cuLaunchNew", true},
      {&xsi_cu_runtime, "cuMemcpyNewAsync", true},
      {&xsi_cu_runtime, "cuGraphExecuteNew", true},
      {&xsi_cu_runtime, "cuDeviceGetNew", false},           // can't submit, by its name
      {&xsi_cu_runtime, "cuStreamIsCapturing_ptsz", false}, // known
      {&xsi_cu_runtime, "cuGLMapBufferObjectAsync", false}, // passes for a reason
      {&xsi_cu_runtime, "cudaLaunchKernel", false},         // another library's
      {&xsi_cu_runtime, "cublasSetWaitMode", false},
      {&xsi_hip_runtime, "hipLaunchNew", true},
      {&xsi_hip_runtime, "hipGraphLaunchNew_spt", true},
      {&xsi_hip_runtime, "hipGraphicsMapResources", false},
      {&xsi_hip_runtime, "hipblasLaunch", false},
      {&xsi_cl_runtime, "clEnqueueNewKHR", true},
      {&xsi_cl_runtime, "clEnqueueCommandBufferKHR", false},
      {&xsi_cl_runtime, "clCreateBuffer", false},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    bool got = xsi_runtime_suspects(cases[i].runtime, cases[i].name);
    if (got != cases[i].suspect) printf("%s: ", cases[i].name);
    CHECK(got == cases[i].suspect);
  }
}

// The lists are searched by halves.
static void test_sorted(void) {
  static const struct xsi_runtime *const all[] = {&xsi_cu_runtime, &xsi_hip_runtime,
                                                  &xsi_cl_runtime};
  for (unsigned r = 0; r < 3; r++) {
    CHECK(*all[r]->known_count > 50);
    for (unsigned i = 1; i < *all[r]->known_count; i++)
      CHECK(strcmp(all[r]->known[i - 1], all[r]->known[i]) < 0);
    for (unsigned i = 1; i < all[r]->hooks; i++)
      CHECK(strcmp(all[r]->symbols[i - 1].name, all[r]->symbols[i].name) < 0);
    for (unsigned i = 0; i < all[r]->hooks; i++)
      CHECK(xsi_runtime_find(all[r], all[r]->symbols[i].name) == (int)i);
  }
}

static void test_counted_once(void) {
  uint64_t before = COUNTED(unhooked);
  for (int i = 0; i < 100; i++) {
    xsi_runtime_unknown("cuLaunchNew");
    xsi_runtime_unknown("cuStreamBeginNewCapture");
  }
  CHECK(COUNTED(unhooked) == before + 2);
  char name[32];
  for (int i = 0; i < 1000; i++) { // no program can grow the log without end
    snprintf(name, sizeof name, "cuLaunchNew%d", i);
    xsi_runtime_unknown(name);
  }
  CHECK(COUNTED(unhooked) <= 64);
}

static void *address_of_new(void) { return (void *)0x1000; }

// cuGetProcAddress answers with a function that the table does not have: it passes, and is counted.
static void test_asked_driver(void) {
  uint64_t before = COUNTED(unhooked);
  void *found = xsi_cu_match("cuStreamBeginNewestCapture", 13040, 0, (void *)address_of_new);
  CHECK(found && found != (void *)address_of_new); // releases batches first
  CHECK(((void *(*)(void))found)() == (void *)0x1000);
  CHECK(COUNTED(unhooked) == before + 1);
  CHECK(xsi_cu_match("cuDeviceGetNewest", 13040, 0, (void *)address_of_new) == found);
  CHECK(xsi_cu_match("cuDeviceGetCount", 13040, 0, (void *)address_of_new) ==
        (void *)address_of_new);
  CHECK(COUNTED(unhooked) == before + 1);
}

static void *address_of_extension(const char *name) {
  return strcmp(name, "clFinish") == 0 ? (void *)0x2000 : (void *)0x1000;
}

// OpenCL's extensions are reached by their addresses only, other functions also by them.
static void test_extensions(void) {
  int ask = xsi_runtime_find(&xsi_cl_runtime, "clGetExtensionFunctionAddress");
  int finish = xsi_runtime_find(&xsi_cl_runtime, "clFinish");
  CHECK(ask >= 0 && finish >= 0);
  xsi_cl_runtime.real[ask] = (void *)address_of_extension;
  xsi_cl_runtime.real[finish] = (void *)0x2000;
  void *(*get)(const char *) = (void *(*)(const char *))xsi_cl_runtime.symbols[ask].hook;
  uint64_t before = COUNTED(unhooked);
  CHECK(get("clFinish") == xsi_cl_runtime.symbols[finish].hook);
  CHECK(get("clEnqueueNewestKHR") == (void *)0x1000 && COUNTED(unhooked) == before + 1);
  CHECK(get("clEnqueueCommandBufferKHR") == (void *)0x1000 && COUNTED(unhooked) == before + 1);
}

int main(void) {
  xsi_count(hooked_calls, 1); // lists this thread's counters
  test_suspects();
  test_sorted();
  test_asked_driver();
  test_extensions();
  test_counted_once();
  if (failures) return 1;
  printf("ok names\n");
  return 0;
}
