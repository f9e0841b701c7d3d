/* SPDX-License-Identifier: Apache-2.0
 *
 * For helpers in C: the CUDA driver by dlopen, one context, a kernel of a given duration. They need no CUDA toolkit, and they run on
 * the virtual GPU. */
#pragma once
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;
typedef uint64_t CUdeviceptr;

#define DRIVER_CALLS(X)                                                                                           \
  X(cuInit, "cuInit", (unsigned))                                                                                 \
  X(cuDeviceGetName, "cuDeviceGetName", (char *, int, int))                                                       \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int))                                              \
  X(cuCtxCreate, "cuCtxCreate_v2", (CUcontext *, unsigned, int))                                                  \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                              \
  X(cuCtxDestroy, "cuCtxDestroy_v2", (CUcontext))                                                                 \
  X(cuModuleLoadData, "cuModuleLoadData", (CUmodule *, const void *))                                             \
  X(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))                           \
  X(cuStreamCreate, "cuStreamCreate", (CUstream *, unsigned))                                                     \
  X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                                                       \
  X(cuStreamQuery, "cuStreamQuery", (CUstream))                                                                   \
  X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                         \
  X(cuMemHostAlloc, "cuMemHostAlloc", (void **, size_t, unsigned))                                                \
  X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t))                                         \
  X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))                                               \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream))                     \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream))                           \
  X(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream))                           \
  X(cuLaunchKernel, "cuLaunchKernel",                                                                             \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))

struct copy_2d {
  size_t src_x, src_y;
  unsigned src_type;
  const void *src_host;
  CUdeviceptr src_device;
  void *src_array;
  size_t src_pitch, dst_x, dst_y;
  unsigned dst_type;
  void *dst_host;
  CUdeviceptr dst_device;
  void *dst_array;
  size_t dst_pitch, width, height;
};
struct copy_attributes {
  int order, src_hint[2], dst_hint[2];
  unsigned flags;
};

/* Calls that an old driver and the virtual GPU lack: NULL then. */
#define OPTIONAL_CALLS(X)                                                                                         \
  X(cuMemcpyAsync, "cuMemcpyAsync", (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                 \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream))                      \
  X(cuMemcpy2DAsync, "cuMemcpy2DAsync_v2", (const struct copy_2d *, CUstream))                                    \
  X(cuMemcpyBatchAsync, "cuMemcpyBatchAsync",                                                                     \
    (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, struct copy_attributes *, size_t *, size_t, size_t *, CUstream))

#define DECLARE(name, symbol, arguments) static int(*name) arguments;
DRIVER_CALLS(DECLARE)
OPTIONAL_CALLS(DECLARE)

static inline void fail(const char *what, int code) {
  printf("E %s error %d\n", what, code);
  fflush(stdout);
  fprintf(stderr, "%s: error %d\n", what, code);
  _exit(2);
}
#define CHECK(call)                  \
  do {                               \
    int code_ = (call);              \
    if (code_ != 0) fail(#call, code_); \
  } while (0)

static const char spin_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry xs_spin(.param .u64 p_out, .param .u32 p_work, .param .u32 p_seed) {\n"
    "  .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %d<4>;\n"
    "  ld.param.u64 %d1, [p_out]; ld.param.u32 %r1, [p_work]; ld.param.u32 %r2, [p_seed];\n"
    "  cvt.u64.u32 %d2, %r2;\n"
    "LOOP:\n"
    "  mad.lo.u64 %d2, %d2, 6364136223846793005, 1442695040888963407;\n"
    "  sub.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra LOOP;\n"
    "  cvta.to.global.u64 %d1, %d1;\n"
    "  st.global.u64 [%d1], %d2;\n"
    "  ret;\n}\n";

static struct {
  CUcontext context;
  CUfunction function;
  CUstream stream; /* does not synchronise with the default stream */
  CUdeviceptr out;
  int processors; /* multiprocessors: a kernel has a block on each */
  int virtual;
} gpu;

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static inline void pause_until(uint64_t when) {
  while (now_ns() + 60000 < when) {
    struct timespec rest = {0, 20000};
    nanosleep(&rest, NULL);
  }
  while (now_ns() < when) {
  }
}

static inline void launch(uint32_t work) {
  uint32_t seed = 7;
  void *arguments[] = {&gpu.out, &work, &seed};
  CHECK(cuLaunchKernel(gpu.function, (unsigned)gpu.processors, 1, 1, 128, 1, 1, 0, gpu.stream, arguments, NULL));
}

/* The work of a kernel that takes so long. Not accurate while another process uses the GPU. */
static inline uint32_t calibrate(double us) {
  if (gpu.virtual) return (uint32_t)us; /* it takes microseconds */
  double work = 20000;
  for (int i = 0; i < 7; i++) {
    double best = 1e12;
    for (int j = 0; j < 3; j++) {
      uint64_t begun = now_ns();
      launch((uint32_t)work);
      CHECK(cuStreamSynchronize(gpu.stream));
      double took = (double)(now_ns() - begun) / 1e3;
      if (took < best) best = took;
    }
    if (best > us * 0.95 && best < us * 1.05) break;
    double factor = us / best;
    work *= factor > 20 ? 20 : factor;
    if (work < 1) work = 1;
    if (work > 2e9) work = 2e9;
  }
  return (uint32_t)work;
}

static inline void start_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) fail(dlerror(), 0);
#define LOAD(name, symbol, arguments)                            \
  *(void **)&name = dlsym(library, symbol);                      \
  if (!name) fail(symbol " is missing", 0);
  DRIVER_CALLS(LOAD)
#define LOAD_OPTIONAL(name, symbol, arguments) *(void **)&name = dlsym(library, symbol);
  OPTIONAL_CALLS(LOAD_OPTIONAL)
  CUmodule module;
  char name[64] = "";
  CHECK(cuInit(0));
  CHECK(cuDeviceGetName(name, sizeof name, 0));
  gpu.virtual = strstr(name, "irtual") != NULL;
  CHECK(cuDeviceGetAttribute(&gpu.processors, 16, 0)); /* MULTIPROCESSOR_COUNT */
  CHECK(cuCtxCreate(&gpu.context, 0, 0));
  CHECK(cuModuleLoadData(&module, spin_ptx));
  CHECK(cuModuleGetFunction(&gpu.function, module, "xs_spin"));
  CHECK(cuStreamCreate(&gpu.stream, 1));
  CHECK(cuMemAlloc(&gpu.out, 4096));
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
/* Sorts the values. */
static inline double percentile(double *values, unsigned n, double p) {
  if (n == 0) return 0;
  qsort(values, n, sizeof *values, by_value);
  unsigned at = (unsigned)(p * n + 0.5);
  return values[at ? (at > n ? n : at) - 1 : 0];
}
