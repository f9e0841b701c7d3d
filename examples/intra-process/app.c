/* SPDX-License-Identifier: Apache-2.0
 *
 * Two streams of one process with different priorities. Each stream is a queue whose launches wait
 * at its own gate. The launching code is unchanged.
 */
#include <pthread.h>
#include <xsched/cuda/hal.h>
#include <xsched/xsched.h>

#include "gpu.h"

struct worker {
  const char *name;
  Priority priority;
  uint32_t kernel_us;
  int kernels;
  double pause_ms;
  struct gpu_times times;
};

static uint32_t stop;

static void *work(void *argument) {
  struct worker *mine = argument;
  CUstream stream;
  HwQueueHandle hwq;
  XQueueHandle xq;
  GPU_CHECK(cuCtxSetCurrent(gpu_context));
  GPU_CHECK(cuStreamCreate(&stream, 1));
  GPU_CHECK(CudaQueueCreate(&hwq, stream));
  GPU_CHECK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
  GPU_CHECK(XQueueSetLaunchConfig(xq, 4, 2));
  GPU_CHECK(XHintPriority(xq, mine->priority));
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    double start = gpu_now_ms();
    for (int k = 0; k < mine->kernels; k++)
      GPU_CHECK(gpu_launch(stream, mine->kernel_us));
    GPU_CHECK(cuStreamSynchronize(stream));
    gpu_note(&mine->times, gpu_now_ms() - start);
    if (mine->pause_ms > 0) gpu_sleep_ms(mine->pause_ms);
  }
  GPU_CHECK(XQueueDestroy(xq));
  GPU_CHECK(HwQueueDestroy(hwq));
  GPU_CHECK(cuStreamDestroy_v2(stream));
  return NULL;
}

int main(void) {
  static struct worker workers[] = {
      {.name = "low", .priority = -5, .kernel_us = 400, .kernels = 40},
      {.name = "high", .priority = 0, .kernel_us = 100, .kernels = 10, .pause_ms = 10},
  };
  pthread_t threads[2];
  gpu_open();
  for (int i = 0; i < 2; i++)
    if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0) return 1;
  gpu_sleep_ms(1000);
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
    gpu_report(workers[i].name, &workers[i].times);
  }
  return 0;
}
