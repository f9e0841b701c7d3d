/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulates many programs of one daemon without a GPU. Each session is a separate process for the
 * daemon, which reads the peer's credentials. This process drives all of them through their pages
 * and doorbells, like the shim.
 *
 *   crowd SOCKET SESSIONS QUEUES_EACH
 *   in:  run MILLISECONDS CHANGES_PER_SECOND | quit
 *   out: R | D changes changes_to_busy elapsed_ns | E what
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "xsched/wire.h"

struct session {
  struct xsw_header *page;
  int bell, connection;
  pid_t pid;
};
static struct session *sessions;
static unsigned session_count, queue_count;

static void fail(const char *what) {
  printf("E %s: %s\n", what, strerror(errno));
  fflush(stdout);
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static struct xsw_queue *queue_of(struct session *s, unsigned i) {
  return (struct xsw_queue *)((char *)s->page + XSW_HEADER_BYTES) + i;
}

static void ring(struct session *s) {
  uint64_t one = 1;
  if (write(s->bell, &one, sizeof one) != sizeof one) fail("ring");
}

/* A child that shares our descriptors connects and stays, because the session ends with it. */
static void connect_as_another(struct session *s, const struct sockaddr_un *at, int done[2]) {
  char ok;
  if ((s->connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) < 0) fail("socket");
  pid_t parent = getpid();
  long pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
  if (pid < 0) fail("clone");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    ok =
        getppid() == parent && connect(s->connection, (const struct sockaddr *)at, sizeof *at) == 0;
    if (write(done[1], &ok, 1) != 1 || !ok) _exit(1);
    for (;;)
      pause();
  }
  s->pid = (pid_t)pid;
  if (read(done[0], &ok, 1) != 1 || !ok) fail("connect");
}

static void hello(struct session *s, int priority) {
  struct xsw_hello h = {.frame = {XSW_FRAME_MAGIC, XSW_VERSION, XSW_FRAME_HELLO, sizeof h},
                        .pid = (uint32_t)s->pid,
                        .scheduler = XSW_SCHEDULER_GLOBAL,
                        .hint = {.said = XSW_HINT_PRIORITY, .priority = priority},
                        .command = "crowd"};
  if (send(s->connection, &h, sizeof h, 0) != sizeof h) fail("send hello");
  union {
    char bytes[XSW_FRAME_MAX_BYTES];
    struct xsw_frame frame;
    struct xsw_refused refused;
  } answer;
  union {
    char bytes[CMSG_SPACE(2 * sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec io = {answer.bytes, sizeof answer.bytes};
  struct msghdr m = {.msg_iov = &io,
                     .msg_iovlen = 1,
                     .msg_control = control.bytes,
                     .msg_controllen = sizeof control.bytes};
  if (recvmsg(s->connection, &m, MSG_CMSG_CLOEXEC) <= 0) fail("receive welcome");
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  if (answer.frame.type != XSW_FRAME_WELCOME || !c || c->cmsg_len != CMSG_LEN(2 * sizeof(int))) {
    errno = EPROTO;
    fail(answer.frame.type == XSW_FRAME_REFUSED ? answer.refused.reason : "no welcome");
  }
  int fds[2];
  memcpy(fds, CMSG_DATA(c), sizeof fds);
  s->page = mmap(NULL, XSW_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
  if (s->page == MAP_FAILED) fail("map page");
  close(fds[0]);
  s->bell = fds[1];
}

static void create_queues(struct session *s) {
  for (unsigned i = 0; i < queue_count; i++) {
    struct xsw_queue *q = queue_of(s, i);
    q->pci_bus_slot = 1 << 8;
    __atomic_store_n(&q->generation, 1, __ATOMIC_RELEASE);
  }
  __atomic_store_n(&s->page->queue_count, queue_count, __ATOMIC_RELEASE);
  ring(s);
}

/* Toggles the queues between busy and idle, round-robin; consecutive changes are of different
 * programs. Each change rings the doorbell, like the first launch of an idle stream. */
static void run(uint64_t ms, uint64_t rate) {
  static unsigned at;
  unsigned all = session_count * queue_count;
  uint64_t begin = now_ns(), end = begin + ms * 1000000, changes = 0, rises = 0;
  for (uint64_t now = begin; now < end; now = now_ns()) {
    for (uint64_t due = (now - begin) * rate / 1000000000; changes < due; changes++) {
      struct session *s = &sessions[at % session_count];
      struct xsw_queue *q = queue_of(s, at / session_count);
      __atomic_store_n(&q->changed_ns, now_ns(), __ATOMIC_RELAXED);
      rises += __atomic_add_fetch(&q->transitions, 1, __ATOMIC_SEQ_CST) & 1;
      ring(s);
      at = (at + 1) % all;
    }
    struct timespec pause_ns = {0, 500000};
    nanosleep(&pause_ns, NULL);
  }
  printf("D %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", changes, rises, now_ns() - begin);
  fflush(stdout);
}

int main(int argc, char **argv) {
  if (argc != 4) return 64;
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  snprintf(at.sun_path, sizeof at.sun_path, "%s", argv[1]);
  session_count = (unsigned)atoi(argv[2]);
  queue_count = (unsigned)atoi(argv[3]);
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (!(sessions = calloc(session_count, sizeof *sessions))) fail("allocate");
  int done[2];
  if (pipe(done) != 0) fail("pipe");
  for (unsigned i = 0; i < session_count; i++) {
    connect_as_another(&sessions[i], &at, done);
    hello(&sessions[i], i % 100 == 0 ? 10 : -(int)(i % 5));
    create_queues(&sessions[i]);
  }
  printf("R\n");
  fflush(stdout);
  char line[128];
  while (fgets(line, sizeof line, stdin)) {
    uint64_t ms, rate;
    if (sscanf(line, "run %" SCNu64 " %" SCNu64, &ms, &rate) == 2)
      run(ms, rate);
    else
      break;
  }
  for (unsigned i = 0; i < session_count; i++)
    kill(sessions[i].pid, SIGKILL);
  return 0;
}
