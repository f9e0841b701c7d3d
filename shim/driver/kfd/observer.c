// SPDX-License-Identifier: Apache-2.0
//
// Watches the application's own requests: learns queues when the driver has made them, forgets them
// before they end, and keeps a pause in force when the application changes a paused queue (its
// runtime sends 100 percent with every change of priority).

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/fd.h"
#include "core/log.h"
#include "core/options.h"
#include "core/real.h"
#include "core/wake.h"
#include "table.h"

static uint32_t gone[KFD_GONE];
static struct kfd_wish wishes[KFD_GPUS];
static struct kfd_queue queues[KFD_QUEUES];
XSI_FORK_STATE struct kfd_table xsi_kfd_table = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .fd = -1,
    .gone = gone,
    .wishes = wishes,
    .queues = queues,
};
#define table xsi_kfd_table

static void lock(void) { pthread_mutex_lock(&table.lock); }
static void unlock(void) { pthread_mutex_unlock(&table.lock); }

void xsi_kfd_lock(void) { lock(); }
void xsi_kfd_unlock(void) { unlock(); }

// The driver's files do not work in a child, and its queues are the parent's.
void xsi_kfd_reset(void) {
  // Clear only what was written: each page that is touched here is copied for the child.
  if (table.used > 0) memset(table.queues, 0, table.used * sizeof *table.queues);
  table.used = table.wish_count = table.gone_count = 0;
  table.listening = false;
  table.due = table.overflowed = table.waiters = 0;
  table.runtime = false;
  table.session = KFD_SESSION_NONE; // the parent's
  table.session_users = 0;
  table.ordered = table.answered = false;
  xsi_fd_close(&table.fd);
}

uint32_t xsi_kfd_kind(uint32_t type) {
  return type == 0 || type == 2 ? XSI_KFD_COMPUTE : XSI_KFD_SDMA;
}

// Not one that is being destroyed: the driver may have given its number to the next already.
static struct kfd_queue *find(uint32_t id) {
  for (unsigned i = 0; i < table.used; i++) {
    struct kfd_queue *queue = &table.queues[i];
    if (queue->used && !queue->dying && queue->id == id) return queue;
  }
  return NULL;
}

// Not pthread_cond_wait(), which is a cancellation point and returns with the lock held.
void xsi_kfd_wait(void) {
  uint32_t seen = table.releases;
  table.waiters++;
  unlock();
  int saved = errno; // the application's, until the driver sets it
  syscall(SYS_futex, &table.releases, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
  errno = saved;
  lock();
  table.waiters--;
}

void xsi_kfd_wake(void) {
  __atomic_store_n(&table.releases, table.releases + 1, __ATOMIC_RELAXED);
  if (table.waiters == 0) return;
  int saved = errno;
  syscall(SYS_futex, &table.releases, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
  errno = saved;
}

struct kfd_queue *xsi_kfd_take(uint32_t id) {
  for (;;) {
    struct kfd_queue *queue = find(id);
    if (queue == NULL) return NULL;
    if (!queue->busy) {
      queue->busy = true;
      return queue;
    }
    xsi_kfd_wait();
  }
}

void xsi_kfd_release(struct kfd_queue *queue) {
  queue->busy = false;
  xsi_kfd_wake();
}

static struct kfd_queue *place(void) {
  for (unsigned i = 0; i < table.used; i++)
    if (!table.queues[i].used) return &table.queues[i];
  return table.used < KFD_QUEUES ? &table.queues[table.used++] : NULL;
}

static void on_create(int fd, const struct kfd_create_queue *made) {
  lock();
  if (table.fd < 0) table.fd = xsi_fd_duplicate(fd);
  struct kfd_queue *queue = table.fd < 0 ? NULL : place();
  if (queue == NULL) {
    unlock();
    xsi_log(XSI_WARN, "queue %u is not scheduled: no room", made->queue_id);
    return;
  }
  // The driver raises a smaller ring to this.
  uint32_t bytes = made->ring_bytes < 1024 ? 1024 : made->ring_bytes;
  *queue = (struct kfd_queue){
      .used = true,
      .busy = true,
      .id = made->queue_id,
      .gpu_id = made->gpu_id,
      .type = made->type,
      .own = {made->ring, made->queue_id, bytes, made->percentage, made->priority},
      .percentage_now = made->percentage,
      .priority_now = made->priority,
  };
  queue->late = (xsi_kfd_wish_for(made->gpu_id).paused & xsi_kfd_kind(made->type)) != 0;
  // Before the application can use it: one made while paused never runs.
  int result = xsi_kfd_sync(queue);
  xsi_kfd_release(queue);
  xsi_kfd_changed();
  unlock();
  if (result < 0) xsi_log(XSI_WARN, "queue %u: errno=%d", made->queue_id, -result);
  xsi_wake_start(); // a program may have queues and no runtime that we know
}

static int create(int fd, unsigned long request, void *argument) {
  int result = xsi_real_ioctl(fd, request, argument);
  if (result != 0) return result;
  int saved = errno;
  struct kfd_create_queue made;
  memcpy(&made, argument, sizeof made);
  on_create(fd, &made);
  errno = saved;
  return result;
}

// Is the word around it readable? The kernel reads a set of signals before it finds that nothing is
// to be done with it: no descriptor, nothing changed, and no sandbox forbids it.
static bool readable(uintptr_t address) {
  enum { NO_ACTION = 99 };
  const uintptr_t word = sizeof(uint64_t);
  return syscall(SYS_rt_sigprocmask, NO_ACTION, address & ~(word - 1), NULL, word) == 0 ||
         errno != EFAULT;
}

// Copies what the driver has not accepted yet. False: it is not there, which is for the driver to
// say. At most two pages, so its ends speak for all of it.
static bool look(void *copy, const void *argument, size_t bytes) {
  int saved = errno;
  uintptr_t first = (uintptr_t)argument;
  bool there = readable(first) && readable(first + bytes - 1);
  errno = saved;
  if (there) memcpy(copy, argument, bytes);
  return there;
}

static int destroy(int fd, unsigned long request, void *argument) {
  struct kfd_destroy_queue call;
  if (!look(&call, argument, sizeof call)) return xsi_real_ioctl(fd, request, argument);
  lock();
  struct kfd_queue *queue = xsi_kfd_take(call.queue_id);
  if (queue != NULL) {
    xsi_kfd_detach(queue);
    queue->dying = true;
    xsi_kfd_wake(); // the driver may wait for the end of the session, and that for this queue
  }
  unlock();
  int result = xsi_real_ioctl(fd, request, argument);
  int saved = errno;
  if (queue != NULL) {
    lock();
    if (result == 0) xsi_kfd_ended(queue);
    queue->dying = false;
    // What was wanted of it meanwhile has passed it by.
    if (result != 0) {
      xsi_kfd_sync(queue);
      xsi_kfd_changed();
    }
    xsi_kfd_release(queue);
    unlock();
  }
  errno = saved;
  return result;
}

static int update(int fd, unsigned long request, void *argument) {
  struct kfd_update_queue own, sent;
  if (!look(&own, argument, sizeof own)) return xsi_real_ioctl(fd, request, argument);
  lock();
  struct kfd_queue *queue = xsi_kfd_take(own.queue_id);
  if (queue == NULL) {
    unlock();
    return xsi_real_ioctl(fd, request, argument);
  }
  sent = xsi_kfd_wanted(queue, &own);
  unlock();
  int result = xsi_real_ioctl(fd, request, &sent);
  int saved = errno;
  lock();
  if (result == 0) {
    queue->own = own;
    if (own.ring_bytes < 1024) queue->own.ring_bytes = 1024;
    queue->told = false;
    xsi_kfd_changed();
    queue->percentage_now = sent.percentage;
    queue->priority_now = sent.priority;
    xsi_kfd_sync(queue); // wanted otherwise meanwhile
  }
  xsi_kfd_release(queue);
  unlock();
  errno = saved;
  return result;
}

// Passed on unchanged, so that the application sees a refusal. The wanted mask is applied afterwards.
static int set_mask(int fd, unsigned long request, void *argument) {
  struct kfd_set_cu_mask call;
  if (!look(&call, argument, sizeof call)) return xsi_real_ioctl(fd, request, argument);
  lock();
  struct kfd_queue *queue = xsi_kfd_take(call.queue_id);
  unlock();
  int result = xsi_real_ioctl(fd, request, argument);
  int saved = errno;
  if (queue != NULL) {
    lock();
    if (result == 0) { // so the driver has read all of it
      queue->own_mask.bits = call.bits > KFD_MAX_CU_BITS ? KFD_MAX_CU_BITS : call.bits;
      memcpy(queue->own_mask.words, (const void *)(uintptr_t)call.mask, queue->own_mask.bits / 8);
      queue->mask_ours = false;
      queue->mask_serial = 0;
      xsi_kfd_sync(queue);
    }
    xsi_kfd_release(queue);
    unlock();
  }
  errno = saved;
  return result;
}

static bool session_allowed;

void xsi_kfd_read_options(void) {
  char allowed[8];
  session_allowed =
      xsi_option_text("XSCHED_AMD_SESSION", allowed, sizeof allowed) && strcmp(allowed, "1") == 0;
}

// A runtime that ends while the driver has a debug session waits for the debugger's answer, so the
// session ends before. It may begin again with the runtime.
static int runtime(int fd, unsigned long request, void *argument) {
  struct kfd_runtime_enable call;
  if (!look(&call, argument, sizeof call)) return xsi_real_ioctl(fd, request, argument);
  bool on = (call.mode & KFD_RUNTIME_ON) != 0;
  lock();
  bool was = table.runtime;
  if (!on) {
    table.runtime = false;
    xsi_kfd_session_end();
  }
  unlock();
  int result = xsi_real_ioctl(fd, request, argument);
  int saved = errno;
  lock();
  if (on && result == 0) table.runtime = session_allowed;
  if (!on && result != 0) table.runtime = was;
  unlock();
  errno = saved;
  return result;
}

// The application debugs itself: a process has one debugger, and it comes first.
static int debug(int fd, unsigned long request, void *argument) {
  struct kfd_dbg_trap call;
  if (look(&call, argument, sizeof call) && call.op == KFD_DBG_ENABLE &&
      call.pid == (uint32_t)getpid()) {
    lock();
    table.runtime = false;
    xsi_kfd_session_end();
    unlock();
  }
  return xsi_real_ioctl(fd, request, argument);
}

int xsi_kfd_ioctl(int fd, unsigned long request, void *argument) {
  switch ((uint32_t)request) {
  case AMDKFD_IOC_CREATE_QUEUE_88:
  case AMDKFD_IOC_CREATE_QUEUE_96: return create(fd, request, argument);
  case AMDKFD_IOC_DESTROY_QUEUE: return destroy(fd, request, argument);
  case AMDKFD_IOC_UPDATE_QUEUE: return update(fd, request, argument);
  case AMDKFD_IOC_SET_CU_MASK: return set_mask(fd, request, argument);
  case AMDKFD_IOC_RUNTIME_ENABLE: return runtime(fd, request, argument);
  case AMDKFD_IOC_DBG_TRAP: return debug(fd, request, argument);
  default: return xsi_real_ioctl(fd, request, argument);
  }
}

unsigned xsi_kfd_list(struct xsi_kfd_queue *list, unsigned room) {
  unsigned count = 0;
  lock();
  for (unsigned i = 0; i < table.used; i++) {
    const struct kfd_queue *queue = &table.queues[i];
    if (!queue->used) continue;
    if (count < room)
      list[count] = (struct xsi_kfd_queue){
          .id = queue->id,
          .gpu_id = queue->gpu_id,
          .kind = xsi_kfd_kind(queue->type),
          .type = queue->type,
          .ring = queue->own.ring,
          .ring_bytes = queue->own.ring_bytes,
          .percentage = queue->own.percentage,
          .priority = queue->own.priority,
          .paused = queue->suspended ||
                    ((queue->percentage_now & 0xff) == 0 && (queue->own.percentage & 0xff) != 0),
          .priority_now = queue->priority_now,
      };
    count++;
  }
  unlock();
  return count;
}
