// SPDX-License-Identifier: Apache-2.0
//
// Lv1's limit on work in flight. Every few submissions an event of ours is recorded; a launcher above the
// limit waits for the end of the oldest one, but not for ever. In force only while the daemon sets it, and
// never during captures.

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"
#include "log.h"
#include "teardown.h"
#include "work_internal.h"

#define RING 64
#define SHORTEST_NS 4000u       /* a rest that would be shorter is none */
#define LONGEST_NS 500000u      /* also how late a change of the limit is seen */
#define PATIENCE_NS 1000000000u /* then the launch passes */
#define SIGNAL_NS 5000000u      /* the same of a stream that waits for signals of others */

struct entry {
  uintptr_t context, event;
  uint64_t mark, incarnation;
};

struct xsi_work_limit {
  pthread_mutex_t lock;
  uint32_t since; /* submissions since the last event */
  uint32_t head, count;
  uint64_t usual_ns; /* how long its last waits took */
  bool stuck;        /* the oldest work did not end within PATIENCE_NS */
  struct entry ring[RING];
};

static struct xsi_work_limit *limit_of(struct xsi_work_stream *stream) {
  struct xsi_work_limit *limit = __atomic_load_n(&stream->limit, __ATOMIC_ACQUIRE);
  if (limit) return limit;
  struct xsi_work_limit *fresh = calloc(1, sizeof *fresh);
  if (!fresh) return NULL;
  pthread_mutex_init(&fresh->lock, NULL);
  if (__atomic_compare_exchange_n(&stream->limit, &limit, fresh, false, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE))
    return fresh;
  free(fresh);
  return limit;
}

static void keep(struct xsi_work_stream *stream, uint64_t incarnation, uintptr_t event) {
  xsi_work_lock();
  if (stream->incarnation == incarnation && stream->context)
    xsi_work_keep_event(stream->context, event);
  else if (stream->platform->event_drop != NULL)
    stream->platform->event_drop(event);
  xsi_work_unlock();
}

// Under the limit's lock: nothing goes into the next life of the record.
static bool lives(const struct xsi_work_stream *stream, uint64_t incarnation) {
  return __atomic_load_n(&stream->incarnation, __ATOMIC_RELAXED) == incarnation;
}

// Records one of our events behind the work that has landed.
static int record(struct xsi_work_stream *stream, struct xsi_work_limit *limit) {
  xsi_work_lock();
  struct xsi_work_context *context = stream->context;
  uintptr_t handle = context ? context->handle : 0, at = stream->handle;
  uintptr_t event = context ? xsi_work_spare_event(context) : 0;
  uint64_t incarnation = stream->incarnation;
  xsi_work_unlock();
  if (!handle) return -ENOENT;
  uint64_t mark = xsi_work_mark(stream);
  int error = stream->platform->event_record(handle, &event, at);
  pthread_mutex_lock(&limit->lock);
  if (error == 0 && limit->count < RING && lives(stream, incarnation)) {
    uint32_t tail = (limit->head + limit->count++) % RING;
    limit->ring[tail] = (struct entry){handle, event, mark, incarnation};
    limit->since = 0;
    event = 0;
  }
  pthread_mutex_unlock(&limit->lock);
  if (event) keep(stream, incarnation, event);
  return error;
}

void xsi_work_fence(struct xsi_work_stream *stream) {
  int saved_errno = errno;
  __atomic_store_n(&stream->awaits, true, __ATOMIC_RELAXED);
  xsi_work_lock();
  struct xsi_work_context *context = stream->context;
  bool busy = context && __atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST);
  busy = busy && __atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0;
  uintptr_t handle = busy ? context->handle : 0, at = stream->handle;
  uintptr_t event = !busy ? 0 : stream->fence ? stream->fence : xsi_work_spare_event(context);
  uint64_t incarnation = stream->incarnation;
  // The watcher must not take the event's new answer for the old mark's.
  if (busy) stream->fence = 0;
  xsi_work_unlock();
  if (handle) {
    uint64_t mark = xsi_work_mark(stream);
    int error = stream->platform->event_record(handle, &event, at);
    xsi_work_lock();
    if (error == 0 && stream->incarnation == incarnation && stream->context && !stream->fence) {
      stream->fence = event;
      stream->fence_mark = mark;
      event = 0;
    }
    xsi_work_unlock();
    if (event) keep(stream, incarnation, event);
  }
  errno = saved_errno;
}

static uint64_t in_flight(struct xsi_work_stream *stream) {
  uint64_t completed = __atomic_load_n(&stream->completed, __ATOMIC_SEQ_CST);
  // A locked read, because the owner counts with a plain store: of two concurrent threads one sees both.
  uint64_t submitted = __atomic_fetch_add(&stream->submitted_others, 0, __ATOMIC_SEQ_CST);
  submitted += __atomic_load_n(&stream->submitted_owner, __ATOMIC_SEQ_CST);
  return submitted > completed ? submitted - completed : 0;
}

// A silent daemon imposes no limit.
static uint32_t limit_now(const struct xsi_work_stream *stream) {
  if (__atomic_load_n(&xsi_native, __ATOMIC_RELAXED) != 0) return 0;
  return __atomic_load_n(&xsi_work_slot(stream)->in_flight, __ATOMIC_RELAXED);
}

// ---- the wait ------------------------------------------------------------------------

// By default the kernel adds up to 50 us to a sleep, as long as many a kernel runs.
static void rest(uint64_t ns) {
  long slack = syscall(SYS_prctl, PR_GET_TIMERSLACK, 0, 0, 0, 0); // may exceed an int
  struct timespec time = {.tv_nsec = (long)ns};
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, NULL); // not a cancellation point
  if (slack > 0) prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
}

// How long to rest before the next question. Work of a stream often takes as long as the work before it: a long
// rest until shortly before that, short ones around it, and then ever longer ones.
static uint64_t pause_ns(uint64_t waited, uint64_t usual) {
  uint64_t early = usual - usual / 4;
  if (waited < early) return early - waited;
  uint64_t step = waited < 2 * usual ? usual / 64 : waited / 16;
  return step < SHORTEST_NS ? 0 : step;
}

static enum xsi_work_answer poll_event(const struct xsi_work_stream *stream,
                                       const struct entry *entry) {
  if (!xsi_teardown_ask()) return XSI_WORK_PENDING;
  enum xsi_work_answer got = stream->platform->event_poll(entry->context, entry->event);
  xsi_teardown_asked();
  return got;
}

enum outcome { ENDED, LIFTED, STUCK };

static uint64_t patience_ns(const struct xsi_work_stream *stream) {
  return __atomic_load_n(&stream->awaits, __ATOMIC_RELAXED) ? SIGNAL_NS : PATIENCE_NS;
}

// In steps, never inside the driver: the daemon may fall silent or lift the limit, and the work may wait
// for something that this thread has yet to submit to another stream.
static enum outcome await(struct xsi_work_stream *stream, struct xsi_work_limit *limit,
                          const struct entry *entry) {
  uint64_t start = xsi_now_ns(), usual = __atomic_load_n(&limit->usual_ns, __ATOMIC_RELAXED);
  for (;;) {
    enum xsi_work_answer got = poll_event(stream, entry);
    uint64_t now = xsi_now_ns(), waited = now - start;
    if (got == XSI_WORK_DONE) {
      xsi_work_complete(stream, entry->mark, false);
      __atomic_store_n(&limit->usual_ns, (3 * usual + waited) / 4, __ATOMIC_RELAXED);
    }
    if (got != XSI_WORK_PENDING) return got == XSI_WORK_DONE ? ENDED : LIFTED;
    uint32_t most = limit_now(stream);
    if (most == 0 || in_flight(stream) <= most || xsi_gate_silent(now)) return LIFTED;
    if (waited > patience_ns(stream)) return STUCK;
    uint64_t step = pause_ns(waited, usual);
    if (step != 0) rest(step > LONGEST_NS ? LONGEST_NS : step);
  }
}

static bool take_oldest(struct xsi_work_limit *limit, struct entry *entry) {
  pthread_mutex_lock(&limit->lock);
  bool any = limit->count > 0;
  if (any) {
    *entry = limit->ring[limit->head];
    limit->head = (limit->head + 1) % RING;
    limit->count--;
  }
  pthread_mutex_unlock(&limit->lock);
  return any;
}

static bool put_back(struct xsi_work_stream *stream, struct xsi_work_limit *limit,
                     const struct entry *entry) {
  pthread_mutex_lock(&limit->lock);
  bool room = limit->count < RING && lives(stream, entry->incarnation);
  if (room) {
    limit->head = (limit->head + RING - 1) % RING;
    limit->ring[limit->head] = *entry;
    limit->count++;
  }
  pthread_mutex_unlock(&limit->lock);
  return room;
}

// A stream whose work did not end in time submits freely until it does.
static bool passes(struct xsi_work_stream *stream, struct xsi_work_limit *limit,
                   const struct entry *entry) {
  if (!__atomic_load_n(&limit->stuck, __ATOMIC_RELAXED)) return false;
  if (poll_event(stream, entry) == XSI_WORK_PENDING) return true;
  __atomic_store_n(&limit->stuck, false, __ATOMIC_RELAXED);
  return false;
}

// The caller's own submission is counted already, hence "more than".
void xsi_work_limit_before(struct xsi_work_stream *stream) {
  int saved_errno = errno;
  bool waited = false;
  for (;;) {
    uint32_t most = limit_now(stream);
    if (most == 0 || in_flight(stream) <= most ||
        __atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) != 0)
      break;
    struct xsi_work_limit *limit = limit_of(stream);
    if (!limit) break;
    struct entry oldest;
    if (!take_oldest(limit, &oldest)) {
      // All landed work is complete: the rest is in the middle of calls of other threads.
      if (xsi_work_mark(stream) <= __atomic_load_n(&stream->completed, __ATOMIC_SEQ_CST)) break;
      if (record(stream, limit) != 0) break;
      continue;
    }
    xsi_work_open(); // the work may be a part of a batch
    __atomic_fetch_add(&stream->syncing, 1, __ATOMIC_SEQ_CST);
    enum outcome outcome = passes(stream, limit, &oldest) ? STUCK : await(stream, limit, &oldest);
    __atomic_fetch_sub(&stream->syncing, 1, __ATOMIC_SEQ_CST);
    waited = true;
    if (outcome == STUCK && !__atomic_exchange_n(&limit->stuck, true, __ATOMIC_RELAXED))
      xsi_log(XSI_WARN, "work in flight does not end: launches pass the limit until it does");
    if (outcome != STUCK || !put_back(stream, limit, &oldest))
      keep(stream, oldest.incarnation, oldest.event);
    if (outcome != ENDED) break;
  }
  // The daemon may have closed the gate meanwhile.
  if (waited && __atomic_load_n(&xsi_work_slot(stream)->gate, __ATOMIC_ACQUIRE) == XSW_GATE_HELD)
    xsi_work_held(stream, XSI_WORK_INSIDE);
  errno = saved_errno;
}

void xsi_work_limit_after(struct xsi_work_stream *stream) {
  int saved_errno = errno;
  struct xsi_work_limit *limit = limit_now(stream) == 0 ? NULL : limit_of(stream);
  if (limit && __atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0) {
    uint32_t most = limit_now(stream);
    uint32_t batch = __atomic_load_n(&xsi_work_slot(stream)->batch, __ATOMIC_RELAXED);
    if (batch == 0 || batch > most) batch = most;
    pthread_mutex_lock(&limit->lock);
    bool due = ++limit->since >= batch && limit->count < RING;
    pthread_mutex_unlock(&limit->lock);
    if (due) record(stream, limit);
  }
  errno = saved_errno;
}

void xsi_work_limit_forget(struct xsi_work_stream *stream) {
  struct xsi_work_limit *limit = stream->limit;
  if (!limit) return;
  pthread_mutex_lock(&limit->lock);
  while (limit->count > 0) {
    xsi_work_keep_event(stream->context, limit->ring[limit->head].event);
    limit->head = (limit->head + 1) % RING;
    limit->count--;
  }
  limit->since = 0;
  limit->stuck = false;
  pthread_mutex_unlock(&limit->lock);
}
