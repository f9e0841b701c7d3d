/* SPDX-License-Identifier: Apache-2.0
 *
 * gpus: a light tenant on several GPUs, with a thread and a stream on each. Linked directly against
 * libcuda.so.1.
 *
 *   gpus KERNEL_US PERIOD_US ORDINAL...      a request per period, or without pause if it is 0
 *   in:  report | quit
 *   out: R pci... | T pci requests p50_us p99_us max_us, for each GPU since the last report, then D
 *
 * Latencies count from the scheduled arrival.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *handle;

CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetPCIBusId(char *, int, CUdevice);
CUresult cuDevicePrimaryCtxRetain(handle *, CUdevice);
CUresult cuCtxSetCurrent(handle);
CUresult cuModuleLoadData(handle *, const void *);
CUresult cuModuleGetFunction(handle *, handle, const char *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuStreamCreate(handle *, unsigned);
CUresult cuStreamSynchronize(handle);
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

#define MAX_GPUS 64
#define SAMPLES 4096

static unsigned kernel_us;
static uint64_t period_ns;

static struct gpu {
  int ordinal;
  char pci[32];
  handle context, stream, function;
  CUdeviceptr memory;
  pthread_t thread;
  pthread_mutex_t lock; /* guards the rest */
  unsigned count, requests;
  uint32_t us[SAMPLES];
} gpus[MAX_GPUS];
static int gpu_count;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t when) {
  struct timespec t = {(time_t)(when / 1000000000u), (long)(when % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
  }
}

static void open_gpu(struct gpu *g) {
  CUdevice device;
  handle module;
  CHECK(cuDeviceGet(&device, g->ordinal));
  CHECK(cuDeviceGetPCIBusId(g->pci, sizeof g->pci, device));
  CHECK(cuDevicePrimaryCtxRetain(&g->context, device));
  CHECK(cuCtxSetCurrent(g->context));
  CHECK(cuModuleLoadData(&module, "// xs_spin"));
  CHECK(cuModuleGetFunction(&g->function, module, "xs_spin"));
  CHECK(cuMemAlloc_v2(&g->memory, 64));
  CHECK(cuStreamCreate(&g->stream, 1));
  pthread_mutex_init(&g->lock, NULL);
}

static void *work(void *argument) {
  struct gpu *g = argument;
  unsigned seed = 1;
  void *arguments[] = {&g->memory, &kernel_us, &seed};
  CHECK(cuCtxSetCurrent(g->context));
  uint64_t due = now_ns() + (period_ns ? (uint64_t)getpid() * 7919u * 1000u % period_ns : 0);
  for (;;) {
    if (period_ns)
      sleep_until(due);
    else
      due = now_ns();
    CHECK(cuLaunchKernel(g->function, 1, 1, 1, 1, 1, 1, 0, g->stream, arguments, NULL));
    CHECK(cuStreamSynchronize(g->stream));
    uint64_t end = now_ns();
    pthread_mutex_lock(&g->lock);
    g->requests++;
    g->us[g->count++ % SAMPLES] = (uint32_t)((end - due) / 1000);
    pthread_mutex_unlock(&g->lock);
    due = end > due + period_ns ? end : due + period_ns; /* skip arrivals that were missed */
  }
  return NULL;
}

static int ascending(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static void report(struct gpu *g) {
  static uint32_t us[SAMPLES];
  pthread_mutex_lock(&g->lock);
  unsigned n = g->count < SAMPLES ? g->count : SAMPLES, requests = g->requests;
  memcpy(us, g->us, n * sizeof *us);
  g->count = g->requests = 0;
  pthread_mutex_unlock(&g->lock);
  qsort(us, n, sizeof *us, ascending);
  printf("T %s %u %u %u %u\n", g->pci, requests, n ? us[n / 2] : 0, n ? us[n - 1 - n / 100] : 0,
         n ? us[n - 1] : 0);
}

int main(int argc, char **argv) {
  if (argc < 4 || argc - 3 > MAX_GPUS) return 64;
  kernel_us = (unsigned)atoi(argv[1]);
  period_ns = (uint64_t)atoi(argv[2]) * 1000u;
  CHECK(cuInit(0));
  for (int i = 3; i < argc; i++) {
    gpus[gpu_count].ordinal = atoi(argv[i]);
    open_gpu(&gpus[gpu_count++]);
  }
  printf("R");
  for (int i = 0; i < gpu_count; i++)
    printf(" %s", gpus[i].pci);
  printf("\n");
  fflush(stdout);
  for (int i = 0; i < gpu_count; i++)
    if (pthread_create(&gpus[i].thread, NULL, work, &gpus[i]) != 0) return 1;
  char line[64];
  while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n") != 0) {
    for (int i = 0; i < gpu_count; i++)
      report(&gpus[i]);
    printf("D\n");
    fflush(stdout);
  }
  _exit(0); /* threads may be waiting for a GPU that hangs */
}
