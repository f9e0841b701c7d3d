// SPDX-License-Identifier: Apache-2.0
//
// The helper thread runs from the first queue on and keeps the session with the daemon. It blocks all
// signals, is detached, and the process ends with or without it.

#include "helper.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "annotate.h"
#include "clock.h"
#include "doorbell.h"
#include "driver.h"
#include "hint.h"
#include "log.h"
#include "page.h"
#include "private.h"
#include "session.h"
#include "thread.h"
#include "wake.h"

enum { STACK_BYTES = 512 * 1024 }; // untouched pages cost only addresses
enum { RETRY_NS = 1000000000 };    // a limit on threads or memory lasts, and a failure logs a line
enum { PAUSE_NS = 10000000 };      // without ppoll: less than a heartbeat's limit by far

static XSI_FORK_STATE pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static XSI_FORK_STATE bool started;
static XSI_FORK_STATE uint64_t retry_ns; // it could not be: not before this

void xsi_helper_lock(void) { pthread_mutex_lock(&lock); }
void xsi_helper_unlock(void) { pthread_mutex_unlock(&lock); }

static bool recover_drivers(const struct xsi_lease *lease) {
  bool done = true;
  xsi_for_each_driver(driver)
    done = driver->recover(lease) == 0 && done;
  return done;
}

// Returns when to come again. Drivers are called with no lock held: their calls may block, and a
// fork would wait for the lock.
static uint64_t step_session(uint64_t now, short revents) {
  // Before a welcome is read, so that joining can tell of everything at once.
  xsi_for_each_driver(driver) {
    if (driver->prepare != NULL && (xsi_page_joined() ? driver->due_ns() <= now : revents != 0))
      driver->prepare();
  }
  uint64_t next;
  struct xsi_recovery recovery;
  xsi_session_lock();
  uint64_t private_ns = xsi_private_step(now);
  bool recover = xsi_session_step(now, revents, &next, &recovery);
  xsi_session_unlock();
  if (private_ns < next) next = private_ns;
  if (recover) {
    bool done = recover_drivers(recovery.all ? NULL : &recovery.lease);
    xsi_session_lock();
    xsi_session_recovered(xsi_now_ns(), &recovery, done);
    xsi_session_unlock();
    return now;
  }
  xsi_for_each_driver(driver) {
    if (driver->obey != NULL && driver->obey()) next = now; // the next step sends the answer
  }
  return next;
}

// A sandbox may refuse ppoll, and so does the kernel if the process may have fewer than two descriptors. Then
// the helper looks at both after a pause; neither look blocks.
static void look_anyway(struct pollfd *polled, int error, uint64_t wait) {
  polled[0].revents = polled[1].revents = 0;
  if (error == EINTR) return;
  static uint32_t never;
  const struct timespec pause = {.tv_nsec = wait < PAUSE_NS ? (long)wait + 1000000 : PAUSE_NS};
  syscall(SYS_futex, &never, FUTEX_WAIT_PRIVATE, 0, &pause, NULL, 0);
  for (int i = 0; i < 2; i++)
    if (polled[i].fd >= 0)
      polled[i].revents = polled[i].events & POLLIN; // no frame before its time
}

static void *help(void *argument) {
  (void)argument;
  xsi_wake_enter();
  prctl(PR_SET_NAME, "xsched", 0, 0, 0);
  xsi_annotate_ignore(true);
  uint64_t next = 0;
  struct pollfd polled[2];
  for (;;) {
    uint64_t now = xsi_now_ns();
    uint64_t wait = next > now ? next - now : 0;
    struct timespec timeout = {.tv_sec = (time_t)(wait / 1000000000u),
                               .tv_nsec = (long)(wait % 1000000000u)};
    polled[0] = (struct pollfd){.fd = xsi_wake_fd(), .events = POLLIN};
    polled[1] = (struct pollfd){.fd = -1};
    polled[1].fd = xsi_session_poll(&polled[1].events);
    if (ppoll(polled, 2, &timeout, NULL) < 0) look_anyway(polled, errno, wait);
    xsi_wake_drain(polled[0].revents);
    xsi_wake_duty();
    xsi_page_beat(&xsi_header()->helper_ns, xsi_now_ns());
    next = step_session(xsi_now_ns(), polled[1].revents);
  }
  xsi_annotate_ignore(false);
  return NULL;
}

void xsi_helper_start(void) {
  if (XSI_LIKELY(__atomic_load_n(&started, __ATOMIC_ACQUIRE))) return;
  if (xsi_scheduler() == XSW_SCHEDULER_APP) return; // there is no daemon to join
  int saved = errno, cancel_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state); // the lock must not be left held
  xsi_helper_lock();
  uint64_t now = xsi_now_ns();
  if (!started && now >= retry_ns) {
    int result = xsi_wake_fd() >= 0 ? 0 : xsi_wake_open();
    if (result == 0) result = xsi_doorbell_init();
    if (result == 0) {
      xsi_session_prepare();
      result = xsi_thread_start(STACK_BYTES, help);
    }
    if (result == 0)
      __atomic_store_n(&started, true, __ATOMIC_RELEASE);
    else
      xsi_session_unprepared(result);
    retry_ns = result == 0 ? 0 : now + RETRY_NS;
  }
  xsi_helper_unlock();
  pthread_setcancelstate(cancel_state, NULL);
  errno = saved;
}

void xsi_helper_reset(void) {
  started = false;
  retry_ns = 0;
}
