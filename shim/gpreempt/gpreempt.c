// SPDX-License-Identifier: Apache-2.0
//
// The caller's half: a handle is a socket to its agent.

#include "gpreempt.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"
#include "list.h"

#define EXPORT __attribute__((visibility("default")))

struct gpreempt {
  int socket;
  pid_t agent, owner; // owner: not the child of a later fork
  uint32_t mhz;       // of the fastest GPU, for grace periods
  struct agent_command command;
  struct agent_answer answer;
};

static int receive(gpreempt *handle) {
  ssize_t got;
  do
    got = recv(handle->socket, &handle->answer, sizeof handle->answer, 0);
  while (got < 0 && errno == EINTR);
  if (got < (ssize_t)offsetof(struct agent_answer, queues)) return -ESRCH; // the target has ended
  return handle->answer.result;
}

static int ask(gpreempt *handle) {
  size_t bytes = offsetof(struct agent_command, ids) + handle->command.count * sizeof(uint32_t);
  ssize_t sent;
  do
    sent = send(handle->socket, &handle->command, bytes, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == (ssize_t)bytes ? receive(handle) : -ESRCH;
}

// The agent must not keep files of the caller open, nor run the caller's signal handlers.
static void become_agent(int socket, pid_t caller, pid_t target) {
  int own = dup2(socket, 3);
  if (own == 3) {
    syscall(SYS_close_range, 4, ~0U, 0);
    for (int fd = 0; fd < 3; fd++)
      close(fd);
    agent_run(own, caller, target);
  }
  _exit(0);
}

EXPORT int gpreempt_attach(gpreempt **handle, pid_t pid) {
  int pair[2];
  if (handle == NULL || pid <= 0) return -EINVAL;
  gpreempt *new = calloc(1, sizeof *new);
  if (new == NULL) return -ENOMEM;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    free(new);
    return -errno;
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  new->owner = getpid();
  new->agent = fork();
  int error = errno;
  if (new->agent == 0) become_agent(pair[1], new->owner, pid);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  close(pair[1]);
  new->socket = pair[0];
  int result = new->agent < 0 ? -error : receive(new);
  if (result < 0) {
    gpreempt_detach(new);
    return result;
  }
  new->mhz = highest_clock();
  *handle = new;
  return 0;
}

EXPORT int gpreempt_list(gpreempt *handle, gpreempt_queue *queues, unsigned room) {
  if (handle == NULL || (queues == NULL && room > 0)) return -EINVAL;
  handle->command = (struct agent_command){.op = AGENT_LIST};
  int result = ask(handle);
  if (result < 0) return result;
  unsigned count = handle->answer.count < room ? handle->answer.count : room;
  if (count > 0) memcpy(queues, handle->answer.queues, count * sizeof *queues);
  return result;
}

static int change(gpreempt *handle, uint32_t op, const uint32_t *ids, unsigned count,
                  uint32_t grace, uint8_t *outcomes) {
  if (handle == NULL || count > GPREEMPT_MAX_QUEUES || (ids == NULL && count > 0)) return -EINVAL;
  handle->command = (struct agent_command){.op = op, .count = count, .grace = grace};
  if (count > 0) memcpy(handle->command.ids, ids, count * sizeof *ids);
  int result = ask(handle);
  if (result >= 0 && outcomes != NULL && count > 0)
    memcpy(outcomes, handle->answer.outcomes, count);
  return result;
}

EXPORT int gpreempt_suspend(gpreempt *handle, const uint32_t *ids, unsigned count,
                            uint32_t grace_us, uint8_t *outcomes) {
  if (handle == NULL) return -EINVAL;
  return change(handle, AGENT_SUSPEND, ids, count, grace_units(grace_us, handle->mhz), outcomes);
}

EXPORT int gpreempt_resume(gpreempt *handle, const uint32_t *ids, unsigned count,
                           uint8_t *outcomes) {
  return change(handle, AGENT_RESUME, ids, count, 0, outcomes);
}

EXPORT int gpreempt_status(gpreempt *handle, uint32_t id, gpreempt_queue *queue) {
  if (queue == NULL) return -EINVAL;
  int result = gpreempt_list(handle, NULL, 0);
  if (result < 0) return result;
  for (unsigned i = 0; i < handle->answer.count; i++) {
    if (handle->answer.queues[i].id != id) continue;
    *queue = handle->answer.queues[i];
    return 0;
  }
  return -ENOENT;
}

EXPORT void gpreempt_detach(gpreempt *handle) {
  if (handle == NULL) return;
  // The agent undoes all changes and exits, even if a child of the caller has a copy of the socket.
  bool mine = handle->owner == getpid();
  if (mine) shutdown(handle->socket, SHUT_RDWR);
  close(handle->socket);
  if (handle->agent > 0 && mine)
    while (waitpid(handle->agent, NULL, 0) < 0 && errno == EINTR) {
    }
  free(handle);
}
