// SPDX-License-Identifier: Apache-2.0
//
// Tests the functions for all processes on two programs with equal queue numbers: 0 copies, 1
// computes. The first has priority 2 and the tag OFFLINE_AI in its environment, the second the
// driver's priority 11.  test_machine PID PID. The Go test of internal/driver/amd runs it.

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpreempt.h"
#include "list.h"

#define EXPECT(condition)                                                                          \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("FAIL line %d: %s\n", __LINE__, #condition);                                          \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static gpreempt_queue_info_t *queues;
static uint32_t count;

static bool active(uint32_t id) {
  gpreempt_queue_info_t queue;
  EXPECT(gpreempt_get_queue_status(id, &queue) == 0 && queue.queue_id == id);
  return queue.is_active;
}

static void check_lists(pid_t low, pid_t high) {
  EXPECT(gpreempt_get_all_queues(&queues, &count) == 0 && count == 4);
  gpreempt_free_queue_info(queues);

  EXPECT(gpreempt_find_queues_by_process(low, &queues, &count) == 0 && count == 2);
  const gpreempt_queue_info_t *q = &queues[1];
  EXPECT(q->process_id == low && q->kfd_id == 1 && q->type == GPREEMPT_COMPUTE && q->is_active);
  EXPECT(q->priority == 2 && strcmp(q->tag, "OFFLINE_AI") == 0 && q->gpu_id == 63420);
  EXPECT(q->queue_class == GPREEMPT_OFFLINE && q->ring_bytes == 65536 && q->queue_address != 0);
  EXPECT(queues[0].type == GPREEMPT_SDMA && queues[0].queue_class == GPREEMPT_OFFLINE);
  gpreempt_free_queue_info(queues);

  EXPECT(gpreempt_find_queues_by_process(high, &queues, &count) == 0 && count == 2);
  EXPECT(queues[1].priority == 11 && queues[1].queue_class == GPREEMPT_ONLINE);
  // The driver has no priority for copies.
  EXPECT(queues[0].priority == GPREEMPT_PRIORITY_UNKNOWN);
  EXPECT(queues[0].queue_class == GPREEMPT_UNKNOWN && queues[0].tag[0] == 0);
  gpreempt_free_queue_info(queues);

  EXPECT(gpreempt_find_queues_by_process(1, &queues, &count) == 0 && count == 0);
  gpreempt_free_queue_info(queues);
  EXPECT(gpreempt_find_queues_by_priority(10, 15, &queues, &count) == 0 && count == 1);
  EXPECT(queues[0].process_id == high);
  gpreempt_free_queue_info(queues);
  EXPECT(gpreempt_find_queues_by_priority(0, 5, &queues, &count) == 0 && count == 2);
  EXPECT(queues[0].process_id == low && queues[1].process_id == low);
  gpreempt_free_queue_info(queues);
  EXPECT(gpreempt_find_queues_by_priority(0, UINT32_MAX, &queues, &count) == 0 && count == 3);
  gpreempt_free_queue_info(queues);
  EXPECT(gpreempt_find_queues_by_tag("OFFLINE_AI", &queues, &count) == 0 && count == 2);
  gpreempt_free_queue_info(queues);
  EXPECT(gpreempt_find_queues_by_tag("OFFLINE", &queues, &count) == 0 && count == 0);
  gpreempt_free_queue_info(queues);
  EXPECT(gpreempt_get_all_queues(NULL, &count) == -EINVAL);
  EXPECT(gpreempt_find_queues_by_tag(NULL, &queues, &count) == -EINVAL);
}

static void check_changes(pid_t low, pid_t high) {
  uint32_t low_id = (uint32_t)low << KFD_ID_BITS | 1, high_id = (uint32_t)high << KFD_ID_BITS | 1;
  uint32_t both[] = {low_id, high_id, low_id}, bare = 1, none = low_id + 7;
  gpreempt_queue_info_t queue;
  EXPECT(gpreempt_suspend_queues(&bare, 1, 0) == -ENOTUNIQ); // each process has a queue 1
  EXPECT(gpreempt_get_queue_status(bare, &queue) == -ENOTUNIQ);
  EXPECT(gpreempt_get_queue_status(none, &queue) == -ENOENT);
  EXPECT(gpreempt_suspend_queues(NULL, 1, 0) == -EINVAL &&
         gpreempt_suspend_queues(NULL, 0, 0) == 0);
  EXPECT(gpreempt_resume_queues(&low_id, 1) == 0 && gpreempt_resume_queues(&none, 1) == -ENOENT);

  for (int again = 0; again < 2; again++) { // a second time changes nothing
    EXPECT(gpreempt_suspend_queues(both, 3, 1000) == 0);
    EXPECT(!active(low_id) && !active(high_id) && active(low_id - 1));
  }
  for (int again = 0; again < 2; again++) {
    EXPECT(gpreempt_resume_queues(both, 2) == 0);
    EXPECT(active(low_id) && active(high_id));
  }
  // All or nothing, and what was suspended before stays so.
  uint32_t partly[] = {low_id, high_id, high_id + 7};
  EXPECT(gpreempt_suspend_queues(&low_id, 1, GPREEMPT_GRACE_DEFAULT) == 0);
  EXPECT(gpreempt_suspend_queues(partly, 3, 10) == -ENOENT);
  EXPECT(!active(low_id) && active(high_id));
  partly[0] = none, partly[2] = low_id; // a resume does what it can
  EXPECT(gpreempt_suspend_queues(&high_id, 1, 10) == 0);
  EXPECT(gpreempt_resume_queues(partly, 3) == -ENOENT && active(low_id) && active(high_id));
  uint32_t unknown[] = {900, low_id};
  EXPECT(gpreempt_suspend_queues(unknown, 2, 10) == -ENOENT && active(low_id));
  EXPECT(gpreempt_suspend_queues(&low_id, 1, 10) == 0 && !active(low_id));
  EXPECT(gpreempt_resume_queues(unknown, 2) == -ENOENT && active(low_id));
}

static void check_child(uint32_t id) {
  pid_t child = fork();
  if (child == 0) _exit(gpreempt_suspend_queues(&id, 1, 0) == -EPERM ? 0 : 1);
  int status;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

static void check_grace(void) {
  EXPECT(highest_clock() == 2100);
  EXPECT(grace_units(0, 2100) == 1 && grace_units(1, 2100) == 3 && grace_units(100, 2100) == 206);
  EXPECT(grace_units(1000, 2100) == GPREEMPT_GRACE_UNITS); // 1 ms does not fit into 8 bits
  EXPECT(grace_units(UINT32_MAX - 1, UINT32_MAX) == GPREEMPT_GRACE_UNITS);
  EXPECT(grace_units(GPREEMPT_GRACE_DEFAULT, 2100) == GPREEMPT_GRACE_DEFAULT);
  EXPECT(grace_units(100, 0) == GPREEMPT_GRACE_DEFAULT);
}

// A child of the caller keeps copies of the library's sockets.
static pid_t fork_idle(void) {
  pid_t child = fork();
  if (child == 0)
    for (;;)
      pause();
  return child;
}

// Detaches although a child runs on.
static void check_detach(uint32_t id) {
  EXPECT(gpreempt_suspend_queues(&id, 1, 0) == 0);
  pid_t child = fork_idle();
  alarm(60); // else it waits for the child
  gpreempt_poc_cleanup();
  alarm(0);
  EXPECT(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
  EXPECT(gpreempt_poc_init() == 0);
}

// Leaves nothing of a process that ended while suspended.
static void check_ended(pid_t pid) {
  uint32_t id = (uint32_t)pid << KFD_ID_BITS | 1;
  EXPECT(gpreempt_suspend_queues(&id, 1, 0) == 0);
  EXPECT(waitpid(-1, NULL, WNOHANG) == 0); // the agent
  EXPECT(kill(pid, SIGKILL) == 0);
  for (int tries = 0; tries < 3000; tries++) {
    EXPECT(gpreempt_get_all_queues(&queues, &count) == 0);
    gpreempt_free_queue_info(queues);
    siginfo_t info;
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) return;
    usleep(10000);
  }
  EXPECT(false); // the agent is left
}

// The other modes: "ended PID", and "orphan PID", which prints its child's pid and waits to be killed.
static int run_mode(const char *mode, pid_t pid) {
  uint32_t id = (uint32_t)pid << KFD_ID_BITS | 1;
  EXPECT(gpreempt_poc_init() == 0);
  if (strcmp(mode, "orphan") == 0) {
    EXPECT(gpreempt_suspend_queues(&id, 1, 0) == 0);
    printf("%d\n", (int)fork_idle());
    fflush(stdout);
    for (;;)
      pause();
  }
  check_ended(pid);
  gpreempt_poc_cleanup();
  printf("ok ended\n");
  return 0;
}

int main(int argc, char **argv) {
  EXPECT(argc == 3);
  if (atoi(argv[1]) == 0) return run_mode(argv[1], (pid_t)atoi(argv[2]));
  pid_t low = (pid_t)atoi(argv[1]), high = (pid_t)atoi(argv[2]);
  EXPECT(gpreempt_get_all_queues(&queues, &count) == -EPERM); // before init
  EXPECT(gpreempt_poc_init() == 0 && gpreempt_poc_init() == 0);
  check_lists(low, high);
  check_changes(low, high);
  check_child((uint32_t)low << KFD_ID_BITS | 1);
  check_detach((uint32_t)low << KFD_ID_BITS | 1);
  check_grace();
  gpreempt_poc_cleanup();
  gpreempt_poc_cleanup();
  EXPECT(gpreempt_get_all_queues(&queues, &count) == -EPERM);
  printf("ok machine\n");
  return 0;
}
