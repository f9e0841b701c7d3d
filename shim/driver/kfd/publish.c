// SPDX-License-Identifier: Apache-2.0
//
// Tells the daemon which queues there are, and does what it orders. State, not history: a queue
// that came and went in between is never mentioned. What has ended is told before what has come,
// which may have its number.

#include <errno.h>
#include <string.h>

#include "core/parts.h"
#include "table.h"

#define table xsi_kfd_table

static void lock(void) { pthread_mutex_lock(&table.lock); }
static void unlock(void) { pthread_mutex_unlock(&table.lock); }
static void set(uint32_t *flag, uint32_t value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }

bool xsi_kfd_due(void) { return __atomic_load_n(&table.due, __ATOMIC_ACQUIRE) != 0; }
bool xsi_kfd_overflowed(void) { return __atomic_load_n(&table.overflowed, __ATOMIC_ACQUIRE) != 0; }

void xsi_kfd_changed(void) {
  if (!table.listening) return;
  set(&table.due, 1);
  xsi_helper_wake();
}

void xsi_kfd_ended(struct kfd_queue *queue) {
  queue->used = false;
  if (!table.listening || !queue->known) return;
  if (table.gone_count < KFD_GONE)
    table.gone[table.gone_count++] = queue->id;
  else
    set(&table.overflowed, 1);
  xsi_kfd_changed();
}

static void start_over(bool listening) {
  lock();
  table.listening = listening;
  table.gone_count = 0;
  for (unsigned i = 0; i < table.used; i++)
    table.queues[i].known = table.queues[i].told = false;
  set(&table.overflowed, 0);
  set(&table.due, listening && table.used > 0);
  unlock();
}

void xsi_kfd_tell_all(void) { start_over(true); }
void xsi_kfd_tell_none(void) { start_over(false); }

static void describe(struct xsw_kfd_event *event, const struct kfd_queue *queue) {
  *event = (struct xsw_kfd_event){
      .kind = XSW_KFD_QUEUE,
      .id = queue->id,
      .gpu_id = queue->gpu_id,
      .type = queue->type,
      .ring = queue->own.ring,
      .ring_bytes = queue->own.ring_bytes,
      .priority = queue->own.priority,
      .late = queue->late,
  };
}

uint32_t xsi_kfd_next_frame(struct xsw_kfd *frame) {
  memset(frame, 0, offsetof(struct xsw_kfd, events));
  lock();
  while (table.gone_count > 0 && frame->count < XSW_MAX_KFD_EVENTS)
    frame->events[frame->count++] =
        (struct xsw_kfd_event){.kind = XSW_KFD_GONE, .id = table.gone[--table.gone_count]};
  for (unsigned i = 0; i < table.used && frame->count < XSW_MAX_KFD_EVENTS; i++) {
    struct kfd_queue *queue = &table.queues[i];
    if (!queue->used || queue->dying || queue->told) continue;
    describe(&frame->events[frame->count++], queue);
    queue->known = queue->told = true;
  }
  if (frame->count == 0) set(&table.due, 0);
  unlock();
  return frame->count;
}

bool xsi_kfd_order_valid(const struct xsw_order *order) {
  switch (order->kind) {
  case XSW_ORDER_PAUSE:
  case XSW_ORDER_RESUME:
    return order->queues != 0 && order->queues <= XSW_ORDER_BOTH;
  case XSW_ORDER_PRIORITY:
    return order->priority >= -1 && order->priority <= KFD_MAX_PRIORITY;
  case XSW_ORDER_CU_MASK:
    return order->mask_bits % 32 == 0 && order->mask_bits <= KFD_MAX_CU_BITS;
  default:
    return false;
  }
}

// A pause needs a lease that runs: nobody would end it otherwise. One that we have given back does
// not, whatever its deadline says: the daemon counts that pause as undone. What only changes
// priorities or masks is undone with the heartbeat, so it needs that.
static bool allowed(const struct xsw_order *order) {
  uint64_t now = xsi_now_ns();
  if (order->kind == XSW_ORDER_RESUME) return true;
  if (!xsi_session_joined() || xsi_liveness_silent(now)) return false;
  if (order->kind != XSW_ORDER_PAUSE) return true;
  const struct xsw_header *header = xsi_header();
  uint64_t deadline = __atomic_load_n(&header->lease_deadline_ns, __ATOMIC_ACQUIRE);
  uint64_t recovered = __atomic_load_n(&header->recovered_epoch, __ATOMIC_RELAXED); // ours
  return deadline != 0 && now <= deadline && xsi_liveness_epoch() > recovered;
}

int xsi_kfd_obey(const struct xsw_order *order) {
  _Static_assert((int)XSW_ORDER_COMPUTE == (int)XSI_KFD_COMPUTE &&
                     (int)XSW_ORDER_COPY == (int)XSI_KFD_SDMA,
                 "kinds");
  _Static_assert(XSW_KFD_MASK_WORDS == KFD_CU_WORDS, "mask");
  if (!allowed(order)) return -ESTALE;
  switch (order->kind) {
  case XSW_ORDER_PAUSE:
    return xsi_kfd_pause(order->gpu_id, order->queues);
  case XSW_ORDER_RESUME:
    return xsi_kfd_resume(order->gpu_id, order->queues);
  case XSW_ORDER_PRIORITY:
    return xsi_kfd_set_priority(order->gpu_id, order->priority);
  default:
    return xsi_kfd_set_cu_mask(order->gpu_id, order->mask, order->mask_bits);
  }
}
