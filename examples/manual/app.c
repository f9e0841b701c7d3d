/* SPDX-License-Identifier: Apache-2.0
 *
 * The program schedules itself: it suspends the background stream while the urgent stream works.
 * Each command is launched in the submitting thread as soon as its queue may run.
 */
#include <pthread.h>
#include <xsched/cuda/hal.h>
#include <xsched/xsched.h>

#include "gpu.h"

static CUstream streams[2]; /* low, high */
static HwQueueHandle hwqs[2];
static XQueueHandle xqs[2];
static uint32_t stop;

static XResult launch_long(HwQueueHandle hwq, void *stream) {
  (void)hwq;
  return gpu_launch(stream, 300) == 0 ? kXSchedSuccess : kXSchedErrorHardware;
}
static XResult launch_short(HwQueueHandle hwq, void *stream) {
  (void)hwq;
  return gpu_launch(stream, 100) == 0 ? kXSchedSuccess : kXSchedErrorHardware;
}

static void *background(void *unused) {
  HwCommandHandle command;
  GPU_CHECK(cuCtxSetCurrent(gpu_context));
  GPU_CHECK(HwCommandCreateCallback(&command, launch_long, streams[0]));
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    for (int i = 0; i < 8; i++)
      GPU_CHECK(XQueueSubmit(xqs[0], command));
    GPU_CHECK(XQueueWaitAll(xqs[0]));
  }
  GPU_CHECK(HwCommandDestroy(command));
  return unused;
}

int main(void) {
  static struct gpu_times times;
  HwCommandHandle command;
  pthread_t thread;
  GPU_CHECK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown));
  gpu_open();
  for (int i = 0; i < 2; i++) {
    GPU_CHECK(cuStreamCreate(&streams[i], 1));
    GPU_CHECK(CudaQueueCreate(&hwqs[i], streams[i]));
    GPU_CHECK(XQueueCreate(&xqs[i], hwqs[i], kPreemptLevelBlock, kQueueCreateFlagNone));
  }
  GPU_CHECK(HwCommandCreateCallback(&command, launch_short, streams[1]));
  if (pthread_create(&thread, NULL, background, NULL) != 0) return 1;
  for (int i = 0; i < 40; i++) {
    gpu_sleep_ms(10);
    double start = gpu_now_ms();
    GPU_CHECK(XQueueSuspend(xqs[0], kQueueSuspendFlagSyncHwQueue));
    for (int k = 0; k < 10; k++)
      GPU_CHECK(XQueueSubmit(xqs[1], command));
    GPU_CHECK(XQueueWaitAll(xqs[1]));
    gpu_note(&times, gpu_now_ms() - start);
    GPU_CHECK(XQueueResume(xqs[0], kQueueResumeFlagNone));
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  int64_t low, high;
  GPU_CHECK(XQueueProfileHwCommandCount(xqs[0], &low));
  GPU_CHECK(XQueueProfileHwCommandCount(xqs[1], &high));
  gpu_report("high", &times);
  printf("commands: low %lld, high %lld\n", (long long)low, (long long)high);
  for (int i = 0; i < 2; i++) {
    GPU_CHECK(XQueueDestroy(xqs[i]));
    GPU_CHECK(HwQueueDestroy(hwqs[i]));
  }
  return high == 400 && low > 0 ? 0 : 1;
}
