// SPDX-License-Identifier: Apache-2.0
//
// The observer over a stand-in for the driver that checks what it is sent: a wrong ring address or
// size, or a request for a queue that is gone, fails the test.

#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "../core/test_support.h"
#include "kfd.h"

enum { GPU = 63420, OTHER_GPU = 63421, DRIVER_QUEUES = 64, THREADS = 4 };

// Not static: <sys/ioctl.h> promises the compiler that ioctl does not come back into this file.
struct driver_queue {
  bool used;
  struct kfd_update_queue state;
  uint32_t gpu, type, mask_bits, mask;
} driver[DRIVER_QUEUES];
static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
unsigned updates, wrong;
int refuse; // the next UPDATE fails with this
static int kfd;

static int driver_call(uint32_t request, void *argument) {
  struct driver_queue *queue;
  switch (request) {
  case AMDKFD_IOC_CREATE_QUEUE_88:
  case AMDKFD_IOC_CREATE_QUEUE_96: {
    struct kfd_create_queue *call = argument;
    uint32_t id = 0;
    while (driver[id].used) id++;
    call->queue_id = id;
    driver[id] = (struct driver_queue){
        .used = true, .gpu = call->gpu_id, .type = call->type,
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
  int result = driver_call((uint32_t)request, argument);
  pthread_mutex_unlock(&driver_lock);
  if (result < 0) errno = -result;
  return result < 0 ? -1 : result;
}

static uint32_t create(uint32_t gpu, uint32_t type, uint64_t ring) {
  struct { struct kfd_create_queue call; uint64_t engine; } a = {
      .call = {.ring = ring, .ring_bytes = 4096, .gpu_id = gpu, .type = type,
               .percentage = 100, .priority = 7}};
  CHECK(ioctl(kfd, AMDKFD_IOC_CREATE_QUEUE_96, &a) == 0);
  return a.call.queue_id;
}

static void destroy(uint32_t id) {
  struct kfd_destroy_queue call = {.queue_id = id};
  CHECK(ioctl(kfd, AMDKFD_IOC_DESTROY_QUEUE, &call) == 0);
}

static uint32_t percentage(uint32_t id) { return driver[id].state.percentage; }

static void test_pause(void) {
  uint32_t compute = create(GPU, 2, 0x1000), sdma = create(GPU, 1, 0x2000);
  uint32_t other = create(OTHER_GPU, 0, 0x3000);
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE) == 2);
  CHECK(percentage(compute) == 0 && percentage(sdma) == 100 && percentage(other) == 100);
  CHECK(driver[compute].state.priority == 7);

  // Queues made while paused never run; those of another GPU or kind do.
  uint32_t late = create(GPU, 0, 0x4000), late_sdma = create(GPU, 3, 0x5000);
  CHECK(percentage(late) == 0 && percentage(late_sdma) == 100);

  // The application's own change does not end the pause, and is in force after it.
  struct kfd_update_queue own = {0x1000, compute, 4096, 100, 11};
  CHECK(ioctl(kfd, AMDKFD_IOC_UPDATE_QUEUE, &own) == 0);
  CHECK(percentage(compute) == 0 && driver[compute].state.priority == 11);
  own.percentage = 101;
  CHECK(ioctl(kfd, AMDKFD_IOC_UPDATE_QUEUE, &own) == -1 && errno == EINVAL);

  CHECK(xsi_kfd_pause(GPU, XSI_KFD_SDMA) == 4 && percentage(sdma) == 0);
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == 4);
  CHECK(percentage(compute) == 100 && percentage(late) == 100 && percentage(sdma) == 0);
  unsigned before = updates;
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == 4 && updates == before); // nothing to do

  struct xsi_kfd_queue list[8];
  CHECK(xsi_kfd_list(list, 8) == 5);
  CHECK(list[0].ring == 0x1000 && list[0].ring_bytes == 4096 && list[0].priority == 11);
  CHECK(list[1].kind == XSI_KFD_SDMA && list[1].paused);

  refuse = ETIME;
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_SDMA) == -ETIME);
  xsi_kfd_recover();
  for (uint32_t id = 0; id < 5; id++) {
    CHECK(percentage(id) == 100);
    destroy(id);
  }
  CHECK(xsi_kfd_list(list, 8) == 0 && wrong == 0);
}

static void test_levers(void) {
  uint32_t compute = create(GPU, 2, 0x1000), sdma = create(GPU, 1, 0x2000);
  CHECK(xsi_kfd_set_priority(0, 16) == -EINVAL);
  CHECK(xsi_kfd_set_priority(0, 3) == 2 && driver[compute].state.priority == 3);
  CHECK(xsi_kfd_set_priority(GPU, 1) == 2 && driver[compute].state.priority == 1);
  uint32_t mask[2] = {0x0ff0, 0}, own[2] = {0x00ff, 0};
  CHECK(xsi_kfd_set_cu_mask(GPU, mask, 33) == -EINVAL);
  CHECK(xsi_kfd_set_cu_mask(GPU, mask, 64) == 2);
  CHECK(driver[compute].mask == 0x0ff0 && driver[sdma].mask_bits == 0);
  struct kfd_set_cu_mask call = {compute, 64, (uint64_t)(uintptr_t)own};
  CHECK(ioctl(kfd, AMDKFD_IOC_SET_CU_MASK, &call) == 0);
  CHECK(driver[compute].mask == 0x00f0); // both
  call.bits = 31;
  CHECK(ioctl(kfd, AMDKFD_IOC_SET_CU_MASK, &call) == -1 && errno == EINVAL);
  xsi_kfd_recover();
  CHECK(driver[compute].state.priority == 7 && driver[compute].mask == 0x00ff);
  uint32_t fresh = create(GPU, 2, 0x4000);
  CHECK(driver[fresh].mask_bits == 0);
  CHECK(xsi_kfd_set_cu_mask(GPU, mask, 64) == 3);
  CHECK(xsi_kfd_set_cu_mask(GPU, NULL, 0) == 3 && driver[fresh].mask == 0xffffffff);
  destroy(compute), destroy(sdma), destroy(fresh);
  CHECK(wrong == 0);
}

static void test_fork(void) {
  uint32_t id = create(GPU, 2, 0x1000);
  CHECK(xsi_kfd_pause(0, XSI_KFD_ALL) == 1);
  pid_t child = fork();
  if (child == 0) _exit(xsi_kfd_list(NULL, 0) == 0 && xsi_kfd_resume(0, XSI_KFD_ALL) == 0 ? 0 : 1);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(percentage(id) == 0); // the parent's pause is none of the child's
  xsi_kfd_recover();
  CHECK(percentage(id) == 100);
  destroy(id);
}

// Queues come and go in several threads while another pauses and resumes.
static bool stop;
static void *churn(void *argument) {
  uint64_t ring = 0x10000 * (1 + (uint64_t)(uintptr_t)argument);
  for (int i = 0; i < 300; i++) {
    uint32_t id = create(GPU, (uint32_t)i % 3, ring + 0x1000 * (uint64_t)(i % 8));
    struct kfd_update_queue own = {ring + 0x1000 * (uint64_t)(i % 8), id, 4096, 100,
                                   (uint32_t)i % 16};
    CHECK(ioctl(kfd, AMDKFD_IOC_UPDATE_QUEUE, &own) == 0);
    destroy(id);
  }
  return NULL;
}
static void *toggle(void *argument) {
  (void)argument;
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    CHECK(xsi_kfd_pause(0, XSI_KFD_ALL) >= 0);
    CHECK(xsi_kfd_resume(0, XSI_KFD_ALL) >= 0);
  }
  return NULL;
}
static void test_threads(void) {
  pthread_t threads[THREADS], toggler;
  pthread_create(&toggler, NULL, toggle, NULL);
  for (uintptr_t i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, churn, (void *)i);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
  pthread_join(toggler, NULL);
  CHECK(wrong == 0 && xsi_kfd_list(NULL, 0) == 0);
}

int main(void) {
  xsi_next_ioctl = driver_ioctl;
  kfd = open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK(kfd >= 0);
  test_pause();
  test_levers();
  test_fork();
  test_threads();
  close(kfd);
  printf("ok kfd-observer\n");
  return 0;
}
