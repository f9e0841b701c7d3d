/* SPDX-License-Identifier: Apache-2.0
 *
 * A program for upstream XSched, with its headers, names and numbers. With USE_DLOPEN it loads the
 * library with dlopen, so that its driver calls bypass the hooks. Valid C and C++.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "xsched/cuda/hal.h"
#include "xsched/hint.h"
#include "xsched/types.h"
#include "xsched/xqueue.h"
#include "xsched/xsched.h"

#ifdef __cplusplus
extern "C" {
#endif
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuCtxCreate_v2(CUcontext *, unsigned, int);
int cuModuleLoadData(CUmodule *, const void *);
int cuModuleGetFunction(CUfunction *, CUmodule, const char *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   CUstream, void **, void **);
int cuStreamCreate(CUstream *, unsigned);
int cuStreamDestroy_v2(CUstream);
#ifdef __cplusplus
}
#endif

#ifdef USE_DLOPEN
static void *library;
static void *find(const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "no %s\n", name);
    exit(1);
  }
  return found;
}
#define X(function) ((__typeof__(&function))find(#function))
#else
#define X(function) function
#endif

#define OK(call)                                                                                   \
  do {                                                                                             \
    int code_ = (int)(call);                                                                       \
    if (code_ != 0) {                                                                              \
      fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, code_);                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static CUfunction kernel;
static unsigned long long memory;

static XResult launch(HwQueueHandle hwq, void *data) {
  unsigned us = 200, seed = 1;
  void *arguments[3];
  arguments[0] = &memory;
  arguments[1] = &us;
  arguments[2] = &seed;
  if (hwq == 0) return kXSchedErrorInvalidValue;
  return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, (CUstream)data, arguments, NULL) == 0
             ? kXSchedSuccess
             : kXSchedErrorHardware;
}

static void open_gpu(void) {
  int device;
  CUcontext context;
  CUmodule module;
  OK(cuInit(0));
  OK(cuDeviceGet(&device, 0));
  OK(cuCtxCreate_v2(&context, 0, device));
  OK(cuModuleLoadData(&module, "// xs_spin"));
  OK(cuModuleGetFunction(&kernel, module, "xs_spin"));
  OK(cuMemAlloc_v2(&memory, 64));
}

int main(int argc, char **argv) {
  CUstream stream;
  HwQueueHandle hwq, same_hwq;
  XQueueHandle xq, same_xq;
  HwCommandHandle command;
  XQueueState state = kQueueStateUnknown;
  int64_t count = 0;
  int wanted = argc > 1 ? atoi(argv[1]) : 0; /* expected result of xs_available */
#ifdef USE_DLOPEN
  library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
#endif
  open_gpu();
  OK(cuStreamCreate(&stream, 1));
  OK(X(CudaQueueCreate)(&hwq, stream));
  OK(X(XQueueCreate)(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
  OK(X(CudaQueueGet)(&same_hwq, stream));
  OK(X(XQueueGet)(&same_xq, hwq));
  OK(X(XQueueSetLaunchConfig)(xq, 16, 8));
  OK(X(XHintPriority)(xq, PRIORITY_DEFAULT + 1));
  OK(X(XHintUtilization)(xq, UTILIZATION_MAX));
  OK(X(XHintTimeslice)(TIMESLICE_DEFAULT));
  OK(X(XHintDeadline)(xq, NO_DEADLINE));
  OK(X(XHintLaxity)(xq, NO_LAXITY, PRIORITY_MIN, PRIORITY_MAX));
  OK(X(XHintKDeadline)(1));
  OK(X(HwCommandCreateCallback)(&command, launch, stream));
  for (int i = 0; i < 500 && X(xs_available)() != wanted; i++) {
    struct timespec pause = {0, 10000000};
    nanosleep(&pause, NULL);
  }
  for (int i = 0; i < 20; i++)
    OK(X(XQueueSubmit)(xq, command));
  OK(X(XQueueQuery)(xq, &state));
  int busy = state == kQueueStateReady;
  OK(X(XQueueWait)(xq, command));
  OK(X(XQueueSuspend)(xq, kQueueSuspendFlagSyncHwQueue));
  OK(X(XQueueResume)(xq, kQueueResumeFlagNone));
  OK(X(HwQueueLaunch)(hwq, command));
  OK(X(XQueueWaitAll)(xq));
  OK(X(HwQueueSynchronize)(hwq));
  OK(X(XQueueQuery)(xq, &state));
  OK(X(XQueueProfileHwCommandCount)(xq, &count));
  printf("available %d, same %d, busy %d, idle %d, commands %lld, level 3 %d, drop %d\n",
         X(xs_available)(), same_hwq == hwq && same_xq == xq, busy, state == kQueueStateIdle,
         (long long)count, (int)X(XQueueSetPreemptLevel)(xq, kPreemptLevelInterrupt),
         (int)X(XQueueResume)(xq, kQueueResumeFlagDropCommands));
  OK(X(HwCommandDestroy)(command));
  OK(X(XQueueDestroy)(xq));
  OK(X(HwQueueDestroy)(hwq));
  OK(cuStreamDestroy_v2(stream));
  return 0;
}
