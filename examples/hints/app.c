/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that sets its own hints: background tasks first, then urgent ones.
 */
#include <xsched/xsched.h>

#include "gpu.h"

static void tasks(const char *name, CUstream stream, int count) {
  static struct gpu_times times;
  times.count = 0;
  for (int i = 0; i < count; i++) {
    uint64_t request = xs_request_begin(name); /* measured by the SLO policy */
    double start = gpu_now_ms();
    for (int k = 0; k < 5; k++)
      GPU_CHECK(gpu_launch(stream, 100));
    GPU_CHECK(cuStreamSynchronize(stream));
    gpu_note(&times, gpu_now_ms() - start);
    xs_request_end(request);
    gpu_sleep_ms(5);
  }
  gpu_report(name, &times);
}

int main(void) {
  CUstream stream;
  gpu_open();
  GPU_CHECK(cuStreamCreate(&stream, 1));
  GPU_CHECK(XHintPriority(0, -20)); /* 0: the whole process */
  tasks("low", stream, 40);
  GPU_CHECK(XHintPriority(0, 0));
  GPU_CHECK(XHintDeadline(0, 5000)); /* for the deadline policies */
  gpu_sleep_ms(20); /* hints are asynchronous: wait until this one applies */
  tasks("high", stream, 40);
  printf("scheduled: %s\n", xs_available() ? "yes" : "no");
  return 0;
}
