// SPDX-License-Identifier: Apache-2.0
//
// The helper thread in a process that may not call ppoll: the session works, and no core is burnt. Then in one
// that may: it sleeps while no queue has work.

#include <poll.h>
#include <sys/syscall.h>

#include "page.h"
#include "queue.h"
#include "test_support.h"

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;
static uint32_t polls, allowed;

int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
  __atomic_fetch_add(&polls, 1, __ATOMIC_RELAXED);
  if (__atomic_load_n(&allowed, __ATOMIC_RELAXED))
    return (int)syscall(SYS_ppoll, fds, count, timeout, mask, sizeof(unsigned long));
  errno = EPERM;
  return -1;
}

int main(void) {
  alarm(60);
  test_daemon_place(d);
  xsi_options_init();
  test_daemon_listen(d);
  CHECK(xsi_queue_open(0, 0x0100, 0) == 0);
  test_session_start(d, 1);
  test_heart_start(d);
  uint32_t before = __atomic_load_n(&polls, __ATOMIC_RELAXED);
  test_sleep_ms(500);
  uint32_t more = __atomic_load_n(&polls, __ATOMIC_RELAXED) - before;
  CHECK(xsi_page_joined() && more > 5 && more < 600);
  test_set_busy(0, true);
  CHECK(test_rung(d));
  test_set_busy(0, false);
  __atomic_store_n(&allowed, 1, __ATOMIC_RELAXED);
  test_sleep_ms(200);
  before = __atomic_load_n(&polls, __ATOMIC_RELAXED);
  test_sleep_ms(1000);
  more = __atomic_load_n(&polls, __ATOMIC_RELAXED) - before;
  CHECK(xsi_page_joined() && more >= 5 &&
        more <= 30); // a look after each limit of 100 ms, and a tick
  test_heart_stop(d);
  test_daemon_hang_up(d);
  EVENTUALLY(!xsi_page_joined());
  test_daemon_remove(d);
  puts("ok helper");
  return 0;
}
