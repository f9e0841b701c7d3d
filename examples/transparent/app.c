/* SPDX-License-Identifier: Apache-2.0
 *
 * A program without scheduler support: runs tasks of ten kernels, one after the other.
 *
 *   app NAME KERNEL_US TASKS PAUSE_MS
 */
#include "gpu.h"

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: %s NAME KERNEL_US TASKS PAUSE_MS\n", argv[0]);
    return 2;
  }
  uint32_t us = (uint32_t)strtoul(argv[2], NULL, 10);
  long tasks = strtol(argv[3], NULL, 10);
  double pause = strtod(argv[4], NULL);
  static struct gpu_times times;
  CUstream stream;
  gpu_open();
  GPU_CHECK(cuStreamCreate(&stream, 1));
  for (long i = 0; i < tasks; i++) {
    double start = gpu_now_ms();
    for (int k = 0; k < 10; k++)
      GPU_CHECK(gpu_launch(stream, us));
    GPU_CHECK(cuStreamSynchronize(stream));
    gpu_note(&times, gpu_now_ms() - start);
    if (pause > 0) gpu_sleep_ms(pause);
  }
  gpu_report(argv[1], &times);
  return 0;
}
