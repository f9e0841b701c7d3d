// SPDX-License-Identifier: Apache-2.0
//
// Changes of streams between idle and busy, and waits for them. See work.h for the rules.

#include <errno.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "doorbell.h"
#include "log.h"
#include "work_internal.h"

// A barrier pays off after so many launches of the owner without a locked instruction. A stream loses its
// owner after so many consecutive barriers that did not pay off.
enum { WORTH = 64, MOST_WASTED = 16 };

// ---- owners, and the barrier that others use -------------------------------

static XSI_FORK_STATE bool barrier_is_there;

// Keeps errno.
static bool barrier(int command) {
  int saved_errno = errno;
  bool done = syscall(SYS_membarrier, command, 0, 0) == 0;
  errno = saved_errno;
  return done;
}

void xsi_work_owners_start(void) {
  bool there = barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  __atomic_store_n(&barrier_is_there, there, __ATOMIC_RELEASE);
}

bool xsi_work_owners(void) { return __atomic_load_n(&barrier_is_there, __ATOMIC_ACQUIRE); }

// Makes the owner's earlier counts visible, and busy = 0 visible to its later ones. Under the work lock,
// with busy = 0.
static void meet_owner(struct xsi_work_stream *stream) {
  if (barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // A sandbox has forbidden the call since. At most one concurrent launch of the owner is mistaken for
  // idleness.
  xsi_log(XSI_WARN, "membarrier is refused: launches cost more from now on");
  __atomic_store_n(&barrier_is_there, false, __ATOMIC_RELEASE);
  __atomic_store_n(&stream->owner, XSI_WORK_NOBODY, __ATOMIC_RELAXED);
}

// The stream is idle after a barrier: decides whether it keeps its owner.
static void weigh_owner(struct xsi_work_stream *stream) {
  uint64_t landed = __atomic_load_n(&stream->landed_owner, __ATOMIC_ACQUIRE);
  bool worth = landed - stream->wasted_at >= WORTH;
  stream->wasted_at = landed;
  stream->wasted = worth ? 0 : stream->wasted + 1;
  if (stream->wasted == MOST_WASTED)
    __atomic_store_n(&stream->owner, XSI_WORK_NOBODY, __ATOMIC_RELAXED);
}

// ---- busy and idle ------------------------------------------------------------------------------

void xsi_work_set_idle(struct xsi_work_stream *stream) {
  struct xsi_work_context *context = stream->context;
  if (stream->busy_previous)
    stream->busy_previous->busy_next = stream->busy_next;
  else
    context->busy_streams = stream->busy_next;
  if (stream->busy_next) stream->busy_next->busy_previous = stream->busy_previous;
  stream->busy_next = stream->busy_previous = NULL;
  context->busy--;
  xsi_work_count_busy(stream, false);
}

void xsi_work_count_other(struct xsi_work_stream *stream) {
  __atomic_fetch_add(&stream->submitted_others, 1, __ATOMIC_SEQ_CST);
  if (XSI_UNLIKELY(!__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST))) xsi_work_mark_busy(stream);
}

void xsi_work_landed_other(struct xsi_work_stream *stream) {
  __atomic_fetch_add(&stream->landed_others, 1, __ATOMIC_RELEASE);
}

void xsi_work_aside_other(struct xsi_work_stream *stream, unsigned aside, unsigned copies) {
  __atomic_fetch_add(&stream->aside_others, aside, __ATOMIC_RELEASE);
  __atomic_fetch_add(&stream->copies_others, copies, __ATOMIC_RELAXED);
}

// Neither of these two touches errno; callees that may do so restore it. They are on the path of every
// launch that is waited for.
void xsi_work_mark_busy(struct xsi_work_stream *stream) {
  bool wake = false;
  xsi_work_lock();
  struct xsi_work_context *context = stream->context;
  if (context && !__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST)) {
    // Only its end has to be ordered with submissions.
    __atomic_store_n(&stream->busy, stream->owner, __ATOMIC_RELEASE);
    stream->busy_next = context->busy_streams;
    if (context->busy_streams) context->busy_streams->busy_previous = stream;
    context->busy_streams = stream;
    stream->busy_since_ns = stream->poll_at_ns = 0; // the watcher sets them when it comes by
    context->busy++;
    xsi_work_count_busy(stream, true);
    wake = xsi_work_watch_deep(); // always: it is no longer when this returns
    wake = wake || __atomic_load_n(&stream->watched, __ATOMIC_RELAXED);
  }
  xsi_work_unlock();
  if (XSI_UNLIKELY(wake)) xsi_work_watch_busy(true);
}

static void try_idle(struct xsi_work_stream *stream, bool by_watcher) {
  uint64_t completed = __atomic_load_n(&stream->completed, __ATOMIC_SEQ_CST);
  if (stream->context && __atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST) &&
      completed >= xsi_work_submitted(stream)) {
    __atomic_store_n(&stream->busy, 0, __ATOMIC_SEQ_CST);
    bool meet = stream->owner != XSI_WORK_NOBODY && !xsi_work_owned(stream);
    if (meet) meet_owner(stream);
    if (completed < xsi_work_submitted(stream)) {
      // Another thread submitted in between and may have seen the stream busy: it is. Both periods count
      // as one, because only that thread could tell whether it submitted before or after the end.
      __atomic_store_n(&stream->busy, stream->owner, __ATOMIC_SEQ_CST);
    } else {
      if (!meet)
        stream->wasted = 0;
      else if (!by_watcher)
        weigh_owner(stream);
      __atomic_store_n(&stream->watched, by_watcher, __ATOMIC_RELAXED);
      xsi_work_set_idle(stream);
      if (XSI_UNLIKELY(stream->abandoned)) {
        int saved_errno = errno;
        xsi_work_release(stream);
        errno = saved_errno;
      }
    }
  }
}

void xsi_work_try_idle(struct xsi_work_stream *stream, bool by_watcher) {
  xsi_work_lock();
  try_idle(stream, by_watcher);
  xsi_work_unlock();
}

void xsi_work_complete(struct xsi_work_stream *stream, uint64_t mark, bool by_watcher) {
  uint64_t completed = __atomic_load_n(&stream->completed, __ATOMIC_SEQ_CST);
  if (completed >= mark &&
      (completed < xsi_work_submitted(stream) || !__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST)))
    return; // somebody else was here
  xsi_work_lock();
  if (__atomic_load_n(&stream->completed, __ATOMIC_RELAXED) < mark)
    __atomic_store_n(&stream->completed, mark, __ATOMIC_RELEASE);
  try_idle(stream, by_watcher);
  xsi_work_unlock();
}

void xsi_work_withdraw(struct xsi_work_stream *stream) {
  if (xsi_work_owned(stream)) {
    uint64_t count = __atomic_load_n(&stream->submitted_owner, __ATOMIC_RELAXED) - 1;
    __atomic_store_n(&stream->submitted_owner, count, __ATOMIC_RELAXED);
  } else {
    __atomic_sub_fetch(&stream->submitted_others, 1, __ATOMIC_SEQ_CST);
  }
  xsi_thread.work.calling--;
  // Only the lock tells whether that was all: a thread that completes the rest now neither orders its
  // store with this one nor leaves busy alone.
  xsi_work_try_idle(stream, false);
}

// Several threads may count the same wait: for a decision one doorbell is as good as two.
void xsi_work_tell_wait(struct xsw_queue *slot, uint64_t fed_ns) {
  __atomic_store_n(&slot->fed_ns, fed_ns, __ATOMIC_RELAXED);
  uint64_t waits = __atomic_load_n(&slot->waits, __ATOMIC_RELAXED) + 1;
  __atomic_store_n(&slot->waits, waits, __ATOMIC_RELEASE);
  if ((__atomic_load_n(&slot->tell, __ATOMIC_RELAXED) & XSW_TELL_WAIT) != 0) xsi_doorbell_ring();
}

void xsi_work_fed_since(struct xsi_work_stream *stream, uint64_t begun_ns) {
  struct xsw_queue *slot = xsi_work_slot(stream);
  if (__atomic_load_n(&slot->quiet, __ATOMIC_RELAXED) != 0) return;
  xsi_thread.work.fed = xsi_thread.counters.launches + xsi_thread.counters.copies;
  xsi_thread.work.fed_ns = begun_ns;
  if (begun_ns > __atomic_load_n(&slot->fed_ns, __ATOMIC_RELAXED))
    xsi_work_tell_wait(slot, begun_ns);
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
    xsi_work_tell_wait(slot, mine->fed_ns);
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
  xsi_work_lock();
  struct xsi_work_context *context = xsi_work_lookup_context(handle);
  if (context && context->busy > marks->room) {
    struct xsi_work_marked *more = malloc(context->busy * sizeof *more);
    if (more) {
      marks->marked = more;
      marks->room = context->busy;
    }
  }
  // Without memory for all of them, the watcher finds the rest.
  for (struct xsi_work_stream *stream = context ? context->busy_streams : NULL;
       stream && marks->count < marks->room; stream = stream->busy_next) {
    marks->marked[marks->count].stream = stream;
    marks->marked[marks->count++].mark = xsi_work_mark(stream);
    xsi_work_sync_begins(stream);
  }
  xsi_work_unlock();
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

// Under the lock: a thread that finds the end of a stream clears busy before it has made sure.
bool xsi_work_is_busy(const struct xsi_work_stream *stream) {
  xsi_work_lock();
  bool busy = __atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST) != 0;
  xsi_work_unlock();
  return busy;
}
