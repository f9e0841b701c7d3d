// SPDX-License-Identifier: Apache-2.0
//
// The tables of streams and contexts. See work.h for the rules.

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fork.h"
#include "log.h"
#include "options.h"
#include "queue.h"
#include "work_internal.h"

#define STREAM_BUCKETS 4096
#define MOST_STEPS 64 /* along a chain without the lock, which may change meanwhile */
#define CONTEXT_BUCKETS 64
#define CHUNK                                                                                      \
  64 /* records allocated at a time; never given back, so stale pointers stay readable */

XSI_FORK_STATE struct xsi_work_hot xsi_work_hot = {.epoch = 1};
const struct xsi_work_platform *xsi_work_platforms[XSI_WORK_PLATFORMS];
XSI_FORK_STATE struct xsi_work_context *xsi_work_contexts;

static XSI_FORK_TABLE struct xsi_work_stream *stream_hash[STREAM_BUCKETS];
static bool hash_forgets;
static XSI_FORK_STATE struct xsi_work_context *context_hash[CONTEXT_BUCKETS];
static XSI_FORK_STATE struct xsi_work_stream *free_streams;
static XSI_FORK_STATE struct xsi_work_context *free_contexts;
static uint64_t next_token;
static pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;
static pthread_key_t exit_key;
static bool exit_key_made;
static bool only_was_wrong;
static XSI_FORK_STATE uintptr_t named; /* a context that there is, whether it was used or not */

XSI_FORK_STATE struct xsi_lock xsi_work_the_lock;

// The child of a fork has no contexts of its own yet, and no watcher.
static void reset_in_child(void) {
  xsi_work_the_lock = (struct xsi_lock){0};
  if (!xsi_work_events_reset() || !hash_forgets) xsi_clear_used(stream_hash, sizeof stream_hash);
  memset(context_hash, 0, sizeof context_hash);
  xsi_work_contexts = NULL;
  xsi_work_hot.only = named = 0;
  free_streams = NULL;
  free_contexts = NULL;
  xsi_work_threads_reset();
  xsi_work_hot.captures = 0;
  xsi_work_hot.epoch++;
  xsi_work_owners_start();
  xsi_work_watch_reset();
  xsi_work_shut_reset();
}

bool xsi_work_start(const struct xsi_work_platform *platform) {
  xsi_work_owners_start();
  xsi_work_lock();
  bool first = !xsi_work_started();
  unsigned at = 0;
  while (at < XSI_WORK_PLATFORMS && xsi_work_platforms[at] && xsi_work_platforms[at] != platform)
    at++;
  bool fits = at < XSI_WORK_PLATFORMS;
  if (fits) __atomic_store_n(&xsi_work_platforms[at], platform, __ATOMIC_RELEASE);
  xsi_work_unlock();
  if (!fits)
    xsi_log(XSI_ERROR, "a runtime is not scheduled: %d are in use already", XSI_WORK_PLATFORMS);
  if (!first) return fits;
  hash_forgets = xsi_forget_in_child(stream_hash, sizeof stream_hash);
  xsi_work_events_start();
  xsi_work_watch_start();
  xsi_at_fork_child(reset_in_child);
  return true;
}

bool xsi_work_started(void) {
  return __atomic_load_n(&xsi_work_platforms[0], __ATOMIC_ACQUIRE) != NULL;
}

// ---- tables, under the work lock ------------------------------------------------------

static struct xsi_work_stream **stream_bucket(uintptr_t key, uint64_t thread) {
  uint64_t mix = ((uint64_t)key >> 4 ^ key ^ thread << 20) * 0x9E3779B97F4A7C15u;
  return &stream_hash[(mix >> 40) % STREAM_BUCKETS];
}

static struct xsi_work_context **context_bucket(uintptr_t handle) {
  return &context_hash[(handle >> 4 ^ handle >> 12) % CONTEXT_BUCKETS];
}

static bool is_it(const struct xsi_work_stream *stream, uintptr_t key, uint64_t thread) {
  return __atomic_load_n(&stream->key, __ATOMIC_ACQUIRE) == key &&
         (thread == 0 || __atomic_load_n(&stream->key_thread, __ATOMIC_RELAXED) == thread);
}

static struct xsi_work_stream *lookup(uintptr_t context, uintptr_t handle, uint64_t thread) {
  uintptr_t key = xsi_work_key(context, handle);
  struct xsi_work_stream *at = *stream_bucket(key, thread);
  while (at && !is_it(at, key, thread))
    at = at->hash_next;
  return at;
}

// Without the lock. Records are never freed, so that one that leaves its chain meanwhile only leads astray: to
// none, and the lock finds the right one.
struct xsi_work_stream *xsi_work_switch(uintptr_t context, uintptr_t handle) {
  struct xsi_work_thread *mine = &xsi_thread.work;
  uintptr_t key = xsi_work_key(context, handle);
  uint64_t thread = handle == XSI_WORK_THREAD ? mine->token : 0;
  if (!mine->token) return NULL;
  uint64_t epoch = __atomic_load_n(&xsi_work_hot.epoch, __ATOMIC_ACQUIRE);
  struct xsi_work_stream *at = __atomic_load_n(stream_bucket(key, thread), __ATOMIC_ACQUIRE);
  for (unsigned steps = 0; at && !is_it(at, key, thread); steps++)
    at = steps < MOST_STEPS ? __atomic_load_n(&at->hash_next, __ATOMIC_ACQUIRE) : NULL;
  if (at) {
    mine->epoch = epoch;
    mine->last = (struct xsi_work_seen){key, at};
  }
  return at;
}

struct xsi_work_context *xsi_work_lookup_context(uintptr_t handle) {
  struct xsi_work_context *at = *context_bucket(handle);
  while (at && at->handle != handle)
    at = at->hash_next;
  return at;
}

static bool lock_if_it_is(struct xsi_work_context *context, uintptr_t handle) {
  xsi_lock_take(&context->list_lock);
  if (context->handle == handle) return true;
  xsi_lock_give(&context->list_lock);
  return false;
}

// Mostly without the work lock, as for streams.
struct xsi_work_context *xsi_work_lock_list(uintptr_t handle) {
  if (handle == 0) return NULL;
  struct xsi_work_context *at = __atomic_load_n(context_bucket(handle), __ATOMIC_ACQUIRE);
  for (unsigned steps = 0; at && steps < MOST_STEPS; steps++) {
    if (__atomic_load_n(&at->handle, __ATOMIC_ACQUIRE) == handle && lock_if_it_is(at, handle))
      return at;
    at = __atomic_load_n(&at->hash_next, __ATOMIC_ACQUIRE);
  }
  xsi_work_lock();
  at = xsi_work_lookup_context(handle);
  if (at) xsi_lock_take(&at->list_lock);
  xsi_work_unlock();
  return at;
}

static struct xsi_work_stream *allocate_stream(void) {
  if (!free_streams) {
    struct xsi_work_stream *chunk = aligned_alloc(64, CHUNK * sizeof *chunk);
    if (!chunk) return NULL;
    memset(chunk, 0, CHUNK * sizeof *chunk);
    for (int i = 0; i < CHUNK; i++) {
      chunk[i].hash_next = free_streams;
      free_streams = &chunk[i];
    }
  }
  struct xsi_work_stream *stream = free_streams;
  free_streams = stream->hash_next;
  __atomic_store_n(&stream->hash_next, NULL, __ATOMIC_RELEASE);
  return stream;
}

static void find_only(void) {
  struct xsi_work_context *first = xsi_work_contexts;
  bool one = first && !first->next && first->platform->has_current && !only_was_wrong &&
             (!named || named == first->handle);
  __atomic_store_n(&xsi_work_hot.only, one ? first->handle : 0, __ATOMIC_RELEASE);
}

void xsi_work_only_is_wrong(void) {
  xsi_work_lock();
  only_was_wrong = true;
  find_only();
  xsi_work_unlock();
}

void xsi_work_context_named(uintptr_t handle) {
  if (__atomic_load_n(&xsi_work_hot.only, __ATOMIC_ACQUIRE) == handle) return;
  xsi_work_lock();
  if (named && named != handle) only_was_wrong = true;
  named = handle;
  find_only();
  xsi_work_unlock();
}

static struct xsi_work_context *add_context(const struct xsi_work_platform *platform,
                                            uintptr_t handle,
                                            const struct xsi_work_device *device) {
  struct xsi_work_context *context = free_contexts;
  if (context)
    free_contexts = context->hash_next;
  else if ((context = malloc(sizeof *context)) != NULL)
    memset(context, 0, sizeof *context), pthread_mutex_init(&context->watch, NULL);
  else
    return NULL;
  memset(context, 0, offsetof(struct xsi_work_context, list_lock));
  context->platform = platform;
  __atomic_store_n(&context->handle, handle, __ATOMIC_RELEASE);
  if (device) {
    context->known = true;
    context->device = *device;
  }
  context->queue = -1; // unless automatic: only queues that the program creates
  if (xsi_options.automatic) {
    context->queue = device ? xsi_queue_open(device->pci_domain, device->pci_bus_slot, 0) : -ENODEV;
    if (context->queue < 0) {
      xsi_log(XSI_WARN, "context runs unscheduled: no queue (%d)", context->queue);
      context->queue = -1;
    }
  }
  struct xsi_work_context **bucket = context_bucket(handle);
  __atomic_store_n(&context->hash_next, *bucket, __ATOMIC_RELEASE);
  __atomic_store_n(bucket, context, __ATOMIC_RELEASE);
  context->next = xsi_work_contexts;
  if (xsi_work_contexts) xsi_work_contexts->previous = context;
  xsi_work_contexts = context;
  find_only();
  return context;
}

// Looks the context up or makes it. The driver is asked without the lock.
static struct xsi_work_context *lock_and_find_context(const struct xsi_work_platform *platform,
                                                      uintptr_t handle) {
  xsi_work_lock();
  struct xsi_work_context *context = xsi_work_lookup_context(handle);
  if (context) return context;
  xsi_work_unlock();
  struct xsi_work_device device;
  bool known = platform->describe(handle, &device) == 0;
  xsi_work_lock();
  context = xsi_work_lookup_context(handle);
  return context ? context : add_context(platform, handle, known ? &device : NULL);
}

static void unhash(struct xsi_work_stream *stream) {
  struct xsi_work_stream **at =
      stream_bucket(xsi_work_key(stream->key_context, stream->handle), stream->key_thread);
  while (*at && *at != stream)
    at = &(*at)->hash_next;
  if (*at) __atomic_store_n(at, stream->hash_next, __ATOMIC_RELEASE);
  __atomic_store_n(&stream->key, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&stream->hash_next, NULL, __ATOMIC_RELEASE);
  __atomic_fetch_add(&xsi_work_hot.epoch, 1, __ATOMIC_RELEASE);
}

// What never landed has no one to take it back any more.
static void forget_unlanded(struct xsi_work_stream *stream) {
  uint64_t owner = __atomic_load_n(&stream->landed_owner, __ATOMIC_ACQUIRE);
  uint64_t others = __atomic_load_n(&stream->landed_others, __ATOMIC_ACQUIRE);
  __atomic_store_n(&stream->submitted_owner, owner, __ATOMIC_SEQ_CST);
  __atomic_store_n(&stream->submitted_others, others, __ATOMIC_SEQ_CST);
}

// Nothing is in the stream, as far as this life of its record goes.
static void start_counts(struct xsi_work_stream *stream) {
  forget_unlanded(stream);
  __atomic_store_n(&stream->completed, xsi_work_mark(stream), __ATOMIC_SEQ_CST);
}

// Ends the record's life. Its counts go on from where they are, so that a mark kept somewhere from
// this life means nothing in the next.
void xsi_work_release(struct xsi_work_stream *stream) {
  uint64_t busy = xsi_work_freeze(stream);
  int queue = stream->queue;
  bool changed = busy != 0 && xsi_work_leave_queue(stream), own = stream->own;
  struct xsi_work_context *context = stream->context;
  xsi_work_unlist(stream);
  if (stream->previous)
    stream->previous->next = stream->next;
  else
    context->streams = stream->next;
  if (stream->next) stream->next->previous = stream->previous;
  // First, so that no thread puts an event of this life back after the others are forgotten.
  __atomic_store_n(&stream->incarnation, stream->incarnation + 1, __ATOMIC_RELAXED);
  xsi_work_limit_forget(stream);
  __atomic_store_n(&stream->batch, NULL, __ATOMIC_RELAXED);
  xsi_work_let_go(stream);
  stream->own = false;
  if (own) xsi_work_choose_slot(stream);
  if (stream->orphan) xsi_work_keep_event(context, stream->orphan);
  if (stream->fence) xsi_work_keep_event(context, stream->fence);
  stream->fence = 0;
  __atomic_store_n(&stream->awaits, false, __ATOMIC_RELAXED);
  __atomic_fetch_sub(&xsi_work_hot.captures, stream->capturing, __ATOMIC_SEQ_CST);
  stream->capturing = 0;
  stream->orphan = 0;
  stream->abandoned = false;
  stream->context = NULL;
  stream->next = stream->previous = NULL;
  start_counts(stream);
  __atomic_store_n(&stream->hash_next, free_streams, __ATOMIC_RELEASE);
  free_streams = stream;
  xsi_work_thaw(stream, 0);
  if (changed) xsi_queue_changed(queue);
  if (own) xsi_queue_close(queue);
}

// The handle is gone. If its work is not over, the record lives until then; true: it does.
static bool abandon(struct xsi_work_stream *stream) {
  uint64_t busy = xsi_work_freeze(stream);
  if (busy != 0) {
    stream->abandoned = true;
    forget_unlanded(stream);
  }
  xsi_work_thaw(stream, busy);
  if (busy != 0)
    xsi_work_limit_forget(stream);
  else
    xsi_work_release(stream);
  return busy != 0;
}

// ---- streams ----------------------------------------------------------------------------

static struct xsi_work_stream *add_stream(struct xsi_work_context *context, uintptr_t key_context,
                                          uintptr_t handle, uint64_t thread) {
  struct xsi_work_stream *stream = allocate_stream();
  if (!stream) return NULL;
  xsi_work_freeze(stream); // a thread that saw its last life may still look
  stream->platform = context->platform;
  stream->context = context;
  stream->key_context = key_context;
  stream->handle = handle;
  __atomic_store_n(&stream->key_thread, thread, __ATOMIC_RELAXED);
  start_counts(stream); // what was in mid-call when the last life ended has come back since
  uint64_t owner =
      xsi_work_owners() && xsi_thread.work.listed ? xsi_thread.work.token : XSI_WORK_NOBODY;
  __atomic_store_n(&stream->owner, owner, __ATOMIC_RELAXED);
  stream->former = 0;
  stream->wasted = stream->losses = 0;
  stream->wasted_at = __atomic_load_n(&stream->landed_owner, __ATOMIC_ACQUIRE);
  xsi_work_choose_slot(stream);
  stream->published = xsi_work_tally(stream);
  __atomic_store_n(&stream->watched, false, __ATOMIC_RELAXED);
  xsi_work_thaw(stream, 0);
  struct xsi_work_stream **bucket = stream_bucket(xsi_work_key(key_context, handle), thread);
  __atomic_store_n(&stream->hash_next, *bucket, __ATOMIC_RELEASE);
  __atomic_store_n(&stream->key, xsi_work_key(key_context, handle), __ATOMIC_RELEASE);
  __atomic_store_n(bucket, stream, __ATOMIC_RELEASE);
  stream->next = context->streams;
  if (context->streams) context->streams->previous = stream;
  context->streams = stream;
  return stream;
}

static void note_thread_exit(void);

struct xsi_work_stream *xsi_work_find_slow(const struct xsi_work_platform *platform,
                                           uintptr_t context, uintptr_t handle) {
  int saved_errno = errno;
  struct xsi_work_thread *mine = &xsi_thread.work;
  bool first = !mine->token;
  if (first) mine->token = __atomic_add_fetch(&next_token, 1, __ATOMIC_RELAXED);
  uint64_t thread = handle == XSI_WORK_THREAD ? mine->token : 0;
  if (first || thread || !mine->listed) note_thread_exit();
  uint64_t epoch = __atomic_load_n(&xsi_work_hot.epoch, __ATOMIC_ACQUIRE);
  xsi_work_lock();
  struct xsi_work_stream *stream = lookup(context, handle, thread);
  xsi_work_unlock();
  if (!stream) {
    uintptr_t owner = context ? context : platform->context_of(handle);
    if (owner) {
      bool own = xsi_options.per_stream && xsi_options.automatic && handle > XSI_WORK_THREAD;
      int32_t priority = own ? platform->priority_of(handle) : 0;
      struct xsi_work_context *found = lock_and_find_context(platform, owner);
      stream = lookup(context, handle, thread);
      if (!stream && found) {
        stream = add_stream(found, context, handle, thread);
        if (stream && own) xsi_work_give_queue(stream, priority);
      }
      xsi_work_unlock();
    }
  }
  if (stream) {
    mine->epoch = epoch;
    mine->last = (struct xsi_work_seen){xsi_work_key(context, handle), stream};
  }
  errno = saved_errno;
  return stream;
}

void xsi_work_stream_created(uintptr_t handle) {
  // A stream of that handle went with something we did not see.
  xsi_work_lock();
  struct xsi_work_stream *stale = lookup(0, handle, 0);
  if (stale) {
    unhash(stale);
    xsi_work_release(stale);
  }
  xsi_work_unlock();
}

void xsi_work_stream_destroying(uintptr_t handle) {
  int saved_errno = errno;
  bool orphaned = false;
  xsi_work_lock();
  struct xsi_work_stream *known = lookup(0, handle, 0);
  xsi_work_unlock();
  struct xsi_work_context *excluded = xsi_work_exclude_stream(known);
  xsi_work_lock();
  struct xsi_work_stream *stream = lookup(0, handle, 0);
  if (stream) {
    unhash(stream);
    uintptr_t event = 0;
    if (__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST) &&
        __atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0) {
      // The driver lets the work run on after the stream is gone: an event of ours marks its end.
      uintptr_t context = stream->context->handle;
      event = xsi_work_spare_event(stream->context);
      xsi_work_unlock();
      orphaned = stream->platform->event_record(context, &event, handle) == 0;
      xsi_work_lock();
    }
    if (orphaned) {
      stream->orphan = event;
      orphaned = abandon(stream);
    } else {
      if (event) xsi_work_keep_event(stream->context, event);
      xsi_work_release(stream);
    }
  }
  xsi_work_unlock();
  xsi_work_include(excluded);
  if (orphaned) xsi_work_watch_busy(true);
  errno = saved_errno;
}

// A thread that is cancelled in the middle of a call takes back what it counted. If the call waited, the
// watcher finds the end of what was there before: see its FORGOTTEN_NS.
static void leave_call(uint64_t token) {
  struct xsi_work_thread *mine = &xsi_thread.work;
  if (mine->syncs) xsi_work_sync_ends(mine->syncs);
  if (mine->calling == 0) return;
  uintptr_t key = mine->last.key, which = key & 3;
  xsi_work_lock();
  bool lives = lookup(which ? key >> 2 : 0, which ? which : key,
                      which == XSI_WORK_THREAD ? token : 0) == mine->last.stream;
  xsi_work_unlock();
  struct xsi_work_stream *stream = mine->last.stream;
  while (lives && mine->calling > 0 && xsi_work_submitted(stream) > xsi_work_mark(stream))
    xsi_work_withdraw(stream);
  __atomic_store_n(&mine->calling, 0, __ATOMIC_RELEASE);
}

// Read while another thread may have the stream frozen: it stores the former owner before the owner.
static bool has_been_owner(const struct xsi_work_stream *stream, uint64_t token) {
  return __atomic_load_n(&stream->owner, __ATOMIC_ACQUIRE) == token ||
         __atomic_load_n(&stream->former, __ATOMIC_RELAXED) == token;
}

// A thread's default streams go with it, except for work still in them, and it owns no stream any more.
static void thread_exits(void *unused) {
  (void)unused;
  uint64_t token = xsi_thread.work.token;
  bool left = false;
  leave_call(token);
  xsi_work_lock();
  xsi_work_unlist_thread();
  for (struct xsi_work_context *context = xsi_work_contexts; context; context = context->next)
    for (struct xsi_work_stream *stream = context->streams; stream; stream = stream->next)
      if (has_been_owner(stream, token)) xsi_work_give_up(stream, token);
  for (struct xsi_work_context *context = xsi_work_contexts; context; context = context->next) {
    struct xsi_work_stream *stream = lookup(context->handle, XSI_WORK_THREAD, token);
    if (!stream) continue;
    unhash(stream);
    if (context->platform->waits_at_thread_exit)
      xsi_work_release(stream);
    else
      left = abandon(stream) || left;
  }
  xsi_work_unlock();
  if (left) xsi_work_watch_busy(true);
  // What it submits from here on belongs to another thread, whose end nobody sees.
  xsi_thread.work.token = 0;
  xsi_thread.work.last = (struct xsi_work_seen){0, NULL};
}

static void make_exit_key(void) {
  exit_key_made = pthread_key_create(&exit_key, thread_exits) == 0;
}

static void note_thread_exit(void) {
  struct xsi_work_thread *mine = &xsi_thread.work;
  pthread_once(&exit_key_once, make_exit_key);
  if (exit_key_made && pthread_setspecific(exit_key, mine) == 0) xsi_work_list_thread();
}

// ---- contexts -----------------------------------------------------------------------------

void xsi_work_context_seen(const struct xsi_work_platform *platform, uintptr_t handle) {
  int saved_errno = errno;
  lock_and_find_context(platform, handle);
  xsi_work_unlock();
  errno = saved_errno;
}

static void drop(struct xsi_work_context *context) {
  xsi_work_batch_forget(context->handle);
  for (struct xsi_work_stream *stream = context->streams, *next; stream; stream = next) {
    next = stream->next;
    if (!stream->abandoned) unhash(stream);
    xsi_work_release(stream);
  }
  if (context->queue >= 0) xsi_queue_close(context->queue);
  struct xsi_work_context **at = context_bucket(context->handle);
  while (*at && *at != context)
    at = &(*at)->hash_next;
  if (*at) __atomic_store_n(at, context->hash_next, __ATOMIC_RELEASE);
  if (context->previous)
    context->previous->next = context->next;
  else
    xsi_work_contexts = context->next;
  if (context->next) context->next->previous = context->previous;
  if (named == context->handle) named = 0;
  find_only();
  free(context->events); // the events themselves go with the context
  context->events = NULL;
  xsi_lock_take(&context->list_lock); // no thread that has just found it uses its next life
  __atomic_store_n(&context->handle, 0, __ATOMIC_RELEASE);
  xsi_lock_give(&context->list_lock);
  __atomic_store_n(&context->hash_next, free_contexts, __ATOMIC_RELEASE);
  free_contexts = context;
}

void xsi_work_context_drop(uintptr_t handle) {
  int saved_errno = errno;
  xsi_work_lock();
  struct xsi_work_context *context = xsi_work_lookup_context(handle);
  if (context) drop(context);
  xsi_work_unlock();
  errno = saved_errno;
}

uintptr_t xsi_work_spare_event(struct xsi_work_context *context) {
  return context->spare ? context->events[--context->spare] : 0;
}

void xsi_work_keep_event(struct xsi_work_context *context, uintptr_t event) {
  if (context->platform->event_drop != NULL) {
    context->platform->event_drop(event);
    return;
  }
  if (context->spare == context->room) {
    unsigned room = context->room ? 2 * context->room : 16;
    uintptr_t *events = realloc(context->events, room * sizeof *events);
    if (!events) return; // the event goes with its context
    context->events = events;
    context->room = room;
  }
  context->events[context->spare++] = event;
}
