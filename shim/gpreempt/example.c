// SPDX-License-Identifier: Apache-2.0
//
// Suspends the compute queues of a process for some time:  gpreempt-example PID [MILLISECONDS]

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpreempt.h"

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int fail(const char *what, int result) {
  fprintf(stderr, "gpreempt-example: %s: %s\n", what, strerror(-result));
  return 1;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: gpreempt-example PID [MILLISECONDS]\n");
    return 2;
  }
  gpreempt *gpu;
  int result = gpreempt_attach(&gpu, (pid_t)atoi(argv[1]));
  if (result < 0) return fail("attach", result);

  gpreempt_queue queues[64];
  uint32_t ids[64];
  unsigned count = 0;
  int found = gpreempt_list(gpu, queues, 64);
  if (found < 0) return fail("find queues", found);
  for (int i = 0; i < found && i < 64; i++) {
    printf("queue %u on gpu %u: type %u, ring %#llx, %u bytes\n", queues[i].id, queues[i].gpu_id,
           queues[i].type, (unsigned long long)queues[i].ring, queues[i].ring_bytes);
    if (queues[i].type == GPREEMPT_COMPUTE || queues[i].type == GPREEMPT_COMPUTE_AQL)
      ids[count++] = queues[i].id;
  }
  if (count == 0) return fail("no compute queue", 0);

  double start = now_ms();
  result = gpreempt_suspend(gpu, ids, count, GPREEMPT_GRACE_DEFAULT, NULL);
  if (result < 0) return fail("suspend", result);
  gpreempt_queue status;
  int known = gpreempt_status(gpu, ids[0], &status);
  if (known < 0) return fail("status", known);
  printf("suspended %d in %.3f ms; queue %u is %s\n", result, now_ms() - start, status.id,
         status.suspended ? "suspended" : "running");
  fflush(stdout);

  usleep((useconds_t)(argc > 2 ? atoi(argv[2]) : 1000) * 1000);

  start = now_ms();
  result = gpreempt_resume(gpu, ids, count, NULL);
  if (result < 0) return fail("resume", result);
  printf("resumed %d in %.3f ms\n", result, now_ms() - start);
  gpreempt_detach(gpu);
  return 0;
}
