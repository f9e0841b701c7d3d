// SPDX-License-Identifier: Apache-2.0
//
// The log goes to the file or descriptor named in the environment and nowhere else. A file is
// opened for each line: lines are rare, and so we hold no descriptor that a daemonising application
// would close under us. A descriptor was inherited: before each line it is compared with what it
// was at the start, because the application may have closed it and got the number for a file of its
// own.

#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "environment.h"

int xsi_log_threshold = -1;

static char file[1024];
static int inherited = -1;
static struct statx inherited_identity;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static bool identify(int fd, struct statx *identity) {
  return syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO, identity) == 0;
}

static bool same_file(const struct statx *a, const struct statx *b) {
  return a->stx_ino == b->stx_ino && a->stx_dev_major == b->stx_dev_major &&
         a->stx_dev_minor == b->stx_dev_minor && (a->stx_mode & S_IFMT) == (b->stx_mode & S_IFMT);
}

// The application may change its directory, a relative name may not follow it.
static bool make_absolute(void) {
  if (file[0] == '/') return true;
  char name[sizeof file], directory[sizeof file];
  memcpy(name, file, sizeof name);
  if (getcwd(directory, sizeof directory) == NULL) return false;
  int length = snprintf(file, sizeof file, "%s/%s", directory, name);
  return length > 0 && (size_t)length < sizeof file;
}

void xsi_log_init(void) {
  if (xsi_environment("XSCHED_LOG", file, sizeof file) <= 0) return;
  long number;
  if (xsi_parse_decimal(file, 0, 1 << 30, &number)) {
    if (!identify((int)number, &inherited_identity)) return;
    inherited = (int)number;
  } else if (!make_absolute()) {
    return;
  }
  int threshold = XSI_INFO;
  char name[16];
  if (xsi_environment("XSCHED_LOG_LEVEL", name, sizeof name) > 0)
    for (int level = XSI_ERROR; level <= XSI_DEBUG; level++)
      if (strcmp(name, level_names[level]) == 0) threshold = level;
  xsi_log_threshold = threshold;
}

// A reader that went away must not end the application, nor one that does not read stop it.
static void write_quietly(int fd, const char *line, size_t bytes) {
  struct pollfd ready = {.fd = fd, .events = POLLOUT};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return;
  sigset_t pipe_signal, before, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigemptyset(&pending);
  sigpending(&pending);
  if (pthread_sigmask(SIG_BLOCK, &pipe_signal, &before) != 0) return;
  if (write(fd, line, bytes) < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE)) {
    struct timespec none = {0};
    sigtimedwait(&pipe_signal, NULL, &none);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void xsi_log_write(enum xsi_log_level level, const char *format, ...) {
  int saved = errno, cancel_state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state); // callers hold locks
  char line[512];
  uint64_t now = xsi_now_ns();
  int length = snprintf(
      line, sizeof line, "%llu.%06llu xsched[%d] %s: ", (unsigned long long)(now / 1000000000u),
      (unsigned long long)(now % 1000000000u / 1000u), (int)getpid(), level_names[level]);
  va_list arguments;
  va_start(arguments, format);
  int more = vsnprintf(line + length, sizeof line - (size_t)length, format, arguments);
  va_end(arguments);
  if (more > 0) length += more;
  if (length > (int)sizeof line - 1) length = (int)sizeof line - 1;
  line[length++] = '\n';

  int fd = inherited;
  struct statx now_there;
  if (fd >= 0) {
    if (!identify(fd, &now_there) || !same_file(&now_there, &inherited_identity)) fd = -1;
  } else {
    fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
  }
  if (fd >= 0) write_quietly(fd, line, (size_t)length);
  if (fd >= 0 && fd != inherited) close(fd);
  pthread_setcancelstate(cancel_state, NULL);
  errno = saved;
}
