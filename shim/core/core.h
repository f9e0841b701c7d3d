/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of libxsched.so may ask of the core: options, log, the shared page and its queues,
 * the gate, counters, the helper thread and fork. Platform code (cuda/, later hip/) and the
 * busy/idle bookkeeping (work.h) sit above this; nothing here knows a GPU runtime.
 *
 * Guest rules: no function here exits, aborts, prints, installs a signal handler, or changes errno
 * seen by the application. Lock order: work lock -> request lock -> queue lock -> rm lock -> log; never call the
 * driver or the daemon with the queue lock held.
 */
#ifndef XSCHED_CORE_H
#define XSCHED_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compat.h"
#include "xsched/wire.h"

#define XSI_LIKELY(x) __builtin_expect(!!(x), 1)
#define XSI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define XSI_EXPORT __attribute__((visibility("default")))

/* ---- options.c: read once from the environment ---------------------------------- */

struct xsi_options {
  bool disabled;         /* XSCHED_DISABLE=1: every hook is a plain call of the real function */
  bool automatic;        /* XSCHED_AUTO_XQUEUE: contexts are queues by themselves; default yes */
  bool per_stream;       /* XSCHED_GRANULARITY=queue: so is every created stream */
  uint32_t scheduler;    /* enum xsw_scheduler; what the environment says */
  struct xsw_hint hint;  /* of the process */
  char policy[XSW_POLICY_BYTES]; /* XSCHED_POLICY */
  char cuda_library[64]; /* XSCHED_CUDA_LIB, default libcuda.so.1 */
  char hip_library[64];  /* XSCHED_HIP_LIB: the runtime's file name, if it is not libamdhip64* */
};
extern struct xsi_options xsi_options;
/* Idempotent, thread-safe; the constructor calls it, and so does any hook that runs before it. */
void xsi_init(void);

/* ---- log.c: only to the file or fd named in the environment --------------------- */

enum xsi_log_level { XSI_ERROR, XSI_WARN, XSI_INFO, XSI_DEBUG };
extern int xsi_log_threshold; /* -1: off, the default */
void xsi_log_write(enum xsi_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define xsi_log(level, ...)                                                                        \
  do {                                                                                             \
    if (XSI_UNLIKELY((int)(level) <= xsi_log_threshold)) xsi_log_write(level, __VA_ARGS__);        \
  } while (0)

/* ---- clock.c -------------------------------------------------------------------- */
uint64_t xsi_now_ns(void); /* CLOCK_MONOTONIC */

/* ---- page.c: the shared page, at one address for the life of the process -------- */

/* Anonymous zeros until the daemon's memfd is mapped over it, and again after it goes. */
extern unsigned char *xsi_page;

static inline struct xsw_header *xsi_header(void) { return (struct xsw_header *)(void *)xsi_page; }
static inline struct xsw_queue *xsi_slot(uint32_t index) {
  return (struct xsw_queue *)(void *)(xsi_page + XSW_HEADER_BYTES +
                                      (uint64_t)index * XSW_QUEUE_BYTES);
}

/* ---- queue.c: what the daemon schedules ----------------------------------------- */

/* A queue on the GPU with this PCI address; starts the helper thread if there is none.
 * Returns its index, or -ENOSPC when all are taken (the caller then runs unscheduled). */
int xsi_queue_open(uint32_t pci_domain, uint32_t pci_bus_slot, int32_t priority);
/* The same for one stream; its priority is added to the process's. */
int xsi_queue_open_stream(uint32_t pci_domain, uint32_t pci_bus_slot, int32_t priority);
void xsi_queue_close(int index);
/* Tells the daemon of a change; does nothing if it is none. Cheap: a few stores, and a write(2)
 * unless the queue is quiet. Calls about one queue, these and its end, come one after the other: the
 * work lock sees to that. */
void xsi_queue_set_busy(int index, bool busy);
/* Work submitted so far, for display; published lazily. */
void xsi_queue_set_submitted(int index, uint64_t submitted);

/* An open queue, for the program to look at; false: there is none of that number. */
struct xsi_queue_info {
  uint32_t kind, pci_domain, pci_bus_slot;
  int32_t priority;
  bool busy, held;
  uint64_t submitted;
};
bool xsi_queue_describe(uint32_t index, struct xsi_queue_info *info);
/* Says something about one queue; what was said before about other fields stays. */
int xsi_queue_hint(int index, const struct xsw_hint *hint);

/* ---- hint.c, request.c: what the program says about itself ------------------------ */

void xsi_hint_merge(struct xsw_hint *into, const struct xsw_hint *said);
/* Whether every field is in its range, said or not. */
bool xsi_hint_sound(const struct xsw_hint *hint);
/* About the process; policy may be NULL. Told to the daemon there is and to all that come. */
void xsi_hint_process(const struct xsw_hint *hint, const char *policy);
/* Who schedules: what the environment says, unless the program chose otherwise. */
uint32_t xsi_scheduler(void);
void xsi_set_scheduler(uint32_t scheduler);
bool xsi_joined(void); /* a daemon schedules this process now */

/* Marks for the SLO policy: 0 is a request that could not be marked, and may be ended too. */
uint64_t xsi_request_begin(const char *name);
void xsi_request_end(uint64_t request);

/* ---- gate.c: Lv1 ---------------------------------------------------------------- */

void xsi_gate_wait(int index); /* returns when open, or when the daemon has been silent too long */
static inline void xsi_gate_pass(int index) {
  if (XSI_UNLIKELY(__atomic_load_n(&xsi_slot((uint32_t)index)->gate, __ATOMIC_ACQUIRE) !=
                   XSW_GATE_OPEN))
    xsi_gate_wait(index);
}
/* 1 while nothing of the daemon's is to be obeyed: not joined, or it has been silent too long. */
extern uint32_t xsi_native;
/* Lv1's limits as the daemon set them; 0 when none is in force or the daemon is silent. */
static inline uint32_t xsi_in_flight_limit(int index) {
  if (__atomic_load_n(&xsi_native, __ATOMIC_RELAXED) != 0) return 0;
  return __atomic_load_n(&xsi_slot((uint32_t)index)->in_flight, __ATOMIC_RELAXED);
}

/* ---- counters.c: one block a thread, summed into the page; no shared line on the hot path - */

struct xsi_counters {
  uint64_t copies, syncs, captured, gate_waits, gate_wait_ns, unhooked;
  struct xsi_counters *next, *previous; /* list of live blocks */
  /* what a launch touches begins here */
  uint64_t hooked_calls, launches;
  bool listed;
};

/* Of work.h; here because a driver's launch walks through most of the cache, and each line of ours
 * has to be fetched again. */
struct xsi_work_stream;
struct xsi_work_seen {
  uintptr_t key; /* says which stream of which context: xsi_work_key */
  struct xsi_work_stream *stream;
};
#define XSI_WORK_CACHE 8
struct xsi_work_thread {
  uint64_t token; /* names the thread for the life of the process; 0: it has used no stream */
  uint64_t epoch; /* in which it saw what it has seen */
  struct xsi_work_seen last;
  uint32_t believed; /* how often xsi_work_hot.only was taken for the current context */
  /* what a launch touches ends here */
  struct xsi_work_stream *syncs; /* the one it waits for as its owner */
  uint64_t fed;                  /* launches and copies of the thread when it last began to wait, */
  uint64_t fed_ns;               /* and when that was, for the first time after the last of them */
  struct xsi_work_seen cache[XSI_WORK_CACHE];
};

struct xsi_thread {
  struct xsi_counters counters;
  struct xsi_work_thread work;
} __attribute__((aligned(64)));
_Static_assert(offsetof(struct xsi_thread, counters.hooked_calls) == 64 &&
                   offsetof(struct xsi_thread, work.syncs) <= 128,
               "a launch touches one line of it");
extern _Thread_local struct xsi_thread xsi_thread __attribute__((tls_model("initial-exec")));

void xsi_counters_enlist(void); /* slow path of the first count in a thread */
void xsi_counters_publish(void);
void xsi_counters_sum(struct xsi_counters *total);

static inline struct xsi_counters *xsi_counters_mine(void) {
  if (XSI_UNLIKELY(!xsi_thread.counters.listed)) xsi_counters_enlist();
  return &xsi_thread.counters;
}
/* Single writer, read by the publisher: a relaxed store, no locked instruction. */
#define xsi_count(field, amount)                                                                   \
  do {                                                                                             \
    struct xsi_counters *mine_ = xsi_counters_mine();                                              \
    __atomic_store_n(&mine_->field, mine_->field + (amount), __ATOMIC_RELAXED);                    \
  } while (0)

/* ---- helper.c: the one thread, started by the first xsi_queue_open -------------- */

/* Called by the helper thread about when asked: returns the time (CLOCK_MONOTONIC ns) it wants to
 * be called next, UINT64_MAX for "when woken". The idle watcher of work.c is the one user. */
typedef uint64_t (*xsi_watch_function)(uint64_t now_ns);
void xsi_helper_set_watch(xsi_watch_function watch);
void xsi_helper_wake(void);
bool xsi_in_helper_thread(void);

/* ---- fork.c --------------------------------------------------------------------- */

/* Run in the child of a fork, in the order of registration, while it has one thread. */
void xsi_at_fork_child(void (*reset)(void));
/* Zeroes memory for such a reset, but stores only where it is not zero: a store copies a page that
 * the child otherwise shares with its parent. */
static inline void xsi_clear_used(void *memory, size_t bytes) {
  uint64_t *word = memory;
  for (size_t i = 0; i < bytes / sizeof *word; i++)
    if (word[i] != 0) word[i] = 0;
}
/* Taken before and released after fork in the parent, so that no lock is copied held. */
void xsi_at_fork_locks(void (*lock)(void), void (*unlock)(void));

/* ---- real.c: the next definition of what we interpose in libc ------------------- */

int xsi_real_ioctl(int fd, unsigned long request, void *argument);
/* Where that goes; found by xsi_init unless it is set already (tests put a double here). */
extern int (*xsi_next_ioctl)(int fd, unsigned long request, ...);
/* The next dlsym/dlvsym, found without calling any by name; never null. */
extern void *(*xsi_real_dlsym)(void *handle, const char *name);
extern void *(*xsi_real_dlvsym)(void *handle, const char *name, const char *version);

/* ---- rm/observer.c -------------------------------------------------------------- */

/* Fail open: enables every channel of this process and restores its groups' original timeslices.
 * 0, or -EAGAIN if a channel may still be stopped. */
int xsi_rm_recover(void);

#endif /* XSCHED_CORE_H */
