/* SPDX-License-Identifier: Apache-2.0
 *
 * Busy and idle. Runtimes report submissions, waits and events; this part decides when a queue changes
 * between idle and busy. It knows no runtime: each gives a struct xsi_work_platform, and every context
 * and stream belongs to one. Handles of two platforms never collide, because all are addresses.
 *
 * A stream counts work before the driver call (submitted) and after the driver accepted it (landed). A
 * thread that waits for a stream first reads the landed count, the mark. A successful wait completes
 * everything up to the mark. Landed work only grows, so marks of several threads compare. The stream is
 * idle when completed equals submitted; a call in progress keeps it busy.
 *
 * Two threads can race: the submitter increments submitted and then loads busy; the thread that marks
 * the stream idle freezes busy and then loads submitted. At least one must see the other's store. A locked
 * instruction would ensure that, but it would wait for the driver's write to the device and cost several
 * times the rest of the hook. Therefore a stream can have an owner: a thread that counts with plain stores
 * in words that only it writes; only compiler reordering is prevented. Other threads count in separate
 * words, with sequentially consistent additions. A thread that marks another owner's stream idle calls
 * membarrier between its two steps. The barrier makes the owner's earlier stores visible here, and lets the
 * owner's later loads see that busy is frozen.
 *
 * A membarrier costs up to a few microseconds. If other threads keep finding the end of a stream after
 * only a few launches, the stream loses its owner: behind a barrier, while busy is frozen. A nonzero busy
 * holds the owner's token, or XSI_WORK_NOBODY. A former owner that has not noticed still counts in its own
 * words. It then finds that busy is not its token and waits until the stream is thawed.
 *
 * A thread that submits alone to a stream of another owner, or of none, becomes its owner when it has paid as
 * much for locked additions as that costs: behind a barrier, and only if the former owner is in no call. Every
 * later call of the former owner sees that it is not the owner any more. A thread that ends gives its streams
 * up. Without membarrier no stream has an owner.
 *
 * A stream counts for the queue of its context, or has a queue of its own: because the program created
 * one (api/), or because XSCHED_GRANULARITY asks for it. The program may hold such a stream at a gate of
 * its own, a slot that stays closed.
 *
 * The state of one stream is locked by the stream itself: busy is XSI_WORK_FROZEN meanwhile. So streams that
 * become busy and idle in several threads share only the count of their queue (queue.h). The work lock guards
 * the tables; looking a stream up takes no lock.
 *
 * Lock order: watch lock of a context (xsi_work_exclude) -> work lock -> frozen stream -> list lock of a
 * context. The driver is never called with one of the last three held. The watcher calls it with the watch lock of the one context that it asks
 * about, so a question that the driver answers late holds up no other context. A thread has at most one
 * watch lock. The watcher itself never waits for one.
 */
#ifndef XSCHED_WORK_H
#define XSCHED_WORK_H

#include "clock.h"
#include "counters.h"
#include "page.h"
#include "queue.h"

#define XSI_WORK_LEGACY ((uintptr_t)1) /* the context's default stream */
#define XSI_WORK_THREAD ((uintptr_t)2) /* the calling thread's default stream */

enum xsi_work_answer {
  XSI_WORK_DONE,
  XSI_WORK_PENDING,
  XSI_WORK_UNKNOWN, /* could not be asked now */
};

struct xsi_work_device {
  uint32_t pci_domain;
  uint32_t pci_bus_slot;
};

/* Operations of a platform on its handles. None of these may exit, print or change errno. */
struct xsi_work_platform {
  /* The context of a created stream; 0: unknown. */
  uintptr_t (*context_of)(uintptr_t stream);
  int (*describe)(uintptr_t context, struct xsi_work_device *device);
  /* Watcher thread only: is the stream's work over? Must not disturb captures. XSI_WORK_THREAD
   * stands for every thread's default stream in the context. */
  enum xsi_work_answer (*query)(uintptr_t context, uintptr_t stream);
  enum xsi_work_answer (*event_query)(uintptr_t context, uintptr_t event);
  /* The same from the program's threads; XSI_WORK_THREAD is the calling thread's. */
  enum xsi_work_answer (*poll)(uintptr_t context, uintptr_t stream);
  /* Records an event of ours, made in that context if *event is 0. */
  int (*event_record)(uintptr_t context, uintptr_t *event, uintptr_t stream);
  /* From the program's threads: is the work before it over? Must not disturb captures. */
  enum xsi_work_answer (*event_poll)(uintptr_t context, uintptr_t event);
  /* The core needs the event no more. Called with the work lock held, so it must not call the runtime.
   * NULL: events can be recorded again, and the core keeps them for that. */
  void (*event_drop)(uintptr_t event);
  /* From the program's threads: waits until the stream is empty. */
  int (*synchronize)(uintptr_t context, uintptr_t stream);
  /* Does what goes into the stream now become part of a graph? */
  bool (*capturing)(uintptr_t stream);
  /* Of a created stream; bigger is more important, 0 is the usual. */
  int32_t (*priority_of)(uintptr_t stream);
  /* Optional: batches (work_batch.c). share makes a page of ours readable for the context's device and
   * returns the page's address there. hold lets the stream's later work wait until the word at that
   * address is value or, counted modulo 2^32, larger. Both from the program's threads. */
  int (*batch_share)(uintptr_t context, void *page, size_t bytes, uint64_t *address);
  int (*batch_hold)(uintptr_t context, uintptr_t stream, uint64_t address, uint32_t value);
  void (*watcher_starts)(void); /* on the watcher thread, before it asks anything */
  bool has_current;             /* threads have a current context, and asking which costs time */
  bool waits_at_thread_exit;    /* a thread's default streams are empty when it ends */
  bool query_joins;             /* asking about the default stream makes it wait for all others */
};

struct xsi_work_context;
struct xsi_work_limit;
struct xsi_work_batch;

struct xsi_work_stream {
  /* first line: touched by every submission */
  uint64_t submitted_owner; /* stored by the owner thread only */
  uint64_t landed_owner;
  uint64_t submitted_others; /* added by all other threads */
  uint64_t landed_others;
  struct xsw_queue *slot; /* gate and limits; a slot of zeros where the context has no queue */
  uint64_t owner;         /* token of a thread, or XSI_WORK_NOBODY */
  uint64_t busy;          /* 0, what owner was when it became so, or XSI_WORK_FROZEN */
  uintptr_t key;          /* xsi_work_key; 0: not in the table */

  uint64_t completed;
  uint64_t aside_owner;  /* landed work that is no launch; written like landed */
  uint64_t copies_owner; /* copies and memsets, also those that never landed because they waited */
  uint64_t aside_others, copies_others;
  uint32_t syncing;       /* threads waiting for it now: the watcher keeps off */
  uint32_t program_holds; /* and the futex word for those it holds */
  uint32_t waiters;       /* for the stream to be thawed */
  int32_t queue;          /* of the slot in force, or -1 */
  bool watched;     /* the watcher, not the application, found the end of the last busy time */
  bool owner_syncs; /* as syncing, of the owner thread: no locked instruction */
  bool listed;      /* in the context's list; atomic */
  bool own;         /* the queue is this stream's alone */
  uint32_t periods; /* counts busy times */

  /* frozen, or under the work lock and frozen to change them */
  struct xsi_work_context *context;
  struct xsi_tally published; /* what its queue knows of */
  uint32_t wasted;            /* consecutive unprofitable membarriers */
  uint64_t wasted_at;         /* the owner's landed count at the last one */
  uint64_t former;            /* lost it, and may not have noticed; 0: nobody */
  uint32_t losses;
  bool abandoned; /* destroyed, or its thread ended, with work in it: lives until that is over */

  /* under the work lock */
  uint64_t incarnation; /* counts lives of this record; records are never freed */
  const struct xsi_work_platform *platform;
  uintptr_t key_context, handle;
  uint64_t key_thread;
  uint32_t capturing; /* captures begun on it */
  uintptr_t orphan;   /* our event behind the last work of a destroyed stream */
  uintptr_t fence;    /* our event in front of a wait for a signal, behind fence_mark */
  uint64_t fence_mark;
  bool awaits; /* atomic: it has waited for signals */
  struct xsi_work_limit *limit;
  struct xsi_work_batch *batch;      /* of its context; NULL: not known yet in this life */
  uint32_t batch_value;              /* the value that its work waits for, or has waited for */
  struct xsi_work_stream *hash_next; /* atomic */
  struct xsi_work_stream *next, *previous; /* of the context */

  /* the watcher's */
  uint32_t seen_periods;
  uint64_t busy_since_ns, poll_at_ns;
  uint64_t waited_since_ns; /* when it first saw a thread wait for it; 0: none does */
  uint64_t looked_at;       /* submissions when it last came by */
  struct xsi_work_stream *list_next, *list_previous; /* of the context; under its list lock */
} __attribute__((aligned(64)));

_Static_assert(offsetof(struct xsi_work_stream, completed) == 64, "the first line is full");

#define XSI_WORK_NOBODY UINT64_MAX       /* no thread's token */
#define XSI_WORK_FROZEN (UINT64_MAX - 1) /* nor is this: one thread changes the stream's state */

/* What every launch reads of the process, in one line that hardly ever changes. */
struct xsi_work_hot {
  uint64_t epoch; /* raised when a stream or context goes: empties the caches */
  /* The only context of the process, 0 if there are several: then it is every thread's current one.
   * A driver can have contexts that we have not seen, so each thread checks now and then. */
  uintptr_t only;
  uint32_t captures; /* in progress in this process */
} __attribute__((aligned(64)));
extern struct xsi_work_hot xsi_work_hot;
void xsi_work_only_is_wrong(void) __attribute__((cold)); /* for the rest of the process's life */
#define XSI_WORK_BELIEVE 64                              /* times between two looks of a thread */

/* False: no more platforms fit, and this one runs unaccounted for. */
bool xsi_work_start(const struct xsi_work_platform *platform);
bool xsi_work_started(void); /* by any platform */

/* ---- streams ------------------------------------------------------------------- */

struct xsi_work_stream *xsi_work_find_slow(const struct xsi_work_platform *platform,
                                           uintptr_t context, uintptr_t handle);
/* The same for one that has a record, without a lock; else NULL. */
struct xsi_work_stream *xsi_work_switch(uintptr_t context, uintptr_t handle);
/* Created streams are aligned addresses; the default ones are not. */
static inline uintptr_t xsi_work_key(uintptr_t context, uintptr_t handle) {
  return context << 2 | handle;
}
/* The one that this thread used last, or NULL. */
static inline struct xsi_work_stream *xsi_work_last(uintptr_t context, uintptr_t handle) {
  const struct xsi_work_thread *mine = &xsi_thread.work;
  return XSI_LIKELY(mine->last.key == xsi_work_key(context, handle) &&
                    mine->epoch == __atomic_load_n(&xsi_work_hot.epoch, __ATOMIC_ACQUIRE))
             ? mine->last.stream
             : NULL;
}
/* The record of a stream, made on first sight; NULL: run it unscheduled. context is 0 for created
 * streams, whose handle says it all. */
static inline struct xsi_work_stream *xsi_work_find(const struct xsi_work_platform *platform,
                                                    uintptr_t context, uintptr_t handle) {
  struct xsi_work_stream *stream = xsi_work_last(context, handle);
  if (XSI_UNLIKELY(!stream)) stream = xsi_work_switch(context, handle);
  return XSI_LIKELY(stream) ? stream : xsi_work_find_slow(platform, context, handle);
}
/* The same if it has a record and nothing is being captured; else NULL. */
static inline struct xsi_work_stream *xsi_work_same(uintptr_t context, uintptr_t handle) {
  if (XSI_UNLIKELY(__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) != 0)) return NULL;
  struct xsi_work_stream *stream = xsi_work_last(context, handle);
  return XSI_LIKELY(stream) ? stream : xsi_work_switch(context, handle);
}
void xsi_work_stream_created(uintptr_t handle);
/* Forgets the stream before the driver destroys it; work still in it stays counted until it is
 * over. */
void xsi_work_stream_destroying(uintptr_t handle);

/* ---- queues of their own (work_queue.c) ---------------------------------------------- */

/* A life of a stream; ended says whether that is over. */
struct xsi_work_life {
  struct xsi_work_stream *stream;
  uint64_t incarnation;
};
/* Makes the stream a queue of its own: its slot, -EEXIST if it is one, -ENOENT if it is gone. */
int xsi_work_own(struct xsi_work_life life, int32_t priority);
/* It counts for its context again; whatever the program held goes on. */
void xsi_work_disown(struct xsi_work_life life);
/* The program's own gate. */
int xsi_work_hold(struct xsi_work_life life, bool hold);
bool xsi_work_lives(struct xsi_work_life life);
struct xsi_work_life xsi_work_life_of(struct xsi_work_stream *stream);

/* ---- contexts ------------------------------------------------------------------ */

void xsi_work_context_seen(const struct xsi_work_platform *platform, uintptr_t context);
/* There is such a context, and it may become a thread's current one before it is seen. */
void xsi_work_context_named(uintptr_t context);
/* Forgets the context and all its streams, with the watcher excluded from it. */
void xsi_work_context_drop(uintptr_t context);

/* ---- submissions --------------------------------------------------------------- */

void xsi_work_mark_busy(struct xsi_work_stream *stream);
bool xsi_work_is_busy(struct xsi_work_stream *stream);
void xsi_work_try_idle(struct xsi_work_stream *stream, bool by_watcher);
void xsi_work_limit_before(struct xsi_work_stream *stream);
void xsi_work_limit_after(struct xsi_work_stream *stream);

/* What a submission is, for batches: a kernel (any other value is its handle), work inside the device
 * that no call waits for, or anything else, which may wait and therefore releases the batch first. */
#define XSI_WORK_OTHER ((uintptr_t)0)
#define XSI_WORK_INSIDE ((uintptr_t)1)
/* Waits at the program's own gate, then obeys the daemon's. */
void xsi_work_held(struct xsi_work_stream *stream, uintptr_t kernel) __attribute__((cold));

static inline struct xsw_queue *xsi_work_slot(const struct xsi_work_stream *stream) {
  return __atomic_load_n(&stream->slot, __ATOMIC_ACQUIRE);
}

static inline bool xsi_work_owned(const struct xsi_work_stream *stream) {
  return XSI_LIKELY(__atomic_load_n(&stream->owner, __ATOMIC_RELAXED) == xsi_thread.work.token);
}

/* A call begins to count, and has counted. */
static inline void xsi_work_call_begins(void) {
  uint16_t calling = __atomic_load_n(&xsi_thread.work.calling, __ATOMIC_RELAXED);
  __atomic_store_n(&xsi_thread.work.calling, (uint16_t)(calling + 1), __ATOMIC_RELAXED);
  __atomic_signal_fence(__ATOMIC_SEQ_CST); // before it looks who is the owner
}
static inline void xsi_work_call_ends(void) {
  uint16_t calling = __atomic_load_n(&xsi_thread.work.calling, __ATOMIC_RELAXED);
  __atomic_store_n(&xsi_thread.work.calling, (uint16_t)(calling - 1), __ATOMIC_RELEASE);
}

/* For threads that do not own it. */
void xsi_work_count_other(struct xsi_work_stream *stream);
void xsi_work_landed_other(struct xsi_work_stream *stream);
/* Counts the work; the stream is busy from then on. */
static inline void xsi_work_count_owned(struct xsi_work_stream *stream) {
  uint64_t count = __atomic_load_n(&stream->submitted_owner, __ATOMIC_RELAXED) + 1;
  __atomic_store_n(&stream->submitted_owner, count, __ATOMIC_RELAXED);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  if (XSI_UNLIKELY(__atomic_load_n(&stream->busy, __ATOMIC_ACQUIRE) != xsi_thread.work.token))
    xsi_work_mark_busy(stream);
}
static inline void xsi_work_count(struct xsi_work_stream *stream) {
  xsi_work_call_begins();
  if (xsi_work_owned(stream))
    xsi_work_count_owned(stream);
  else
    xsi_work_count_other(stream);
}

static inline uint64_t xsi_work_submitted(const struct xsi_work_stream *stream) {
  // The others' first: an owner that loses the stream in mid-call and is then refused by the driver
  // counted in its own word and takes that back in theirs, never the other way round.
  uint64_t others = __atomic_load_n(&stream->submitted_others, __ATOMIC_SEQ_CST);
  return others + __atomic_load_n(&stream->submitted_owner, __ATOMIC_SEQ_CST);
}

/* Of work that counts already: nothing was left in its stream when it was submitted. */
static inline bool xsi_work_is_first(const struct xsi_work_stream *stream) {
  return xsi_work_submitted(stream) - 1 <= __atomic_load_n(&stream->completed, __ATOMIC_ACQUIRE);
}

/* The daemon asks for batches: lower programs use the device beside this one. */
static inline bool xsi_work_gathers(const struct xsi_work_stream *stream) {
  uint32_t gate = __atomic_load_n(&xsi_work_slot(stream)->gate, __ATOMIC_RELAXED);
  return (gate & ((1u << XSW_BURST_SHIFT) - 1)) == XSW_GATE_BATCH;
}

/* Before the driver call: counts the work, then waits while the daemon holds this queue. */
static inline void xsi_work_submit(struct xsi_work_stream *stream, uintptr_t kernel) {
  xsi_work_count(stream);
  struct xsw_queue *slot = xsi_work_slot(stream);
  if (XSI_UNLIKELY(__atomic_load_n(&slot->gate, __ATOMIC_ACQUIRE) != XSW_GATE_OPEN))
    xsi_work_held(stream, kernel);
  if (XSI_UNLIKELY(__atomic_load_n(&slot->in_flight, __ATOMIC_RELAXED) != 0))
    xsi_work_limit_before(stream);
}

/* Before it lands: this work is no launch. A copy that waits counts as a copy without landing. */
void xsi_work_aside_other(struct xsi_work_stream *stream, unsigned aside, unsigned copies);
static inline void xsi_work_aside(struct xsi_work_stream *stream, unsigned aside, unsigned copies) {
  if (!xsi_work_owned(stream)) {
    xsi_work_aside_other(stream, aside, copies);
    return;
  }
  __atomic_store_n(&stream->aside_owner, stream->aside_owner + aside, __ATOMIC_RELAXED);
  __atomic_store_n(&stream->copies_owner, stream->copies_owner + copies, __ATOMIC_RELAXED);
}

/* The daemon asked for the progress of this launch's queue. */
void xsi_work_tell_launch(void);
static inline void xsi_work_tell(const struct xsi_work_stream *stream, uint32_t tell) {
  int32_t queue = __atomic_load_n(&stream->queue, __ATOMIC_RELAXED);
  if (queue < 0) return;
  uint64_t *launches = &xsi_progress((uint32_t)queue)->launches;
  __atomic_store_n(launches, __atomic_load_n(launches, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
  if (XSI_UNLIKELY((tell & XSW_TELL_LAUNCH) != 0)) xsi_work_tell_launch();
}

/* After it, when the driver took the work. */
static inline void xsi_work_landed(struct xsi_work_stream *stream) {
  if (xsi_work_owned(stream)) {
    uint64_t count = __atomic_load_n(&stream->landed_owner, __ATOMIC_RELAXED) + 1;
    __atomic_store_n(&stream->landed_owner, count, __ATOMIC_RELEASE);
  } else {
    xsi_work_landed_other(stream);
  }
  xsi_work_call_ends();
  if (XSI_UNLIKELY(__atomic_load_n(&xsi_work_slot(stream)->in_flight, __ATOMIC_RELAXED) != 0))
    xsi_work_limit_after(stream);
}

/* After it, when the driver refused the work, or has finished it already. */
void xsi_work_withdraw(struct xsi_work_stream *stream);

/* ---- waits --------------------------------------------------------------------- */

static inline uint64_t xsi_work_mark(const struct xsi_work_stream *stream) {
  return __atomic_load_n(&stream->landed_owner, __ATOMIC_ACQUIRE) +
         __atomic_load_n(&stream->landed_others, __ATOMIC_ACQUIRE);
}
/* Everything counted by the mark is over. */
void xsi_work_complete(struct xsi_work_stream *stream, uint64_t mark, bool by_watcher);

/* Tells the daemon when a thread began to wait. */
void xsi_work_tell_wait(const struct xsi_work_stream *stream, uint64_t fed_ns);
/* The program begins to wait for it; wire.h says what that is good for. All that a thread had to
 * submit was there when the first of several waits began; one that submits nothing can't say. */
static inline void xsi_work_fed(struct xsi_work_stream *stream) {
  struct xsw_queue *slot = xsi_work_slot(stream);
  if (__atomic_load_n(&slot->quiet, __ATOMIC_RELAXED) != 0) return;
  const struct xsi_counters *counters = &xsi_thread.counters;
  struct xsi_work_thread *mine = &xsi_thread.work;
  if (mine->fed != counters->launches + counters->copies) {
    mine->fed = counters->launches + counters->copies;
    mine->fed_ns = xsi_now_ns();
  }
  if (mine->fed_ns > __atomic_load_n(&slot->fed_ns, __ATOMIC_RELAXED))
    xsi_work_tell_wait(stream, mine->fed_ns);
}

/* The same, found out when it is over: the call that waited began then. */
void xsi_work_fed_since(struct xsi_work_stream *stream, uint64_t begun_ns);

/* An answer "not ready" about a stream or an event (what) in it. A program that polls is waiting, since the first
 * such answer after its last submission. Once is no poll: allocators look at old events in passing. */
void xsi_work_polled(struct xsi_work_stream *stream, uintptr_t what);

/* The stream is about to wait for a signal that may never come. What landed before is over when that is, and
 * nothing else is work: the watcher must not ask about the wait. */
void xsi_work_fence(struct xsi_work_stream *stream);

/* Around a wait for one stream. The record may have another owner when it returns. */
static inline void xsi_work_sync_begins(struct xsi_work_stream *stream) {
  xsi_work_fed(stream);
  struct xsi_work_thread *mine = &xsi_thread.work;
  if (xsi_work_owned(stream) && XSI_LIKELY(!mine->syncs)) {
    mine->syncs = stream;
    __atomic_store_n(&stream->owner_syncs, true, __ATOMIC_RELAXED);
  } else {
    __atomic_fetch_add(&stream->syncing, 1, __ATOMIC_SEQ_CST);
  }
}
static inline void xsi_work_sync_ends(struct xsi_work_stream *stream) {
  struct xsi_work_thread *mine = &xsi_thread.work;
  if (XSI_LIKELY(mine->syncs == stream)) {
    mine->syncs = NULL;
    __atomic_store_n(&stream->owner_syncs, false, __ATOMIC_RELAXED);
  } else {
    __atomic_fetch_sub(&stream->syncing, 1, __ATOMIC_SEQ_CST);
  }
}

struct xsi_work_marks {
  unsigned count, room;
  struct xsi_work_marked {
    struct xsi_work_stream *stream;
    uint64_t mark;
  } * marked, own[32];
};
/* Marks all busy streams of a context; done releases them, completing what they mark if it is over.
 */
void xsi_work_marks_take(struct xsi_work_marks *marks, uintptr_t context);
void xsi_work_marks_done(struct xsi_work_marks *marks, bool over);

/* ---- captures: the caller raises xsi_work_hot.captures before it begins one ------------- */

void xsi_work_capture_begun(struct xsi_work_stream *stream);
void xsi_work_capture_ended(struct xsi_work_stream *stream);

/* ---- events (work_event.c) ------------------------------------------------------ */

/* About to be recorded again, or destroyed: it marks nothing now. */
void xsi_work_event_forget(uintptr_t event);
void xsi_work_events_forget_all(void);
void xsi_work_event_recorded(uintptr_t event, struct xsi_work_stream *stream, uint64_t mark);
/* The work that the event marks; false if unknown. Events behind work that is over may be forgotten. */
bool xsi_work_event_find(uintptr_t event, struct xsi_work_stream **stream, uint64_t *mark);

/* What an event stood for before the driver was asked about it. Only if it stands for the same
 * afterwards was the answer about that, and not about another thread's new record. */
struct xsi_work_standing {
  bool known;
  struct xsi_work_stream *stream;
  uint64_t mark;
};
void xsi_work_event_look(struct xsi_work_standing *standing, uintptr_t event, bool waiting);
void xsi_work_event_conclude(const struct xsi_work_standing *before, uintptr_t event, bool waited,
                             bool over);

/* ---- batches (work_batch.c) --------------------------------------------------------- */

/* Nonzero while work may wait on a device for the rest of its batch, or the process's gate is shut. */
extern uint32_t xsi_work_closed;
#define XSI_WORK_CLOSED_BATCH 1u
#define XSI_WORK_CLOSED_SHUT 2u
void xsi_work_release_batches(void) __attribute__((cold));
/* Before every call that may wait: nothing of ours may keep the device from it. From any thread, without a
 * lock. */
static inline void xsi_work_open(void) {
  if (XSI_UNLIKELY(__atomic_load_n(&xsi_work_closed, __ATOMIC_SEQ_CST) != 0))
    xsi_work_release_batches();
}
/* Before a call that neither is work nor waits, but takes room in the driver's ring: an event, a wait for one. */
void xsi_work_queued_slow(void) __attribute__((cold));
static inline void xsi_work_queued(void) {
  if (XSI_UNLIKELY(__atomic_load_n(&xsi_work_closed, __ATOMIC_RELAXED) != 0))
    xsi_work_queued_slow();
}
/* Before a stream waits for an event. A runtime may wait in the call for an event of another context. */
void xsi_work_awaits_slow(const struct xsi_work_stream *stream, uintptr_t event)
    __attribute__((cold));
static inline void xsi_work_awaits(const struct xsi_work_stream *stream, uintptr_t event) {
  if (XSI_UNLIKELY(__atomic_load_n(&xsi_work_closed, __ATOMIC_RELAXED) != 0))
    xsi_work_awaits_slow(stream, event);
}
/* Has a batch seen this kernel in that context? If not, a call about the kernel may have to load it, and wait. */
bool xsi_work_has_launched(uintptr_t context, uintptr_t kernel);
void xsi_work_forget_kernels(void); /* handles may stand for other kernels from here on */
/* A submission to a stream whose gate says XSW_GATE_BATCH; most of them gather. */
void xsi_work_batch(struct xsi_work_stream *stream, uintptr_t kernel, uint32_t most);
/* Others may wait for this process's work without a call that we see: no batches from here on. */
void xsi_work_never_batch(void);
extern bool xsi_work_batch_never;     /* it was called; tests take it back */
extern bool xsi_work_batch_by_thread; /* tests turn it off */

/* ---- the gate of the whole process (work_shut.c) ------------------------------------- */

/* Every submission that begins from now on waits, whatever the daemon does, until reopen. False: that can't be
 * ensured here, and the gate is open. */
bool xsi_work_shut(void);
void xsi_work_reopen(void);
/* While it is shut: true once no submission is in the driver, or on its way there. */
bool xsi_work_quiet(void);
/* Then, from a thread of the library's own: asks the driver about all busy streams; true if none is left. The thread
 * calls greet first, which returns for how many platforms it has done so. */
bool xsi_work_drained(void);
unsigned xsi_work_greet(unsigned greeted);
/* Work that has no record begins: the gate can't be shut any more. Waits while it is. */
void xsi_work_unrecorded(void) __attribute__((cold));
bool xsi_work_has_unrecorded(void);
/* Sleeps until it is open. Whoever begins and ends to wait is reported. */
void xsi_work_await_open(void);
void xsi_work_on_wait(void (*callback)(bool begins));

/* ---- watcher (work_watch.c) ------------------------------------------------------ */

/* Keeps the watcher from asking about a context, or the one of a stream: around captures and destruction.
 * NULL: nothing of that context is known, so nothing is asked about it. include takes what exclude returned. */
struct xsi_work_context *xsi_work_exclude(uintptr_t context);
struct xsi_work_context *xsi_work_exclude_stream(const struct xsi_work_stream *stream);
void xsi_work_include(struct xsi_work_context *excluded);
/* From the program's threads: true if the driver says that all work in the stream is over. It never waits for
 * the watcher and asks nothing while anything is captured; the watcher finds out then. */
bool xsi_work_ask(const struct xsi_work_stream *stream, uintptr_t handle);
/* One round: asks the driver about the busy streams that are due. Returns when to come again
 * (UINT64_MAX: when woken). The watcher thread runs it; tests call it by hand. */
uint64_t xsi_work_watch(uint64_t now_ns);
extern bool xsi_work_watch_by_thread; /* tests turn it off */

#endif /* XSCHED_WORK_H */
