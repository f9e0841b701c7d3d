// SPDX-License-Identifier: Apache-2.0

#include "wake.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fd.h"

static void (*start_helper)(void), (*other_duty)(void);
static XSI_FORK_STATE bool wanted;
static XSI_FORK_STATE int wake_fd = -1;
static XSI_FORK_STATE uint32_t pending;
static XSI_THREAD bool is_helper;

void xsi_wake_set_start(void (*start)(void)) {
  __atomic_store_n(&start_helper, start, __ATOMIC_RELEASE);
}

void xsi_wake_start(void) {
  void (*start)(void) = __atomic_load_n(&start_helper, __ATOMIC_ACQUIRE);
  __atomic_store_n(&wanted, true, __ATOMIC_RELAXED);
  if (start != NULL) start();
}

void xsi_wake_again(void) {
  if (__atomic_load_n(&wanted, __ATOMIC_RELAXED)) xsi_wake_start();
}

void xsi_wake_set_duty(void (*duty)(void)) {
  __atomic_store_n(&other_duty, duty, __ATOMIC_RELEASE);
}

void xsi_wake_duty(void) {
  void (*duty)(void) = __atomic_load_n(&other_duty, __ATOMIC_ACQUIRE);
  if (duty != NULL) duty();
}

bool xsi_wake_is_helper(void) { return is_helper; }
void xsi_wake_enter(void) { is_helper = true; }
int xsi_wake_fd(void) { return __atomic_load_n(&wake_fd, __ATOMIC_ACQUIRE); }

void xsi_wake_helper(void) {
  int fd = xsi_wake_fd();
  if (fd < 0 || __atomic_exchange_n(&pending, 1, __ATOMIC_ACQ_REL) != 0) return;
  int saved = errno;
  uint64_t one = 1;
  syscall(SYS_write, fd, &one, sizeof one); // write() is a cancellation point
  errno = saved;
}

int xsi_wake_open(void) {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return -errno;
  __atomic_store_n(&wake_fd, xsi_fd_raise(fd), __ATOMIC_RELEASE);
  return 0;
}

void xsi_wake_drain(short revents) {
  if (revents == 0) return;
  uint64_t count;
  if ((revents & POLLNVAL) != 0 || (read(wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)) {
    // The application closed our descriptor. Without a new one the helper polls by time alone.
    if (xsi_wake_open() < 0) __atomic_store_n(&wake_fd, -1, __ATOMIC_RELEASE);
  }
  // Before the work that was asked for: a wake-up that comes from here on writes again.
  __atomic_exchange_n(&pending, 0, __ATOMIC_ACQ_REL);
}

void xsi_wake_reset(void) {
  xsi_fd_close(&wake_fd);
  pending = 0;
  is_helper = wanted = false;
}
