// SPDX-License-Identifier: Apache-2.0
//
// pairloop [PAIRS [WAIT_MS]]: measures the shim's cost for work that the program waits for at once,
// so that its queue becomes busy and idle every time: a launch with a wait, and a synchronous copy.
// Blocks with and without the shim alternate in one process, under equal conditions. WAIT_MS gives
// the daemon time to register the context.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/cuda/abi.h"

#define BLOCKS 100 /* of each kind */

typedef CUresult (*launch_function)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    unsigned, unsigned, CUstream, void **, void **);
typedef CUresult (*wait_function)(CUstream);
typedef CUresult (*device_function)(void);
typedef CUresult (*copy_function)(CUdeviceptr_v2, const void *, size_t);

struct way {
  launch_function launch;
  wait_function wait;
  device_function wait_all;
  copy_function copy;
};

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

// A block is shorter than a CPU timeslice, so the fastest block was not preempted.
static double best(const double *values) {
  double least = values[0];
  for (int i = 1; i < BLOCKS; i++)
    if (values[i] < least) least = values[i];
  return least;
}

static double launches(const struct way *way, CUstream stream, long count) {
  double begun = now_ns();
  for (long i = 0; i < count; i++)
    if (way->launch(NULL, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) || way->wait(stream)) exit(1);
  return (now_ns() - begun) / (double)count;
}

// Like the runtime's cudaDeviceSynchronize.
static double tasks(const struct way *way, long count) {
  double begun = now_ns();
  for (long i = 0; i < count; i++)
    if (way->launch(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) || way->wait_all()) exit(1);
  return (now_ns() - begun) / (double)count;
}

static double copies(const struct way *way, long count) {
  static char bytes[4096];
  double begun = now_ns();
  for (long i = 0; i < count; i++)
    if (way->copy(0x10000, bytes, sizeof bytes)) exit(1);
  return (now_ns() - begun) / (double)count;
}

// Every pair contains two of these, at its start and at its end.
static double clock_readings(long count) {
  double begun = now_ns();
  for (long i = 0; i < count; i++)
    if (now_ns() < begun) exit(1);
  return (now_ns() - begun) / (double)count;
}

int main(int argc, char **argv) {
  long pairs = argc > 1 ? strtol(argv[1], NULL, 10) : 1000000;
  long wait_ms = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (pairs < BLOCKS || wait_ms < 0 || !driver) {
    fprintf(stderr, "usage: pairloop [PAIRS [WAIT_MS]] with libcuda.so.1 the null driver\n");
    return 2;
  }
  CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
  CUresult (*create)(CUcontext *, unsigned, CUdevice) =
      (CUresult(*)(CUcontext *, unsigned, CUdevice))dlsym(driver, "cuCtxCreate_v2");
  CUresult (*stream_create)(CUstream *, unsigned) =
      (CUresult(*)(CUstream *, unsigned))dlsym(driver, "cuStreamCreate");
  void *(*plain)(const char *) = (void *(*)(const char *))dlsym(driver, "xsn_plain");
  CUcontext context;
  CUstream stream;
  if (!init || !create || !stream_create || !plain || init(0) || create(&context, 0, 0) ||
      stream_create(&stream, 0)) {
    fprintf(stderr, "pairloop: not the null driver\n");
    return 1;
  }
  const struct way ways[2] = {
      {(launch_function)plain("cuLaunchKernel"), (wait_function)plain("cuStreamSynchronize"),
       (device_function)plain("cuCtxSynchronize"), (copy_function)plain("cuMemcpyHtoD_v2")},
      {(launch_function)dlsym(driver, "cuLaunchKernel"),
       (wait_function)dlsym(driver, "cuStreamSynchronize"),
       (device_function)dlsym(driver, "cuCtxSynchronize"),
       (copy_function)dlsym(driver, "cuMemcpyHtoD_v2")}};
  launches(&ways[1], stream, 1);
  struct timespec pause = {wait_ms / 1000, wait_ms % 1000 * 1000000};
  nanosleep(&pause, NULL);
  static double pair[2][BLOCKS], task[2][BLOCKS], copy[2][BLOCKS], clock[BLOCKS];
  for (int block = 0; block < BLOCKS; block++) {
    clock[block] = clock_readings(pairs / BLOCKS);
    for (int way = 0; way < 2; way++) {
      pair[way][block] = launches(&ways[way], stream, pairs / BLOCKS);
      task[way][block] = tasks(&ways[way], pairs / BLOCKS);
      copy[way][block] = copies(&ways[way], pairs / BLOCKS);
    }
  }
  printf("{\"pairs\":%ld,\"shim\":%s,\"pair_plain_ns\":%.2f,\"pair_ns\":%.2f,"
         "\"task_plain_ns\":%.2f,\"task_ns\":%.2f,\"copy_plain_ns\":%.2f,\"copy_ns\":%.2f,\"clock_"
         "ns\":%.2f}\n",
         pairs / BLOCKS * BLOCKS, ways[0].launch == ways[1].launch ? "false" : "true",
         best(pair[0]), best(pair[1]), best(task[0]), best(task[1]), best(copy[0]), best(copy[1]),
         best(clock));
  return 0;
}
