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
  bool used;
  struct kfd_update_queue state;
  uint32_t gpu, type, mask_bits, mask;
} driver[DRIVER_QUEUES];
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
unsigned updates, wrong;
int refuse;                 // the next UPDATE fails with this
const void *refuse_pointer; // arguments here are not readable, as the kernel sees it
static int kfd;

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
        .gpu = call->gpu_id,
        .type = call->type,
        .state = {call->ring, id, call->ring_bytes, call->percentage, call->priority}};
    return 0;
  }
  case AMDKFD_IOC_DESTROY_QUEUE: {
    uint32_t id = ((struct kfd_destroy_queue *)argument)->queue_id;
    if (id >= DRIVER_QUEUES || !driver[id].used) return -EINVAL;
    driver[id].used = false;
    return 0;
  }
  case AMDKFD_IOC_UPDATE_QUEUE: {
    struct kfd_update_queue *call = argument;
    if ((call->percentage & 0xff) > 100 || call->priority > 15) return -EINVAL;
    queue = &driver[call->queue_id];
    updates++;
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

static uint32_t percentage(uint32_t id) {
  pthread_mutex_lock(&driver_lock);
  uint32_t value = driver[id].state.percentage;
  pthread_mutex_unlock(&driver_lock);
  return value;
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
