// SPDX-License-Identifier: Apache-2.0
//
// The observer over a stand-in for the driver that checks what it is sent: a wrong ring address or
// size, or a request for a queue that is gone, fails the test.

#include <signal.h>

#include "table.h"
#include "test_driver.h"

enum { THREADS = 4 };

static void test_claims(void) {
  extern const struct xsi_driver xsi_kfd_driver;
  CHECK(!xsi_kfd_driver.claims(kfd, 0x4b33)); // KDGKBTYPE of a console
  CHECK(!xsi_kfd_driver.claims(kfd, _IOWR('K', AMDKFD_IOC_DESTROY_QUEUE & 0xff, char[77])));
  CHECK(xsi_kfd_driver.claims(kfd, AMDKFD_IOC_DESTROY_QUEUE));
}

static void test_pause(void) {
  uint32_t compute = create(GPU, 2, 0x1000), sdma = create(GPU, 1, 0x2000);
  uint32_t other = create(OTHER_GPU, 0, 0x3000);
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == 2);
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

  CHECK(xsi_kfd_pause(GPU, XSI_KFD_SDMA, 0) == 4 && percentage(sdma) == 0);
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == 4);
  CHECK(percentage(compute) == 100 && percentage(late) == 100 && percentage(sdma) == 0);
  unsigned before = updates;
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == 4 && updates == before); // nothing to do

  struct xsi_kfd_queue list[8];
  CHECK(xsi_kfd_list(list, 8) == 5);
  CHECK(list[0].ring == 0x1000 && list[0].ring_bytes == 4096 && list[0].priority == 11);
  CHECK(list[1].kind == XSI_KFD_SDMA && list[1].paused);

  refuse_next(ETIME);
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_SDMA) == -ETIME);
  xsi_kfd_recover(NULL);
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
  xsi_kfd_recover(NULL);
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
  CHECK(xsi_kfd_pause(0, XSI_KFD_ALL, 0) == 1);
  pid_t child = fork();
  if (child == 0) _exit(xsi_kfd_list(NULL, 0) == 0 && xsi_kfd_resume(0, XSI_KFD_ALL) == 0 ? 0 : 1);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(percentage(id) == 0); // the parent's pause is none of the child's
  xsi_kfd_recover(NULL);
  CHECK(percentage(id) == 100);
  destroy(id);
}

// A pointer to nothing is the driver's to refuse, also one whose end is missing.
static void test_bad_pointers(void) {
  const unsigned long requests[] = {AMDKFD_IOC_CREATE_QUEUE_96, AMDKFD_IOC_DESTROY_QUEUE,
                                    AMDKFD_IOC_UPDATE_QUEUE, AMDKFD_IOC_SET_CU_MASK};
  uint32_t id = create(GPU, 2, 0x1000);
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(two != MAP_FAILED && mprotect(two + page, page, PROT_NONE) == 0);
  const uintptr_t places[] = {1, 8, (uintptr_t)(two + page), (uintptr_t)(two + page - 4),
                              UINTPTR_MAX - 3};
  for (unsigned i = 0; i < sizeof requests / sizeof *requests; i++)
    for (unsigned j = 0; j < sizeof places / sizeof *places; j++) {
      errno = 0;
      refuse_pointer = (void *)places[j];
      CHECK(ioctl(kfd, requests[i], (void *)places[j]) == -1 && errno == EFAULT);
    }
  refuse_pointer = NULL;
  // The last bytes there are, at whatever address, are enough.
  struct kfd_update_queue own = {0x1000, id, 4096, 100, 12};
  char *last = two + page - sizeof own;
  memcpy(last, &own, sizeof own);
  errno = 55;
  CHECK(ioctl(kfd, AMDKFD_IOC_UPDATE_QUEUE, last) == 0 && errno == 55);
  CHECK(driver[id].state.priority == 12);
  struct kfd_destroy_queue end = {.queue_id = id};
  last = two + page - sizeof end;
  memcpy(last, &end, sizeof end);
  CHECK(ioctl(kfd, AMDKFD_IOC_DESTROY_QUEUE, last) == 0);
  CHECK(munmap(two, 2 * page) == 0 && xsi_kfd_list(NULL, 0) == 0 && wrong == 0);
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
    CHECK(xsi_kfd_pause(0, XSI_KFD_ALL, 0) >= 0);
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

// A thread with a pending cancellation goes through the hook and waits for a queue that is in use.
// It must not end in there: it would keep the lock.
static uint32_t through;
static void *cancelled(void *argument) {
  uint32_t id = *(uint32_t *)argument;
  CHECK(pthread_cancel(pthread_self()) == 0);
  destroy(id);
  __atomic_store_n(&through, 1, __ATOMIC_RELEASE);
  pthread_testcancel();
  return NULL;
}
static struct kfd_queue *take(uint32_t id) {
  xsi_kfd_lock();
  struct kfd_queue *queue = xsi_kfd_take(id);
  xsi_kfd_unlock();
  CHECK(queue != NULL);
  return queue;
}
static void release(struct kfd_queue *queue) {
  xsi_kfd_lock();
  xsi_kfd_release(queue);
  xsi_kfd_unlock();
}
static void until_one_waits(void) {
  uint32_t waiters = 0;
  while (waiters == 0) {
    xsi_kfd_lock();
    waiters = xsi_kfd_table.waiters;
    xsi_kfd_unlock();
  }
}
static void test_cancelled(void) {
  uint32_t id = create(GPU, 0, 0x7000);
  struct kfd_queue *queue = take(id);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, cancelled, &id) == 0);
  until_one_waits();
  release(queue);
  void *result;
  CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
  CHECK(__atomic_load_n(&through, __ATOMIC_ACQUIRE) == 1 && xsi_kfd_list(NULL, 0) == 0);
}

// A signal that interrupts the wait for a queue in use does not change the application's errno.
static void on_signal(int number) { (void)number; }
static void *interrupted(void *argument) {
  struct kfd_destroy_queue call = {.queue_id = *(uint32_t *)argument};
  errno = 55;
  CHECK(ioctl(kfd, AMDKFD_IOC_DESTROY_QUEUE, &call) == 0 && errno == 55);
  return NULL;
}
static void test_errno(void) {
  struct sigaction action = {.sa_handler = on_signal}, before; // without SA_RESTART
  CHECK(sigaction(SIGUSR1, &action, &before) == 0);
  uint32_t id = create(GPU, 0, 0x7000);
  struct kfd_queue *queue = take(id);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, interrupted, &id) == 0);
  until_one_waits();
  for (int i = 0; i < 10; i++) { // the first may come before the wait
    usleep(1000);
    CHECK(pthread_kill(thread, SIGUSR1) == 0);
  }
  usleep(1000);
  release(queue);
  CHECK(pthread_join(thread, NULL) == 0 && xsi_kfd_list(NULL, 0) == 0);
  CHECK(sigaction(SIGUSR1, &before, NULL) == 0);
}

int main(void) {
  CHECK(setenv("XSCHED_SOCKET", "/nonexistent/xsched.sock", 1) == 0); // no daemon
  xsi_options_init();
  test_driver_start();
  test_claims();
  test_pause();
  test_levers();
  test_fork();
  test_bad_pointers();
  test_threads();
  test_cancelled();
  test_errno();
  close(kfd);
  printf("ok kfd-observer\n");
  return 0;
}
