/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams that wait for each other, in both directions and from two threads. A scheduler of single
 * streams can deadlock them. Runs until stdin ends; prints dots, and finally the number of rounds.
 */
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int CUresult;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
int cuInit(unsigned);
int cuDeviceGet(int *, int);
int cuCtxCreate_v2(CUcontext *, unsigned, int);
int cuCtxSetCurrent(CUcontext);
int cuModuleLoadData(CUmodule *, const void *);
int cuModuleGetFunction(CUfunction *, CUmodule, const char *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   CUstream, void **, void **);
int cuStreamCreateWithPriority(CUstream *, unsigned, int);
int cuStreamSynchronize(CUstream);
int cuStreamWaitEvent(CUstream, CUevent, unsigned);
int cuEventCreate(CUevent *, unsigned);
int cuEventRecord(CUevent, CUstream);

#define CHECK(call)                                                                                \
  do {                                                                                             \
    int code_ = (call);                                                                            \
    if (code_ != 0) {                                                                              \
      fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, code_);                       \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static CUcontext context;
static CUfunction kernel;
static unsigned long long memory;
static uint32_t stop;

static void launch(CUstream stream, unsigned us) {
  unsigned seed = 1;
  void *arguments[] = {&memory, &us, &seed};
  CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

/* Each stream's next kernel waits for the last kernel of the other stream. */
static void *ping_pong(void *rounds) {
  CUstream streams[2];
  CUevent events[2];
  CHECK(cuCtxSetCurrent(context));
  for (int i = 0; i < 2; i++) {
    CHECK(cuStreamCreateWithPriority(&streams[i], 1, i == 0 ? 0 : -5));
    CHECK(cuEventCreate(&events[i], 2));
  }
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    for (int k = 0; k < 8; k++) {
      int me = k % 2;
      if (k > 0) CHECK(cuStreamWaitEvent(streams[me], events[1 - me], 0));
      launch(streams[me], 100);
      CHECK(cuEventRecord(events[me], streams[me]));
    }
    CHECK(cuStreamSynchronize(streams[1]));
    if (__atomic_add_fetch((uint64_t *)rounds, 1, __ATOMIC_RELAXED) % 20 == 0) {
      printf("dot\n");
      fflush(stdout);
    }
  }
  return NULL;
}

int main(void) {
  static uint64_t rounds;
  int device;
  CUmodule module;
  pthread_t threads[2];
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuCtxCreate_v2(&context, 0, device));
  CHECK(cuModuleLoadData(&module, "// xs_spin"));
  CHECK(cuModuleGetFunction(&kernel, module, "xs_spin"));
  CHECK(cuMemAlloc_v2(&memory, 64));
  for (int i = 0; i < 2; i++)
    if (pthread_create(&threads[i], NULL, ping_pong, &rounds) != 0) return 1;
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0)
    continue;
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  printf("rounds %llu\n", (unsigned long long)rounds);
  return 0;
}
