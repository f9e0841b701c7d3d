// SPDX-License-Identifier: Apache-2.0
//
// The parts of entry points that are not on the path of a repeated launch.

#include "account.h"

#include "core/move.h"

// ---- work other than launches, and launches into another stream than before ---------------------

struct xsi_call xsi_begin_work(const struct xsi_account *account, uintptr_t stream,
                               uintptr_t kernel) {
  struct xsi_call call = {NULL, XSI_PLAIN};
  bool active = kernel == XSI_WORK_OTHER ? account->enter() : account->enter_submit();
  if (XSI_UNLIKELY(!active)) return call;
  call.mode = XSI_CAPTURED;
  if (xsi_captured(account, stream)) return call;
  call.mode = XSI_COUNTED;
  call.work = account->work(stream);
  if (XSI_LIKELY(call.work != NULL))
    xsi_work_submit(call.work, kernel);
  else if (account->unknown != NULL)
    account->unknown(stream);
  else
    xsi_work_unrecorded();
  return call;
}

struct xsi_call xsi_begin_copy(const struct xsi_account *account, uintptr_t stream) {
  return account->begin(stream);
}

static int end_aside(struct xsi_call call, unsigned copies, int result) {
  if (call.work && result == 0) {
    xsi_work_aside(call.work, 1, copies);
    xsi_work_landed(call.work);
  } else if (call.work) {
    xsi_work_withdraw(call.work);
  }
  return result;
}

int xsi_end_work(struct xsi_call call, int result) { return end_aside(call, 0, result); }

int xsi_end_copy(struct xsi_call call, int result) {
  if (result == 0 && call.mode == XSI_COUNTED) xsi_count(copies, 1);
  return end_aside(call, 1, result);
}

// ---- copies that wait ------------------------------------------------------------------------

static void mark(struct xsi_wait *wait) {
  if (!wait->call.work) return;
  wait->mark = xsi_work_mark(wait->call.work);
  xsi_work_sync_begins(wait->call.work);
}

static void unmark(struct xsi_wait *wait, int result) {
  if (!wait->call.work) return;
  xsi_work_sync_ends(wait->call.work);
  if (result == 0) xsi_work_complete(wait->call.work, wait->mark, false);
}

static void enter(const struct xsi_account *account, struct xsi_wait *wait) {
  wait->call.work = NULL;
  wait->call.mode = account->enter() ? XSI_COUNTED : XSI_PLAIN;
}

// Such a copy is work while it runs, and none when it returned: what it leaves behind is the end of
// what was in its stream when it began.
void xsi_begin_wait(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream) {
  wait->call = xsi_begin_copy(account, stream);
  xsi_thread.work.fed = UINT64_MAX; // it is work of its own, though counted only when it is over
  mark(wait);
}

int xsi_end_wait(struct xsi_wait *wait, int result) {
  if (result == 0 && wait->call.mode == XSI_COUNTED) xsi_count(copies, 1);
  unmark(wait, result);
  if (wait->call.work && result == 0) xsi_work_aside(wait->call.work, 0, 1);
  if (wait->call.work) xsi_work_withdraw(wait->call.work);
  return result;
}

bool xsi_begin_maybe(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream) {
  wait->call = xsi_begin_copy(account, stream);
  wait->waits = wait->learns = false;
  wait->begun_ns = 0;
  return wait->call.work != NULL;
}

void xsi_maybe_waits(struct xsi_wait *wait) {
  wait->waits = true;
  xsi_thread.work.fed = UINT64_MAX; // as above
  xsi_work_sync_begins(wait->call.work);
}

void xsi_maybe_timed(struct xsi_wait *wait) {
  if (wait->call.work && !wait->begun_ns) wait->begun_ns = xsi_now_ns();
}

// No copy of a few bytes takes that long, and no wait that is shorter matters.
enum { LONG_NS = 50000 };

static int small_waits = 1; // atomic: the last small copy behind other work waited

bool xsi_maybe_small(struct xsi_wait *wait) {
  const struct xsi_work_stream *work = wait->call.work;
  struct xsi_work_thread *mine = &xsi_thread.work;
  wait->mark = xsi_work_submitted(work);
  if (xsi_work_is_first(work) || (mine->small == work && mine->small_mark == wait->mark - 1)) {
    mine->small = work; // else every other copy of a loop would ask
    mine->small_mark = wait->mark;
  } else {
    wait->learns = true;
  }
  xsi_maybe_timed(wait);
  return wait->learns && __atomic_load_n(&small_waits, __ATOMIC_RELAXED);
}

// Only if nothing else came into the stream is the answer about what was there before.
static void learn(const struct xsi_wait *wait, bool is_long, bool over) {
  if (!wait->learns || xsi_work_submitted(wait->call.work) != wait->mark || is_long != over) return;
  __atomic_store_n(&small_waits, over, __ATOMIC_RELAXED);
}

// The mark before the question: the answer covers what had landed by then, and this copy, too.
int xsi_end_maybe(struct xsi_wait *wait, uintptr_t stream, int result) {
  struct xsi_work_stream *work = wait->call.work;
  bool is_long = wait->begun_ns && xsi_now_ns() - wait->begun_ns >= LONG_NS;
  if (wait->waits) xsi_work_sync_ends(work);
  xsi_end_copy(wait->call, result);
  if (result != 0) xsi_thread.work.small = NULL; // its mark is another's now
  if (!(wait->waits || is_long) || result != 0) return result;
  if (wait->waits) // was this copy
    xsi_thread.work.fed = xsi_thread.counters.launches + xsi_thread.counters.copies;
  uint64_t mark = xsi_work_mark(work);
  bool over = xsi_work_ask(work, stream);
  learn(wait, is_long, over);
  if (!over) return result;
  if (!wait->waits) xsi_work_fed_since(work, wait->begun_ns);
  xsi_work_complete(work, mark, false);
  return result;
}

// ---- waits and events ---------------------------------------------------------------------------

void xsi_begin_sync(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream) {
  enter(account, wait);
  if (wait->call.mode == XSI_COUNTED) wait->call.work = account->work(stream);
  mark(wait);
}

int xsi_end_sync(struct xsi_wait *wait, int result) {
  if (result == 0 && wait->call.mode == XSI_COUNTED) xsi_count(syncs, 1);
  unmark(wait, result);
  return result;
}

// A query that succeeds ends the submission like a wait. One that does not is a wait if it is repeated.
void xsi_begin_query(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream) {
  enter(account, wait);
  if (wait->call.mode == XSI_COUNTED) wait->call.work = account->work(stream);
  if (wait->call.work) wait->mark = xsi_work_mark(wait->call.work);
}

int xsi_end_query(const struct xsi_account *account, struct xsi_wait *wait, int result) {
  struct xsi_work_stream *work = wait->call.work;
  if (result == 0 && wait->call.mode == XSI_COUNTED) xsi_count(syncs, 1);
  if (work && result == 0) {
    xsi_work_fed(work);
    xsi_work_complete(work, wait->mark, false);
  } else if (work && result == account->not_ready) {
    xsi_work_polled(work, (uintptr_t)work);
  }
  return result;
}

void xsi_begin_await(const struct xsi_account *account, uintptr_t stream) {
  if (!account->enter()) return;
  xsi_work_never_batch(); // who waits for values may also watch them without a call
  if (xsi_captured(account, stream)) return;
  struct xsi_work_stream *work = account->work(stream);
  if (work) xsi_work_fence(work);
}

void xsi_begin_record(const struct xsi_account *account, struct xsi_wait *wait, const void *event,
                      uintptr_t stream) {
  wait->call.work = NULL;
  wait->call.mode = account->enter_submit() ? XSI_COUNTED : XSI_PLAIN;
  if (wait->call.mode == XSI_PLAIN) return;
  xsi_work_queued();
  xsi_work_event_forget((uintptr_t)event);
  if (xsi_captured(account, stream)) return; // recorded into a graph
  wait->call.work = account->work(stream);
  if (wait->call.work) wait->mark = xsi_work_mark(wait->call.work);
}

int xsi_end_record(struct xsi_wait *wait, const void *event, int result) {
  if (wait->call.work && result == 0)
    xsi_work_event_recorded((uintptr_t)event, wait->call.work, wait->mark);
  return result;
}

// ---- captures ------------------------------------------------------------------------

// Memory does not move while a stream enters a capture, nor afterwards until the capture ends.
// The watcher is kept away while a stream enters or leaves a capture: it must not ask about one
// that is in.
void xsi_capture_begin(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream) {
  enter(account, wait);
  if (wait->call.mode == XSI_PLAIN) return;
  xsi_move_enter();
  wait->call.work = account->work(stream);
  wait->excluded = xsi_work_exclude_stream(wait->call.work);
  __atomic_fetch_add(&xsi_work_hot.captures, 1, __ATOMIC_SEQ_CST);
}

int xsi_capture_begin_done(struct xsi_wait *wait, int result) {
  if (wait->call.mode == XSI_PLAIN) return result;
  if (result == 0 && wait->call.work)
    xsi_work_capture_begun(wait->call.work);
  else // without a record its end could not be told from another's: the stream answers for itself
    __atomic_fetch_sub(&xsi_work_hot.captures, 1, __ATOMIC_SEQ_CST);
  xsi_work_include(wait->excluded);
  xsi_move_leave();
  return result;
}

void xsi_capture_end(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream) {
  enter(account, wait);
  if (wait->call.mode == XSI_PLAIN) return;
  wait->call.work = account->work(stream);
  wait->mark = stream;
  wait->excluded = xsi_work_exclude_stream(wait->call.work);
}

int xsi_capture_end_done(const struct xsi_account *account, struct xsi_wait *wait, int result) {
  if (wait->call.mode == XSI_PLAIN) return result;
  // An invalidated capture ends with an error; one of another thread does not end.
  if (wait->call.work && (result == 0 || !account->still_capturing((uintptr_t)wait->mark)))
    xsi_work_capture_ended(wait->call.work);
  xsi_work_include(wait->excluded);
  return result;
}

// The stream that waits may become a part of the capture, in whatever context that is.
struct xsi_work_context *xsi_capture_wait(const struct xsi_account *account, uintptr_t stream,
                                          const void *event) {
  if (!account->enter_submit()) return NULL;
  bool captures = __atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) != 0;
  if (!captures && __atomic_load_n(&xsi_work_closed, __ATOMIC_RELAXED) == 0) return NULL;
  const struct xsi_work_stream *work = account->work(stream);
  xsi_work_awaits(work, (uintptr_t)event);
  return captures ? xsi_work_exclude_stream(work) : NULL;
}

int xsi_capture_wait_done(struct xsi_work_context *excluded, int result) {
  xsi_work_include(excluded);
  return result;
}
