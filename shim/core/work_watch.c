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
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "annotate.h"
#include "log.h"
#include "page.h"
#include "teardown.h"
#include "thread.h"
#include "wake.h"
#include "work_internal.h"

#define SHORTEST_NS 250000u   /* between two questions about one stream */
#define EASY_NS 2000000u      /* while it is submitting, or alone: between two looks */
#define LONGEST_NS 10000000u  /* also how long a sleep without busy streams lasts, at first */
#define LINGER_NS 1000000000u /* idle for this long: sleep until woken */
#define ROUND 64              /* questions between two looks at the list */
#define CROWD 16              /* with more busy streams than that, each is asked about less often */
#define FORGOTTEN_NS 100000000u /* a wait this long may be one whose thread was cancelled */
#define RETRY_NS 1000000000u    /* a limit on threads or memory lasts, and a failure logs a line */
/* Twice the helper's, which only makes ioctls: runtimes answer here, written for stacks of the default size. */
#define STACK_BYTES (1024 * 1024)

bool xsi_work_watch_by_thread = true;

static XSI_FORK_STATE bool deep = true; /* atomic: it sleeps until woken, or is not there */
static XSI_FORK_STATE uint64_t last_busy_ns;
static uint32_t wakes;
static XSI_FORK_STATE bool wanted, running; /* the thread is needed, and it was started */
static XSI_FORK_STATE uint64_t retry_ns;    /* it could not be: not before this */
static bool stopped;                        /* the process exits: no more driver calls */
static XSI_FORK_STATE uint32_t asking;      /* threads of ours that are in the driver */

// A thread that is cancelled in the driver must not keep the lock.
static struct xsi_work_context *exclude(struct xsi_work_context *(*find)(uintptr_t),
                                        uintptr_t key) {
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  struct xsi_work_context *context;
  for (;;) {
    xsi_work_lock();
    context = find(key);
    xsi_work_unlock();
    if (!context) break;
    pthread_mutex_lock(&context->watch);
    xsi_work_lock();
    bool same = find(key) == context; // the record may have another life by now
    xsi_work_unlock();
    if (same) break;
    pthread_mutex_unlock(&context->watch);
  }
  if (context)
    xsi_thread.work.cancel_state = state;
  else
    pthread_setcancelstate(state, NULL);
  return context;
}

static struct xsi_work_context *context_of(uintptr_t stream) {
  return ((const struct xsi_work_stream *)stream)->context;
}

struct xsi_work_context *xsi_work_exclude(uintptr_t context) {
  return exclude(xsi_work_lookup_context, context);
}
struct xsi_work_context *xsi_work_exclude_stream(const struct xsi_work_stream *stream) {
  return stream ? exclude(context_of, (uintptr_t)stream) : NULL;
}
void xsi_work_include(struct xsi_work_context *context) {
  if (!context) return;
  int state = xsi_thread.work.cancel_state;
  pthread_mutex_unlock(&context->watch);
  pthread_setcancelstate(state, NULL);
}

static struct xsi_work_context *may_ask(const struct xsi_work_stream *stream) {
  int state;
  xsi_work_lock();
  struct xsi_work_context *context = stream->context;
  xsi_work_unlock();
  if (!context) return NULL;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  if (pthread_mutex_trylock(&context->watch) == 0) {
    if (__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0 && xsi_teardown_ask()) {
      xsi_thread.work.cancel_state = state;
      return context;
    }
    pthread_mutex_unlock(&context->watch);
  }
  pthread_setcancelstate(state, NULL);
  return NULL;
}

bool xsi_work_ask(const struct xsi_work_stream *stream, uintptr_t handle) {
  struct xsi_work_context *context = may_ask(stream);
  if (!context) return false;
  enum xsi_work_answer got = context->platform->poll(context->handle, handle);
  xsi_teardown_asked();
  xsi_work_include(context);
  return got == XSI_WORK_DONE;
}

struct asked {
  struct xsi_work_context *context;
  struct xsi_work_stream *stream;
  uint64_t incarnation;
  bool forgotten;
  bool signals; /* it has no work that we know, but may wait for a signal */
};

static uint32_t crowd; /* busy streams at the last look */

// The end of work is not urgent for a program that is alone on its device. All streams together cause at
// most CROWD questions in SHORTEST_NS: with thousands of them the watcher still leaves the core to others.
static uint64_t shortest(const struct xsi_work_stream *stream) {
  uint64_t alone =
      __atomic_load_n(&xsi_work_slot(stream)->quiet, __ATOMIC_RELAXED) ? EASY_NS : SHORTEST_NS;
  uint64_t among = SHORTEST_NS * (uint64_t)(1 + crowd / CROWD);
  return among > alone ? among : alone;
}

static uint64_t interval(const struct xsi_work_stream *stream, uint64_t now) {
  uint64_t eighth = (now - stream->busy_since_ns) / 8, least = shortest(stream);
  if (eighth > LONGEST_NS) eighth = LONGEST_NS;
  return eighth < least ? least : eighth;
}

static bool waited_for(const struct xsi_work_stream *stream) {
  return __atomic_load_n(&stream->syncing, __ATOMIC_SEQ_CST) != 0 ||
         __atomic_load_n(&stream->owner_syncs, __ATOMIC_RELAXED);
}

// A thread that waits for the stream will tell of its end. But it may have been cancelled in the middle of
// the driver's call, or left it by longjmp: after a while the watcher asks, too.
static bool forgotten(struct xsi_work_stream *stream, uint64_t now) {
  if (!waited_for(stream))
    stream->waited_since_ns = 0;
  else if (stream->waited_since_ns == 0)
    stream->waited_since_ns = now;
  return stream->waited_since_ns != 0 && now - stream->waited_since_ns >= FORGOTTEN_NS;
}

// Under the work lock: all that landed is in front of a wait for a signal. The event between them answers; the
// stream would say "not ready" for as long as the signal does not come.
static bool fenced(const struct xsi_work_stream *stream) {
  return stream->fence && stream->fence_mark == xsi_work_mark(stream);
}

// Under the list lock: is another stream of the context busy?
static bool has_company(const struct xsi_work_stream *stream) {
  const struct xsi_work_stream *at = stream->context->list;
  while (at && (at == stream || !__atomic_load_n(&at->busy, __ATOMIC_SEQ_CST)))
    at = at->list_next;
  return at != NULL;
}

// What is suspended does not end. Where a launch waits for room, the driver would not even answer.
static bool is_suspended(const struct xsi_work_context *context) {
  const struct xsi_work_device *device = &context->device;
  return context->known &&
         xsi_page_suspended(device->pci_domain, device->pci_bus_slot, xsi_now_ns());
}

// Under the work lock and the list lock: is this stream one to ask about now?
static bool askable(const struct xsi_work_stream *stream, bool forgotten) {
  if (!stream->context || !__atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST)) return false;
  if (!stream->abandoned && !forgotten && !fenced(stream) && waited_for(stream)) return false;
  if (is_suspended(stream->context)) return false;
  // The queue is busy with the others anyway; they are asked about first.
  if (stream->platform->query_joins && stream->handle == XSI_WORK_LEGACY && has_company(stream))
    return false;
  // Asking about a default stream breaks captures of any stream that waits for it.
  return stream->orphan || fenced(stream) || stream->handle > XSI_WORK_THREAD ||
         __atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0;
}

// The same of a stream without work that we know.
static bool may_tell(const struct xsi_work_stream *stream) {
  return stream->context && !is_suspended(stream->context) &&
         __atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0;
}

// False: there is work left, or it could not be asked.
static bool ask(const struct asked *asked) {
  struct xsi_work_stream *stream = asked->stream;
  bool over = false;
  // A thread that has the lock may be in the driver for long: the stream's turn comes again.
  if (pthread_mutex_trylock(&asked->context->watch) != 0) return false;
  __atomic_fetch_add(&asking, 1, __ATOMIC_SEQ_CST);
  xsi_work_lock();
  xsi_lock_take(&asked->context->list_lock);
  bool ask = !__atomic_load_n(&stopped, __ATOMIC_SEQ_CST) &&
             stream->incarnation == asked->incarnation && stream->context == asked->context &&
             (asked->signals ? may_tell(stream) : askable(stream, asked->forgotten)) &&
             xsi_teardown_ask();
  uintptr_t context = ask ? stream->context->handle : 0;
  uintptr_t handle = stream->handle, event = fenced(stream) ? stream->fence : stream->orphan;
  if (asked->signals) event = 0; // the stream itself knows
  const struct xsi_work_platform *platform = stream->platform;
  uint64_t mark = xsi_work_mark(stream);
  xsi_lock_give(&asked->context->list_lock);
  xsi_work_unlock();
  // The watch lock keeps stream and context alive in the driver, and captures from beginning.
  if (ask) {
    enum xsi_work_answer got =
        event ? platform->event_query(context, event) : platform->query(context, handle);
    xsi_teardown_asked();
    if (got == XSI_WORK_DONE) xsi_work_complete(stream, mark, true);
    over = got != XSI_WORK_PENDING;
  }
  __atomic_fetch_sub(&asking, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&asked->context->watch);
  return over;
}

struct round {
  uint64_t now, next; /* and when to come again */
  uint32_t busy;      /* streams */
  unsigned count;
  struct asked asked[ROUND];
};

// Under the work lock and the list lock.
static void look_at(struct round *round, struct xsi_work_stream *stream) {
  uint64_t now = round->now;
  uint32_t periods = __atomic_load_n(&stream->periods, __ATOMIC_RELAXED);
  round->busy++;
  if (stream->seen_periods != periods) {
    stream->seen_periods = periods;
    stream->busy_since_ns = now;
    stream->poll_at_ns = now + shortest(stream);
    stream->looked_at = xsi_work_mark(stream);
  } else if (stream->poll_at_ns <= now) {
    // A stream that is still submitting is busy, and a query would contend for the driver's locks.
    bool submits = stream->looked_at != xsi_work_mark(stream);
    stream->looked_at = xsi_work_mark(stream);
    if (round->count == ROUND) {
      round->next = now; // the rest in the next round
      return;
    }
    uint64_t wait = interval(stream, now);
    // A pause between two launches must not slip through.
    stream->poll_at_ns = now + (submits && wait > EASY_NS ? EASY_NS : wait);
    bool late = forgotten(stream, now);
    if (!submits && askable(stream, late))
      round->asked[round->count++] =
          (struct asked){stream->context, stream, stream->incarnation, late, false};
  }
  if (stream->poll_at_ns < round->next) round->next = stream->poll_at_ns;
}

static void look_at_all(struct round *round) {
  for (struct xsi_work_context *context = xsi_work_contexts; context; context = context->next) {
    xsi_lock_take(&context->list_lock);
    xsi_work_prune(context);
    for (struct xsi_work_stream *stream = context->list; stream; stream = stream->list_next)
      look_at(round, stream);
    xsi_lock_give(&context->list_lock);
  }
}

// Sleeps deeply after a while without busy streams. One that becomes busy meanwhile is counted first, and
// looks afterwards whether it has to wake the watcher.
static bool sleep_deeply(uint64_t now) {
  if (now - last_busy_ns < LINGER_NS) return false;
  __atomic_store_n(&deep, true, __ATOMIC_SEQ_CST);
  for (struct xsi_work_context *context = xsi_work_contexts; context; context = context->next) {
    xsi_lock_take(&context->list_lock);
    bool empty = context->list == NULL;
    xsi_lock_give(&context->list_lock);
    if (empty) continue;
    __atomic_store_n(&deep, false, __ATOMIC_SEQ_CST);
    return false;
  }
  return true;
}

uint64_t xsi_work_watch(uint64_t now) {
  struct round round = {.now = now, .next = UINT64_MAX};
  xsi_work_lock();
  look_at_all(&round);
  crowd = round.busy;
  if (round.busy > CROWD && round.next < now + SHORTEST_NS) round.next = now + SHORTEST_NS;
  if (round.busy != 0 || last_busy_ns == 0) last_busy_ns = now;
  if (round.busy == 0) round.next = sleep_deeply(now) ? UINT64_MAX : now + LONGEST_NS;
  xsi_work_unlock();
  if (xsi_teardown_until() > now)
    return round.busy != 0 && round.next < now + LONGEST_NS ? now + LONGEST_NS : round.next;
  for (unsigned i = 0; i < round.count; i++)
    ask(&round.asked[i]);
  return round.next;
}

// Some of the streams that may wait for signals, after so many others.
static void look_for_signals(struct round *round, unsigned skip) {
  round->count = 0;
  xsi_work_lock();
  for (struct xsi_work_context *context = xsi_work_contexts; context; context = context->next)
    for (struct xsi_work_stream *stream = context->streams; stream; stream = stream->next) {
      if (!__atomic_load_n(&stream->awaits, __ATOMIC_RELAXED)) continue;
      if (skip > 0)
        skip--;
      else if (round->count < ROUND)
        round->asked[round->count++] =
            (struct asked){context, stream, stream->incarnation, .signals = true};
    }
  xsi_work_unlock();
}

// A signal may be work that waits at the gate, so nobody may wait for it in the driver.
static bool signals_came(struct round *round) {
  bool all = true;
  for (unsigned skip = 0; all && (skip == 0 || round->count == ROUND); skip += ROUND) {
    look_for_signals(round, skip);
    for (unsigned i = 0; i < round->count; i++)
      all = ask(&round->asked[i]) && all;
  }
  return all;
}

bool xsi_work_drained(void) {
  struct round round = {.now = xsi_now_ns()};
  xsi_work_open();
  xsi_work_lock();
  for (struct xsi_work_context *context = xsi_work_contexts; context; context = context->next) {
    xsi_lock_take(&context->list_lock);
    xsi_work_prune(context);
    for (struct xsi_work_stream *stream = context->list; stream; stream = stream->list_next) {
      round.busy++;
      if (round.count < ROUND && askable(stream, true))
        round.asked[round.count++] =
            (struct asked){context, stream, stream->incarnation, .forgotten = true};
    }
    xsi_lock_give(&context->list_lock);
  }
  xsi_work_unlock();
  for (unsigned i = 0; i < round.count; i++)
    ask(&round.asked[i]);
  return round.busy == 0 && signals_came(&round);
}

bool xsi_work_watch_deep(void) {
  if (XSI_LIKELY(!__atomic_load_n(&deep, __ATOMIC_SEQ_CST)))
    return !__atomic_load_n(&running, __ATOMIC_RELAXED);
  return __atomic_exchange_n(&deep, false, __ATOMIC_SEQ_CST) ||
         !__atomic_load_n(&running, __ATOMIC_SEQ_CST);
}

static void sleep_until(uint64_t time_ns, uint32_t seen) {
  uint64_t now = xsi_now_ns(), left = time_ns - now;
  if (time_ns <= now) return;
  struct timespec wait = {.tv_sec = (time_t)(left / 1000000000u),
                          .tv_nsec = (long)(left % 1000000000u)};
  syscall(SYS_futex, &wakes, FUTEX_WAIT_PRIVATE, seen, time_ns == UINT64_MAX ? NULL : &wait, NULL,
          0);
}

// The driver is about to be taken down by its own exit handler, which was registered before ours.
static void stop_at_exit(void) {
  __atomic_store_n(&stopped, true, __ATOMIC_SEQ_CST);
  // A question in progress ends soon, unless it hangs behind a suspended channel: don't hang with
  // it.
  const struct timespec step = {.tv_nsec = 1000000};
  for (int i = 0; i < 200 && __atomic_load_n(&asking, __ATOMIC_SEQ_CST) != 0; i++)
    nanosleep(&step, NULL);
}

unsigned xsi_work_greet(unsigned greeted) {
  const struct xsi_work_platform *platform;
  while (greeted < XSI_WORK_PLATFORMS &&
         (platform = __atomic_load_n(&xsi_work_platforms[greeted], __ATOMIC_ACQUIRE))) {
    platform->watcher_starts();
    greeted++;
  }
  return greeted;
}

static void *watch_thread(void *unused) {
  (void)unused;
  pthread_setname_np(pthread_self(), "xsched-watch");
  xsi_annotate_ignore(true);
  unsigned greeted = 0; // platforms start one after the other, and none ends
  while (!__atomic_load_n(&stopped, __ATOMIC_SEQ_CST)) {
    unsigned before = greeted;
    greeted = xsi_work_greet(greeted);
    // One that was loaded after this thread began is taken down before what was registered then.
    if (before > 0 && greeted > before) atexit(stop_at_exit);
    xsi_wake_again();
    uint32_t seen = __atomic_load_n(&wakes, __ATOMIC_SEQ_CST);
    xsi_page_beat(&xsi_header()->watcher_ns, xsi_now_ns());
    uint64_t next = xsi_work_watch(xsi_now_ns());
    sleep_until(next, seen);
  }
  xsi_annotate_ignore(false);
  return NULL;
}

static void start_thread(void) {
  static bool at_exit;
  bool expected = false;
  uint64_t now = xsi_now_ns();
  if (now < __atomic_load_n(&retry_ns, __ATOMIC_RELAXED) ||
      !__atomic_compare_exchange_n(&running, &expected, true, false, __ATOMIC_SEQ_CST,
                                   __ATOMIC_SEQ_CST))
    return;
  if (!__atomic_exchange_n(&at_exit, true, __ATOMIC_SEQ_CST)) atexit(stop_at_exit);
  int error = xsi_thread_start(STACK_BYTES, watch_thread);
  if (error == 0) return;
  xsi_log(XSI_WARN, "no watcher thread: errno=%d; idle is known only from the program's own waits",
          -error);
  __atomic_store_n(&retry_ns, now + RETRY_NS, __ATOMIC_RELAXED);
  __atomic_store_n(&running, false, __ATOMIC_SEQ_CST);
}

// The next busy stream tries again. A stream that stays busy wakes nobody, so the helper thread does, too.
static void try_again(void) {
  if (__atomic_load_n(&wanted, __ATOMIC_RELAXED) && !__atomic_load_n(&running, __ATOMIC_SEQ_CST))
    start_thread();
}

void xsi_work_watch_busy(bool wake) {
  if (!wake || !xsi_work_watch_by_thread) return;
  int saved_errno = errno;
  __atomic_store_n(&wanted, true, __ATOMIC_RELAXED);
  if (!__atomic_load_n(&running, __ATOMIC_SEQ_CST)) start_thread();
  __atomic_fetch_add(&wakes, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &wakes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  errno = saved_errno;
}

void xsi_work_watch_start(void) { xsi_wake_set_duty(try_again); }

void xsi_work_watch_reset(void) {
  asking = 0;
  deep = true;
  wanted = running = false;
  retry_ns = last_busy_ns = 0;
}
