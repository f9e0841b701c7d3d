// SPDX-License-Identifier: Apache-2.0
//
// The process that traces the target. The driver obeys only the tracing thread, and a tracer must
// forward every signal of the target at once. So one thread waits for the caller's commands, the
// target's stops and the driver's events. All signals are blocked.

#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// From include/uapi/linux/kfd_ioctl.h.
#define AMDKFD_IOC_DBG_TRAP 0xC0204B26u
enum {
  ENABLE = 0,
  DISABLE = 1,
  SEND_EVENT = 2,
  SUSPEND = 6,
  RESUME = 7,
  QUERY = 11,
  SNAPSHOT = 13,
};
#define EC_QUEUE_NEW 0x40000000u
#define EC_PROCESS_RUNTIME 0x800000000000u
#define QUEUE_ERROR 0x40000000u
#define QUEUE_INVALID 0x80000000u

struct trap {
  uint32_t pid, op;
  union {
    struct {
      uint64_t mask, info;
      uint32_t info_bytes, fd;
    } enable;
    struct {
      uint64_t mask;
      uint32_t gpu_id, queue_id;
    } event;
    struct {
      uint64_t mask, ids;
      uint32_t count, grace;
    } suspend;
    struct {
      uint64_t ids;
      uint32_t count, _rsv;
    } resume;
    struct {
      uint64_t mask, entries;
      uint32_t count, entry_bytes;
    } snapshot;
  };
};
struct entry {
  uint64_t exceptions, ring, wptr, rptr, save;
  uint32_t id, gpu_id, ring_bytes, type, save_bytes, _rsv;
};
_Static_assert(sizeof(struct trap) == 32 && offsetof(struct trap, suspend.count) == 24 &&
                   offsetof(struct trap, resume.ids) == 8 &&
                   offsetof(struct trap, resume.count) == 16 &&
                   offsetof(struct trap, enable.fd) == 28,
               "dbg_trap");
_Static_assert(sizeof(struct entry) == 64 && offsetof(struct entry, id) == 40, "snapshot entry");

static pid_t target;
static int kfd = -1, events[2] = {-1, -1}, stops = -1;
static bool enabled, gone;
static struct entry entries[GPREEMPT_MAX_QUEUES];
static uint32_t held[GPREEMPT_MAX_QUEUES];
static unsigned held_count;
static struct agent_command command;
static struct agent_answer answer;

static int trap_call(struct trap *trap) {
  int result;
  trap->pid = (uint32_t)target;
  do
    result = ioctl(kfd, AMDKFD_IOC_DBG_TRAP, trap);
  while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : result;
}

// ---- the target's stops ----------------------------------------------------------

static void proceed(int status) {
  int signal = WSTOPSIG(status);
  if (status >> 16 == PTRACE_EVENT_STOP) {
    if (signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU) {
      ptrace(PTRACE_LISTEN, target, NULL, NULL); // a stopped job stays stopped
      return;
    }
    signal = 0;
  }
  ptrace(PTRACE_CONT, target, NULL, (void *)(uintptr_t)signal);
}

static void pass_signals(void) {
  int status;
  for (;;) {
    pid_t pid = waitpid(target, &status, WNOHANG | __WALL);
    if (pid < 0 && errno == EINTR) continue;
    if (pid == 0) return;
    if (pid < 0 || !WIFSTOPPED(status)) {
      gone = true;
      return;
    }
    proceed(status);
  }
}

static void let_go(void) {
  int status;
  if (gone || ptrace(PTRACE_INTERRUPT, target, NULL, NULL) != 0) return;
  while (waitpid(target, &status, __WALL) < 0 && errno == EINTR) {
  }
  if (!WIFSTOPPED(status)) return;
  int signal = status >> 16 == 0 ? WSTOPSIG(status) : 0;
  ptrace(PTRACE_DETACH, target, NULL, (void *)(uintptr_t)signal);
}

// ---- the driver ------------------------------------------------------------------

static int start(void) {
  uint32_t version[2];
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  if ((stops = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) return -errno;
  if ((kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC)) < 0) return errno == ENOENT ? -ENODEV : -errno;
  if (ioctl(kfd, AMDKFD_IOC_GET_VERSION, version) != 0) return -errno;
  if (version[0] != 1 || version[1] < MIN_MINOR) return -ENOTTY;
  if (ptrace(PTRACE_SEIZE, target, NULL, NULL) != 0) return -errno;
  if (pipe2(events, O_CLOEXEC | O_NONBLOCK) != 0) return -errno;
  uint32_t info[4] = {0};
  struct trap trap = {.op = ENABLE,
                      .enable = {.mask = EC_PROCESS_RUNTIME,
                                 .info = (uint64_t)(uintptr_t)info,
                                 .info_bytes = sizeof info,
                                 .fd = (uint32_t)events[1]}};
  int result = trap_call(&trap);
  enabled = result == 0;
  return result;
}

static bool is_held(uint32_t id) {
  for (unsigned i = 0; i < held_count; i++)
    if (held[i] == id) return true;
  return false;
}

static void set_held(uint32_t id, bool on) {
  for (unsigned i = 0; i < held_count; i++) {
    if (held[i] != id) continue;
    if (!on) held[i] = held[--held_count];
    return;
  }
  if (on && held_count < GPREEMPT_MAX_QUEUES) held[held_count++] = id;
}

// Forgets queues that have gone. Their numbers may belong to new queues.
static void forget_gone(const struct entry *known, unsigned count) {
  for (unsigned i = held_count; i-- > 0;) {
    unsigned k = 0;
    while (k < count && known[k].id != held[i])
      k++;
    if (k == count || (known[k].exceptions & EC_QUEUE_NEW) != 0) held[i] = held[--held_count];
  }
}

// Also clears NEW on all queues, which a suspend requires. Returns a count, or -errno.
static int snapshot(void) {
  struct trap trap = {.op = SNAPSHOT,
                      .snapshot = {.mask = EC_QUEUE_NEW,
                                   .entries = (uint64_t)(uintptr_t)entries,
                                   .count = GPREEMPT_MAX_QUEUES,
                                   .entry_bytes = sizeof *entries}};
  int result = trap_call(&trap);
  if (result < 0) return result;
  if (trap.snapshot.entry_bytes != sizeof *entries) return -ENOTTY;
  if (trap.snapshot.count > GPREEMPT_MAX_QUEUES) return -E2BIG;
  forget_gone(entries, trap.snapshot.count);
  return (int)trap.snapshot.count;
}

static int list(void) {
  int count = snapshot();
  if (count < 0) return count;
  for (int i = 0; i < count; i++) {
    const struct entry *e = &entries[i];
    answer.queues[i] = (gpreempt_queue){.id = e->id,
                                        .gpu_id = e->gpu_id,
                                        .type = e->type,
                                        .ring_bytes = e->ring_bytes,
                                        .ring = e->ring,
                                        .suspended = is_held(e->id)};
  }
  answer.count = (uint32_t)count;
  return count;
}

static int change(void) {
  bool suspend = command.op == AGENT_SUSPEND;
  int known = snapshot();
  if (known < 0) return known;
  if (command.count == 0) // all queues
    for (command.count = 0; command.count < (unsigned)known; command.count++)
      command.ids[command.count] = entries[command.count].id;
  if (command.count == 0) return 0;
  struct trap trap = {.op = suspend ? SUSPEND : RESUME};
  uint64_t ids = (uint64_t)(uintptr_t)command.ids;
  if (suspend) {
    trap.suspend.ids = ids;
    trap.suspend.count = command.count;
    trap.suspend.grace = command.grace;
  } else {
    trap.resume.ids = ids;
    trap.resume.count = command.count;
  }
  int result = trap_call(&trap);
  if (result < 0) return result;
  answer.count = command.count;
  for (unsigned i = 0; i < command.count; i++) {
    uint32_t id = command.ids[i] & ~(QUEUE_ERROR | QUEUE_INVALID);
    answer.outcomes[i] = command.ids[i] & QUEUE_ERROR     ? GPREEMPT_FAILED
                         : command.ids[i] & QUEUE_INVALID ? GPREEMPT_INVALID
                                                          : GPREEMPT_DONE;
    // A failed suspend leaves the driver's mark on the queue: it stops at the next chance.
    if (answer.outcomes[i] == GPREEMPT_DONE || (answer.outcomes[i] == GPREEMPT_FAILED && suspend))
      set_held(id, suspend);
  }
  return result;
}

// A runtime that starts or ends under a debugger waits for this reply.
static void answer_events(void) {
  char drop[256];
  while (read(events[0], drop, sizeof drop) > 0) {
  }
  for (int i = 0; i < GPREEMPT_MAX_QUEUES; i++) {
    struct trap trap = {.op = QUERY, .event = {.mask = EC_PROCESS_RUNTIME}};
    if (trap_call(&trap) < 0) return;
    if ((trap.event.mask & EC_PROCESS_RUNTIME) == 0) return;
    struct trap reply = {.op = SEND_EVENT, .event = {.mask = EC_PROCESS_RUNTIME}};
    trap_call(&reply);
  }
}

// ---- the loop --------------------------------------------------------------------

static bool serve(int socket) {
  ssize_t got = recv(socket, &command, sizeof command, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got < (ssize_t)offsetof(struct agent_command, ids)) return false; // the caller has ended
  answer.count = 0;
  answer.result = command.op == AGENT_LIST ? list() : change();
  size_t bytes = offsetof(struct agent_answer, queues) +
                 (command.op == AGENT_LIST ? answer.count * sizeof *answer.queues : answer.count);
  return send(socket, &answer, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

// A descriptor that becomes readable when the caller ends: its children may keep the socket open.
// Before Linux 5.3 there is none. False: the caller has ended.
static bool watch_caller(pid_t caller, int *fd) {
  *fd = (int)syscall(SYS_pidfd_open, caller, 0);
  return getppid() == caller;
}

void agent_run(int socket, pid_t caller, pid_t pid) {
  int ended;
  if (!watch_caller(caller, &ended)) return;
  target = pid;
  answer.result = start();
  size_t bytes = offsetof(struct agent_answer, queues);
  bool on = send(socket, &answer, bytes, MSG_NOSIGNAL) == (ssize_t)bytes && answer.result >= 0;
  struct pollfd polled[4] = {{.fd = socket, .events = POLLIN},
                             {.fd = stops, .events = POLLIN},
                             {.fd = events[0], .events = POLLIN},
                             {.fd = ended, .events = POLLIN}};
  while (on && !gone) {
    pass_signals();
    if (gone || poll(polled, 4, -1) < 0) continue;
    if (polled[1].revents != 0) {
      struct signalfd_siginfo info;
      while (read(stops, &info, sizeof info) > 0) {
      }
      pass_signals(); // before anything else
    }
    if (polled[2].revents & POLLIN) answer_events();
    if (polled[0].revents != 0) on = serve(socket);
    if (polled[3].revents != 0) on = false;
  }
  if (enabled && !gone) {
    struct trap trap = {.op = DISABLE};
    trap_call(&trap);
  }
  let_go();
}
