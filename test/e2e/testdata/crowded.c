/* SPDX-License-Identifier: Apache-2.0
 *
 * crowded: launches into the first GPU without end and never waits, until a launch waits for room. On the
 * second GPU it has idle streams. Linked directly against libcuda.so.1.
 *
 *   in:  count | destroy | capture | quit
 *   out: R, then C launches | D us, how long the call on the second GPU took
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef void *handle;

CUresult cuInit(unsigned);
CUresult cuCtxCreate_v2(handle *, unsigned, int);
CUresult cuCtxSetCurrent(handle);
CUresult cuModuleLoadData(handle *, const void *);
CUresult cuModuleGetFunction(handle *, handle, const char *);
CUresult cuMemAlloc_v2(unsigned long long *, size_t);
CUresult cuStreamCreate(handle *, unsigned);
CUresult cuStreamDestroy_v2(handle);
CUresult cuStreamSynchronize(handle);
CUresult cuStreamBeginCapture_v2(handle, int);
CUresult cuStreamEndCapture(handle, handle *);
CUresult cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, handle, void **, void **);

#define CHECK(call)                                                                                \
  do {                                                                                             \
    CUresult rc_ = (call);                                                                         \
    if (rc_ != 0) {                                                                                \
      fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, rc_);                         \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

enum { SPARE = 8 };
static struct gpu {
  handle context, function, stream;
  unsigned long long memory;
} one, two;
static unsigned long launches; // atomic

static void open_gpu(struct gpu *gpu, int ordinal) {
  handle module;
  CHECK(cuCtxCreate_v2(&gpu->context, 0, ordinal));
  CHECK(cuModuleLoadData(&module, ".visible .entry xs_spin()"));
  CHECK(cuModuleGetFunction(&gpu->function, module, "xs_spin"));
  CHECK(cuMemAlloc_v2(&gpu->memory, 16));
  CHECK(cuStreamCreate(&gpu->stream, 1));
}

static void launch(struct gpu *gpu, handle stream) {
  uint32_t work = 1000, seed = 1;
  void *parameters[] = {&gpu->memory, &work, &seed};
  CHECK(cuLaunchKernel(gpu->function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

static void *fill(void *unused) {
  CHECK(cuCtxSetCurrent(one.context));
  for (;; __atomic_fetch_add(&launches, 1, __ATOMIC_SEQ_CST))
    launch(&one, one.stream);
  return unused;
}

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000;
}

int main(void) {
  char line[64];
  handle spare[SPARE], graph;
  pthread_t thread;
  unsigned used = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  CHECK(cuInit(0));
  open_gpu(&one, 0);
  open_gpu(&two, 1);
  for (int i = 0; i < SPARE; i++) {
    CHECK(cuStreamCreate(&spare[i], 1));
    launch(&two, spare[i]); // so that it is known
    CHECK(cuStreamSynchronize(spare[i]));
  }
  CHECK(pthread_create(&thread, NULL, fill, NULL));
  puts("R");
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    uint64_t begun = now_us();
    if (strcmp(line, "count") == 0) {
      printf("C %lu\n", __atomic_load_n(&launches, __ATOMIC_SEQ_CST));
      continue;
    }
    if (strcmp(line, "destroy") == 0 && used < SPARE) {
      CHECK(cuStreamDestroy_v2(spare[used++]));
    } else if (strcmp(line, "capture") == 0) {
      CHECK(cuStreamBeginCapture_v2(two.stream, 0));
      CHECK(cuStreamEndCapture(two.stream, &graph));
    } else {
      break;
    }
    printf("D %llu\n", (unsigned long long)(now_us() - begun));
  }
  _exit(0);
}
