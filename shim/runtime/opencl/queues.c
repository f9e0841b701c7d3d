// SPDX-License-Identifier: Apache-2.0
//
// The program's queues and the events behind their last commands.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/lock.h"
#include "library.h"

#define BUCKETS 64
#define MOST_STEPS 64 /* along a chain without the lock, which may change meanwhile */
#define FEW_EVENTS 16 /* of a queue: below that nothing asks which of them are complete */

struct list {
  uint32_t count, room; /* the first is atomic for those that only look whether there are any */
  cl_event *events;
  cl_event one; /* of a list that was dropped: one more */
};

// Records are never freed, so that a thread that has found one can use it; they are used again.
struct xsi_cl_queue {
  cl_command_queue handle;                    /* atomic; NULL: unused */
  enum { UNASKED, ORDERED, ANY_ORDER } order; /* atomic */
  uint64_t calls;      /* atomic: those in progress, and from bit 32 on all that ever began */
  uint32_t references; /* the program's; under the table's lock */
  struct xsi_lock lock;
  struct list list;
  uint32_t prune_at;         /* the count at which completed events are looked for */
  uint32_t taken;            /* by threads that ask about its events now */
  struct xsi_cl_queue *next; /* atomic */
};

// Leaf locks: no function of the library is called with one. Whoever needs the queue's events takes the
// whole list, asks without the lock, and puts back what is left. The table's lock is for queues that come and go,
// and for the events to release.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct xsi_cl_queue *buckets[BUCKETS], *unused;
static struct list later; /* events to release */

static struct xsi_cl_queue **bucket(cl_command_queue handle) {
  return &buckets[(uintptr_t)handle * 0x9E3779B97F4A7C15u >> 58];
}

static struct xsi_cl_queue *look_up(cl_command_queue handle) {
  struct xsi_cl_queue *at = __atomic_load_n(bucket(handle), __ATOMIC_ACQUIRE);
  for (unsigned i = 0; at && i < MOST_STEPS; i++) {
    if (__atomic_load_n(&at->handle, __ATOMIC_ACQUIRE) == handle) return at;
    at = __atomic_load_n(&at->next, __ATOMIC_ACQUIRE);
  }
  return NULL;
}

// Under the table's lock: one that a reader may have missed, or a new one.
static struct xsi_cl_queue *find_locked(cl_command_queue handle) {
  struct xsi_cl_queue *at = *bucket(handle);
  while (at && at->handle != handle)
    at = at->next;
  if (at) return at;
  if ((at = unused) != NULL)
    unused = at->next;
  else if ((at = calloc(1, sizeof *at)) == NULL)
    return NULL;
  // A queue that was created by a call the shim does not see has one reference of the program.
  at->references = 1;
  __atomic_store_n(&at->order, UNASKED, __ATOMIC_RELAXED);
  __atomic_store_n(&at->calls, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&at->next, *bucket(handle), __ATOMIC_RELEASE);
  __atomic_store_n(&at->handle, handle, __ATOMIC_RELEASE);
  __atomic_store_n(bucket(handle), at, __ATOMIC_RELEASE);
  return at;
}

struct xsi_cl_queue *xsi_cl_queue_find(cl_command_queue handle) {
  struct xsi_cl_queue *queue = look_up(handle);
  if (XSI_LIKELY(queue != NULL)) return queue;
  pthread_mutex_lock(&lock);
  queue = find_locked(handle);
  pthread_mutex_unlock(&lock);
  return queue;
}

static bool append(struct list *list, cl_event event) {
  if (list->count == list->room) {
    uint32_t room = list->room ? 2 * list->room : 8;
    cl_event *events = realloc(list->events, room * sizeof *events);
    if (!events) return false;
    list->events = events;
    list->room = room;
  }
  list->events[list->count] = event;
  __atomic_store_n(&list->count, list->count + 1, __ATOMIC_RELAXED);
  return true;
}

static void release(cl_event event) {
  if (event) (void)xsi_cl_call(clReleaseEvent, event);
}

void xsi_cl_release_later(cl_event event) {
  pthread_mutex_lock(&lock);
  append(&later, event); // without memory one event stays
  pthread_mutex_unlock(&lock);
}

static void release_now(void) {
  while (XSI_UNLIKELY(__atomic_load_n(&later.count, __ATOMIC_RELAXED) != 0)) {
    cl_event event = NULL;
    pthread_mutex_lock(&lock);
    if (later.count > 0) {
      __atomic_store_n(&later.count, later.count - 1, __ATOMIC_RELAXED);
      event = later.events[later.count];
    }
    pthread_mutex_unlock(&lock);
    release(event);
  }
}

// ---- queues that come and go ----------------------------------------------------------------

// Under the table's lock: what is left of a queue goes to the events to release.
static void empty(struct xsi_cl_queue *queue) {
  xsi_lock_take(&queue->lock);
  for (uint32_t i = 0; i < queue->list.count; i++)
    append(&later, queue->list.events[i]);
  queue->list.count = 0;
  queue->prune_at = 0;
  xsi_lock_give(&queue->lock);
}

void xsi_cl_queue_created(cl_command_queue handle) {
  pthread_mutex_lock(&lock);
  struct xsi_cl_queue *queue = find_locked(handle);
  if (queue) {
    empty(queue); // of an earlier queue at this address
    queue->references = 1;
    __atomic_store_n(&queue->order, UNASKED, __ATOMIC_RELAXED);
  }
  pthread_mutex_unlock(&lock);
}

void xsi_cl_queue_retained(cl_command_queue handle) {
  pthread_mutex_lock(&lock);
  struct xsi_cl_queue *queue = find_locked(handle);
  if (queue) queue->references++;
  pthread_mutex_unlock(&lock);
}

// Under the table's lock.
static void remove_queue(struct xsi_cl_queue *queue) {
  struct xsi_cl_queue **at = bucket(queue->handle);
  while (*at && *at != queue)
    at = &(*at)->next;
  if (*at) __atomic_store_n(at, queue->next, __ATOMIC_RELEASE);
  __atomic_store_n(&queue->handle, NULL, __ATOMIC_RELEASE);
  empty(queue);
  __atomic_store_n(&queue->next, unused, __ATOMIC_RELEASE);
  unused = queue;
}

bool xsi_cl_queue_released(cl_command_queue handle) {
  pthread_mutex_lock(&lock);
  struct xsi_cl_queue *queue = find_locked(handle);
  bool last = queue && --queue->references == 0;
  pthread_mutex_unlock(&lock);
  if (!last) return false;
  xsi_work_stream_destroying((uintptr_t)handle); // takes the last event if there is work left
  pthread_mutex_lock(&lock);
  if (queue->handle == handle) remove_queue(queue);
  pthread_mutex_unlock(&lock);
  release_now();
  return true;
}

// ---- commands ---------------------------------------------------------------------------------

bool xsi_cl_queue_ordered(struct xsi_cl_queue *queue) {
  int order = __atomic_load_n(&queue->order, __ATOMIC_RELAXED);
  if (XSI_LIKELY(order != UNASKED)) return order == ORDERED;
  cl_command_queue_properties properties = 0;
  cl_int result = xsi_cl_call(clGetCommandQueueInfo, queue->handle, CL_QUEUE_PROPERTIES,
                              sizeof properties, &properties, NULL);
  bool ordered = result == CL_SUCCESS && (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) == 0;
  __atomic_store_n(&queue->order, ordered ? ORDERED : ANY_ORDER, __ATOMIC_RELAXED);
  return ordered;
}

// Two calls that overlap may have put their commands into the queue in either order. A ticket is for a call that
// began alone: the number of calls by then.
uint32_t xsi_cl_queue_enter(struct xsi_cl_queue *queue) {
  uint64_t before = __atomic_fetch_add(&queue->calls, 1ull << 32 | 1, __ATOMIC_SEQ_CST);
  return (uint32_t)before == 0 ? (uint32_t)(before >> 32) + 1 : 0;
}

// True if no other call began meanwhile. A ticket of 0 is none: one call in 2^32 counts as not alone.
static bool was_alone(struct xsi_cl_queue *queue, uint32_t ticket) {
  uint64_t before = __atomic_fetch_sub(&queue->calls, 1, __ATOMIC_SEQ_CST);
  return ticket != 0 && before == ((uint64_t)ticket << 32 | 1);
}

enum xsi_work_answer xsi_cl_status(cl_event event) {
  cl_int now = CL_COMPLETE;
  cl_int result =
      xsi_cl_call(clGetEventInfo, event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof now, &now, NULL);
  // A failed event, or one that can't be queried any more, waits for nothing.
  return result != CL_SUCCESS || now <= CL_COMPLETE ? XSI_WORK_DONE : XSI_WORK_PENDING;
}

// ---- the events of a queue, taken out of it -------------------------------------------------

// alone: no other thread has taken events of it.
static struct list take_events(struct xsi_cl_queue *queue, bool *alone) {
  xsi_lock_take(&queue->lock);
  struct list taken = queue->list;
  queue->list = (struct list){0};
  *alone = queue->taken++ == 0;
  xsi_lock_give(&queue->lock);
  return taken;
}

// Releases what is complete.
static void prune(struct list *taken) {
  uint32_t left = 0;
  for (uint32_t i = 0; i < taken->count; i++)
    if (xsi_cl_status(taken->events[i]) == XSI_WORK_PENDING)
      taken->events[left++] = taken->events[i];
    else
      release(taken->events[i]);
  taken->count = left;
}

// Behind the events that came meanwhile: an ordered queue may have dropped these already, and a queue that
// was released needs none.
static void put_back(struct xsi_cl_queue *queue, cl_command_queue handle, struct list *taken) {
  uint32_t kept = 0;
  xsi_lock_take(&queue->lock);
  if (queue->taken > 0) queue->taken--;
  if (__atomic_load_n(&queue->handle, __ATOMIC_ACQUIRE) == handle)
    while (kept < taken->count && append(&queue->list, taken->events[kept]))
      kept++;
  uint32_t count = queue->list.count;
  queue->prune_at = count < FEW_EVENTS / 2 ? FEW_EVENTS : 2 * count;
  xsi_lock_give(&queue->lock);
  while (kept < taken->count)
    xsi_cl_release_later(taken->events[kept++]);
  free(taken->events);
}

// Puts the event of a call that returned into the list. Alone in an ordered queue, it is behind all others: their
// list is left to the caller. In the lock, so that no other call returns in between.
static bool keep(struct xsi_cl_queue *queue, uint32_t ticket, cl_event event,
                 struct list *dropped) {
  bool many = false;
  xsi_lock_take(&queue->lock);
  bool alone = was_alone(queue, ticket);
  if (event) {
    struct list *list = &queue->list;
    alone = alone && __atomic_load_n(&queue->order, __ATOMIC_RELAXED) == ORDERED;
    if (alone && list->count == 1) { // mostly: the memory stays
      dropped->one = list->events[0];
      list->count = 0;
    } else if (alone) {
      *dropped = *list;
      *list = (struct list){0};
    }
    if (!append(list, event)) dropped->one = event; // no memory: the watcher has less to ask
    // A queue of any order: each time the events have doubled, those that are complete go.
    many = list->count >= (queue->prune_at ? queue->prune_at : FEW_EVENTS);
  }
  xsi_lock_give(&queue->lock);
  return many;
}

void xsi_cl_queue_leave(struct xsi_cl_queue *queue, uint32_t ticket, cl_event event) {
  struct list dropped = {0};
  if (XSI_UNLIKELY(keep(queue, ticket, event, &dropped))) {
    bool alone;
    cl_command_queue handle = __atomic_load_n(&queue->handle, __ATOMIC_ACQUIRE);
    struct list taken = take_events(queue, &alone);
    prune(&taken);
    put_back(queue, handle, &taken);
  }
  release(dropped.one);
  for (uint32_t i = 0; i < dropped.count; i++)
    release(dropped.events[i]);
  free(dropped.events);
  release_now();
}

// By the watcher: what is complete is released by the program's next call.
enum xsi_work_answer xsi_cl_queue_query(cl_command_queue handle) {
  bool alone;
  struct xsi_cl_queue *queue = xsi_cl_queue_find(handle);
  if (!queue) return XSI_WORK_UNKNOWN;
  struct list taken = take_events(queue, &alone);
  uint32_t done = 0;
  while (done < taken.count && xsi_cl_status(taken.events[done]) != XSI_WORK_PENDING)
    xsi_cl_release_later(taken.events[done++]);
  taken.count -= done;
  if (taken.count > 0)
    memmove(taken.events, taken.events + done, taken.count * sizeof *taken.events);
  enum xsi_work_answer answer = taken.count > 0 ? XSI_WORK_PENDING : XSI_WORK_DONE;
  put_back(queue, handle, &taken);
  return answer == XSI_WORK_DONE && !alone ? XSI_WORK_UNKNOWN : answer;
}

cl_event xsi_cl_queue_last(cl_command_queue handle) {
  bool alone;
  struct xsi_cl_queue *queue = xsi_cl_queue_find(handle);
  if (!queue) return NULL;
  struct list taken = take_events(queue, &alone);
  cl_event last = alone && taken.count == 1 ? taken.events[0] : NULL;
  if (last && xsi_cl_call(clRetainEvent, last) != CL_SUCCESS) last = NULL;
  put_back(queue, handle, &taken);
  if (last) return last;
  // Several commands in any order: one marker behind them, from a thread of the program.
  cl_event marker = NULL;
  return xsi_cl_call(clEnqueueMarkerWithWaitList, handle, 0, NULL, &marker) == CL_SUCCESS ? marker
                                                                                          : NULL;
}

void xsi_cl_queues_reset(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  memset(buckets, 0, sizeof buckets);
  memset(&later, 0, sizeof later);
  unused = NULL;
}
