// SPDX-License-Identifier: Apache-2.0
//
// The idle watcher: for programs that never wait for their work, it asks the driver.
//
// It has a thread of its own, not the helper's: a driver call can block behind a launch that waits
// for room in a suspended channel, and it is the helper that ends such a suspension when the daemon
// is gone.

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "annotate.h"
#include "log.h"
#include "work_internal.h"

#define SHORTEST_NS 250000u   /* between two questions about one stream */
#define EASY_NS 2000000u      /* while it is submitting, or alone: between two looks */
#define LONGEST_NS 10000000u  /* also how long a sleep without busy streams lasts, at first */
#define LINGER_NS 1000000000u /* idle for this long: sleep until woken */
#define ROUND 64              /* streams asked about between two looks at the list */

bool xsi_work_watch_by_thread = true;

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static bool deep = true; /* under the work lock: the watcher sleeps until woken, or is not there */
static uint64_t last_busy_ns;
static uint32_t wakes;
static bool running; /* the thread was started */
static bool stopped; /* the process exits: no more driver calls */

void xsi_work_exclude(void) { pthread_mutex_lock(&watch_lock); }
void xsi_work_include(void) { pthread_mutex_unlock(&watch_lock); }

struct asked {
  struct xsi_work_stream *stream;
  uint64_t incarnation;
};

// The end of work is not urgent for a program that is alone on its device.
static uint64_t shortest(const struct xsi_work_stream *stream) {
  return __atomic_load_n(&xsi_work_slot(stream)->quiet, __ATOMIC_RELAXED) ? EASY_NS : SHORTEST_NS;
}

static uint64_t interval(const struct xsi_work_stream *stream, uint64_t now) {
  uint64_t eighth = (now - stream->busy_since_ns) / 8, least = shortest(stream);
  return eighth < least ? least : eighth > LONGEST_NS ? LONGEST_NS : eighth;
}

// Under the work lock: is this stream one to ask about now?
static bool askable(const struct xsi_work_stream *stream) {
  if (!stream->context || !__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST)) return false;
  if (!stream->abandoned && (__atomic_load_n(&stream->syncing, __ATOMIC_SEQ_CST) ||
                             __atomic_load_n(&stream->owner_syncs, __ATOMIC_RELAXED)))
    return false;
  // The queue is busy with the others anyway; they are asked about first.
  if (stream->platform->query_joins && stream->handle == XSI_WORK_LEGACY &&
      stream->context->busy > 1)
    return false;
  // Asking about a default stream breaks captures of any stream that waits for it.
  return stream->orphan || stream->handle > XSI_WORK_THREAD ||
         __atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0;
}

static void ask(const struct asked *asked) {
  struct xsi_work_stream *stream = asked->stream;
  xsi_work_exclude();
  xsi_work_lock();
  bool ask = !__atomic_load_n(&stopped, __ATOMIC_SEQ_CST) &&
             stream->incarnation == asked->incarnation && askable(stream);
  uintptr_t context = ask ? stream->context->handle : 0;
  uintptr_t handle = stream->handle, orphan = stream->orphan;
  const struct xsi_work_platform *platform = stream->platform;
  uint64_t mark = xsi_work_mark(stream);
  xsi_work_unlock();
  // The watch lock keeps stream and context alive in the driver, and captures from beginning.
  if (ask && (orphan ? platform->event_query(context, orphan) : platform->query(context, handle)) ==
                 XSI_WORK_DONE)
    xsi_work_complete(stream, mark, true);
  xsi_work_include();
}

uint64_t xsi_work_watch(uint64_t now) {
  struct asked round[ROUND];
  unsigned count = 0;
  uint64_t next = UINT64_MAX;
  bool busy = false;
  xsi_work_lock();
  for (struct xsi_work_context *context = xsi_work_contexts; context; context = context->next)
    for (struct xsi_work_stream *stream = context->busy_streams; stream;
         stream = stream->busy_next) {
      busy = true;
      if (stream->busy_since_ns == 0) {
        stream->busy_since_ns = now;
        stream->poll_at_ns = now + shortest(stream);
        stream->looked_at = xsi_work_mark(stream);
      } else if (stream->poll_at_ns <= now) {
        // A stream that is still submitting is busy, and a query would contend for the driver's locks.
        bool submits = stream->looked_at != xsi_work_mark(stream);
        stream->looked_at = xsi_work_mark(stream);
        if (count == ROUND) {
          next = now; // the rest in another round, at once
          continue;
        }
        uint64_t wait = interval(stream, now);
        // A pause between two launches must not slip through.
        stream->poll_at_ns = now + (submits && wait > EASY_NS ? EASY_NS : wait);
        if (!submits && askable(stream))
          round[count++] = (struct asked){stream, stream->incarnation};
      }
      if (stream->poll_at_ns < next) next = stream->poll_at_ns;
    }
  if (busy || last_busy_ns == 0) last_busy_ns = now;
  if (!busy) {
    deep = now - last_busy_ns >= LINGER_NS;
    next = deep ? UINT64_MAX : now + LONGEST_NS;
  }
  xsi_work_unlock();
  for (unsigned i = 0; i < count; i++)
    ask(&round[i]);
  return next;
}

bool xsi_work_watch_deep(void) {
  bool was = deep;
  deep = false;
  return was;
}

static void sleep_until(uint64_t time_ns, uint32_t seen) {
  struct timespec at = {.tv_sec = (time_t)(time_ns / 1000000000u),
                        .tv_nsec = (long)(time_ns % 1000000000u)};
  // FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time.
  syscall(SYS_futex, &wakes, FUTEX_WAIT_BITSET_PRIVATE, seen, time_ns == UINT64_MAX ? NULL : &at,
          NULL, FUTEX_BITSET_MATCH_ANY);
}

// The driver is about to be taken down by its own exit handler, which was registered before ours.
static void stop_at_exit(void) {
  __atomic_store_n(&stopped, true, __ATOMIC_SEQ_CST);
  // A question in progress ends soon, unless it hangs behind a suspended channel: don't hang with
  // it.
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_nsec += 200000000;
  if (limit.tv_nsec >= 1000000000) {
    limit.tv_sec++;
    limit.tv_nsec -= 1000000000;
  }
  if (pthread_mutex_timedlock(&watch_lock, &limit) == 0) pthread_mutex_unlock(&watch_lock);
}

static void *watch_thread(void *unused) {
  (void)unused;
  pthread_setname_np(pthread_self(), "xsched-watch");
  xsi_annotate_ignore(true);
  unsigned greeted = 0; // platforms start one after the other, and none ends
  while (!__atomic_load_n(&stopped, __ATOMIC_SEQ_CST)) {
    const struct xsi_work_platform *platform;
    while (greeted < XSI_WORK_PLATFORMS &&
           (platform = __atomic_load_n(&xsi_work_platforms[greeted], __ATOMIC_ACQUIRE))) {
      platform->watcher_starts();
      // One that was loaded after this thread began is taken down before what was registered then.
      if (greeted++ > 0) atexit(stop_at_exit);
    }
    uint32_t seen = __atomic_load_n(&wakes, __ATOMIC_SEQ_CST);
    uint64_t next = xsi_work_watch(xsi_now_ns());
    if (next > xsi_now_ns()) sleep_until(next, seen);
  }
  xsi_annotate_ignore(false);
  return NULL;
}

static void start_thread(void) {
  static bool at_exit;
  bool expected = false;
  if (!__atomic_compare_exchange_n(&running, &expected, true, false, __ATOMIC_SEQ_CST,
                                   __ATOMIC_SEQ_CST))
    return;
  if (!__atomic_exchange_n(&at_exit, true, __ATOMIC_SEQ_CST)) atexit(stop_at_exit);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); // the application's signals are not for our thread
  pthread_t thread;
  int error = pthread_create(&thread, NULL, watch_thread, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0)
    pthread_detach(thread);
  else
    xsi_log(XSI_WARN, "no watcher thread (%d): idle is known only from the program's own waits",
            error);
}

void xsi_work_watch_busy(bool wake) {
  if (!wake || !xsi_work_watch_by_thread) return;
  int saved_errno = errno;
  if (!__atomic_load_n(&running, __ATOMIC_SEQ_CST)) start_thread();
  __atomic_fetch_add(&wakes, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &wakes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  errno = saved_errno;
}

void xsi_work_watch_reset(void) {
  watch_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  deep = true;
  running = false;
  last_busy_ns = 0;
}
