// SPDX-License-Identifier: Apache-2.0
//
// The doorbell: eight bytes into the daemon's eventfd. Any thread may ring while the helper ends
// the session, so the number must never be closed and given to a file of the application's in
// between. It is therefore one number for the life of the process: joining puts the daemon's
// eventfd behind it with dup3, leaving puts one that has no reader. The kernel replaces the file
// atomically; a ring already under way holds a reference to the file it started with.

#include "doorbell.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fd.h"
#include "log.h"
#include "page.h"

static XSI_FORK_STATE int bell = -1; // the number the application's threads write to
static XSI_FORK_STATE int dead = -1; // the file behind it while there is no daemon

static int make_eventfd(void) {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return fd < 0 ? -errno : xsi_fd_raise(fd);
}

int xsi_doorbell_init(void) {
  if (bell >= 0) return 0;
  dead = make_eventfd();
  if (dead < 0) return dead;
  int fd = xsi_fd_duplicate(dead);
  if (fd < 0) {
    xsi_fd_close(&dead);
    return fd;
  }
  __atomic_store_n(&bell, fd, __ATOMIC_RELEASE);
  return 0;
}

// An application that closes all descriptors takes ours too, and may have got the number for
// itself: then it must not be replaced, and we take a new one.
static bool still_ours(int fd) {
  char name[48], target[48];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(name, target, sizeof target - 1);
  if (length < 0) return errno != ENOENT || fcntl(fd, F_GETFD) >= 0; // no /proc here
  target[length] = 0;
  return strstr(target, "eventfd") != NULL;
}

static int put_behind(int fd) {
  if (still_ours(bell)) return dup3(fd, bell, O_CLOEXEC) < 0 ? -errno : 0;
  int fresh = xsi_fd_duplicate(fd);
  if (fresh < 0) return fresh;
  __atomic_store_n(&bell, fresh, __ATOMIC_RELEASE);
  return 0;
}

int xsi_doorbell_attach(int fd) {
  // Rings come from the application's threads: they must neither block nor raise SIGPIPE. Of all
  // files only an eventfd (and what can't be written at all) answers EINVAL to half a number.
  uint32_t half = 0;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return -errno;
  if ((flags & O_NONBLOCK) == 0) return -EINVAL;
  if (write(fd, &half, sizeof half) >= 0 || errno != EINVAL) return -EINVAL;
  return put_behind(fd);
}

void xsi_doorbell_detach(void) {
  if (bell < 0) return;
  if (!still_ours(dead)) dead = make_eventfd();
  if (dead < 0 || put_behind(dead) < 0) xsi_log(XSI_WARN, "cannot replace the doorbell");
}

void xsi_doorbell_ring(void) {
  if (!xsi_page_joined()) return;
  int saved = errno;
  uint64_t one = 1;
  // EAGAIN means that it rings already. Not write(): a thread can be cancelled there, and this one
  // holds locks.
  syscall(SYS_write, __atomic_load_n(&bell, __ATOMIC_ACQUIRE), &one, sizeof one);
  errno = saved;
}

void xsi_doorbell_reset(void) {
  xsi_fd_close(&bell);
  xsi_fd_close(&dead);
}
