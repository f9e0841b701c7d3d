/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers of the examples: open a GPU, launch a kernel of a given duration, report latencies. Uses
 * only the CUDA driver API.
 */
#ifndef EXAMPLES_GPU_H
#define EXAMPLES_GPU_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;

CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void **, void **);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);

#define GPU_CHECK(call)                                                                            \
  do {                                                                                             \
    int code_ = (int)(call);                                                                       \
    if (code_ != 0) {                                                                              \
      fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, code_);                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

/* One thread spins on the GPU's clock until the time has passed. The virtual GPU recognizes the
 * kernel by its name and advances its device time instead. */
static const char gpu_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry xs_spin(.param .u64 p_out, .param .u32 p_us, .param .u32 p_seed) {\n"
    "  .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %d<5>;\n"
    "  ld.param.u32 %r1, [p_us]; mul.wide.u32 %d1, %r1, 1000;\n"
    "  mov.u64 %d2, %globaltimer;\n"
    "LOOP:\n"
    "  mov.u64 %d3, %globaltimer; sub.u64 %d4, %d3, %d2;\n"
    "  setp.lt.u64 %p1, %d4, %d1; @%p1 bra LOOP;\n"
    "  ret;\n}\n";

static CUcontext gpu_context;
static CUfunction gpu_kernel;
static CUdeviceptr gpu_memory;

static inline void gpu_open(void) {
  CUdevice device;
  CUmodule module;
  GPU_CHECK(cuInit(0));
  GPU_CHECK(cuDeviceGet(&device, 0));
  GPU_CHECK(cuCtxCreate_v2(&gpu_context, 0, device));
  GPU_CHECK(cuModuleLoadData(&module, gpu_ptx));
  GPU_CHECK(cuModuleGetFunction(&gpu_kernel, module, "xs_spin"));
  GPU_CHECK(cuMemAlloc_v2(&gpu_memory, 64));
}

static inline CUresult gpu_launch(CUstream stream, uint32_t us) {
  uint32_t seed = 1;
  void *arguments[] = {&gpu_memory, &us, &seed};
  return cuLaunchKernel(gpu_kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

static inline double gpu_now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static inline void gpu_sleep_ms(double ms) {
  struct timespec pause = {(time_t)(ms / 1e3), (long)((ms - 1e3 * (long)(ms / 1e3)) * 1e6)};
  nanosleep(&pause, NULL);
}

/* Latencies of tasks. */
struct gpu_times {
  double ms[4096];
  unsigned count;
};

static inline void gpu_note(struct gpu_times *times, double ms) {
  if (times->count < sizeof times->ms / sizeof *times->ms) times->ms[times->count++] = ms;
}

static inline int gpu_compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static inline double gpu_quantile(struct gpu_times *times, double q) {
  if (times->count == 0) return 0;
  qsort(times->ms, times->count, sizeof *times->ms, gpu_compare);
  return times->ms[(unsigned)((times->count - 1) * q)];
}

static inline void gpu_report(const char *name, struct gpu_times *times) {
  printf("%-6s %4u tasks, latency P50 %6.2f ms, P99 %6.2f ms\n", name, times->count,
         gpu_quantile(times, 0.5), gpu_quantile(times, 0.99));
}

#endif /* EXAMPLES_GPU_H */
