// SPDX-License-Identifier: Apache-2.0
//
// Protects online queues from offline ones, without process ids:
//   gpreempt-scheduler [list | run]
// "list" prints the queues of all processes. "run" reads lines from standard input: "online"
// suspends all offline queues, "done" resumes them, "status" prints their state.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpreempt.h"

enum { GRACE_US = 1000, MAX_QUEUES = 256, ATTEMPTS = 100, RETRY_US = 1000 };

static const char *const classes[] = {"unknown", "offline", "online"};
static uint32_t offline_ids[MAX_QUEUES];
static uint32_t offline_count;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int fail(const char *what, int result) {
  fprintf(stderr, "gpreempt-scheduler: %s: %s\n", what, strerror(-result));
  return 1;
}

static int list(void) {
  gpreempt_queue_info_t *queues;
  uint32_t count;
  int result = gpreempt_get_all_queues(&queues, &count);
  if (result < 0) return fail("list queues", result);
  for (uint32_t i = 0; i < count; i++) {
    const gpreempt_queue_info_t *q = &queues[i];
    char priority[16] = "unknown";
    if (q->priority != GPREEMPT_PRIORITY_UNKNOWN)
      snprintf(priority, sizeof priority, "%u", q->priority);
    printf("queue %u: process %d, id %u, type %u, ring %#llx, priority %s, tag \"%s\", %s\n",
           q->queue_id, q->process_id, q->kfd_id, q->type, (unsigned long long)q->queue_address,
           priority, q->tag, classes[q->queue_class]);
  }
  gpreempt_free_queue_info(queues);
  return 0;
}

static int register_offline(void) {
  gpreempt_queue_info_t *queues;
  uint32_t count;
  int result = gpreempt_find_queues_by_class(GPREEMPT_OFFLINE, &queues, &count);
  if (result < 0) return result;
  offline_count = 0;
  for (uint32_t i = 0; i < count && offline_count < MAX_QUEUES; i++)
    if (queues[i].type == GPREEMPT_COMPUTE || queues[i].type == GPREEMPT_COMPUTE_AQL)
      offline_ids[offline_count++] = queues[i].queue_id;
  gpreempt_free_queue_info(queues);
  return 0;
}

// A program may end at any time, with its queues.
static bool ended(int result) { return result == -ENOENT || result == -ESRCH; }

static int status(void) {
  for (uint32_t i = 0; i < offline_count; i++) {
    gpreempt_queue_info_t queue;
    int result = gpreempt_get_queue_status(offline_ids[i], &queue);
    if (ended(result)) continue;
    if (result < 0) return result;
    printf("queue %u of process %d is %s\n", queue.kfd_id, queue.process_id,
           queue.is_active ? "active" : "suspended");
  }
  return 0;
}

// The driver lists a program for some time after its end.
static int suspend(void) {
  for (int i = 0;; i++) {
    int result = register_offline();
    if (result == 0) result = gpreempt_suspend_queues(offline_ids, offline_count, GRACE_US);
    if (!ended(result) || i == ATTEMPTS) return result;
    usleep(RETRY_US);
  }
}

static int command(const char *line) {
  double start = now_ms();
  int result = -EINVAL;
  if (strcmp(line, "online") == 0) {
    result = suspend();
    if (result == 0) printf("suspended %u in %.3f ms\n", offline_count, now_ms() - start);
  } else if (strcmp(line, "done") == 0) {
    result = gpreempt_resume_queues(offline_ids, offline_count);
    if (ended(result)) result = 0; // all others are resumed
    if (result == 0) printf("resumed %u in %.3f ms\n", offline_count, now_ms() - start);
  } else if (strcmp(line, "status") == 0) {
    result = status();
    if (result == 0) printf("status of %u\n", offline_count);
  }
  fflush(stdout);
  return result;
}

int main(int argc, char **argv) {
  int result = gpreempt_poc_init();
  if (result < 0) return fail("open the driver", result);
  if (argc > 1 && strcmp(argv[1], "run") == 0) {
    char line[32];
    while (result == 0 && fgets(line, sizeof line, stdin) != NULL) {
      line[strcspn(line, "\n")] = 0;
      result = command(line);
    }
    result = result < 0 ? fail(line, result) : 0;
  } else {
    result = list();
  }
  gpreempt_poc_cleanup();
  return result;
}
