// SPDX-License-Identifier: Apache-2.0
//
// Tells the daemon which queues there are, and carries out its orders. Frames carry state, not
// history: a queue that came and went in between is never mentioned. Queues that ended are told
// before those that came, which may have their numbers.

#include <errno.h>
#include <string.h>

#include "core/clock.h"
#include "core/driver.h"
#include "core/frame.h"
#include "core/gate.h"
#include "core/liveness.h"
#include "core/page.h"
#include "core/wake.h"
#include "table.h"

#define table xsi_kfd_table

static void lock(void) { pthread_mutex_lock(&table.lock); }
static void unlock(void) { pthread_mutex_unlock(&table.lock); }
static void set(uint32_t *flag, uint32_t value) { __atomic_store_n(flag, value, __ATOMIC_RELEASE); }

static uint64_t due_ns(void) {
  return __atomic_load_n(&table.due, __ATOMIC_ACQUIRE) != 0 ? 0 : UINT64_MAX;
}
static bool overflowed(void) { return __atomic_load_n(&table.overflowed, __ATOMIC_ACQUIRE) != 0; }

void xsi_kfd_changed(void) {
  if (!table.listening) return;
  set(&table.due, 1);
  xsi_wake_helper();
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

static void tell(bool listening) {
  lock();
  table.listening = listening;
  table.gone_count = 0;
  table.ordered = table.answered = false;
  for (unsigned i = 0; i < table.used; i++)
    table.queues[i].known = table.queues[i].told = false;
  set(&table.overflowed, 0);
  set(&table.due, listening && table.used > 0);
  unlock();
}

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

static size_t next_frame(void *room, int *fd) {
  struct xsw_kfd *frame = room;
  *fd = -1;
  memset(frame, 0, offsetof(struct xsw_kfd, events));
  lock();
  if (table.answered) { // first: the daemon waits for it
    memcpy(room, &table.answer, sizeof table.answer);
    table.answered = false;
    unlock();
    return sizeof table.answer;
  }
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
  if (frame->count == 0) return 0;
  size_t bytes = offsetof(struct xsw_kfd, events) + frame->count * sizeof *frame->events;
  frame->frame = xsi_frame_head(XSW_FRAME_KFD, bytes);
  return bytes;
}

// ---- orders ------------------------------------------------------------------------

static bool valid(const struct xsw_order *order) {
  switch (order->kind) {
  case XSW_ORDER_PAUSE:
    if (order->lease > XSW_MAX_LEASES) return false;
    __attribute__((fallthrough));
  case XSW_ORDER_RESUME: return order->queues != 0 && order->queues <= XSW_ORDER_BOTH;
  case XSW_ORDER_PRIORITY: return order->priority >= -1 && order->priority <= KFD_MAX_PRIORITY;
  case XSW_ORDER_CU_MASK: return order->mask_bits % 32 == 0 && order->mask_bits <= KFD_MAX_CU_BITS;
  default: return false;
  }
}

static int receive(const void *frame, size_t bytes) {
  struct xsw_order order;
  if (bytes != sizeof order) return -EPROTO;
  memcpy(&order, frame, sizeof order);
  if (order.frame.type != XSW_FRAME_ORDER || !valid(&order)) return -EPROTO;
  lock();
  table.order = order;
  table.ordered = true;
  unlock();
  return 0;
}

static bool pending(void) {
  lock();
  bool yes = table.ordered || table.answered;
  unlock();
  return yes;
}

// A pause needs a valid lease, or nothing would end it. Priorities and masks need a heartbeat,
// because they are undone when it stops.
static bool allowed(const struct xsw_order *order) {
  uint64_t now = xsi_now_ns();
  if (order->kind == XSW_ORDER_RESUME) return true;
  if (!xsi_page_joined() || xsi_gate_silent(now)) return false;
  return order->kind != XSW_ORDER_PAUSE || xsi_liveness_valid(order->lease, now);
}

static int carry_out(const struct xsw_order *order) {
  _Static_assert((int)XSW_ORDER_COMPUTE == (int)XSI_KFD_COMPUTE &&
                     (int)XSW_ORDER_COPY == (int)XSI_KFD_SDMA,
                 "kinds");
  _Static_assert(XSW_KFD_MASK_WORDS == KFD_CU_WORDS, "mask");
  if (!allowed(order)) return -ESTALE;
  switch (order->kind) {
  case XSW_ORDER_PAUSE: return xsi_kfd_pause(order->gpu_id, order->queues, order->lease);
  case XSW_ORDER_RESUME: return xsi_kfd_resume(order->gpu_id, order->queues);
  case XSW_ORDER_PRIORITY: return xsi_kfd_set_priority(order->gpu_id, order->priority);
  default: return xsi_kfd_set_cu_mask(order->gpu_id, order->mask, order->mask_bits);
  }
}

static bool obey(void) {
  lock();
  bool ordered = table.ordered;
  struct xsw_order order = table.order;
  unlock();
  if (!ordered) return false;
  struct xsw_done answer = {
      .frame = xsi_frame_head(XSW_FRAME_DONE, sizeof answer),
      .sequence = order.sequence,
      .begin_ns = xsi_now_ns(),
  };
  answer.result = carry_out(&order);
  answer.end_ns = xsi_now_ns();
  lock();
  table.answer = answer;
  table.ordered = false;
  table.answered = true;
  set(&table.due, 1);
  unlock();
  return true;
}

// Number, type and size of the requests: consoles and others have the type, too.
static bool claims(int fd, unsigned long request) {
  (void)fd;
  switch ((uint32_t)request) {
  case AMDKFD_IOC_CREATE_QUEUE_88:
  case AMDKFD_IOC_CREATE_QUEUE_96:
  case AMDKFD_IOC_DESTROY_QUEUE:
  case AMDKFD_IOC_UPDATE_QUEUE:
  case AMDKFD_IOC_SET_CU_MASK:
  case AMDKFD_IOC_RUNTIME_ENABLE:
  case AMDKFD_IOC_DBG_TRAP: return true;
  default: return false;
  }
}

extern const struct xsi_driver xsi_kfd_driver;
const struct xsi_driver xsi_kfd_driver = {
    .name = "kfd",
    .claims = claims,
    .ioctl = xsi_kfd_ioctl,
    .read_options = xsi_kfd_read_options,
    .lock = xsi_kfd_lock,
    .unlock = xsi_kfd_unlock,
    .reset = xsi_kfd_reset,
    .tell = tell,
    .due_ns = due_ns,
    .next_frame = next_frame,
    .overflowed = overflowed,
    .first_frame = XSW_FRAME_KFD,
    .receive = receive,
    .pending = pending,
    .obey = obey,
    .recover = xsi_kfd_recover,
};
