/* SPDX-License-Identifier: Apache-2.0
 *
 * For the C tests: checks that say where, a time limit, and a stand-in for the daemon that does
 * exactly what a test tells it.
 */
#ifndef XSCHED_TEST_SUPPORT_H
#define XSCHED_TEST_SUPPORT_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/counters.h"
#include "core/doorbell.h"
#include "core/driver.h"
#include "core/environment.h"
#include "core/fd.h"
#include "core/fork.h"
#include "core/frame.h"
#include "core/gate.h"
#include "core/helper.h"
#include "core/hint.h"
#include "core/hint_fields.h"
#include "core/init.h"
#include "core/liveness.h"
#include "core/log.h"
#include "core/options.h"
#include "core/page.h"
#include "core/queue.h"
#include "core/real.h"
#include "core/request.h"
#include "core/session.h"
#include "core/wake.h"
#include "driver/rm/frames.h"

/* One stream of the queue becomes busy or idle, if it is not yet. */
__attribute__((unused)) static void test_set_busy(int index, bool busy) {
  if (index < 0 || index >= XSW_MAX_QUEUES) {
    if (xsi_queue_enter(index) || xsi_queue_leave(index, (struct xsi_tally){0})) abort();
    return;
  }
  uint64_t was = __atomic_load_n(&xsi_slot((uint32_t)index)->transitions, __ATOMIC_SEQ_CST) & 1;
  if ((was != 0) == busy) return;
  if (busy ? xsi_queue_enter(index) : xsi_queue_leave(index, (struct xsi_tally){0}))
    xsi_queue_changed(index);
}

static char test_directory[64]; /* removed also when a check fails */
static pid_t test_owner;

__attribute__((unused)) static void test_clean_up(void) {
  char path[96];
  if (test_directory[0] == 0 || getpid() != test_owner) return;
  snprintf(path, sizeof path, "%s/xsched.sock", test_directory);
  unlink(path);
  snprintf(path, sizeof path, "%s/log", test_directory);
  unlink(path);
  rmdir(test_directory);
}

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("FAIL %s:%d: %s errno=%d\n", __FILE__, __LINE__, #condition, errno);                  \
      fflush(stdout);                                                                              \
      test_clean_up();                                                                             \
      _exit(1);                                                                                    \
    }                                                                                              \
  } while (0)

/* Waits for something another thread or process does; the limit is for a machine under load. */
#define EVENTUALLY(condition)                                                                      \
  do {                                                                                             \
    uint64_t until_ = xsi_now_ns() + 5000000000u;                                                  \
    bool met_ = false;                                                                             \
    while (!(met_ = (condition)) && xsi_now_ns() < until_)                                         \
      test_sleep_ms(1);                                                                            \
    if (!met_) CHECK(!"eventually: " #condition);                                                  \
  } while (0)

__attribute__((unused)) static void test_sleep_ms(unsigned ms) {
  struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  nanosleep(&pause, NULL);
}

/* The sanitizers' view of what the tests do on purpose: threads in the child of a threaded fork. */
__attribute__((visibility("default"), weak)) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }

/* ---- what the process holds ----------------------------------------------------- */

/* Not opendir: the thread sanitizer does not see that it opens a descriptor, and takes closedir for
 * a race with whichever thread closed that number last. */
__attribute__((unused)) static DIR *test_open_directory(const char *path) {
  DIR *directory = fdopendir(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  CHECK(directory != NULL);
  return directory;
}
__attribute__((unused)) static unsigned test_count_entries(const char *path) {
  DIR *directory = test_open_directory(path);
  unsigned count = 0;
  struct dirent *entry;
  while ((entry = readdir(directory)) != NULL)
    count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}
__attribute__((unused)) static unsigned test_count_fds(void) {
  return test_count_entries("/proc/self/fd");
}
/* By name: the thread sanitizer has a thread of its own. */
__attribute__((unused)) static unsigned test_count_helpers(void) {
  DIR *directory = test_open_directory("/proc/self/task");
  unsigned count = 0;
  struct dirent *entry;
  while ((entry = readdir(directory)) != NULL) {
    char path[320], name[16] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
    FILE *file = fopen(path, "re");
    if (file == NULL) continue;
    count += fgets(name, sizeof name, file) != NULL && strcmp(name, "xsched\n") == 0;
    fclose(file);
  }
  closedir(directory);
  return count;
}

/* ---- a stand-in for the daemon -------------------------------------------------- */

struct test_daemon {
  char path[96];
  uint64_t limit_ns; /* of the heartbeat; long, so that a loaded machine is not a silent daemon */
  uint32_t version;  /* that it speaks */
  int listener, socket, memfd, doorbell;
  unsigned char *page;
  struct xsw_hello hello;
  /* heartbeat thread */
  pthread_t heart;
  uint32_t beating;
};

__attribute__((unused)) static struct xsw_header *test_header(struct test_daemon *daemon) {
  return (struct xsw_header *)(void *)daemon->page;
}
__attribute__((unused)) static struct xsw_progress *test_progress(struct test_daemon *daemon,
                                                                  unsigned index) {
  return (struct xsw_progress *)(void *)(daemon->page + XSW_PROGRESS_OFFSET) + index;
}
__attribute__((unused)) static struct xsw_queue *test_slot(struct test_daemon *daemon,
                                                           unsigned index) {
  return (struct xsw_queue *)(void *)(daemon->page + XSW_HEADER_BYTES + index * XSW_QUEUE_BYTES);
}

/* Once in a process, before the core is initialised: a directory and the variable that names the
 * socket. */
__attribute__((unused)) static void test_daemon_place(struct test_daemon *daemon) {
  memset(daemon, 0, sizeof *daemon);
  daemon->limit_ns = 9000000000u;
  daemon->version = XSW_VERSION;
  daemon->listener = daemon->socket = daemon->memfd = daemon->doorbell = -1;
  strcpy(test_directory, "/tmp/xsched-test-XXXXXX");
  CHECK(mkdtemp(test_directory) != NULL);
  test_owner = getpid();
  snprintf(daemon->path, sizeof daemon->path, "%s/xsched.sock", test_directory);
  CHECK(setenv("XSCHED_SOCKET", daemon->path, 1) == 0);
}

__attribute__((unused)) static void test_daemon_listen(struct test_daemon *daemon) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", daemon->path);
  unlink(daemon->path);
  daemon->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  CHECK(daemon->listener >= 0);
  CHECK(bind(daemon->listener, (struct sockaddr *)&address, sizeof address) == 0);
  CHECK(listen(daemon->listener, 64) == 0);
}

__attribute__((unused)) static bool test_readable(int fd, int timeout_ms) {
  struct pollfd polled = {.fd = fd, .events = POLLIN};
  return poll(&polled, 1, timeout_ms) == 1;
}

__attribute__((unused)) static struct xsw_leases *test_leases(struct test_daemon *daemon) {
  return (struct xsw_leases *)(void *)(daemon->page + XSW_LEASES_OFFSET);
}
/* Lease i of a device: the deadline first, as the daemon writes it. */
__attribute__((unused)) static void test_lease(struct test_daemon *daemon, unsigned i,
                                               uint32_t bus_slot, uint64_t epoch,
                                               uint64_t deadline) {
  struct xsw_lease *lease = &test_leases(daemon)->entries[i];
  __atomic_store_n(&lease->pci_bus_slot, bus_slot, __ATOMIC_RELAXED);
  __atomic_store_n(&lease->deadline_ns, deadline, __ATOMIC_RELEASE);
  __atomic_store_n(&lease->epoch, epoch, __ATOMIC_RELEASE);
}

/* The size of a packet with a hint in a version: hints have grown. */
__attribute__((unused)) static size_t test_bytes(size_t bytes, uint32_t version) {
  return version < 5 ? bytes - (sizeof(struct xsw_hint) - XSW_HINT_BYTES_4) : bytes;
}

/* Takes the next client and its HELLO. */
__attribute__((unused)) static void test_daemon_accept(struct test_daemon *daemon) {
  CHECK(test_readable(daemon->listener, 5000));
  daemon->socket = accept4(daemon->listener, NULL, NULL, SOCK_CLOEXEC);
  CHECK(daemon->socket >= 0);
  CHECK(test_readable(daemon->socket, 5000));
  ssize_t got = recv(daemon->socket, &daemon->hello, sizeof daemon->hello, 0);
  size_t bytes = test_bytes(sizeof daemon->hello, daemon->hello.frame.version);
  CHECK(got == (ssize_t)bytes);
  CHECK(daemon->hello.frame.magic == XSW_FRAME_MAGIC);
  CHECK(daemon->hello.frame.type == XSW_FRAME_HELLO);
  CHECK(daemon->hello.frame.bytes == bytes);
}

__attribute__((unused)) static void test_send(int socket, const void *bytes, size_t length,
                                              const int *fds, unsigned count) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(8 * sizeof(int))];
  } control;
  struct iovec data = {.iov_base = (void *)bytes, .iov_len = length};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
  if (count > 0) {
    memset(&control, 0, sizeof control);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  }
  CHECK(sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)length);
}

__attribute__((unused)) static void test_daemon_make_page(struct test_daemon *daemon, uint64_t id) {
  daemon->memfd = memfd_create("xsched-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(daemon->memfd >= 0 && ftruncate(daemon->memfd, xsi_page_bytes(daemon->version)) == 0);
  daemon->page = mmap(NULL, XSW_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, daemon->memfd, 0);
  CHECK(daemon->page != MAP_FAILED);
  CHECK(fcntl(daemon->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  daemon->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  CHECK(daemon->doorbell >= 0);
  struct xsw_header *header = test_header(daemon);
  header->magic = XSW_PAGE_MAGIC;
  header->version = daemon->version;
  header->page_bytes = xsi_page_bytes(daemon->version);
  header->max_queues = XSW_MAX_QUEUES;
  header->session_id = id;
  header->heartbeat_limit_ns = daemon->limit_ns;
  __atomic_store_n(&header->heartbeat_ns, xsi_now_ns(), __ATOMIC_RELEASE);
}

__attribute__((unused)) static struct xsw_welcome test_welcome(uint64_t id) {
  return (struct xsw_welcome){
      .frame = {XSW_FRAME_MAGIC, XSW_VERSION, XSW_FRAME_WELCOME, sizeof(struct xsw_welcome)},
      .session_id = id,
      .page_bytes = XSW_PAGE_BYTES};
}

__attribute__((unused)) static void test_daemon_welcome(struct test_daemon *daemon, uint64_t id) {
  test_daemon_make_page(daemon, id);
  struct xsw_welcome welcome = test_welcome(id);
  welcome.frame.version = daemon->version;
  welcome.page_bytes = xsi_page_bytes(daemon->version);
  int fds[2] = {daemon->memfd, daemon->doorbell};
  test_send(daemon->socket, &welcome, sizeof welcome, fds, 2);
}

__attribute__((unused)) static void *test_beat(void *argument) {
  struct test_daemon *daemon = argument;
  while (__atomic_load_n(&daemon->beating, __ATOMIC_ACQUIRE) != 0) {
    __atomic_store_n(&test_header(daemon)->heartbeat_ns, xsi_now_ns(), __ATOMIC_RELEASE);
    test_sleep_ms(5);
  }
  return NULL;
}
__attribute__((unused)) static void test_heart_start(struct test_daemon *daemon) {
  daemon->beating = 1;
  CHECK(pthread_create(&daemon->heart, NULL, test_beat, daemon) == 0);
}
__attribute__((unused)) static void test_heart_stop(struct test_daemon *daemon) {
  __atomic_store_n(&daemon->beating, 0, __ATOMIC_RELEASE);
  CHECK(pthread_join(daemon->heart, NULL) == 0);
}

/* The session's end as a killed daemon makes it. The page stays readable here. */
__attribute__((unused)) static void test_daemon_hang_up(struct test_daemon *daemon) {
  close(daemon->socket);
  daemon->socket = -1;
}
__attribute__((unused)) static void test_daemon_drop_page(struct test_daemon *daemon) {
  munmap(daemon->page, XSW_PAGE_BYTES);
  close(daemon->memfd);
  close(daemon->doorbell);
}
__attribute__((unused)) static void test_daemon_remove(struct test_daemon *daemon) {
  close(daemon->listener);
  test_clean_up();
}

/* A session up to the point where the doorbell was rung. */
__attribute__((unused)) static bool test_rung(struct test_daemon *daemon) {
  uint64_t count;
  return read(daemon->doorbell, &count, sizeof count) == sizeof count;
}
__attribute__((unused)) static void test_session_start(struct test_daemon *daemon, uint64_t id) {
  test_daemon_accept(daemon);
  test_daemon_welcome(daemon, id);
  EVENTUALLY(xsi_page_joined());
  EVENTUALLY(test_rung(daemon));
}
__attribute__((unused)) static void test_session_end(struct test_daemon *daemon) {
  test_daemon_hang_up(daemon);
  EVENTUALLY(!xsi_page_joined());
  test_daemon_drop_page(daemon);
}

/* All that the session says so far, one event after the other; fds that come along are closed. */
__attribute__((unused)) static unsigned test_read_events(struct test_daemon *daemon,
                                                         struct xsw_rm_event *events,
                                                         unsigned limit, unsigned *fd_count) {
  unsigned count = 0;
  while (test_readable(daemon->socket, 60)) {
    struct xsw_rm frame;
    union {
      struct cmsghdr header;
      char space[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec data = {.iov_base = &frame, .iov_len = sizeof frame};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.space};
    ssize_t got = recvmsg(daemon->socket, &message, MSG_CMSG_CLOEXEC);
    if (got == 0) break;
    CHECK(got >= (ssize_t)offsetof(struct xsw_rm, events));
    CHECK(frame.frame.type == XSW_FRAME_RM && frame.frame.bytes == (uint32_t)got);
    CHECK((size_t)got == offsetof(struct xsw_rm, events) + frame.count * sizeof *events);
    bool with_fd = false;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c != NULL; c = CMSG_NXTHDR(&message, c)) {
      int fd;
      memcpy(&fd, CMSG_DATA(c), sizeof fd);
      close(fd);
      with_fd = true;
      if (fd_count != NULL) ++*fd_count;
    }
    for (unsigned i = 0; i < frame.count; i++) {
      CHECK((frame.events[i].kind == XSW_RM_CLIENT) == with_fd);
      CHECK(frame.events[i].kind != XSW_RM_CLIENT || frame.count == 1);
      CHECK(count < limit);
      events[count++] = frame.events[i];
    }
  }
  return count;
}

#endif /* XSCHED_TEST_SUPPORT_H */
