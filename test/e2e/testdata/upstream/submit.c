/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that the program submits itself, in plain C on the CUDA driver interface. Waits for its
 * standard input to end between two rounds.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "xsched/cuda/hal.h"
#include "xsched/xsched.h"

#define CHECK(call)                                                                                \
  do {                                                                                             \
    int code_ = (int)(call);                                                                       \
    if (code_ != 0) {                                                                              \
      fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, code_);                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static CUfunction kernel;
static CUdeviceptr memory;
static CUstream stream;
static HwQueueHandle hwq;
static XQueueHandle xq;

static XResult launch(HwQueueHandle queue, void *us) {
  unsigned seed = 1;
  void *arguments[] = {&memory, us, &seed};
  if (queue != hwq) return kXSchedErrorInvalidValue;
  return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL) == CUDA_SUCCESS
             ? kXSchedSuccess
             : kXSchedErrorHardware;
}

static void submit(int count) {
  static unsigned us = 200;
  for (int i = 0; i < count; i++) {
    HwCommandHandle command;
    CHECK(HwCommandCreateCallback(&command, launch, &us));
    CHECK(XQueueSubmit(xq, command));
    CHECK(HwCommandDestroy(command));
  }
  CHECK(XQueueWaitAll(xq));
}

/* Names of types and values that other programs use. */
_Static_assert(kPlatformCUDA == 2 && kPlatformHIP == 4 && kPlatformLevelZero == 7, "platforms");
_Static_assert(kQueueFeatureAsyncSubmit == 1 && kQueueFeatureResumeDropCommands == 32, "features");
_Static_assert(TIMESLICE_UNLIMITED == UINT64_MAX && TIMESLICE_MAX == 10000000, "timeslices");

int main(void) {
  CUdevice device;
  CUcontext context;
  CUmodule module;
  XPlatform platform = kPlatformCUDA;
  XQueueFeature features = kQueueFeatureDynamicThreshold;
  int64_t count = 0;
  char ignored;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, "// xs_spin"));
  CHECK(cuModuleGetFunction(&kernel, module, "xs_spin"));
  CHECK(cuMemAlloc(&memory, 64));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(CudaQueueCreate(&hwq, stream));
  CHECK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
  CHECK(XHintPriority(xq, 7));
  submit(20);
  printf("submitted\n");
  fflush(stdout);
  while (read(0, &ignored, 1) > 0)
    continue;
  submit(20);
  CHECK(XQueueProfileHwCommandCount(xq, &count));
  CHECK(XQueueDestroy(xq));
  CHECK(HwQueueDestroy(hwq));
  CHECK(cuStreamDestroy(stream));
  printf("platform %d, features %d, commands %lld\n", (int)platform, (int)features,
         (long long)count);
  return 0;
}
