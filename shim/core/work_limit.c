// SPDX-License-Identifier: Apache-2.0
//
// Lv1's limit on work in flight. Every few submissions an event of ours is recorded; a launcher above the
// limit waits for the oldest one. In force only while the daemon sets it, and never during captures.

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "gate.h"
#include "log.h"
#include "work_internal.h"

#define RING 64

struct xsi_work_limit {
  pthread_mutex_t lock;
  uint32_t since; /* submissions since the last event */
  uint32_t head, count;
  struct {
    uintptr_t event;
    uint64_t mark;
  } ring[RING];
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
  if (error == 0 && limit->count < RING) {
    uint32_t tail = (limit->head + limit->count++) % RING;
    limit->ring[tail].event = event;
    limit->ring[tail].mark = mark;
    limit->since = 0;
    event = 0;
  }
  pthread_mutex_unlock(&limit->lock);
  if (event) keep(stream, incarnation, event);
  return error;
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

// The caller's own submission is counted already, hence "more than".
void xsi_work_limit_before(struct xsi_work_stream *stream) {
  int saved_errno = errno;
  for (;;) {
    uint32_t most = limit_now(stream);
    if (most == 0 || in_flight(stream) <= most ||
        __atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) != 0)
      break;
    struct xsi_work_limit *limit = limit_of(stream);
    if (!limit) break;
    uint64_t incarnation = __atomic_load_n(&stream->incarnation, __ATOMIC_RELAXED);
    pthread_mutex_lock(&limit->lock);
    bool any = limit->count > 0;
    uintptr_t event = 0;
    uint64_t mark = 0;
    if (any) {
      event = limit->ring[limit->head].event;
      mark = limit->ring[limit->head].mark;
      limit->head = (limit->head + 1) % RING;
      limit->count--;
    }
    pthread_mutex_unlock(&limit->lock);
    if (!any) {
      // All landed work is complete: the rest is in the middle of calls of other threads.
      if (xsi_work_mark(stream) <= __atomic_load_n(&stream->completed, __ATOMIC_SEQ_CST)) break;
      if (record(stream, limit) != 0) break;
      continue;
    }
    __atomic_fetch_add(&stream->syncing, 1, __ATOMIC_SEQ_CST);
    int error = stream->platform->event_wait(event);
    __atomic_fetch_sub(&stream->syncing, 1, __ATOMIC_SEQ_CST);
    if (error == 0) xsi_work_complete(stream, mark, false);
    keep(stream, incarnation, event);
    if (error != 0) break; // the application will hear of it from its own calls
  }
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
  pthread_mutex_unlock(&limit->lock);
}
