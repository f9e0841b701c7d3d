// SPDX-License-Identifier: Apache-2.0
//
// launchloop [LAUNCHES [created|default]]: measures cuLaunchKernel in rounds, so that noise is
// visible. On the null driver, the difference with and without the shim is the cost of a hook.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/cuda/abi.h"

#define ROUNDS 10

typedef CUresult (*launch_function)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    unsigned, unsigned, CUstream, void **, void **);

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
  long launches = argc > 1 ? strtol(argv[1], NULL, 10) : 10000000;
  const char *kind = argc > 2 ? argv[2] : "created";
  if (launches < ROUNDS || (strcmp(kind, "created") != 0 && strcmp(kind, "default") != 0)) {
    fprintf(stderr, "usage: launchloop [LAUNCHES [created|default]]\n");
    return 2;
  }
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) {
    fprintf(stderr, "launchloop: %s\n", dlerror());
    return 1;
  }
  CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
  CUresult (*create)(CUcontext *, unsigned, CUdevice) =
      (CUresult(*)(CUcontext *, unsigned, CUdevice))dlsym(driver, "cuCtxCreate_v2");
  CUresult (*stream_create)(CUstream *, unsigned) =
      (CUresult(*)(CUstream *, unsigned))dlsym(driver, "cuStreamCreate");
  CUresult (*synchronize)(CUstream) = (CUresult(*)(CUstream))dlsym(driver, "cuStreamSynchronize");
  launch_function launch = (launch_function)dlsym(driver, "cuLaunchKernel");
  uint64_t (*calls)(const char *) = (uint64_t(*)(const char *))dlsym(driver, "xsn_calls");
  CUcontext context;
  CUstream stream = NULL;
  if (!init || !create || !stream_create || !synchronize || !launch || init(0) ||
      create(&context, 0, 0) || (strcmp(kind, "created") == 0 && stream_create(&stream, 0))) {
    fprintf(stderr, "launchloop: no usable driver\n");
    return 1;
  }
  long each = launches / ROUNDS;
  double per_launch[ROUNDS];
  for (int round = 0; round < ROUNDS; round++) {
    double begun = now_ns();
    for (long i = 0; i < each; i++)
      if (launch(NULL, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) != 0) return 1;
    per_launch[round] = (now_ns() - begun) / (double)each;
  }
  synchronize(stream);
  qsort(per_launch, ROUNDS, sizeof *per_launch, by_value);
  printf("{\"launches\":%ld,\"driver_launches\":%llu,\"stream\":\"%s\",\"ns_per_launch\":%.2f,"
         "\"ns_per_launch_best\":%.2f,\"ns_per_launch_worst\":%.2f}\n",
         each * ROUNDS, calls ? (unsigned long long)calls("cuLaunchKernel") : 0, kind,
         (per_launch[ROUNDS / 2 - 1] + per_launch[ROUNDS / 2]) / 2, per_launch[0],
         per_launch[ROUNDS - 1]);
  return 0;
}
