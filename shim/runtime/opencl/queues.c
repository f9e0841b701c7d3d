// SPDX-License-Identifier: Apache-2.0
//
// The program's queues and the events behind their last commands.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

#define BUCKETS 64
#define FEW_EVENTS 16 /* of a queue: below that nothing asks which of them are complete */

struct queue {
  cl_command_queue handle;
  uint32_t references; /* the program's */
  bool ordered, known; /* known: ordered was asked */
  uint32_t calls;      /* in progress: their events may arrive in another order */
  uint32_t count, room;
  uint32_t prune_at; /* the count at which completed events are looked for */
  uint32_t taken;    /* by threads that ask about its events now */
  cl_event *events;
  struct queue *next;
};

// A leaf lock: no function of the library is called with it. Whoever needs the queue's events takes the
// whole list, asks without the lock, and puts back what is left.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct queue *buckets[BUCKETS];
static struct queue later; /* events to release */

static struct queue **place(cl_command_queue handle) {
  struct queue **at = &buckets[(uintptr_t)handle * 0x9E3779B97F4A7C15u >> 58];
  while (*at && (*at)->handle != handle)
    at = &(*at)->next;
  return at;
}

// A queue that was created by a call the shim does not see has one reference of the program.
static struct queue *find(cl_command_queue handle) {
  struct queue **at = place(handle);
  if (!*at && (*at = calloc(1, sizeof **at))) {
    (*at)->handle = handle;
    (*at)->references = 1;
  }
  return *at;
}

static bool append(struct queue *queue, cl_event event) {
  if (queue->count == queue->room) {
    uint32_t room = queue->room ? 2 * queue->room : 8;
    cl_event *events = realloc(queue->events, room * sizeof *events);
    if (!events) return false;
    queue->events = events;
    queue->room = room;
  }
  queue->events[queue->count++] = event;
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
  for (;;) {
    pthread_mutex_lock(&lock);
    cl_event event = later.count ? later.events[--later.count] : NULL;
    pthread_mutex_unlock(&lock);
    if (!event) return;
    release(event);
  }
}

void xsi_cl_queue_created(cl_command_queue handle) {
  pthread_mutex_lock(&lock);
  struct queue *queue = find(handle);
  if (queue) {
    for (uint32_t i = 0; i < queue->count; i++) // of an earlier queue at this address
      append(&later, queue->events[i]);
    queue->references = 1;
    queue->count = 0;
    queue->known = false;
  }
  pthread_mutex_unlock(&lock);
}

void xsi_cl_queue_retained(cl_command_queue handle) {
  pthread_mutex_lock(&lock);
  struct queue *queue = find(handle);
  if (queue) queue->references++;
  pthread_mutex_unlock(&lock);
}

bool xsi_cl_queue_released(cl_command_queue handle) {
  pthread_mutex_lock(&lock);
  struct queue *queue = find(handle);
  bool last = queue && --queue->references == 0;
  pthread_mutex_unlock(&lock);
  if (!last) return false;
  xsi_work_stream_destroying((uintptr_t)handle); // takes the last event if there is work left
  pthread_mutex_lock(&lock);
  struct queue **at = place(handle);
  if ((queue = *at)) {
    *at = queue->next;
    for (uint32_t i = 0; i < queue->count; i++)
      append(&later, queue->events[i]);
    free(queue->events);
    free(queue);
  }
  pthread_mutex_unlock(&lock);
  release_now();
  return true;
}

bool xsi_cl_queue_ordered(cl_command_queue handle) {
  pthread_mutex_lock(&lock);
  struct queue *queue = find(handle);
  bool known = queue && queue->known, ordered = queue && queue->ordered;
  pthread_mutex_unlock(&lock);
  if (known) return ordered;
  cl_command_queue_properties properties = 0;
  cl_int result = xsi_cl_call(clGetCommandQueueInfo, handle, CL_QUEUE_PROPERTIES, sizeof properties,
                              &properties, NULL);
  ordered = result == CL_SUCCESS && (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) == 0;
  pthread_mutex_lock(&lock);
  if ((queue = find(handle))) {
    queue->known = true;
    queue->ordered = ordered;
  }
  pthread_mutex_unlock(&lock);
  return ordered;
}

void xsi_cl_queue_enter(cl_command_queue handle) {
  pthread_mutex_lock(&lock);
  struct queue *queue = find(handle);
  if (queue) queue->calls++;
  pthread_mutex_unlock(&lock);
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
static struct queue take_events(cl_command_queue handle, bool *alone) {
  struct queue taken = {.handle = handle};
  *alone = true;
  pthread_mutex_lock(&lock);
  struct queue *queue = *place(handle);
  if (queue) {
    taken.events = queue->events;
    taken.count = queue->count;
    taken.room = queue->room;
    queue->events = NULL;
    queue->count = queue->room = 0;
    *alone = queue->taken++ == 0;
  }
  pthread_mutex_unlock(&lock);
  return taken;
}

// Releases what is complete.
static void prune(struct queue *taken) {
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
static void put_back(struct queue *taken) {
  pthread_mutex_lock(&lock);
  struct queue *queue = *place(taken->handle);
  if (queue && queue->taken > 0) queue->taken--;
  for (uint32_t i = 0; i < taken->count; i++)
    if (!queue || !append(queue, taken->events[i])) append(&later, taken->events[i]);
  if (queue) queue->prune_at = queue->count < FEW_EVENTS / 2 ? FEW_EVENTS : 2 * queue->count;
  pthread_mutex_unlock(&lock);
  free(taken->events);
}

void xsi_cl_queue_leave(cl_command_queue handle, cl_event event) {
  bool many = false;
  pthread_mutex_lock(&lock);
  struct queue *queue = find(handle);
  if (queue && queue->calls > 0) queue->calls--;
  if (queue && event) {
    // Alone in an ordered queue, this event is behind all others.
    uint32_t drop = queue->ordered && queue->calls == 0 ? queue->count : 0;
    for (uint32_t i = 0; i < drop; i++)
      append(&later, queue->events[i]);
    queue->count -= drop;
    if (append(queue, event)) event = NULL;
    // A queue of any order: each time the events have doubled, those that are complete go.
    many = queue->count >= (queue->prune_at ? queue->prune_at : FEW_EVENTS);
  }
  if (event) append(&later, event);
  pthread_mutex_unlock(&lock);
  if (many) {
    bool alone;
    struct queue taken = take_events(handle, &alone);
    prune(&taken);
    put_back(&taken);
  }
  release_now();
}

// By the watcher: what is complete is released by the program's next call.
enum xsi_work_answer xsi_cl_queue_query(cl_command_queue handle) {
  bool alone;
  struct queue taken = take_events(handle, &alone);
  uint32_t done = 0;
  while (done < taken.count && xsi_cl_status(taken.events[done]) != XSI_WORK_PENDING)
    xsi_cl_release_later(taken.events[done++]);
  taken.count -= done;
  if (taken.count > 0)
    memmove(taken.events, taken.events + done, taken.count * sizeof *taken.events);
  enum xsi_work_answer answer = taken.count > 0 ? XSI_WORK_PENDING : XSI_WORK_DONE;
  put_back(&taken);
  return answer == XSI_WORK_DONE && !alone ? XSI_WORK_UNKNOWN : answer;
}

cl_event xsi_cl_queue_last(cl_command_queue handle) {
  bool alone;
  struct queue taken = take_events(handle, &alone);
  cl_event last = alone && taken.count == 1 ? taken.events[0] : NULL;
  if (last && xsi_cl_call(clRetainEvent, last) != CL_SUCCESS) last = NULL;
  put_back(&taken);
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
}
