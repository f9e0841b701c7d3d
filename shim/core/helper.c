// SPDX-License-Identifier: Apache-2.0
//
// The one thread we add, from the first queue on: keeps the session with the daemon and runs the
// idle watcher. It takes no signals, is detached, and the process ends with or without it.

#include <errno.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver/kfd/kfd.h"
#include "parts.h"

// Beside the thread-local storage of all libraries, which glibc takes from the stack. The watcher
// calls into the driver; what is not touched costs only addresses.
enum { STACK_BYTES = 512 * 1024 };
// The watcher may ask for "at once"; it is not to take a whole core by that.
enum { WATCH_MIN_NS = 10000 };
enum { EXIT_PATIENCE_MS = 100 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;
static int wake_fd = -1;
static uint32_t wake_pending;
static xsi_watch_function watch;
static uint32_t watching, exiting;
static XSI_THREAD bool in_helper;

void xsi_helper_lock(void) { pthread_mutex_lock(&lock); }
void xsi_helper_unlock(void) { pthread_mutex_unlock(&lock); }
bool xsi_in_helper_thread(void) { return in_helper; }

void xsi_helper_set_watch(xsi_watch_function function) {
  __atomic_store_n(&watch, function, __ATOMIC_RELEASE);
  xsi_helper_wake();
}

void xsi_helper_wake(void) {
  int fd = __atomic_load_n(&wake_fd, __ATOMIC_ACQUIRE);
  if (fd < 0 || __atomic_exchange_n(&wake_pending, 1, __ATOMIC_ACQ_REL) != 0) return;
  int saved = errno;
  uint64_t one = 1;
  // Not write(), which is a cancellation point: callers hold locks.
  syscall(SYS_write, fd, &one, sizeof one);
  errno = saved;
}

static int make_wake_fd(void) {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return -errno;
  __atomic_store_n(&wake_fd, xsi_fd_raise(fd), __ATOMIC_RELEASE);
  return 0;
}

static bool drain_wake(short revents) {
  if (revents == 0) return false;
  uint64_t count;
  if ((revents & POLLNVAL) != 0 || (read(wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)) {
    // An application that closes every descriptor took ours: a new one. If there is none, polling
    // goes on by time alone.
    if (make_wake_fd() < 0) __atomic_store_n(&wake_fd, -1, __ATOMIC_RELEASE);
  }
  // Before the work that the wake-up asks for: one that comes from here on rings again.
  __atomic_exchange_n(&wake_pending, 0, __ATOMIC_ACQ_REL);
  return true;
}

static uint64_t run_watch(uint64_t now) {
  xsi_watch_function function = __atomic_load_n(&watch, __ATOMIC_ACQUIRE);
  if (function == NULL) return UINT64_MAX;
  uint64_t next = UINT64_MAX;
  __atomic_store_n(&watching, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&exiting, __ATOMIC_SEQ_CST) == 0) next = function(now);
  __atomic_store_n(&watching, 0, __ATOMIC_SEQ_CST);
  return next < now + WATCH_MIN_NS ? now + WATCH_MIN_NS : next;
}

// The driver's exit handlers run after this one, which was registered later: no watch call meets a
// driver that is half gone. Bounded, for a call that never returns.
static void at_exit(void) {
  const struct timespec pause = {.tv_nsec = 1000000};
  __atomic_store_n(&exiting, 1, __ATOMIC_SEQ_CST);
  if (in_helper) return;
  for (int i = 0; i < EXIT_PATIENCE_MS && __atomic_load_n(&watching, __ATOMIC_SEQ_CST) != 0; i++)
    nanosleep(&pause, NULL);
}

static uint64_t obey(const struct xsw_order *order, uint64_t now) {
  struct xsw_done answer = {
      .frame = {XSW_FRAME_MAGIC, XSW_VERSION, XSW_FRAME_DONE, sizeof answer},
      .sequence = order->sequence,
      .begin_ns = xsi_now_ns(),
  };
  answer.result = xsi_kfd_obey(order);
  answer.end_ns = xsi_now_ns();
  xsi_session_lock();
  xsi_session_answer(&answer);
  xsi_session_unlock();
  return now; // the next step sends it
}

static uint64_t step_session(uint64_t now, short revents) {
  uint64_t next;
  // This and the recovery call the driver, which may take its time: no lock held, or a fork would
  // wait for it. Before a welcome is read, so that joining can tell of everything at once.
  if (xsi_session_joined() ? xsi_rm_due_ns() <= now : revents != 0) xsi_rm_learn();
  xsi_session_lock();
  struct xsw_order order;
  bool recover = xsi_session_step(now, revents, &next);
  bool ordered = !recover && xsi_session_order(&order);
  xsi_session_unlock();
  if (ordered) return obey(&order, now);
  if (!recover) return next;
  bool done = xsi_rm_recover() == 0;
  if (xsi_kfd_recover != NULL && xsi_kfd_recover() != 0) done = false;
  xsi_session_lock();
  xsi_session_recovered(xsi_now_ns(), done);
  xsi_session_unlock();
  return now;
}

static void *help(void *argument) {
  (void)argument;
  in_helper = true;
  prctl(PR_SET_NAME, "xsched", 0, 0, 0);
  uint64_t next_session = 0, next_watch = 0;
  struct pollfd polled[2];
  for (;;) {
    uint64_t now = xsi_now_ns();
    uint64_t next = next_session < next_watch ? next_session : next_watch;
    uint64_t wait = next > now ? next - now : 0;
    struct timespec timeout = {.tv_sec = (time_t)(wait / 1000000000u),
                               .tv_nsec = (long)(wait % 1000000000u)};
    polled[0] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = -1};
    polled[1].fd = xsi_session_poll(&polled[1].events);
    if (ppoll(polled, 2, &timeout, NULL) < 0) polled[0].revents = polled[1].revents = 0;

    bool woken = drain_wake(polled[0].revents);
    now = xsi_now_ns();
    if (woken || now >= next_watch) next_watch = run_watch(now);
    next_session = step_session(xsi_now_ns(), polled[1].revents);
  }
  return NULL;
}

static int add_tls(struct dl_phdr_info *object, size_t size, void *total) {
  (void)size;
  for (unsigned i = 0; i < object->dlpi_phnum; i++)
    if (object->dlpi_phdr[i].p_type == PT_TLS)
      *(size_t *)total += object->dlpi_phdr[i].p_memsz + object->dlpi_phdr[i].p_align;
  return 0;
}

static int create_thread(void) {
  size_t stack = STACK_BYTES;
  dl_iterate_phdr(add_tls, &stack);
  stack = (stack + 0xffff) & ~(size_t)0xffff;
  pthread_attr_t attributes;
  int result = pthread_attr_init(&attributes);
  if (result != 0) return -result;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, stack);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); // inherited: no window in which a signal lands in it
  pthread_t thread;
  result = pthread_create(&thread, &attributes, help, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return -result;
}

void xsi_helper_start(void) {
  static bool exit_registered;
  if (XSI_LIKELY(__atomic_load_n(&started, __ATOMIC_ACQUIRE))) return;
  if (xsi_scheduler() == XSW_SCHEDULER_APP) return; // nobody to talk to
  int saved = errno, cancel_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state); // the lock must not be left held
  xsi_helper_lock();
  if (!started) {
    int result = wake_fd >= 0 ? 0 : make_wake_fd();
    if (result == 0) result = xsi_doorbell_init();
    if (result == 0) {
      xsi_session_prepare();
      result = create_thread();
    }
    if (result == 0) {
      if (!exit_registered) exit_registered = atexit(at_exit) == 0;
      __atomic_store_n(&started, true, __ATOMIC_RELEASE);
    } else {
      xsi_log(XSI_ERROR, "no helper thread, running natively: errno=%d", -result);
    }
  }
  xsi_helper_unlock();
  pthread_setcancelstate(cancel_state, NULL);
  errno = saved;
}

void xsi_helper_reset(void) {
  started = false;
  xsi_fd_close(&wake_fd);
  wake_pending = watching = exiting = 0;
  in_helper = false;
}
