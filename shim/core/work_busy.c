// SPDX-License-Identifier: Apache-2.0
//
// The changes of streams between idle and busy, and who waits for them. See work.h for the rules.

#include "work.h"

#include <errno.h>
#include <stdlib.h>

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

// Neither of these two touches errno: what may, keeps it by itself. They are on the way of every
// launch that is waited for.
void xsi_work_mark_busy(struct xsi_work_stream *stream) {
  bool wake = false;
  xsi_work_lock();
  struct xsi_work_context *context = stream->context;
  if (context && !__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST)) {
    // Only its end has to be ordered with submissions.
    __atomic_store_n(&stream->busy, 1, __ATOMIC_RELEASE);
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
  if (stream->context && __atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST) &&
      __atomic_load_n(&stream->completed, __ATOMIC_SEQ_CST) >=
          __atomic_load_n(&stream->submitted, __ATOMIC_SEQ_CST)) {
    __atomic_store_n(&stream->busy, 0, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&stream->completed, __ATOMIC_SEQ_CST) <
        __atomic_load_n(&stream->submitted, __ATOMIC_SEQ_CST)) {
      // Somebody submitted in between and may have seen the stream busy: it is.
      __atomic_store_n(&stream->busy, 1, __ATOMIC_SEQ_CST);
    } else {
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
  if (completed >= mark && (completed < __atomic_load_n(&stream->submitted, __ATOMIC_SEQ_CST) ||
                            !__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST)))
    return; // somebody else was here
  xsi_work_lock();
  if (__atomic_load_n(&stream->completed, __ATOMIC_RELAXED) < mark)
    __atomic_store_n(&stream->completed, mark, __ATOMIC_RELEASE);
  try_idle(stream, by_watcher);
  xsi_work_unlock();
}

void xsi_work_withdraw(struct xsi_work_stream *stream) {
  __atomic_sub_fetch(&stream->submitted, 1, __ATOMIC_SEQ_CST);
  // Only under the lock is it known whether that was all: who completes the rest at this moment
  // neither orders its store with this nor leaves busy alone.
  xsi_work_try_idle(stream, false);
}

// ---- captures
// ------------------------------------------------------------------------------------

void xsi_work_capture_begun(struct xsi_work_stream *stream) {
  xsi_work_lock();
  if (stream->context)
    stream->capturing++;
  else // gone meanwhile
    __atomic_fetch_sub(&xsi_work_captures, 1, __ATOMIC_SEQ_CST);
  xsi_work_unlock();
}

void xsi_work_capture_ended(struct xsi_work_stream *stream) {
  xsi_work_lock();
  if (stream->capturing) {
    stream->capturing--;
    __atomic_fetch_sub(&xsi_work_captures, 1, __ATOMIC_SEQ_CST);
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
  // Without memory for all the watcher finds the rest.
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
