// SPDX-License-Identifier: Apache-2.0
//
// Which queue a stream counts for: its context's, or one of its own. And the program's own gate,
// for programs that schedule their streams themselves.

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate.h"
#include "options.h"
#include "queue.h"
#include "work_internal.h"

static struct xsw_queue no_slot;                               /* zeros: gate open, no limit */
static struct xsw_queue closed_slot = {.gate = XSW_GATE_HELD}; /* for streams held by the program */

// The queue first: a reader that sees the slot sees its index or a later one.
void xsi_work_choose_slot(struct xsi_work_stream *stream) {
  int32_t queue = stream->own ? stream->queue : stream->context->queue;
  struct xsw_queue *slot = queue >= 0 ? xsi_slot((uint32_t)queue) : &no_slot;
  if (__atomic_load_n(&stream->program_holds, __ATOMIC_RELAXED)) slot = &closed_slot;
  if (xsi_work_is_shut) slot = &xsi_work_shut_slot;
  // Changes only while the stream is frozen: others than the program's own gate.
  if (stream->queue != queue) __atomic_store_n(&stream->queue, queue, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->slot, slot, __ATOMIC_RELEASE);
}

// The landed work before the part of it that is not launches: work of another thread that lands in
// between is then no launch, rather than one too many for ever.
struct xsi_tally xsi_work_tally(const struct xsi_work_stream *stream) {
  uint64_t landed = xsi_work_mark(stream);
  uint64_t aside = __atomic_load_n(&stream->aside_owner, __ATOMIC_ACQUIRE) +
                   __atomic_load_n(&stream->aside_others, __ATOMIC_ACQUIRE);
  uint64_t copies = __atomic_load_n(&stream->copies_owner, __ATOMIC_RELAXED) +
                    __atomic_load_n(&stream->copies_others, __ATOMIC_RELAXED);
  return (struct xsi_tally){landed, landed > aside ? landed - aside : 0, copies};
}

bool xsi_work_enter_queue(struct xsi_work_stream *stream) {
  return stream->queue >= 0 && xsi_queue_enter(stream->queue);
}

bool xsi_work_leave_queue(struct xsi_work_stream *stream) {
  struct xsi_tally now = xsi_work_tally(stream), *before = &stream->published;
  if (now.launches < before->launches) now.launches = before->launches;
  struct xsi_tally since = {now.submitted - before->submitted, now.launches - before->launches,
                            now.copies - before->copies};
  *before = now;
  return stream->queue >= 0 && xsi_queue_leave(stream->queue, since);
}

// Under the work lock: from the queue that the stream counts for to another one.
static void move(struct xsi_work_stream *stream, bool own, int index) {
  uint64_t busy = xsi_work_freeze(stream);
  int before = stream->queue;
  bool left = busy != 0 && xsi_work_leave_queue(stream);
  stream->own = own;
  if (own) __atomic_store_n(&stream->queue, index, __ATOMIC_RELAXED);
  xsi_work_choose_slot(stream);
  bool entered = busy != 0 && xsi_work_enter_queue(stream);
  xsi_work_thaw(stream, busy);
  if (left) xsi_queue_changed(before);
  if (entered) xsi_queue_changed(stream->queue);
}

int xsi_work_give_queue(struct xsi_work_stream *stream, int32_t priority) {
  struct xsi_work_context *context = stream->context;
  if (stream->own) return -EEXIST;
  if (!context->known) return -ENODEV;
  int index =
      xsi_queue_open_stream(context->device.pci_domain, context->device.pci_bus_slot, priority);
  if (index >= 0) move(stream, true, index);
  return index;
}

void xsi_work_let_go(struct xsi_work_stream *stream) {
  if (__atomic_exchange_n(&stream->program_holds, 0, __ATOMIC_SEQ_CST) == 0) return;
  syscall(SYS_futex, &stream->program_holds, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void xsi_work_take_queue(struct xsi_work_stream *stream) {
  int saved_errno = errno, index = stream->queue;
  xsi_work_let_go(stream);
  move(stream, false, -1);
  xsi_queue_close(index);
  errno = saved_errno;
}

// ---- from the program's side --------------------------------------------------------------

struct xsi_work_life xsi_work_life_of(struct xsi_work_stream *stream) {
  xsi_work_lock();
  struct xsi_work_life life = {stream, stream->incarnation};
  xsi_work_unlock();
  return life;
}

// Under the work lock.
static bool lives(struct xsi_work_life life) {
  return life.stream && life.stream->incarnation == life.incarnation && life.stream->context &&
         !life.stream->abandoned;
}

bool xsi_work_lives(struct xsi_work_life life) {
  xsi_work_lock();
  bool alive = lives(life);
  xsi_work_unlock();
  return alive;
}

int xsi_work_own(struct xsi_work_life life, int32_t priority) {
  xsi_work_lock();
  int result = lives(life) ? xsi_work_give_queue(life.stream, priority) : -ENOENT;
  if (result == -EEXIST) result = life.stream->queue; // each stream is one already
  xsi_work_unlock();
  return result;
}

void xsi_work_disown(struct xsi_work_life life) {
  xsi_work_lock();
  if (lives(life) && life.stream->own && !(xsi_options.per_stream && xsi_options.automatic))
    xsi_work_take_queue(life.stream);
  else if (lives(life)) {
    xsi_work_let_go(life.stream);
    xsi_work_choose_slot(life.stream);
  }
  xsi_work_unlock();
}

int xsi_work_hold(struct xsi_work_life life, bool hold) {
  int saved_errno = errno;
  xsi_work_lock();
  bool alive = lives(life);
  if (alive && hold) {
    __atomic_store_n(&life.stream->program_holds, 1, __ATOMIC_SEQ_CST);
    xsi_work_choose_slot(life.stream);
  } else if (alive) {
    // The gate before the wake-up: a woken launcher finds the daemon's slot.
    __atomic_store_n(&life.stream->program_holds, 0, __ATOMIC_SEQ_CST);
    xsi_work_choose_slot(life.stream);
    syscall(SYS_futex, &life.stream->program_holds, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
  }
  xsi_work_unlock();
  errno = saved_errno;
  return alive ? 0 : -ENOENT;
}

void xsi_work_held(struct xsi_work_stream *stream, uintptr_t kernel) {
  int saved_errno = errno;
  for (;;) {
    bool held = __atomic_load_n(&stream->program_holds, __ATOMIC_SEQ_CST) != 0;
    if (!held && !xsi_work_shut_out(stream)) break;
    // Work held by the program, or for its memory, does not wait for the GPU: no other queue must be preempted
    // for it.
    xsi_work_withdraw(stream);
    xsi_work_open(); // what was launched before runs meanwhile
    while (__atomic_load_n(&stream->program_holds, __ATOMIC_SEQ_CST))
      syscall(SYS_futex, &stream->program_holds, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    if (!held) xsi_work_await_open();
    xsi_work_count(stream);
  }
  struct xsw_queue *slot = xsi_work_slot(stream);
  // Closed now, in the middle of this call: whoever closes waits for it.
  uint32_t gate = slot == &closed_slot || slot == &xsi_work_shut_slot
                      ? XSW_GATE_OPEN
                      : __atomic_load_n(&slot->gate, __ATOMIC_ACQUIRE);
  if (gate == XSW_GATE_HELD) {
    xsi_work_open(); // the daemon holds the queue, not what it has launched
    xsi_gate_wait(__atomic_load_n(&stream->queue, __ATOMIC_RELAXED));
  } else if ((gate & ((1u << XSW_BURST_SHIFT) - 1)) == XSW_GATE_BATCH) {
    xsi_work_batch(stream, kernel, gate >> XSW_BURST_SHIFT);
  }
  errno = saved_errno;
}
