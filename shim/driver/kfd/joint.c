// SPDX-License-Identifier: Apache-2.0
//
// One request for all queues of a pause. UPDATE_QUEUE takes one queue, and with the firmware scheduler
// HWS each request unmaps and maps every queue of the GPU. The debugger's SUSPEND_QUEUES takes an
// array and remaps once per GPU. The driver lets a process debug itself, without rights or ptrace.
//
// The session costs what a debugger costs: a process has only one (rocgdb is refused meanwhile), and a
// kernel's __builtin_debugtrap stops. Hence it is used only with XSCHED_AMD_SESSION=1. It begins with
// the first pause of several queues and ends with the daemon. It asks for no exceptions, so faults go
// to the runtime as usual. Where the driver refuses it, each queue is paused by an update.

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "table.h"

#define table xsi_kfd_table

static void lock(void) { pthread_mutex_lock(&table.lock); }
static void unlock(void) { pthread_mutex_unlock(&table.lock); }

static int request(int fd, struct kfd_dbg_trap *call) {
  call->pid = (uint32_t)getpid();
  return xsi_kfd_call(fd, AMDKFD_IOC_DBG_TRAP, call);
}

// Without the lock. The driver keeps the event file; nothing is ever written to it.
static int enable(int fd) {
  struct kfd_runtime_info info = {.state = 0};
  int events = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (events < 0) return -errno;
  struct kfd_dbg_trap call = {.op = KFD_DBG_ENABLE};
  call.enable.info = (uint64_t)(uintptr_t)&info;
  call.enable.info_bytes = sizeof info;
  call.enable.event_fd = (uint32_t)events;
  int result = request(fd, &call);
  xsi_fd_close(&events);
  if (result < 0 || info.state == KFD_RUNTIME_ENABLED) return result;
  // On GPUs with one debug VMID, another process may have it.
  (void)request(fd, &(struct kfd_dbg_trap){.op = KFD_DBG_DISABLE});
  return -EBUSY;
}

// Enters the session; false: there is none. It never waits, because the caller may hold queues that
// the thread which ends the session waits for.
static bool enter(bool open) {
  if (table.session == KFD_SESSION_NONE && open && table.runtime) {
    table.session = KFD_SESSION_CHANGES;
    int fd = table.fd;
    unlock();
    int result = enable(fd);
    lock();
    table.session = result < 0 ? KFD_SESSION_NONE : KFD_SESSION_OPEN;
    if (result < 0) {
      table.runtime = false; // until the runtime starts again
      xsi_log(XSI_INFO, "queues are paused one by one: errno=%d", -result);
    }
    xsi_kfd_wake();
  }
  if (table.session != KFD_SESSION_OPEN) return false;
  table.session_users++;
  return true;
}

static void leave(void) {
  table.session_users--;
  xsi_kfd_wake();
}

// The driver skips queues that its debugger has not seen. Those beyond the room stay unseen.
static int see(int fd) {
  uint64_t entries[KFD_BATCH]; // the first word of each
  struct kfd_dbg_trap call = {.op = KFD_DBG_QUEUE_SNAPSHOT};
  call.snapshot.exceptions = KFD_EC_QUEUE_NEW;
  call.snapshot.entries = (uint64_t)(uintptr_t)entries;
  call.snapshot.count = KFD_BATCH;
  call.snapshot.entry_bytes = sizeof *entries;
  return request(fd, &call);
}

// Without the lock. The results are in ids.
static int resume(int fd, uint32_t *ids, unsigned count) {
  struct kfd_dbg_trap call = {.op = KFD_DBG_RESUME_QUEUES};
  call.resume.ids = (uint64_t)(uintptr_t)ids;
  call.resume.count = count;
  return request(fd, &call);
}

void xsi_kfd_suspend(struct kfd_queue *const *queues, unsigned count, bool open) {
  uint32_t ids[KFD_BATCH];
  if (!enter(open)) return;
  bool seen = true;
  for (unsigned i = 0; i < count; i++) {
    ids[i] = queues[i]->id;
    seen = seen && queues[i]->seen;
  }
  int fd = table.fd;
  unlock();
  int result = seen ? 0 : see(fd);
  struct kfd_dbg_trap call = {.op = KFD_DBG_SUSPEND_QUEUES};
  call.suspend.ids = (uint64_t)(uintptr_t)ids;
  call.suspend.count = count;
  call.suspend.grace = KFD_DEFAULT_GRACE;
  if (result >= 0) result = request(fd, &call);
  lock();
  for (unsigned i = 0; i < count && result >= 0; i++)
    queues[i]->suspended = queues[i]->seen = ids[i] == queues[i]->id;
  // The driver counts a queue as suspended though the hardware did not obey.
  for (unsigned i = 0; i < count && result >= 0; i++) {
    if ((ids[i] & KFD_DBG_QUEUE_ERROR) == 0) continue;
    uint32_t id = queues[i]->id;
    unlock();
    (void)resume(fd, &id, 1);
    lock();
  }
  leave();
  if (result < 0) xsi_log(XSI_WARN, "cannot suspend %u queues: errno=%d", count, -result);
}

int xsi_kfd_unsuspend(struct kfd_queue *const *queues, unsigned count) {
  uint32_t ids[KFD_BATCH];
  bool entered = enter(false); // else the session is about to end, which resumes them
  for (unsigned i = 0; i < count; i++) {
    ids[i] = queues[i]->id;
    if (!entered) queues[i]->suspended = false;
  }
  if (!entered) return 0;
  int fd = table.fd;
  unlock();
  int result = resume(fd, ids, count);
  lock();
  leave();
  if (result < 0) {
    xsi_log(XSI_WARN, "cannot resume %u queues: errno=%d", count, -result);
    return result;
  }
  result = 0;
  for (unsigned i = 0; i < count; i++) {
    queues[i]->suspended = ids[i] != queues[i]->id;
    if (queues[i]->suspended) result = -EIO;
  }
  return result;
}

void xsi_kfd_session_end(void) {
  while (table.session == KFD_SESSION_CHANGES)
    xsi_kfd_wait();
  if (table.session == KFD_SESSION_NONE) return;
  int saved = errno;
  table.session = KFD_SESSION_CHANGES; // from here on nobody enters
  while (table.session_users > 0)
    xsi_kfd_wait();
  for (unsigned i = 0; i < table.used; i++) {
    const struct kfd_queue *place = &table.queues[i];
    if (!place->used || place->dying || !place->suspended) continue;
    struct kfd_queue *queue = xsi_kfd_take(place->id);
    if (queue == NULL) continue;
    queue->suspended = false;
    (void)xsi_kfd_sync(queue); // a pause that is wanted goes on
    xsi_kfd_release(queue);
  }
  int fd = table.fd;
  unlock();
  int result = request(fd, &(struct kfd_dbg_trap){.op = KFD_DBG_DISABLE});
  lock();
  table.session = KFD_SESSION_NONE;
  for (unsigned i = 0; i < table.used; i++)
    table.queues[i].seen = false;
  xsi_kfd_wake();
  if (result < 0) xsi_log(XSI_WARN, "cannot end the debug session: errno=%d", -result);
  errno = saved;
}
