/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for AMD's driver that checks what it is sent: a wrong ring address or size, or a
 * request for a queue that is gone, is counted in wrong.
 */
#ifndef XSCHED_KFD_TEST_DRIVER_H
#define XSCHED_KFD_TEST_DRIVER_H

#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "core/test_support.h"
#include "kfd.h"

enum { GPU = 63420, OTHER_GPU = 63421, DRIVER_QUEUES = 64 };

// Not static: <sys/ioctl.h> promises the compiler that ioctl does not come back into this file.
struct driver_queue {
  bool used, suspended, fresh;
  struct kfd_update_queue state;
  uint32_t gpu, type, mask_bits, mask;
} driver[DRIVER_QUEUES];
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
unsigned updates, wrong;
unsigned remaps;            // unmap and map of all queues, by any request
bool runtime_on, debugged;  // the runtime, and a debugger, are known to the driver
int refuse_debug;           // requests of a debugger fail with this
uint32_t bad_hardware;      // the next suspend or resume reports an error for this queue, plus 1
int refuse;                 // the next UPDATE fails with this
const void *refuse_pointer; // arguments here are not readable, as the kernel sees it
static int kfd;

static int driver_array(const struct kfd_dbg_trap *call) {
  bool suspend = call->op == KFD_DBG_SUSPEND_QUEUES;
  uint32_t *ids = (uint32_t *)(uintptr_t)(suspend ? call->suspend.ids : call->resume.ids);
  uint32_t count = suspend ? call->suspend.count : call->resume.count;
  if (!runtime_on) return -EPERM;
  int good = 0;
  for (uint32_t i = 0; i < count; i++) {
    struct driver_queue *queue = &driver[ids[i]];
    bool bad = bad_hardware == ids[i] + 1;
    wrong += !queue->used;
    if (!queue->used || (suspend && queue->fresh)) {
      ids[i] |= KFD_DBG_QUEUE_INVALID;
      continue;
    }
    queue->suspended = suspend;
    if (bad) ids[i] |= KFD_DBG_QUEUE_ERROR;
    good++;
  }
  bad_hardware = 0;
  remaps += good > 0;
  return good;
}

static int driver_debug(struct kfd_dbg_trap *call) {
  if (call->pid != (uint32_t)getpid()) return -EPERM;
  if (refuse_debug != 0) return -refuse_debug;
  if ((call->op == KFD_DBG_ENABLE) == debugged)
    return call->op == KFD_DBG_ENABLE ? -EALREADY : -EINVAL;
  switch (call->op) {
  case KFD_DBG_ENABLE:
    if (fcntl((int)call->enable.event_fd, F_GETFD) < 0) return -EBADF;
    ((struct kfd_runtime_info *)(uintptr_t)call->enable.info)->state = runtime_on;
    debugged = true;
    return 0;
  case KFD_DBG_DISABLE:
    debugged = false;
    for (unsigned i = 0; i < DRIVER_QUEUES; i++)
      driver[i].suspended = false;
    return 0;
  case KFD_DBG_QUEUE_SNAPSHOT:
    for (unsigned i = 0; i < DRIVER_QUEUES && call->snapshot.exceptions == KFD_EC_QUEUE_NEW; i++)
      driver[i].fresh = false;
    return 0;
  default: return driver_array(call);
  }
}

static int driver_call(uint32_t request, void *argument) {
  struct driver_queue *queue;
  switch (request) {
  case AMDKFD_IOC_CREATE_QUEUE_88:
  case AMDKFD_IOC_CREATE_QUEUE_96: {
    struct kfd_create_queue *call = argument;
    uint32_t id = 0;
    while (driver[id].used)
      id++;
    call->queue_id = id;
    driver[id] = (struct driver_queue){
        .used = true,
        .fresh = true,
        .gpu = call->gpu_id,
        .type = call->type,
        .state = {call->ring, id, call->ring_bytes, call->percentage, call->priority}};
    return 0;
  }
  case AMDKFD_IOC_DESTROY_QUEUE: {
    uint32_t id = ((struct kfd_destroy_queue *)argument)->queue_id;
    if (id >= DRIVER_QUEUES || !driver[id].used) return -EINVAL;
    while (driver[id].suspended) { // until its debugger resumes it
      pthread_mutex_unlock(&driver_lock);
      usleep(100);
      pthread_mutex_lock(&driver_lock);
    }
    driver[id].used = false;
    remaps++;
    return 0;
  }
  case AMDKFD_IOC_UPDATE_QUEUE: {
    struct kfd_update_queue *call = argument;
    if ((call->percentage & 0xff) > 100 || call->priority > 15) return -EINVAL;
    queue = &driver[call->queue_id];
    updates++;
    remaps++;
    if (refuse != 0) {
      int error = refuse;
      refuse = 0;
      return -error;
    }
    if (!queue->used || (call->ring != 0 && call->ring != queue->state.ring) ||
        call->ring_bytes != queue->state.ring_bytes) {
      wrong++;
      return -EFAULT;
    }
    queue->state.percentage = call->percentage;
    queue->state.priority = call->priority;
    return 0;
  }
  case AMDKFD_IOC_SET_CU_MASK: {
    struct kfd_set_cu_mask *call = argument;
    if (call->bits == 0 || call->bits % 32 != 0) return -EINVAL;
    queue = &driver[call->queue_id];
    if (!queue->used) {
      wrong++;
      return -EFAULT;
    }
    queue->mask_bits = call->bits;
    queue->mask = *(const uint32_t *)(uintptr_t)call->mask;
    return 0;
  }
  case AMDKFD_IOC_RUNTIME_ENABLE:
    wrong += debugged; // the driver would wait for the debugger's answer
    runtime_on = (((struct kfd_runtime_enable *)argument)->mode & KFD_RUNTIME_ON) != 0;
    return 0;
  case AMDKFD_IOC_DBG_TRAP: return driver_debug(argument);
  default: return -ENOTTY;
  }
}

static int driver_ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  (void)fd;
  pthread_mutex_lock(&driver_lock);
  bool bad = argument == refuse_pointer && argument != NULL;
  int result = bad ? -EFAULT : driver_call((uint32_t)request, argument);
  pthread_mutex_unlock(&driver_lock);
  if (result < 0) errno = -result;
  return result < 0 ? -1 : result;
}

static uint32_t create(uint32_t gpu, uint32_t type, uint64_t ring) {
  struct {
    struct kfd_create_queue call;
    uint64_t engine;
  } a = {.call = {.ring = ring,
                  .ring_bytes = 4096,
                  .gpu_id = gpu,
                  .type = type,
                  .percentage = 100,
                  .priority = 7}};
  CHECK(ioctl(kfd, AMDKFD_IOC_CREATE_QUEUE_96, &a) == 0);
  return a.call.queue_id;
}

static void destroy(uint32_t id) {
  struct kfd_destroy_queue call = {.queue_id = id};
  CHECK(ioctl(kfd, AMDKFD_IOC_DESTROY_QUEUE, &call) == 0);
}

__attribute__((unused)) static uint32_t percentage(uint32_t id) {
  pthread_mutex_lock(&driver_lock);
  uint32_t value = driver[id].state.percentage;
  pthread_mutex_unlock(&driver_lock);
  return value;
}

// Does the driver run it?
__attribute__((unused)) static bool active(uint32_t id) {
  pthread_mutex_lock(&driver_lock);
  bool yes = driver[id].used && driver[id].state.percentage != 0 && !driver[id].suspended;
  pthread_mutex_unlock(&driver_lock);
  return yes;
}

__attribute__((unused)) static void refuse_next(int error) {
  pthread_mutex_lock(&driver_lock);
  refuse = error;
  pthread_mutex_unlock(&driver_lock);
}

/* Before anything else. */
static void test_driver_start(void) {
  xsi_next_ioctl = driver_ioctl;
  kfd = open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK(kfd >= 0);
}

#endif /* XSCHED_KFD_TEST_DRIVER_H */
