// SPDX-License-Identifier: Apache-2.0
//
// Operations that only the owner of a queue may do: pause, resume, priority, compute units. The wanted
// state is kept apart from the driver's; a change of either one reconciles the queue.

#include <errno.h>
#include <string.h>

#include "core/log.h"
#include "core/real.h"
#include "table.h"

#define table xsi_kfd_table

static void lock(void) { pthread_mutex_lock(&table.lock); }
static void unlock(void) { pthread_mutex_unlock(&table.lock); }

// ---- wishes ----------------------------------------------------------------------

static struct kfd_wish *wish_of(uint32_t gpu_id) {
  for (unsigned i = 0; i < table.wish_count; i++)
    if (table.wishes[i].gpu_id == gpu_id) return &table.wishes[i];
  if (table.wish_count == KFD_GPUS) return NULL;
  struct kfd_wish *wish = &table.wishes[table.wish_count++];
  *wish = (struct kfd_wish){.gpu_id = gpu_id, .priority = -1};
  return wish;
}

struct kfd_wish xsi_kfd_wish_for(uint32_t gpu_id) {
  struct kfd_wish sum = {.gpu_id = gpu_id, .priority = -1};
  for (unsigned i = 0; i < table.wish_count; i++) {
    const struct kfd_wish *wish = &table.wishes[i];
    if (wish->gpu_id != 0 && wish->gpu_id != gpu_id) continue;
    sum.paused |= wish->paused;
    // A wish for one GPU overrides a wish for all.
    if (wish->priority >= 0 && (sum.priority < 0 || wish->gpu_id != 0))
      sum.priority = wish->priority;
    if (wish->mask.bits != 0 && (sum.mask.bits == 0 || wish->gpu_id != 0)) {
      sum.mask = wish->mask;
      sum.mask_serial = wish->mask_serial;
    }
  }
  return sum;
}

bool xsi_kfd_held(const struct kfd_queue *queue) {
  return (xsi_kfd_wish_for(queue->gpu_id).paused & xsi_kfd_kind(queue->type)) != 0;
}

struct kfd_update_queue xsi_kfd_wanted(const struct kfd_queue *queue,
                                       const struct kfd_update_queue *own) {
  struct kfd_wish wish = xsi_kfd_wish_for(queue->gpu_id);
  struct kfd_update_queue sent = *own;
  // Values that the driver would refuse stay unchanged. Above the percentage's byte is the target XCC.
  if ((wish.paused & xsi_kfd_kind(queue->type)) != 0 && !queue->suspended &&
      (own->percentage & 0xff) <= KFD_MAX_PERCENTAGE)
    sent.percentage &= ~0xffu;
  if (wish.priority >= 0 && own->priority <= KFD_MAX_PRIORITY)
    sent.priority = (uint32_t)wish.priority;
  return sent;
}

struct kfd_mask xsi_kfd_mask_for(const struct kfd_mask *own, const struct kfd_mask *ours) {
  struct kfd_mask both = *ours;
  if (own->bits == 0) return both;
  uint32_t any = 0;
  if (own->bits < both.bits) both.bits = own->bits;
  for (unsigned i = 0; i < both.bits / 32; i++)
    any |= both.words[i] &= own->words[i];
  return any != 0 ? both : *ours;
}

// ---- reconciliation ------------------------------------------------------

int xsi_kfd_call(int fd, unsigned long request, void *argument) {
  int result;
  do
    result = xsi_real_ioctl(fd, request, argument);
  while (result < 0 && errno == EINTR);
  return result < 0 ? -errno : result;
}

static int send_mask(struct kfd_queue *queue, const struct kfd_mask *mask, uint64_t serial) {
  struct kfd_mask copy = *mask;
  struct kfd_set_cu_mask call = {queue->id, copy.bits, (uint64_t)(uintptr_t)copy.words};
  int fd = table.fd;
  unlock();
  int result = xsi_kfd_call(fd, AMDKFD_IOC_SET_CU_MASK, &call);
  lock();
  if (result == 0) {
    queue->mask_ours = serial != 0;
    queue->mask_serial = serial;
  }
  return result;
}

static int sync_mask(struct kfd_queue *queue) {
  if (xsi_kfd_kind(queue->type) != XSI_KFD_COMPUTE) return 0;
  struct kfd_wish wish = xsi_kfd_wish_for(queue->gpu_id);
  if (wish.mask.bits != 0) {
    if (queue->mask_ours && queue->mask_serial == wish.mask_serial) return 0;
    struct kfd_mask both = xsi_kfd_mask_for(&queue->own_mask, &wish.mask);
    return send_mask(queue, &both, wish.mask_serial);
  }
  if (!queue->mask_ours) return 0;
  struct kfd_mask original = queue->own_mask;
  if (original.bits == 0) { // it never had one: all there are
    original.bits = KFD_MAX_CU_BITS;
    memset(original.words, 0xff, sizeof original.words);
  }
  return send_mask(queue, &original, 0);
}

static bool runs(const struct kfd_queue *queue) {
  return !queue->suspended && (queue->percentage_now & 0xff) != 0;
}

static int update(struct kfd_queue *queue, const struct kfd_update_queue *sent) {
  struct kfd_update_queue call = *sent;
  int fd = table.fd;
  unlock();
  int result = xsi_kfd_call(fd, AMDKFD_IOC_UPDATE_QUEUE, &call);
  lock();
  if (result < 0) {
    xsi_log(XSI_WARN, "cannot update queue %u: errno=%d", queue->id, -result);
    return result;
  }
  queue->percentage_now = sent->percentage;
  queue->priority_now = sent->priority;
  return 0;
}

int xsi_kfd_sync(struct kfd_queue *queue) {
  enum { ATTEMPTS = 16 }; // wishes that change all the time are somebody else's loop to end
  for (int i = 0; i < ATTEMPTS; i++) {
    bool held = xsi_kfd_held(queue);
    int result = 0;
    if (held && runs(queue)) // in a session that is there already
      xsi_kfd_suspend(&queue, 1, false);
    else if (!held && queue->suspended)
      result = xsi_kfd_unsuspend(&queue, 1);
    if (result < 0) return result;
    if (!xsi_kfd_held(queue) && queue->suspended) continue; // wanted otherwise meanwhile
    struct kfd_update_queue sent = xsi_kfd_wanted(queue, &queue->own);
    if (sent.percentage == queue->percentage_now && sent.priority == queue->priority_now)
      return sync_mask(queue);
    result = update(queue, &sent);
    if (result < 0) return result;
  }
  return -EAGAIN;
}

void xsi_kfd_detach(struct kfd_queue *queue) {
  if (!queue->suspended) return;
  int saved = errno;
  struct kfd_update_queue sent = queue->own;
  sent.percentage &= ~0xffu;
  (void)update(queue, &sent); // before, so that it does not run in between
  (void)xsi_kfd_unsuspend(&queue, 1);
  errno = saved;
}

// The taken queues whose state a joint request can change: suspends or resumes them together. One
// alone is cheaper by an update, unless a session is there.
static void sync_together(struct kfd_queue *const *taken, unsigned count) {
  struct kfd_queue *stop[KFD_BATCH], *start[KFD_BATCH];
  unsigned stops = 0, starts = 0;
  for (unsigned i = 0; i < count; i++) {
    bool held = xsi_kfd_held(taken[i]);
    if (held && runs(taken[i])) stop[stops++] = taken[i];
    if (!held && taken[i]->suspended) start[starts++] = taken[i];
  }
  if (stops > 1) xsi_kfd_suspend(stop, stops, true);
  if (starts > 1) (void)xsi_kfd_unsuspend(start, starts); // failures are repeated one by one
}

// Brings the next queues below index *at to what is wanted; the lock is held. Batches take queues in
// the order of the table, newest first, so that two of them can't wait for each other. A runtime's
// first queue is its own, mostly idle one.
static void sync_batch(uint32_t gpu_id, unsigned *at, int *good, int *first) {
  struct kfd_queue *taken[KFD_BATCH];
  unsigned count = 0;
  while (*at > 0 && count < KFD_BATCH) {
    struct kfd_queue *place = &table.queues[--*at];
    if (!place->used || place->dying || (gpu_id != 0 && place->gpu_id != gpu_id)) continue;
    struct kfd_queue *queue = xsi_kfd_take(place->id);
    if (queue == place)
      taken[count++] = queue;
    else if (queue != NULL) // gone while we waited, and its number is that of a later one
      xsi_kfd_release(queue);
  }
  sync_together(taken, count);
  for (unsigned i = 0; i < count; i++) {
    int result = xsi_kfd_sync(taken[i]);
    xsi_kfd_release(taken[i]);
    if (result == 0)
      ++*good;
    else if (*first == 0)
      *first = result;
  }
}

// Brings every queue of a GPU (0: of all) to what is wanted now. The lock is held.
static int sync_all(uint32_t gpu_id) {
  int good = 0, first = 0;
  for (unsigned at = table.used; at > 0;)
    sync_batch(gpu_id, &at, &good, &first);
  return first < 0 ? first : good;
}

static int change(uint32_t gpu_id, void (*apply)(struct kfd_wish *wish, const void *what),
                  const void *what) {
  int saved = errno;
  lock();
  struct kfd_wish *wish = wish_of(gpu_id);
  int result = -ENOSPC;
  if (wish != NULL) {
    apply(wish, what);
    result = sync_all(gpu_id);
  }
  unlock();
  errno = saved;
  return result;
}

struct pause {
  uint32_t kinds, lease;
};
static void add_pause(struct kfd_wish *wish, const void *what) {
  const struct pause *pause = what;
  wish->paused |= pause->kinds;
  wish->lease = pause->lease;
}
static void drop_pause(struct kfd_wish *wish, const void *kinds) {
  wish->paused &= ~*(const uint32_t *)kinds;
}
static void take_priority(struct kfd_wish *wish, const void *priority) {
  wish->priority = *(const int32_t *)priority;
}
static void take_mask(struct kfd_wish *wish, const void *mask) {
  static uint64_t serial; // under the lock
  wish->mask = *(const struct kfd_mask *)mask;
  wish->mask_serial = ++serial;
}

int xsi_kfd_pause(uint32_t gpu_id, uint32_t kinds, uint32_t lease) {
  return change(gpu_id, add_pause, &(struct pause){kinds, lease});
}
int xsi_kfd_resume(uint32_t gpu_id, uint32_t kinds) { return change(gpu_id, drop_pause, &kinds); }

int xsi_kfd_set_priority(uint32_t gpu_id, int32_t priority) {
  if (priority < -1 || priority > KFD_MAX_PRIORITY) return -EINVAL;
  return change(gpu_id, take_priority, &priority);
}

int xsi_kfd_set_cu_mask(uint32_t gpu_id, const uint32_t *words, uint32_t bits) {
  if (bits % 32 != 0 || bits > KFD_MAX_CU_BITS || (bits != 0 && words == NULL)) return -EINVAL;
  struct kfd_mask mask = {.bits = bits};
  if (bits != 0) memcpy(mask.words, words, bits / 8);
  return change(gpu_id, take_mask, &mask);
}

// The daemon's wishes for the GPUs under a lease go, pauses and others; it repeats what it still wants.
static int recover_lease(uint32_t number) {
  int result = 0;
  for (unsigned i = 0; i < table.wish_count; i++) {
    struct kfd_wish *wish = &table.wishes[i];
    if (wish->lease != number) continue;
    uint32_t gpu_id = wish->gpu_id;
    *wish = (struct kfd_wish){.gpu_id = gpu_id, .priority = -1, .lease = number};
    int synced = sync_all(gpu_id);
    if (synced < 0) result = synced;
  }
  return result;
}

int xsi_kfd_recover(const struct xsi_lease *lease) {
  int saved = errno;
  lock();
  if (lease == NULL) table.wish_count = 0;
  int result = lease == NULL ? sync_all(0) : recover_lease(lease->number);
  // The end of the session resumes what the driver would not, and leaves nothing behind when the
  // daemon is gone.
  if (lease == NULL || result < 0) {
    xsi_kfd_session_end();
    if (result < 0) result = sync_all(0);
  }
  unlock();
  if (result < 0) xsi_log(XSI_WARN, "not every queue is restored: errno=%d", -result);
  errno = saved;
  return result < 0 ? -EAGAIN : 0;
}
