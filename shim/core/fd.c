// SPDX-License-Identifier: Apache-2.0
//
// Our descriptors: close-on-exec, and above the numbers an application counts on ("the next open
// gives 3", select's bitmaps, a shell's redirections).

#include "fd.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

enum { FLOOR = 200, LOW_FLOOR = 100 };

int xsi_fd_duplicate(int fd) {
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, FLOOR);
  if (copy < 0) copy = fcntl(fd, F_DUPFD_CLOEXEC, LOW_FLOOR);
  if (copy < 0) copy = fcntl(fd, F_DUPFD_CLOEXEC, 3); // a small RLIMIT_NOFILE
  return copy < 0 ? -errno : copy;
}

int xsi_fd_raise(int fd) {
  if (fd < 0 || fd >= FLOOR) return fd;
  int copy = xsi_fd_duplicate(fd);
  if (copy < 0) return fd; // no room above: better low than not at all
  xsi_fd_close(&fd);
  return copy;
}

void xsi_fd_close(int *fd) {
  int cancel_state;
  // Callers hold locks. The system call itself would be no cancellation point, but a thread sanitizer
  // has to see that the number is free.
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  if (*fd >= 0) close(*fd);
  pthread_setcancelstate(cancel_state, NULL);
  *fd = -1;
}
