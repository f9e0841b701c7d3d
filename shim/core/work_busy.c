// SPDX-License-Identifier: Apache-2.0
//
// Changes of streams between idle and busy, and waits for them. See work.h for the rules.

#include <errno.h>
#include <stdlib.h>

#include "doorbell.h"
#include "work_internal.h"

// ---- the state of one stream ----------------------------------------------------------------------

static uint32_t *half(uint64_t *busy) { return (uint32_t *)busy; } // the futex word
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half comes first");

uint64_t xsi_work_freeze(struct xsi_work_stream *stream) {
  for (;;) {
    uint64_t busy = __atomic_load_n(&stream->busy, __ATOMIC_RELAXED);
    if (XSI_UNLIKELY(busy == XSI_WORK_FROZEN))
      xsi_lock_await(half(&stream->busy), UINT32_MAX, (uint32_t)XSI_WORK_FROZEN, &stream->waiters);
    else if (__atomic_compare_exchange_n(&stream->busy, &busy, XSI_WORK_FROZEN, false,
                                         __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
      return busy;
  }
}

void xsi_work_thaw(struct xsi_work_stream *stream, uint64_t busy) {
  __atomic_store_n(&stream->busy, busy, __ATOMIC_RELEASE);
  if (XSI_UNLIKELY(__atomic_load_n(&stream->waiters, __ATOMIC_RELAXED) != 0))
    xsi_lock_wake_word(half(&stream->busy));
}

static void put_into_list(struct xsi_work_context *context, struct xsi_work_stream *stream) {
  stream->list_previous = NULL;
  stream->list_next = context->list;
  if (context->list) context->list->list_previous = stream;
  context->list = stream;
  context->listed++;
  __atomic_store_n(&stream->listed, true, __ATOMIC_SEQ_CST);
}

static void take_from_list(struct xsi_work_context *context, struct xsi_work_stream *stream) {
  if (stream->list_previous)
    stream->list_previous->list_next = stream->list_next;
  else
    context->list = stream->list_next;
  if (stream->list_next) stream->list_next->list_previous = stream->list_previous;
  context->listed--;
  __atomic_store_n(&stream->listed, false, __ATOMIC_SEQ_CST);
}

void xsi_work_list(struct xsi_work_stream *stream) {
  struct xsi_work_context *context = stream->context;
  xsi_lock_take(&context->list_lock);
  if (!stream->listed) put_into_list(context, stream);
  xsi_lock_give(&context->list_lock);
}

void xsi_work_unlist(struct xsi_work_stream *stream) {
  struct xsi_work_context *context = stream->context;
  xsi_lock_take(&context->list_lock);
  if (stream->listed) take_from_list(context, stream);
  xsi_lock_give(&context->list_lock);
}

// A stream that becomes busy meanwhile freezes itself before it looks whether it is listed.
void xsi_work_prune(struct xsi_work_context *context) {
  for (struct xsi_work_stream *stream = context->list, *next; stream; stream = next) {
    next = stream->list_next;
    if (__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST) != 0) continue;
    take_from_list(context, stream);
    if (__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST) != 0) put_into_list(context, stream);
  }
}

// ---- busy and idle ------------------------------------------------------------------------------

void xsi_work_count_other(struct xsi_work_stream *stream) {
  if (XSI_UNLIKELY(xsi_work_adopt(stream))) {
    xsi_work_count_owned(stream);
    return;
  }
  xsi_work_court(stream, __atomic_fetch_add(&stream->submitted_others, 1, __ATOMIC_SEQ_CST));
  uint64_t busy = __atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST);
  if (XSI_UNLIKELY(busy == 0 || busy == XSI_WORK_FROZEN)) xsi_work_mark_busy(stream);
}

void xsi_work_landed_other(struct xsi_work_stream *stream) {
  __atomic_fetch_add(&stream->landed_others, 1, __ATOMIC_RELEASE);
}

void xsi_work_aside_other(struct xsi_work_stream *stream, unsigned aside, unsigned copies) {
  __atomic_fetch_add(&stream->aside_others, aside, __ATOMIC_RELEASE);
  __atomic_fetch_add(&stream->copies_others, copies, __ATOMIC_RELAXED);
}

// None of these touches errno; callees that may do so restore it. They are on the path of every launch that is
// waited for.
void xsi_work_mark_busy(struct xsi_work_stream *stream) {
  uint64_t busy = xsi_work_freeze(stream);
  bool begins = busy == 0 && stream->context, changed = false, wake = false;
  int queue = stream->queue;
  if (begins) {
    busy = stream->owner;
    changed = xsi_work_enter_queue(stream);
    __atomic_store_n(&stream->periods, stream->periods + 1, __ATOMIC_RELAXED);
    // Who takes it from the list looks at busy afterwards, which is frozen here.
    if (XSI_UNLIKELY(!__atomic_load_n(&stream->listed, __ATOMIC_SEQ_CST))) xsi_work_list(stream);
    wake = __atomic_load_n(&stream->watched, __ATOMIC_RELAXED);
  }
  xsi_work_thaw(stream, busy);
  if (changed) xsi_queue_changed(queue);
  if (begins && XSI_UNLIKELY(xsi_work_watch_deep() || wake)) xsi_work_watch_busy(true);
}

// The end of a destroyed stream's work is the end of its record.
static void __attribute__((cold)) bury(struct xsi_work_stream *stream) {
  int saved_errno = errno;
  xsi_work_lock();
  if (stream->abandoned && __atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST) == 0)
    xsi_work_release(stream);
  xsi_work_unlock();
  errno = saved_errno;
}

// Frozen, with work that is over as far as this thread can see: is it over?
static bool is_over(struct xsi_work_stream *stream, bool by_watcher) {
  bool meet = stream->owner != XSI_WORK_NOBODY && !xsi_work_owned(stream);
  if (meet) xsi_work_meet_owner(stream);
  // If the owner submitted meanwhile, both periods count as one: only that thread could say whether it
  // submitted before or after the end.
  if (meet && __atomic_load_n(&stream->completed, __ATOMIC_RELAXED) < xsi_work_submitted(stream))
    return false;
  if (!meet)
    stream->wasted = 0;
  else if (!by_watcher)
    xsi_work_weigh_owner(stream);
  return true;
}

// Everything up to the mark is over.
static void try_idle(struct xsi_work_stream *stream, uint64_t mark, bool by_watcher) {
  uint64_t busy = xsi_work_freeze(stream);
  if (__atomic_load_n(&stream->completed, __ATOMIC_RELAXED) < mark)
    __atomic_store_n(&stream->completed, mark, __ATOMIC_RELEASE);
  bool changed = false, abandoned = false;
  int queue = stream->queue;
  if (stream->context && busy != 0 &&
      __atomic_load_n(&stream->completed, __ATOMIC_RELAXED) >= xsi_work_submitted(stream)) {
    busy = is_over(stream, by_watcher) ? 0 : stream->owner;
    if (busy == 0) {
      __atomic_store_n(&stream->watched, by_watcher, __ATOMIC_RELAXED);
      changed = xsi_work_leave_queue(stream);
      abandoned = stream->abandoned;
    }
  }
  xsi_work_thaw(stream, busy);
  if (changed) xsi_queue_changed(queue);
  if (XSI_UNLIKELY(abandoned)) bury(stream);
}

void xsi_work_try_idle(struct xsi_work_stream *stream, bool by_watcher) {
  try_idle(stream, 0, by_watcher);
}

void xsi_work_complete(struct xsi_work_stream *stream, uint64_t mark, bool by_watcher) {
  uint64_t completed = __atomic_load_n(&stream->completed, __ATOMIC_SEQ_CST);
  if (completed >= mark &&
      (completed < xsi_work_submitted(stream) || !__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST)))
    return; // somebody else was here
  try_idle(stream, mark, by_watcher);
}

void xsi_work_withdraw(struct xsi_work_stream *stream) {
  if (xsi_work_owned(stream)) {
    uint64_t count = __atomic_load_n(&stream->submitted_owner, __ATOMIC_RELAXED) - 1;
    __atomic_store_n(&stream->submitted_owner, count, __ATOMIC_RELAXED);
  } else {
    __atomic_sub_fetch(&stream->submitted_others, 1, __ATOMIC_SEQ_CST);
    if (xsi_thread.work.suit.stream == stream) xsi_thread.work.suit.others--;
  }
  xsi_work_call_ends();
  // Only a frozen stream says whether that was all: a thread that completes the rest now neither orders its
  // store with this one nor leaves busy alone.
  xsi_work_try_idle(stream, false);
}

// Several threads may count the same wait: for a decision one doorbell is as good as two.
void xsi_work_tell_wait(const struct xsi_work_stream *stream, uint64_t fed_ns) {
  int32_t queue = __atomic_load_n(&stream->queue, __ATOMIC_RELAXED);
  if (queue < 0) return; // nobody schedules it
  struct xsw_queue *slot = xsi_slot((uint32_t)queue);
  uint64_t *waits = &xsi_progress((uint32_t)queue)->waits;
  __atomic_store_n(&slot->fed_ns, fed_ns, __ATOMIC_RELAXED);
  __atomic_store_n(waits, __atomic_load_n(waits, __ATOMIC_RELAXED) + 1, __ATOMIC_RELEASE);
  if ((__atomic_load_n(&slot->tell, __ATOMIC_RELAXED) & XSW_TELL_WAIT) != 0) xsi_doorbell_ring();
}

void xsi_work_fed_since(struct xsi_work_stream *stream, uint64_t begun_ns) {
  struct xsw_queue *slot = xsi_work_slot(stream);
  if (__atomic_load_n(&slot->quiet, __ATOMIC_RELAXED) != 0) return;
  xsi_thread.work.fed = xsi_thread.counters.launches + xsi_thread.counters.copies;
  xsi_thread.work.fed_ns = begun_ns;
  if (begun_ns > __atomic_load_n(&slot->fed_ns, __ATOMIC_RELAXED))
    xsi_work_tell_wait(stream, begun_ns);
}

enum { MANY_POLLS = 16 }; /* of several things in turn */

void xsi_work_polled(struct xsi_work_stream *stream, uintptr_t what) {
  struct xsw_queue *slot = xsi_work_slot(stream);
  if (__atomic_load_n(&slot->quiet, __ATOMIC_RELAXED) != 0) return;
  struct xsi_work_thread *mine = &xsi_thread.work;
  uint64_t count = xsi_thread.counters.launches + xsi_thread.counters.copies;
  if (count == 0) return; // one that submits nothing can't say
  if (mine->polls == 0 || mine->polled != count) {
    mine->polled = count;
    mine->polled_ns = xsi_now_ns();
    mine->polled_what = what;
    mine->polls = 0;
  }
  if (mine->polls < MANY_POLLS) mine->polls++;
  if (mine->polls == 1 || (mine->polled_what != what && mine->polls < MANY_POLLS)) return;
  if (mine->fed != count) {
    mine->fed = count;
    mine->fed_ns = mine->polled_ns;
  }
  if (mine->fed_ns > __atomic_load_n(&slot->fed_ns, __ATOMIC_RELAXED))
    xsi_work_tell_wait(stream, mine->fed_ns);
}

// The daemon takes the request back when it has seen one.
void xsi_work_tell_launch(void) { xsi_doorbell_ring(); }

// ---- captures ------------------------------------------------------------------------------------

void xsi_work_capture_begun(struct xsi_work_stream *stream) {
  xsi_work_lock();
  if (stream->context)
    stream->capturing++;
  else // gone meanwhile
    __atomic_fetch_sub(&xsi_work_hot.captures, 1, __ATOMIC_SEQ_CST);
  xsi_work_unlock();
}

void xsi_work_capture_ended(struct xsi_work_stream *stream) {
  xsi_work_lock();
  if (stream->capturing) {
    stream->capturing--;
    __atomic_fetch_sub(&xsi_work_hot.captures, 1, __ATOMIC_SEQ_CST);
  }
  xsi_work_unlock();
}

// ---- waiting for a whole context ------------------------------------------------------------

void xsi_work_marks_take(struct xsi_work_marks *marks, uintptr_t handle) {
  marks->count = 0;
  marks->room = sizeof marks->own / sizeof marks->own[0];
  marks->marked = marks->own;
  int saved_errno = errno;
  struct xsi_work_context *context = xsi_work_lock_list(handle);
  if (context && context->listed > marks->room) {
    struct xsi_work_marked *more = malloc(context->listed * sizeof *more);
    if (more) {
      marks->marked = more;
      marks->room = context->listed;
    }
  }
  // Without memory for all of them, the watcher finds the rest.
  for (struct xsi_work_stream *stream = context ? context->list : NULL;
       stream && marks->count < marks->room; stream = stream->list_next) {
    if (!__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST)) continue;
    marks->marked[marks->count].stream = stream;
    marks->marked[marks->count++].mark = xsi_work_mark(stream);
    xsi_work_sync_begins(stream);
  }
  if (context) xsi_lock_give(&context->list_lock);
  errno = saved_errno;
}

void xsi_work_marks_done(struct xsi_work_marks *marks, bool over) {
  for (unsigned i = 0; i < marks->count; i++) {
    struct xsi_work_stream *stream = marks->marked[i].stream;
    xsi_work_sync_ends(stream);
    if (over) xsi_work_complete(stream, marks->marked[i].mark, false);
  }
  if (marks->marked != marks->own) {
    int saved_errno = errno;
    free(marks->marked);
    errno = saved_errno;
  }
}

bool xsi_work_is_busy(struct xsi_work_stream *stream) {
  uint64_t busy = xsi_work_freeze(stream);
  xsi_work_thaw(stream, busy);
  return busy != 0;
}
