// SPDX-License-Identifier: Apache-2.0
//
// streamloop turn STREAMS | threads THREADS [COUNT [WAIT_MS]]: measures the shim's cost for programs with many
// streams or threads. turn: one thread launches into its streams in turn. threads: each thread launches into its
// own stream and waits for it. Blocks with and without the shim alternate in one process, under equal conditions.
// WAIT_MS gives the daemon time to register the context.

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/cuda/abi.h"

#define BLOCKS 200 /* of each kind; short ones, so that most are not preempted */
#define MOST_STREAMS 4096
#define MOST_THREADS 64

typedef CUresult (*launch_function)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    unsigned, unsigned, CUstream, void **, void **);
typedef CUresult (*wait_function)(CUstream);
struct way {
  launch_function launch;
  wait_function wait;
};

static struct way ways[2];
static CUresult (*set_current)(CUcontext);
static CUcontext context;
static CUstream streams[MOST_STREAMS];
static long count, stream_count = 1, thread_count = 1;
static bool waits;
static pthread_barrier_t barrier;
static double begun[MOST_THREADS], ended[MOST_THREADS], used[MOST_THREADS];
static double block_ns[2][BLOCKS], block_cpu_ns[2][BLOCKS];

static double read_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void launch(const struct way *way, CUstream stream) {
  if (way->launch(NULL, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL)) exit(1);
}

static void run_block(const struct way *way, long thread) {
  if (waits) {
    for (long i = 0; i < count; i++) {
      launch(way, streams[thread]);
      if (way->wait(streams[thread])) exit(1);
    }
    return;
  }
  for (long i = 0; i < count;)
    for (long k = 0; k < stream_count && i < count; k++, i++)
      launch(way, streams[k]);
}

// Threads that share a core take turns: what counts is the time of all cores in use.
static double cost(void) {
  double first = begun[0], last = ended[0];
  for (long i = 1; i < thread_count; i++) {
    if (begun[i] < first) first = begun[i];
    if (ended[i] > last) last = ended[i];
  }
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (cores > thread_count) cores = thread_count;
  return (last - first) * (double)cores / (double)(thread_count * count);
}

// What the threads pay, whatever else runs on the machine. Sleeping for a lock costs nothing here.
static double cpu_cost(void) {
  double sum = 0;
  for (long i = 0; i < thread_count; i++)
    sum += used[i];
  return sum / (double)(thread_count * count);
}

static void *run(void *argument) {
  long thread = (long)(intptr_t)argument;
  if (set_current(context)) exit(1);
  for (int block = 0; block < 2 * BLOCKS; block++) {
    pthread_barrier_wait(&barrier);
    double before = read_ns(CLOCK_THREAD_CPUTIME_ID);
    begun[thread] = read_ns(CLOCK_MONOTONIC);
    run_block(&ways[block % 2], thread);
    ended[thread] = read_ns(CLOCK_MONOTONIC);
    used[thread] = read_ns(CLOCK_THREAD_CPUTIME_ID) - before;
    pthread_barrier_wait(&barrier);
    if (thread != 0) continue;
    block_ns[block % 2][block / 2] = cost();
    block_cpu_ns[block % 2][block / 2] = cpu_cost();
  }
  return NULL;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static bool prepare(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) return false;
  CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
  CUresult (*create)(CUcontext *, unsigned, CUdevice) =
      (CUresult(*)(CUcontext *, unsigned, CUdevice))dlsym(driver, "cuCtxCreate_v2");
  CUresult (*stream_create)(CUstream *, unsigned) =
      (CUresult(*)(CUstream *, unsigned))dlsym(driver, "cuStreamCreate");
  void *(*plain)(const char *) = (void *(*)(const char *))dlsym(driver, "xsn_plain");
  set_current = (CUresult(*)(CUcontext))dlsym(driver, "cuCtxSetCurrent");
  if (!init || !create || !stream_create || !plain || !set_current || init(0) ||
      create(&context, 0, 0))
    return false;
  ways[0] = (struct way){(launch_function)plain("cuLaunchKernel"),
                         (wait_function)plain("cuStreamSynchronize")};
  ways[1] = (struct way){(launch_function)dlsym(driver, "cuLaunchKernel"),
                         (wait_function)dlsym(driver, "cuStreamSynchronize")};
  for (long i = 0; i < stream_count; i++)
    if (stream_create(&streams[i], 0)) return false;
  return true;
}

int main(int argc, char **argv) {
  long number = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
  count = argc > 3 ? strtol(argv[3], NULL, 10) : 1000;
  long wait_ms = argc > 4 ? strtol(argv[4], NULL, 10) : 0;
  waits = argc > 1 && strcmp(argv[1], "threads") == 0;
  if (waits) thread_count = number;
  stream_count = number;
  if (number < 1 || number > (waits ? MOST_THREADS : MOST_STREAMS) || count < 1 || wait_ms < 0 ||
      (!waits && strcmp(argv[1], "turn") != 0) || !prepare()) {
    fprintf(stderr, "usage: streamloop turn STREAMS | threads THREADS [COUNT [WAIT_MS]] with "
                    "libcuda.so.1 the null driver\n");
    return 2;
  }
  launch(&ways[1], streams[0]);
  ways[1].wait(streams[0]);
  struct timespec pause = {wait_ms / 1000, wait_ms % 1000 * 1000000};
  nanosleep(&pause, NULL);
  pthread_barrier_init(&barrier, NULL, (unsigned)thread_count);
  pthread_t threads[MOST_THREADS];
  for (long i = 1; i < thread_count; i++)
    if (pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i)) return 1;
  run((void *)0);
  for (long i = 1; i < thread_count; i++)
    pthread_join(threads[i], NULL);
  for (int way = 0; way < 2; way++) {
    qsort(block_ns[way], BLOCKS, sizeof(double), by_value);
    qsort(block_cpu_ns[way], BLOCKS, sizeof(double), by_value);
  }
  printf("{\"launches\":%ld,\"shim\":%s,\"plain_ns\":%.2f,\"with_ns\":%.2f,\"plain_cpu_ns\":%.2f,"
         "\"with_cpu_ns\":%.2f}\n",
         count * BLOCKS * thread_count, ways[0].launch == ways[1].launch ? "false" : "true",
         block_ns[0][BLOCKS / 2], block_ns[1][BLOCKS / 2], block_cpu_ns[0][BLOCKS / 2],
         block_cpu_ns[1][BLOCKS / 2]);
  return 0;
}
