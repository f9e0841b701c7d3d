/* SPDX-License-Identifier: Apache-2.0
 *
 * Two streams of one process with different priorities, scheduled by the process's own scheduler.
 * Runs until its standard input ends.
 */
#include "kernel.hpp"

#include <atomic>
#include <thread>
#include <unistd.h>

#include "xsched/hip/hal.h"
#include "xsched/xsched.h"

static std::atomic<bool> stop{false};

static void run(Priority priority, int kernels) {
  hipStream_t stream;
  HwQueueHandle hwq;
  XQueueHandle xq;
  void *memory;
  CHECK(hipMalloc(&memory, 64));
  CHECK(hipStreamCreate(&stream));
  CHECK(HipQueueCreate(&hwq, stream));
  CHECK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone));
  CHECK(XQueueSetLaunchConfig(xq, 8, 4));
  CHECK(XHintPriority(xq, priority));
  for (int task = 0; !stop; task++) {
    for (int i = 0; i < kernels; i++)
      spin(memory, 200, stream);
    CHECK(hipStreamSynchronize(stream));
    if (task == 0) {
      printf("first task of priority %d\n", priority);
      fflush(stdout);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(XQueueDestroy(xq));
  CHECK(HwQueueDestroy(hwq));
  CHECK(hipStreamDestroy(stream));
}

int main() {
  register_spin();
  CHECK(XHintSetScheduler(kSchedulerLocal, kPolicyHighestPriorityFirst));
  std::thread high(run, 2, 10), low(run, 1, 40);
  char ignored;
  while (read(0, &ignored, 1) > 0)
    continue;
  stop = true;
  high.join();
  low.join();
  printf("end\n");
  return 0;
}
