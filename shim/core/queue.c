// SPDX-License-Identifier: Apache-2.0
//
// Queues. The local copy is authoritative; the page shows it to the current daemon. One lock guards the
// table: for queues that come and go, and for publishing all of them. Changes between idle and busy do
// not take it, but the queue's own lock, and publishing all queues re-reads afterwards. Streams that come and
// go while others are busy take none: they add to one word.

#include "queue.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "counters.h"
#include "doorbell.h"
#include "hint_fields.h"
#include "lock.h"
#include "log.h"
#include "options.h"
#include "page.h"
#include "wake.h"

struct queue {
  // one line: what a change between idle and busy touches
  uint64_t word;        // busy streams, and from LAUNCHES on the launches of those that became idle
  struct xsi_lock lock; // of a change
  uint64_t transitions, changed_ns, busy_ns; // as in the page; they go on over the slot's lives
  uint64_t others, copies; // of struct xsi_tally; others: submitted work that is no launch
  uint64_t generation;

  uint32_t pci_domain, pci_bus_slot;
  int32_t priority;
  uint32_t kind;
  bool untold; // of the hint
  struct xsw_hint hint;
} __attribute__((aligned(64)));
_Static_assert(offsetof(struct queue, pci_domain) == 64, "a change touches one line");
// Room for a million streams, and for the launches of half a year at a million a second.
enum { LAUNCHES = 20 };
#define STREAMS ((1u << LAUNCHES) - 1)

static struct queue queues[XSW_MAX_QUEUES];
static XSI_FORK_STATE uint32_t hints_due;
static XSI_FORK_STATE uint32_t used; // queues[0 .. used) were open at least once
static XSI_FORK_STATE pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void xsi_queue_lock(void) { pthread_mutex_lock(&lock); }
void xsi_queue_unlock(void) { pthread_mutex_unlock(&lock); }

static bool is_open(const struct queue *queue) { return (queue->generation & 1) != 0; }
static bool is_valid(int index) { return index >= 0 && index < XSW_MAX_QUEUES; }

static uint64_t transitions_of(const struct queue *queue) {
  return __atomic_load_n(&queue->transitions, __ATOMIC_SEQ_CST);
}
static bool is_busy(const struct queue *queue) { return (transitions_of(queue) & 1) != 0; }

static void show(uint32_t index, uint64_t transitions, uint64_t changed_ns, uint64_t busy_ns) {
  struct xsw_queue *slot = xsi_slot(index);
  // transitions last: a reader that sees it sees the matching time. And before any load of quiet.
  __atomic_store_n(&slot->changed_ns, changed_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->busy_ns, busy_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->transitions, transitions, __ATOMIC_SEQ_CST);
}

// Toggles between idle and busy. The local copy first: a concurrent publisher then either publishes
// again, or writes the older value before this one. now was read before the change began, so that the
// others wait less.
static void change(uint32_t index, uint64_t now) {
  struct queue *queue = &queues[index];
  uint64_t transitions = queue->transitions + 1;
  if (now < queue->changed_ns) now = queue->changed_ns;
  uint64_t busy_ns = queue->busy_ns + ((transitions & 1) != 0 ? -now : now);
  __atomic_store_n(&queue->changed_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&queue->busy_ns, busy_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&queue->transitions, transitions, __ATOMIC_RELEASE);
  show(index, transitions, now, busy_ns);
}

static void publish_transition(uint32_t index) {
  const struct queue *queue = &queues[index];
  uint64_t transitions;
  do {
    transitions = transitions_of(queue);
    show(index, transitions, __atomic_load_n(&queue->changed_ns, __ATOMIC_RELAXED),
         __atomic_load_n(&queue->busy_ns, __ATOMIC_RELAXED));
  } while (transitions_of(queue) != transitions);
}

// Leaves a line alone that has the value already.
static void publish_count64(uint64_t *shown, uint64_t value) {
  if (__atomic_load_n(shown, __ATOMIC_RELAXED) != value)
    __atomic_store_n(shown, value, __ATOMIC_RELAXED);
}

static struct xsi_tally tally_of(const struct queue *queue) {
  uint64_t launches = __atomic_load_n(&queue->word, __ATOMIC_RELAXED) >> LAUNCHES;
  return (struct xsi_tally){launches + __atomic_load_n(&queue->others, __ATOMIC_RELAXED), launches,
                            __atomic_load_n(&queue->copies, __ATOMIC_RELAXED)};
}

static void publish_submitted(uint32_t index) {
  struct xsi_tally tally = tally_of(&queues[index]);
  publish_count64(&xsi_slot(index)->submitted, tally.submitted);
  publish_count64(&xsi_progress(index)->copies, tally.copies);
}

// Not from the helper's tick: the slot is ahead of the tally while the client tells its progress.
static void publish_launches(uint32_t index) {
  publish_count64(&xsi_progress(index)->launches, tally_of(&queues[index]).launches);
}

static void publish(uint32_t index) {
  struct xsw_queue *slot = xsi_slot(index);
  __atomic_store_n(&slot->pci_domain, queues[index].pci_domain, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->pci_bus_slot, queues[index].pci_bus_slot, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->priority, queues[index].priority, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->kind, queues[index].kind, __ATOMIC_RELAXED);
  publish_submitted(index);
  publish_launches(index);
  publish_transition(index);
  __atomic_store_n(&slot->generation, queues[index].generation, __ATOMIC_RELEASE);
}

static void publish_count(void) {
  __atomic_store_n(&xsi_header()->queue_count, used, __ATOMIC_RELEASE);
}

void xsi_queue_publish_all(void) {
  for (uint32_t i = 0; i < used; i++)
    if (is_open(&queues[i])) publish(i);
  publish_count();
}

// ---- busy and idle ------------------------------------------------------------------

static bool has_work(const struct queue *queue) {
  return (__atomic_load_n(&queue->word, __ATOMIC_ACQUIRE) & STREAMS) != 0;
}

// Every stream that begins or ends the queue's work comes here afterwards, so that the last one leaves the true
// state. True if the caller has to call xsi_queue_changed.
static bool settle(uint32_t index) {
  struct queue *queue = &queues[index];
  uint64_t now = xsi_now_ns();
  xsi_lock_take(&queue->lock);
  bool changes = has_work(queue) != is_busy(queue);
  if (changes && is_busy(queue)) {
    publish_launches(index);
    // Those of a quiet queue are not urgent: the helper's tick publishes them.
    if (__atomic_load_n(&xsi_slot(index)->quiet, __ATOMIC_RELAXED) == 0) publish_submitted(index);
  }
  if (changes) change(index, now);
  xsi_lock_give(&queue->lock);
  // After the change, as wire.h says.
  return changes && __atomic_load_n(&xsi_slot(index)->quiet, __ATOMIC_SEQ_CST) == 0;
}

bool xsi_queue_enter(int index) {
  if (!is_valid(index) || !is_open(&queues[index])) return false;
  struct queue *queue = &queues[index];
  uint64_t before = __atomic_fetch_add(&queue->word, 1, __ATOMIC_ACQ_REL);
  // The first always, and another one if the first was held up before it came there.
  return ((before & STREAMS) == 0 || !is_busy(queue)) && settle((uint32_t)index);
}

void xsi_queue_add(int index, struct xsi_tally since) {
  if (!is_valid(index)) return;
  struct queue *queue = &queues[index];
  uint64_t others = since.submitted - since.launches;
  if (others) __atomic_fetch_add(&queue->others, others, __ATOMIC_RELAXED);
  if (since.copies) __atomic_fetch_add(&queue->copies, since.copies, __ATOMIC_RELAXED);
  if (since.launches)
    __atomic_fetch_add(&queue->word, since.launches << LAUNCHES, __ATOMIC_ACQ_REL);
}

bool xsi_queue_leave(int index, struct xsi_tally since) {
  if (!is_valid(index) || !is_open(&queues[index]) || !has_work(&queues[index])) return false;
  struct queue *queue = &queues[index];
  uint64_t launches = since.launches << LAUNCHES;
  since.submitted -= since.launches;
  since.launches = 0;
  if (since.submitted || since.copies) xsi_queue_add(index, since);
  uint64_t left = __atomic_add_fetch(&queue->word, launches - 1, __ATOMIC_ACQ_REL) & STREAMS;
  // The queue was closed since has_work: its count of streams is 0 already.
  if (XSI_UNLIKELY(left == STREAMS)) __atomic_fetch_add(&queue->word, 1, __ATOMIC_ACQ_REL);
  return (left == 0 || left == STREAMS) && settle((uint32_t)index);
}

void xsi_queue_changed(int index) {
  xsi_doorbell_ring();
  if (!is_busy(&queues[index])) xsi_counters_idle();
}

// ---- queues that come and go --------------------------------------------------------

static int open_queue(uint32_t kind, uint32_t pci_domain, uint32_t pci_bus_slot, int32_t priority) {
  int saved = errno, index = -ENOSPC;
  if (xsi_options.disabled) return -ENOSYS;
  xsi_queue_lock();
  for (uint32_t i = 0; i < XSW_MAX_QUEUES; i++) {
    if (is_open(&queues[i])) continue;
    queues[i].generation++;
    __atomic_store_n(&queues[i].changed_ns, xsi_now_ns(), __ATOMIC_RELAXED);
    queues[i].pci_domain = pci_domain;
    queues[i].pci_bus_slot = pci_bus_slot;
    queues[i].priority = priority;
    queues[i].kind = kind;
    queues[i].untold = false;
    memset(&queues[i].hint, 0, sizeof queues[i].hint);
    __atomic_store_n(&queues[i].word, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&queues[i].others, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&queues[i].copies, 0, __ATOMIC_RELAXED);
    if (i >= used) used = i + 1;
    publish(i);
    publish_count();
    index = (int)i;
    break;
  }
  xsi_queue_unlock();
  if (index >= 0) {
    xsi_wake_start();
    xsi_doorbell_ring();
  } else {
    xsi_log(XSI_WARN, "all %d queues are taken: this one runs unscheduled", XSW_MAX_QUEUES);
  }
  errno = saved;
  return index;
}

int xsi_queue_open(uint32_t pci_domain, uint32_t pci_bus_slot, int32_t priority) {
  return open_queue(XSW_QUEUE_CONTEXT, pci_domain, pci_bus_slot, priority);
}

int xsi_queue_open_stream(uint32_t pci_domain, uint32_t pci_bus_slot, int32_t priority) {
  return open_queue(XSW_QUEUE_STREAM, pci_domain, pci_bus_slot, priority);
}

void xsi_queue_close(int index) {
  if (!is_valid(index)) return;
  xsi_queue_lock();
  struct queue *queue = &queues[index];
  bool was_open = is_open(queue);
  if (was_open) {
    xsi_lock_take(&queue->lock);
    __atomic_fetch_and(&queue->word, ~(uint64_t)STREAMS, __ATOMIC_ACQ_REL);
    if (is_busy(queue)) change((uint32_t)index, xsi_now_ns()); // the slot's next queue starts idle
    xsi_lock_give(&queue->lock);
    queue->generation++;
    publish((uint32_t)index);
  }
  xsi_queue_unlock();
  if (was_open) xsi_doorbell_ring();
}

bool xsi_queue_tick(void) {
  bool busy = false;
  xsi_queue_lock();
  for (uint32_t i = 0; i < used; i++) {
    if (!is_open(&queues[i])) continue;
    publish_submitted(i);
    busy = busy || is_busy(&queues[i]);
  }
  xsi_queue_unlock();
  return busy;
}

void xsi_queue_wake_held(void) {
  xsi_queue_lock();
  uint32_t count = used;
  xsi_queue_unlock();
  for (uint32_t i = 0; i < count; i++) {
    uint32_t *gate = &xsi_slot(i)->gate;
    if (__atomic_load_n(gate, __ATOMIC_RELAXED) == XSW_GATE_HELD)
      syscall(SYS_futex, gate, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  }
}

bool xsi_queue_describe(uint32_t index, struct xsi_queue_info *info) {
  xsi_queue_lock();
  bool open = index < used && is_open(&queues[index]);
  if (open) {
    const struct queue *queue = &queues[index];
    *info = (struct xsi_queue_info){
        .kind = queue->kind,
        .pci_domain = queue->pci_domain,
        .pci_bus_slot = queue->pci_bus_slot,
        .priority = queue->priority,
        .busy = is_busy(queue),
        .held = __atomic_load_n(&xsi_slot(index)->gate, __ATOMIC_RELAXED) == XSW_GATE_HELD,
        .submitted = tally_of(queue).submitted};
  }
  xsi_queue_unlock();
  return open;
}

bool xsi_queue_any(void) {
  xsi_queue_lock();
  bool any = used > 0;
  xsi_queue_unlock();
  return any;
}

// ---- hints --------------------------------------------------------------------------

int xsi_queue_hint(int index, const struct xsw_hint *hint) {
  if (!is_valid(index)) return -EINVAL;
  xsi_queue_lock();
  bool open = is_open(&queues[index]);
  if (open) {
    xsi_hint_merge(&queues[index].hint, hint);
    queues[index].untold = true;
    xsi_queue_set_hints_due(true);
  }
  xsi_queue_unlock();
  if (open) xsi_wake_helper();
  return open ? 0 : -ENOENT;
}

void xsi_queue_hints_untold(void) {
  for (uint32_t i = 0; i < used; i++)
    if (is_open(&queues[i]) && queues[i].hint.said != 0) {
      queues[i].untold = true;
      xsi_queue_set_hints_due(true);
    }
}

bool xsi_queue_next_hint(struct xsw_hint_frame *frame) {
  for (uint32_t i = 0; i < used; i++) {
    if (!is_open(&queues[i]) || !queues[i].untold) continue;
    queues[i].untold = false;
    frame->queue = i;
    frame->generation = queues[i].generation;
    frame->hint = queues[i].hint;
    return true;
  }
  return false;
}

bool xsi_queue_hints_due(void) { return __atomic_load_n(&hints_due, __ATOMIC_ACQUIRE) != 0; }
void xsi_queue_set_hints_due(bool due) { __atomic_store_n(&hints_due, due, __ATOMIC_RELEASE); }

void xsi_queue_reset(void) {
  xsi_queue_set_hints_due(false);
  memset(queues, 0, used * sizeof *queues);
  used = 0;
}
