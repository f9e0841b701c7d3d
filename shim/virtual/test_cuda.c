/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the driver API of the stand-in. Needs a virtual GPU (XSCHED_VGPU_SOCKET and the preloaded
 * libvgpu.so); prints "ok NAME" or "FAIL ..." per test.
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test_call.h"
#include "vgpu.h"

static handle context, spin, other;

static uint64_t allocate(size_t bytes) {
  uint64_t address = 0;
  OK(CU(cuMemAlloc_v2, &address, bytes));
  OK(CU(cuMemsetD8_v2, address, 0, bytes));
  return address;
}

static int launch(uint64_t out, uint32_t us, uint32_t seed, handle stream) {
  void *params[] = {&out, &us, &seed};
  return CU(cuLaunchKernel, spin, 8u, 1u, 1u, 32u, 1u, 1u, 0u, stream, params, NULL);
}

static uint64_t word(uint64_t address) {
  uint64_t value = 0;
  OK(CU(cuMemcpyDtoH_v2, &value, address, sizeof value));
  return value;
}

static uint64_t folded(uint64_t value, uint32_t us, uint32_t seed) {
  for (uint32_t b = 0; b < (us + 9) / 10; b++)
    value = vg_fold(value, seed, b);
  return value;
}

static void test_before(void) {
  int n;
  IS(3, CU(cuDeviceGetCount, &n));
  IS(3, CU(cuCtxSynchronize));
  pid_t child = fork(); /* a fork before initialisation is harmless */
  if (child == 0) {
    handle c;
    _exit(CU(cuInit, 0u) || CU(cuCtxCreate_v2, &c, 0u, 0) || CU(cuCtxSynchronize));
  }
  int status;
  waitpid(child, &status, 0);
  IS(0, status);
  OK(CU(cuInit, 0u));
  OK(CU(cuInit, 0u));
}

static void test_devices(void) {
  int n = 0, device, value;
  char text[64];
  size_t bytes;
  unsigned char uuid[2][16];
  OK(CU(cuDeviceGetCount, &n));
  IS(2, n);
  OK(CU(cuDriverGetVersion, &value));
  IS(13000, value);
  IS(101, CU(cuDeviceGet, &device, 2));
  OK(CU(cuDeviceGet, &device, 1));
  OK(CU(cuDeviceGetName, text, (int)sizeof text, device));
  TRUE(strcmp(text, "XSched virtual GPU") == 0);
  OK(CU(cuDeviceGetPCIBusId, text, (int)sizeof text, device));
  TRUE(strcmp(text, "0000:02:00.0") == 0);
  OK(CU(cuDeviceGetByPCIBusId, &value, text));
  IS(1, value);
  OK(CU(cuDeviceGetAttribute, &value, 33, device));
  IS(2, value);
  OK(CU(cuDeviceTotalMem_v2, &bytes, device));
  TRUE(bytes >= 1u << 30);
  OK(CU(cuDeviceGetUuid_v2, uuid[0], 0));
  OK(CU(cuDeviceGetUuid_v2, uuid[1], 1));
  TRUE(memcmp(uuid[0], uuid[1], 16) != 0);
}

static void test_contexts(void) {
  handle c, d, primary, again;
  int device;
  IS(201, CU(cuCtxSynchronize));
  OK(CU(cuCtxCreate_v2, &context, 0u, 0));
  OK(CU(cuCtxCreate_v4, &c, NULL, 0u, 1));
  OK(CU(cuCtxGetDevice, &device));
  IS(1, device);
  OK(CU(cuCtxPopCurrent_v2, &d));
  TRUE(d == c);
  OK(CU(cuCtxGetCurrent, &d));
  TRUE(d == context);
  OK(CU(cuCtxDestroy_v2, c));
  IS(201, CU(cuCtxSetCurrent, c));
  OK(CU(cuDevicePrimaryCtxRetain, &primary, 1));
  OK(CU(cuDevicePrimaryCtxRetain, &again, 1));
  TRUE(primary == again);
  OK(CU(cuDevicePrimaryCtxRelease_v2, 1));
  OK(CU(cuDevicePrimaryCtxRelease_v2, 1));
  OK(CU(cuCtxSetCurrent, context));
  handle module;
  OK(CU(cuModuleLoadData, &module, "image"));
  OK(CU(cuModuleGetFunction, &spin, module, "xs_spin"));
  OK(CU(cuModuleGetFunction, &other, module, "another"));
}

static void test_symbols(void) {
  void *f;
  int status;
  OK(CU(cuGetProcAddress_v2, "cuCtxCreate", &f, 3020, (uint64_t)0, &status));
  TRUE(f == dlsym(library, "cuCtxCreate_v2") && status == 0);
  OK(CU(cuGetProcAddress_v2, "cuCtxCreate", &f, 13000, (uint64_t)0, &status));
  TRUE(f == dlsym(library, "cuCtxCreate_v4"));
  OK(CU(cuGetProcAddress_v2, "cuLaunchKernel", &f, 12000, (uint64_t)2, &status));
  TRUE(f == dlsym(library, "cuLaunchKernel_ptsz"));
  OK(CU(cuGetProcAddress_v2, "cuLaunchKernelEx", &f, 9000, (uint64_t)0, &status));
  TRUE(f == NULL && status == 2);
  OK(CU(cuGetProcAddress_v2, "cuNothing", &f, 12000, (uint64_t)0, &status));
  TRUE(f == NULL && status == 1);
  IS(500, CU(cuGetProcAddress, "cuNothing", &f, 12000, (uint64_t)0));
  IS(1, CU(cuGetProcAddress_v2, "cuInit", &f, 99000, (uint64_t)0, &status));
  const char *name;
  OK(CU(cuGetErrorName, 900, &name));
  TRUE(strcmp(name, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED") == 0);
}

static void test_memory(void) {
  enum { BYTES = 5 << 20 };
  unsigned char *a = malloc(BYTES), *b = calloc(1, BYTES), *pinned;
  for (int i = 0; i < BYTES; i++)
    a[i] = (unsigned char)(i * 7 + (i >> 12));
  uint64_t x = allocate(BYTES), y = allocate(BYTES);
  OK(CU(cuMemcpyHtoD_v2, x, a, (size_t)BYTES));
  OK(CU(cuMemcpyDtoDAsync_v2, y, x, (size_t)BYTES, NULL));
  OK(CU(cuMemcpyDtoH_v2, b, y, (size_t)BYTES));
  TRUE(memcmp(a, b, BYTES) == 0);
  OK(CU(cuMemsetD32_v2, x + 16, 0x01020304u, (size_t)1000));
  OK(CU(cuMemcpyDtoH_v2, b, x, (size_t)BYTES));
  TRUE(b[15] == a[15] && b[16] == 4 && b[4015] == 1 && b[4016] == a[4016]);
  OK(CU(cuMemHostAlloc, (void **)&pinned, (size_t)4096, 0u));
  OK(CU(cuMemcpyDtoHAsync_v2, pinned, y, (size_t)4096, NULL));
  OK(CU(cuStreamSynchronize, NULL));
  TRUE(memcmp(pinned, a, 4096) == 0);
  IS(1, CU(cuMemcpyHtoD_v2, (uint64_t)12345, a, (size_t)16));
  OK(CU(cuMemFreeHost, pinned));
  OK(CU(cuMemFree_v2, x));
  OK(CU(cuMemFree_v2, y));
  IS(1, CU(cuMemFree_v2, y));
  uint64_t huge;
  IS(2, CU(cuMemAlloc_v2, &huge, (size_t)1 << 40));
  free(a);
  free(b);
}

/* Behind a kernel of 100 ms: is its stream still busy when the copy returns? */
static void test_waits(void) {
  enum { BYTES = 1 << 20 };
  unsigned char *pageable = calloc(1, BYTES), *pinned;
  unsigned type = 0;
  uint64_t x = allocate(BYTES), y = allocate(16);
  OK(CU(cuMemHostAlloc, (void **)&pinned, (size_t)BYTES, 0u));
  OK(CU(cuPointerGetAttribute, &type, 2, x + 1));
  IS(2, (int)type);
  OK(CU(cuPointerGetAttribute, &type, 2, (uint64_t)(uintptr_t)pinned));
  IS(1, (int)type);
  IS(1, CU(cuPointerGetAttribute, &type, 2, (uint64_t)(uintptr_t)pageable));
  for (int i = 0; i < 10; i++) {
    if (i < 2) setenv("XSCHED_VGPU_COPIES", "documented", 1);
    OK(launch(y, 100000, 1, NULL));
    OK(i % 8 == 0   ? CU(cuMemcpyHtoD_v2, x, pageable, (size_t)65536)
       : i % 8 == 1 ? CU(cuMemcpyHtoD_v2, x, pinned, (size_t)65536)
       : i == 2     ? CU(cuMemcpyDtoD_v2, x, y, (size_t)16)
       : i == 3     ? CU(cuMemcpyDtoHAsync_v2, pinned, x, (size_t)16, NULL)
       : i == 4     ? CU(cuMemcpyHtoDAsync_v2, x, pageable, (size_t)BYTES, NULL)
       : i == 5     ? CU(cuMemcpyDtoHAsync_v2, pageable, x, (size_t)16, NULL)
       : i == 6     ? CU(cuMemcpyHtoD_v2, x, pinned, (size_t)BYTES)
                    : CU(cuMemcpyDtoH_v2, pinned, x, (size_t)16));
    IS(i < 5 ? 600 : 0, CU(cuStreamQuery, NULL));
    OK(CU(cuStreamSynchronize, NULL));
    unsetenv("XSCHED_VGPU_COPIES");
  }
  /* From pageable memory above 64 KB: the kernel is over, the copy need not be. */
  handle event;
  OK(CU(cuEventCreate, &event, 0u));
  OK(launch(y, 100000, 1, NULL));
  OK(CU(cuEventRecord, event, NULL));
  OK(CU(cuMemcpyHtoD_v2, x, pageable, (size_t)BYTES));
  OK(CU(cuEventQuery, event));
  OK(CU(cuStreamSynchronize, NULL));
  OK(CU(cuMemFreeHost, pinned));
  OK(CU(cuMemFree_v2, x));
  OK(CU(cuMemFree_v2, y));
  free(pageable);
}

static void test_streams(void) {
  handle s[2], event[2], many[1000];
  uint64_t x = allocate(16), expected = 0;
  float ms = 0;
  OK(CU(cuStreamCreate, &s[0], 1u));
  OK(CU(cuStreamCreateWithPriority, &s[1], 1u, -3));
  OK(CU(cuEventCreate, &event[0], 0u));
  OK(CU(cuEventCreate, &event[1], 0u));
  struct timespec from, to;
  clock_gettime(CLOCK_MONOTONIC, &from);
  OK(CU(cuEventRecord, event[0], s[0]));
  OK(launch(x, 300000, 1, s[0])); /* longer than a busy machine delays the queries */
  IS(600, CU(cuStreamQuery, s[0]));
  OK(CU(cuStreamQuery, s[1]));
  OK(CU(cuEventRecord, event[1], s[0]));
  IS(600, CU(cuEventQuery, event[1]));
  OK(CU(cuStreamWaitEvent, s[1], event[1], 0u)); /* 2 after 1, on another channel */
  OK(launch(x, 100, 2, s[1]));
  OK(CU(cuStreamSynchronize, s[1]));
  OK(CU(cuEventQuery, event[1]));
  OK(CU(cuEventElapsedTime, &ms, event[0], event[1]));
  clock_gettime(CLOCK_MONOTONIC, &to);
  TRUE(ms >= 299.9f &&
       ms <= 1e3 * (double)(to.tv_sec - from.tv_sec) + 1e-6 * (double)(to.tv_nsec - from.tv_nsec));
  expected = folded(folded(0, 300000, 1), 100, 2);
  TRUE(word(x) == expected && word(x + 8) == 2);
  int priority;
  OK(CU(cuStreamGetPriority, s[1], &priority));
  IS(-3, priority);
  /* legacy and blocking streams are ordered without events */
  handle blocking;
  OK(CU(cuStreamCreate, &blocking, 0u));
  OK(launch(x, 5000, 3, blocking));
  OK(launch(x, 500, 4, NULL));
  OK(launch(x, 500, 5, blocking));
  OK(CU(cuStreamDestroy_v2, blocking)); /* pending work completes */
  IS(400, CU(cuStreamQuery, blocking));
  OK(CU(cuCtxSynchronize));
  expected = folded(folded(folded(expected, 5000, 3), 500, 4), 500, 5);
  TRUE(word(x) == expected);
  for (int i = 0; i < 1000; i++)
    OK(CU(cuStreamCreate, &many[i], 1u));
  for (int i = 0; i < 1000; i++)
    OK(launch(0, 1, 1, many[i]));
  for (int i = 0; i < 1000; i++)
    OK(CU(cuStreamSynchronize, many[i]));
  for (int i = 0; i < 1000; i++)
    OK(CU(cuStreamDestroy_v2, many[i]));
  void *none[] = {NULL};
  OK(CU(cuLaunchKernel, other, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (handle)2, none, NULL));
  OK(CU(cuStreamSynchronize_ptsz, NULL));
  IS(400, CU(cuLaunchKernel, NULL, 1u, 1u, 1u, 1u, 1u, 1u, 0u, NULL, none, NULL));
  OK(CU(cuEventDestroy_v2, event[0]));
  OK(CU(cuEventDestroy_v2, event[1]));
  IS(400, CU(cuEventQuery, event[1]));
  OK(CU(cuStreamDestroy_v2, s[0]));
  OK(CU(cuStreamDestroy_v2, s[1]));
}

static void *query_elsewhere(void *relaxed) {
  CU(cuCtxSetCurrent, context);
  int mode = 2;
  if (relaxed) OK(CU(cuThreadExchangeStreamCaptureMode, &mode));
  return (void *)(intptr_t)CU(cuStreamQuery, NULL);
}

static int from_thread(bool relaxed) {
  pthread_t thread;
  void *result;
  pthread_create(&thread, NULL, query_elsewhere, relaxed ? &relaxed : NULL);
  pthread_join(thread, &result);
  return (int)(intptr_t)result;
}

static void test_capture(void) {
  handle s, side, graph = NULL, exec, event, joined;
  uint64_t x = allocate(16);
  int status, mode;
  OK(CU(cuStreamCreate, &s, 1u));
  OK(CU(cuStreamCreate, &side, 1u));
  OK(CU(cuEventCreate, &event, 2u));
  OK(CU(cuEventCreate, &joined, 2u));
  OK(CU(cuStreamSynchronize, NULL)); /* a query below asks for its work */
  OK(CU(cuStreamBeginCapture_v2, s, 0));
  OK(launch(x, 200, 1, s));
  OK(CU(cuEventRecord, event, s)); /* capture spreads through events */
  OK(CU(cuStreamWaitEvent, side, event, 0u));
  OK(launch(x, 200, 2, side));
  OK(CU(cuStreamIsCapturing, side, &status));
  IS(1, status);
  OK(CU(cuEventRecord, joined, side));
  OK(CU(cuStreamWaitEvent, s, joined, 0u));
  OK(launch(x, 200, 3, s));
  OK(from_thread(true)); /* a relaxed thread may query other streams */
  OK(CU(cuStreamEndCapture, s, &graph));
  TRUE(word(x + 8) == 0); /* nothing ran */
  OK(CU(cuGraphInstantiateWithFlags, &exec, graph, 0ull));
  OK(CU(cuGraphLaunch, exec, s));
  OK(CU(cuGraphLaunch, exec, s));
  OK(CU(cuStreamSynchronize, s));
  uint64_t expected = 0;
  for (int i = 0; i < 2; i++)
    for (uint32_t seed = 1; seed <= 3; seed++)
      expected = folded(expected, 200, seed);
  TRUE(word(x) == expected && word(x + 8) == 6);
  OK(CU(cuGraphExecDestroy, exec));
  OK(CU(cuGraphDestroy, graph));

  OK(CU(cuStreamBeginCapture_v2, s, 0)); /* querying a capturing stream invalidates the capture */
  IS(900, CU(cuStreamQuery, s));
  OK(CU(cuStreamIsCapturing, s, &status));
  IS(2, status);
  IS(901, launch(x, 1, 1, s));
  IS(901, CU(cuStreamEndCapture, s, &graph));
  TRUE(graph == NULL);

  OK(CU(cuStreamBeginCapture_v2, s, 0)); /* so does a query by a thread that is not relaxed */
  IS(900, from_thread(false));
  IS(901, CU(cuStreamEndCapture, s, &graph));

  OK(CU(cuStreamBeginCapture_v2, s, 1)); /* unless the capture is thread-local */
  OK(from_thread(false));
  uint64_t memory;
  IS(900, CU(cuMemAlloc_v2, &memory, (size_t)16));
  IS(901, CU(cuStreamEndCapture, s, &graph));

  mode = 2;
  OK(CU(cuThreadExchangeStreamCaptureMode, &mode));
  IS(0, mode);
  OK(CU(cuStreamBeginCapture_v2, s, 2));
  OK(CU(cuMemAlloc_v2, &memory, (size_t)16));
  OK(CU(cuEventRecord, event, s));
  OK(CU(cuStreamWaitEvent, side, event, 0u));
  OK(launch(x, 1, 1, side));
  IS(904, CU(cuStreamEndCapture, s, &graph)); /* side was never joined */
  OK(CU(cuThreadExchangeStreamCaptureMode, &mode));

  IS(900, CU(cuStreamBeginCapture_v2, NULL, 0));
  IS(401, CU(cuStreamEndCapture, s, &graph));
  for (int i = 0; i < 10000; i++) {
    OK(CU(cuStreamBeginCapture_v2, s, 1));
    OK(launch(x, 1, 1, s));
    OK(CU(cuStreamEndCapture, s, &graph));
    OK(CU(cuGraphDestroy, graph));
  }
  OK(CU(cuStreamDestroy_v2, s));
  OK(CU(cuStreamDestroy_v2, side));
}

static void test_fork(void) {
  pid_t child = fork();
  if (child == 0) {
    int n;
    _exit(!(CU(cuInit, 0u) == 3 && CU(cuDeviceGetCount, &n) == 3 && launch(0, 1, 1, NULL) == 3 &&
            CU(cuCtxSynchronize) == 3));
  }
  int status;
  waitpid(child, &status, 0);
  IS(0, status);
  OK(launch(0, 10, 1, NULL));
  OK(CU(cuCtxSynchronize));
}

/* Runs last, because the error is sticky. */
static void test_bad_address(void) {
  OK(launch(0x1000, 10, 1, NULL));
  IS(700, CU(cuCtxSynchronize));
  IS(700, launch(0, 10, 1, NULL));
  OK(CU(cuCtxDestroy_v2, context));
}

int main(void) {
  if (!getenv("XSCHED_VGPU_SOCKET")) {
    printf("skip test_cuda: XSCHED_VGPU_SOCKET is not set\n");
    return 0;
  }
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    printf("FAIL load: %s\n", dlerror());
    return 1;
  }
  static const struct {
    const char *name;
    void (*run)(void);
  } tests[] = {{"before", test_before},     {"devices", test_devices},
               {"contexts", test_contexts}, {"symbols", test_symbols},
               {"memory", test_memory},     {"streams", test_streams},
               {"waits", test_waits},       {"capture", test_capture},
               {"fork", test_fork},         {"bad address", test_bad_address}};
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    int before = failures;
    test = tests[i].name;
    tests[i].run();
    if (failures == before) printf("ok %s\n", test);
    fflush(stdout);
  }
  return failures != 0;
}
