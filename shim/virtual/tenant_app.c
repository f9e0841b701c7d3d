/* SPDX-License-Identifier: Apache-2.0 */
#include "tenant_app.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xsched/xsched.h>

#define MAX_HOLDS 65536

/* Looked up at run time: `xsched run` preloads the library; the program is not linked to it. */
static struct {
  XResult (*CudaQueueCreate)(HwQueueHandle *, CUstream);
  XResult (*XQueueCreate)(XQueueHandle *, HwQueueHandle, int64_t, int64_t);
  XResult (*XQueueSuspend)(XQueueHandle, int64_t);
  XResult (*XQueueResume)(XQueueHandle, int64_t);
  int (*xs_scheduler)(void);
  uint32_t (*xs_queues)(xs_queue_info *, uint32_t);
} xs;
static const char *const calls[] = {"CudaQueueCreate", "XQueueCreate", "XQueueSuspend",
                                    "XQueueResume",    "xs_scheduler", "xs_queues"};

static struct {
  int peer;
  bool urgent;
  XQueueHandle queue;
  uint64_t from[MAX_HOLDS], to[MAX_HOLDS];
  unsigned holds; /* written by the listener, after the times */
} app = {.peer = -1};

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static bool get(char *byte) {
  ssize_t n;
  while ((n = read(app.peer, byte, 1)) < 0 && errno == EINTR) {
  }
  return n == 1;
}

static bool put(char byte) { return write(app.peer, &byte, 1) == 1; }

/* Suspends and resumes on the peer's request. The end of the connection resumes. */
static void *listen_to_peer(void *unused) {
  char what;
  bool held = false;
  struct sched_param first = {.sched_priority =
                                  1}; /* as in the main thread; threads do not inherit it */
  (void)sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first);
  while (get(&what)) {
    unsigned n = app.holds;
    if (what == 's' && !held && n < MAX_HOLDS) {
      if (xs.XQueueSuspend(app.queue, kQueueSuspendFlagSyncHwQueue) != kXSchedSuccess) break;
      app.from[n] = now_ns();
      held = true;
      if (!put('h')) break;
    } else if (what == 'r' && held) {
      app.to[n] = now_ns();
      held = xs.XQueueResume(app.queue, kQueueResumeFlagNone) != kXSchedSuccess;
      __atomic_store_n(&app.holds, n + 1, __ATOMIC_RELEASE);
    }
  }
  if (held) (void)xs.XQueueResume(app.queue, kQueueResumeFlagNone);
  close(app.peer); /* unblocks the urgent tenant */
  return unused;
}

const char *app_begin(int peer, bool urgent, void *stream) {
  HwQueueHandle hardware;
  pthread_t thread;
  void **slots = (void **)&xs;
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    if (!(slots[i] = dlsym(RTLD_DEFAULT, calls[i]))) return calls[i];
  if (xs.xs_scheduler() != kSchedulerAppManaged) return "XSCHED_SCHEDULER=APP";
  app.peer = peer;
  app.urgent = urgent;
  if (xs.CudaQueueCreate(&hardware, stream) != kXSchedSuccess ||
      xs.XQueueCreate(&app.queue, hardware, kPreemptLevelBlock, kQueueCreateFlagNone) !=
          kXSchedSuccess)
    return "a queue";
  if (!urgent && pthread_create(&thread, NULL, listen_to_peer, NULL) != 0) return "a thread";
  return NULL;
}

void app_request(bool begins) {
  char answer;
  if (!app.urgent || app.peer < 0) return;
  if (!put(begins ? 's' : 'r') || (begins && !get(&answer))) app.peer = -1; /* the peer has ended */
}

uint64_t app_submitted(void) {
  xs_queue_info queues[16];
  uint64_t sum = 0;
  uint32_t n = xs.xs_queues ? xs.xs_queues(queues, 16) : 0;
  for (uint32_t i = 0; i < n && i < 16; i++)
    sum += queues[i].submitted;
  return sum;
}

bool app_suspended(unsigned n, uint64_t *from_ns, uint64_t *to_ns) {
  if (n >= __atomic_load_n(&app.holds, __ATOMIC_ACQUIRE)) return false;
  *from_ns = app.from[n];
  *to_ns = app.to[n];
  return true;
}
