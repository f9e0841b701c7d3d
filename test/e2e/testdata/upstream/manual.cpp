/* SPDX-License-Identifier: Apache-2.0
 *
 * Hints for two queues of a process, and a queue that the program itself suspends and resumes. Waits
 * for its standard input to end while the hints are in force.
 */
#include "kernel.hpp"

#include <atomic>
#include <thread>
#include <unistd.h>

#include "xsched/hip/hal/hal.h"
#include "xsched/hint.h"
#include "xsched/xqueue.h"

struct queue {
  hipStream_t stream;
  HwQueueHandle hwq;
  XQueueHandle xq;
  void *memory;
};

static std::atomic<bool> stop{false};
static std::atomic<long> launched{0};

static queue make(Priority priority) {
  queue q;
  HwQueueHandle same;
  CHECK(hipMalloc(&q.memory, 64));
  CHECK(hipStreamCreate(&q.stream));
  CHECK(HipQueueCreate(&q.hwq, q.stream));
  CHECK(HipQueueGet(&same, q.stream) != kXSchedSuccess || same != q.hwq);
  int64_t level = kPreemptLevelBlock; // a variable: C++ converts no integer to an enum
  CHECK(XQueueCreate(&q.xq, q.hwq, level, kQueueCreateFlagNone));
  CHECK(XQueueSetPreemptLevel(q.xq, level));
  CHECK(XQueueSetLaunchConfig(q.xq, 8, 4));
  CHECK(XHintPriority(q.xq, priority));
  return q;
}

static void end(queue &q) {
  CHECK(XQueueDestroy(q.xq));
  CHECK(HwQueueDestroy(q.hwq));
  CHECK(hipStreamDestroy(q.stream));
}

static void work(queue *q) {
  while (!stop) {
    spin(q->memory, 100, q->stream);
    launched++;
    CHECK(hipStreamSynchronize(q->stream));
  }
}

static void await(long count) {
  for (long first = launched; launched < first + count;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

int main() {
  register_spin();
  queue low = make(1), high = make(2);
  CHECK(XHintTimeslice(TIMESLICE_UNLIMITED));
  printf("ready\n");
  fflush(stdout);
  char ignored;
  while (read(0, &ignored, 1) > 0)
    continue;

  CHECK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown));
  std::thread thread(work, &low);
  await(5);
  CHECK(XQueueSuspend(low.xq, kQueueSuspendFlagSyncHwQueue));
  long before = launched;
  for (int i = 0; i < 50; i++) {
    spin(high.memory, 100, high.stream);
    CHECK(hipStreamSynchronize(high.stream));
  }
  long during = launched - before; // one may have passed the gate before
  CHECK(XQueueResume(low.xq, kQueueResumeFlagNone));
  await(5);
  stop = true;
  thread.join();
  end(low);
  end(high);
  printf("suspended %s\n", during <= 1 ? "yes" : "no");
  return 0;
}
