// SPDX-License-Identifier: Apache-2.0
//
// Batches: the kernels of a launch-bound program wait on the device until most of a request is there. The
// device then runs them without gaps, and switches to this program once instead of once per kernel.
//
// A batch waits behind a word in host memory. Before the first kernel of a batch, the shim submits a wait for
// the word's next value to the stream; all later work passes unchanged to the driver. One store of the value
// releases all streams of the context. Launches are never deferred, copied or reordered.
//
// A program must never hang because of a closed batch. Therefore:
//   - Every call that may wait releases first, in every thread. Only calls known not to wait do not. An unknown
//     call of the runtime's library releases, too.
//   - A batch is released after as many operations as the daemon asked for, and after MOST: the driver's ring has room for 1,020 (H200, driver 580),
//     and a launch into a full ring blocks in the driver.
//   - It is released before a kernel that was not launched in the context yet: loading it may wait for the
//     context.
//   - A stream whose last work nobody waited for by a call has no batches: the program may look at memory.
//   - A process has none any more once others may wait for its work on the device, or once it signals by values
//     in memory.
//   - A thread of its own releases every batch that got no work for two ticks, or has waited for LONGEST_NS.
//     It takes no lock and calls no driver. It also ends waits that no hook sees.
//   - Releasing takes no lock and makes no call: it stores one word per context.
// A daemon that goes leaves a page of zeros, and a silent one is not obeyed: the next launch closes nothing.

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "annotate.h"
#include "fork.h"
#include "gate.h"
#include "log.h"
#include "work_internal.h"

enum {
  CONTEXTS = 16,  /* with batches at the same time; others have none */
  MOST = 256,     /* operations in a batch: a quarter of the driver's ring, with room for events */
  KERNELS = 8192, /* slots for kernels that were launched before */
  PAGE = 4096,
  STACK_BYTES = 256 * 1024,
};
enum {
  TICK_NS = 500000,      /* a tenth of the shortest request for which a lost batch would matter */
  LONGEST_NS = 12000000, /* the longest request that gathers (batchMax of the daemon) */
  LINGER_NS = 100000000  /* the thread sleeps until woken after so long without batches */
};

enum state { UNUSED, PREPARING, READY, REFUSED };

// Of a context. Records are never freed; one whose context has gone is used again.
struct xsi_work_batch {
  uint32_t state;
  uintptr_t context; // under the work lock
  const struct xsi_work_platform *platform;
  uint32_t *word; // what the device reads: all batches up to this value are released
  uint64_t address;
  uint32_t closed;     // the newest value that a stream waits for; equal to *word: none waits
  uint32_t operations; // submitted since it closed
  uint64_t closed_ns;
  uint64_t *bursts; // of its queue

  uint32_t seen_closed, seen_operations; // the thread's
};

XSI_FORK_STATE uint32_t xsi_work_closed;
static XSI_FORK_STATE struct xsi_work_batch batches[CONTEXTS];
static XSI_FORK_STATE bool started;
XSI_FORK_STATE bool xsi_work_batch_never;
bool xsi_work_batch_by_thread = true;
static XSI_FORK_STATE uint32_t asleep; // the futex word of the thread
static uintptr_t launched[KERNELS];

// ---- releasing: no lock, no call, from any thread ------------------------------------------------

static bool is_closed(const struct xsi_work_batch *batch) {
  return __atomic_load_n(&batch->state, __ATOMIC_ACQUIRE) == READY &&
         __atomic_load_n(&batch->closed, __ATOMIC_SEQ_CST) !=
             __atomic_load_n(batch->word, __ATOMIC_SEQ_CST);
}

// The word only grows: of two threads the later store must not take the other's back.
static void release(struct xsi_work_batch *batch) {
  if (__atomic_load_n(&batch->state, __ATOMIC_ACQUIRE) != READY) return;
  uint32_t to = __atomic_load_n(&batch->closed, __ATOMIC_SEQ_CST);
  uint32_t now = __atomic_load_n(batch->word, __ATOMIC_SEQ_CST);
  while ((int32_t)(to - now) > 0) {
    if (!__atomic_compare_exchange_n(batch->word, &now, to, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST))
      continue;
    __atomic_fetch_add(__atomic_load_n(&batch->bursts, __ATOMIC_RELAXED), 1, __ATOMIC_RELAXED);
    return;
  }
}

// The flag first: whoever closes sets its value before the flag, so that none is missed.
void xsi_work_release_batches(void) {
  __atomic_fetch_and(&xsi_work_closed, ~XSI_WORK_CLOSED_BATCH, __ATOMIC_SEQ_CST);
  for (unsigned i = 0; i < CONTEXTS; i++)
    release(&batches[i]);
}

void xsi_work_never_batch(void) {
  __atomic_store_n(&xsi_work_batch_never, true, __ATOMIC_SEQ_CST);
  xsi_work_open();
}

// ---- the thread that releases what was left behind ---------------------------------------------------

// True if a batch is closed.
static bool tick(uint64_t now) {
  bool any = false;
  if (!__atomic_load_n(&xsi_work_batch_by_thread, __ATOMIC_RELAXED)) return true;
  for (unsigned i = 0; i < CONTEXTS; i++) {
    struct xsi_work_batch *batch = &batches[i];
    if (!is_closed(batch)) continue;
    any = true;
    uint32_t closed = __atomic_load_n(&batch->closed, __ATOMIC_RELAXED);
    uint32_t operations = __atomic_load_n(&batch->operations, __ATOMIC_RELAXED);
    bool stalled = batch->seen_closed == closed && batch->seen_operations == operations;
    batch->seen_closed = closed;
    batch->seen_operations = operations;
    if (stalled || now - __atomic_load_n(&batch->closed_ns, __ATOMIC_RELAXED) >= LONGEST_NS)
      release(batch);
  }
  return any;
}

static void *run(void *unused) {
  (void)unused;
  const struct timespec pause = {.tv_nsec = TICK_NS};
  prctl(PR_SET_NAME, "xsched-batch", 0, 0, 0);
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  xsi_annotate_ignore(true);
  for (uint64_t last = xsi_now_ns();;) {
    uint64_t now = xsi_now_ns();
    if (tick(now)) last = now;
    if (now - last < LINGER_NS) {
      syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
      continue;
    }
    __atomic_store_n(&asleep, 1, __ATOMIC_SEQ_CST);
    if (!tick(now)) syscall(SYS_futex, &asleep, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    __atomic_store_n(&asleep, 0, __ATOMIC_SEQ_CST);
    last = xsi_now_ns();
  }
  return NULL;
}

static void no_unlock(void) {}

static void reset_in_child(void) {
  memset(batches, 0, sizeof batches);
  xsi_work_closed = 0;
  asleep = 0;
  started = false;
  xsi_work_batch_never = false; // nobody shares what the child has yet to make
}

// Under the work lock. Without the thread there are no batches.
static bool start(void) {
  static bool registered;
  if (started) return true;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  started = pthread_create(&thread, &attributes, run, NULL) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (started && !registered) {
    registered = true;
    atexit(xsi_work_release_batches);
    xsi_at_fork_locks(xsi_work_release_batches, no_unlock);
    xsi_at_fork_child(reset_in_child);
  }
  return started;
}

// ---- batches of contexts --------------------------------------------------------------------------

// Under the work lock: the context's record, or one that no context uses.
static struct xsi_work_batch *find(uintptr_t context) {
  struct xsi_work_batch *unused = NULL;
  for (unsigned i = 0; i < CONTEXTS; i++) {
    struct xsi_work_batch *batch = &batches[i];
    if (batch->context == context) return batch;
    if (batch->context == 0 && !unused) unused = batch;
  }
  return unused;
}

void xsi_work_batch_forget(uintptr_t context) {
  struct xsi_work_batch *batch = find(context);
  if (!batch || batch->context != context) return;
  release(batch);
  __atomic_store_n(&batch->state, UNUSED, __ATOMIC_RELEASE);
  batch->context = 0;
  xsi_work_forget_kernels(); // another context may get its address
}

// Makes the word and lets the device read it. The driver is called without the work lock.
static void prepare(struct xsi_work_batch *batch) {
  void *page = batch->word;
  if (!page) {
    page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) page = NULL;
    if (page) madvise(page, PAGE, MADV_DONTFORK);
  }
  bool ready =
      page && batch->platform->batch_share(batch->context, page, PAGE, &batch->address) == 0;
  batch->word = page;
  if (page) batch->closed = batch->seen_closed = __atomic_load_n(batch->word, __ATOMIC_RELAXED);
  if (!ready) xsi_log(XSI_WARN, "no batches: the driver does not share a page with the device");
  __atomic_store_n(&batch->state, ready ? READY : REFUSED, __ATOMIC_RELEASE);
}

// In the page, whose address never changes; only a queue of the daemon's has batches.
static uint64_t *bursts_of(const struct xsi_work_stream *stream) {
  static uint64_t none;
  int32_t queue = __atomic_load_n(&stream->queue, __ATOMIC_RELAXED);
  return queue >= 0 ? &xsi_progress((uint32_t)queue)->bursts : &none;
}

static struct xsi_work_batch *batch_of(struct xsi_work_stream *stream) {
  struct xsi_work_batch *batch = __atomic_load_n(&stream->batch, __ATOMIC_ACQUIRE);
  if (XSI_LIKELY(batch != NULL)) return batch;
  bool mine = false;
  xsi_work_lock();
  const struct xsi_work_context *context = stream->context;
  if (context && context->platform->batch_hold && start() && (batch = find(context->handle))) {
    mine = batch->context == 0;
    if (mine) {
      batch->context = context->handle;
      batch->platform = context->platform;
      batch->bursts = bursts_of(stream);
      __atomic_store_n(&batch->state, PREPARING, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&stream->batch, batch, __ATOMIC_RELEASE);
  }
  xsi_work_unlock();
  if (mine) prepare(batch);
  return batch;
}

// ---- kernels that were launched before ----------------------------------------------------------------

// One handle may stand for a kernel in several contexts: each loads it for itself.
static uintptr_t key_of(uintptr_t context, uintptr_t kernel) {
  return kernel ^ (context << 17 | context >> 47);
}

static uintptr_t *place_of(uintptr_t key) {
  _Static_assert(KERNELS == 1 << (64 - 51), "the hash has as many values as there are slots");
  return &launched[(key * 0x9E3779B97F4A7C15u) >> 51];
}

// A kernel that shares its slot with another counts as new each time: it costs a release.
static bool is_new(uintptr_t context, uintptr_t kernel) {
  uintptr_t key = key_of(context, kernel), *place = place_of(key);
  if (__atomic_load_n(place, __ATOMIC_RELAXED) == key) return false;
  __atomic_store_n(place, key, __ATOMIC_RELAXED);
  return true;
}

bool xsi_work_has_launched(uintptr_t context, uintptr_t kernel) {
  uintptr_t key = key_of(context, kernel);
  return __atomic_load_n(place_of(key), __ATOMIC_RELAXED) == key;
}

void xsi_work_forget_kernels(void) {
  for (unsigned i = 0; i < KERNELS; i++)
    __atomic_store_n(&launched[i], 0, __ATOMIC_RELAXED);
}

// ---- submissions ---------------------------------------------------------------------------------------

static bool is_full(const struct xsi_work_batch *batch, uint32_t most) {
  return __atomic_load_n(&batch->operations, __ATOMIC_RELAXED) >=
         (most != 0 && most < MOST ? most : MOST);
}

void xsi_work_queued_slow(void) {
  for (unsigned i = 0; i < CONTEXTS; i++)
    if (is_closed(&batches[i])) {
      __atomic_fetch_add(&batches[i].operations, 1, __ATOMIC_RELAXED);
      if (is_full(&batches[i], MOST)) xsi_work_release_batches();
    }
}

void xsi_work_awaits_slow(const struct xsi_work_stream *stream, uintptr_t event) {
  struct xsi_work_stream *behind;
  uint64_t mark;
  if (stream && xsi_work_event_find(event, &behind, &mark)) {
    const struct xsi_work_batch *batch = __atomic_load_n(&stream->batch, __ATOMIC_ACQUIRE);
    if (batch && __atomic_load_n(&behind->batch, __ATOMIC_ACQUIRE) == batch) {
      xsi_work_queued_slow();
      return;
    }
  }
  xsi_work_release_batches(); // another context's, or unknown
}

// The value before the flag, and both before the wait: a thread that releases meanwhile sees them.
static void hold(struct xsi_work_batch *batch, struct xsi_work_stream *stream) {
  uint32_t value = __atomic_load_n(&batch->closed, __ATOMIC_SEQ_CST);
  if (value == __atomic_load_n(batch->word, __ATOMIC_SEQ_CST)) {
    __atomic_store_n(&batch->bursts, bursts_of(stream), __ATOMIC_RELAXED);
    __atomic_store_n(&batch->operations, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&batch->closed_ns, xsi_now_ns(), __ATOMIC_RELAXED);
    // Another thread that closed meanwhile has stored the same value, or a later one.
    if (__atomic_compare_exchange_n(&batch->closed, &value, value + 1, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST))
      value++;
  }
  __atomic_store_n(&stream->batch_value, value, __ATOMIC_RELAXED);
  __atomic_fetch_or(&xsi_work_closed, XSI_WORK_CLOSED_BATCH, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&asleep, __ATOMIC_SEQ_CST) != 0)
    syscall(SYS_futex, &asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  uintptr_t context = batch->context;
  if (batch->platform->batch_hold(context, stream->handle, batch->address, value) == 0) return;
  __atomic_store_n(&xsi_work_batch_never, true, __ATOMIC_RELAXED);
  xsi_work_release_batches();
  xsi_log(XSI_WARN, "no batches: the driver refuses to let a stream wait for a value");
}

void xsi_work_batch(struct xsi_work_stream *stream, uintptr_t kernel, uint32_t most) {
  if (kernel == XSI_WORK_OTHER || __atomic_load_n(&xsi_native, __ATOMIC_RELAXED) != 0 ||
      __atomic_load_n(&xsi_work_batch_never, __ATOMIC_RELAXED) ||
      __atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) != 0) {
    xsi_work_open();
    return;
  }
  struct xsi_work_batch *batch = batch_of(stream);
  if (!batch || __atomic_load_n(&batch->state, __ATOMIC_ACQUIRE) != READY) return;
  __atomic_fetch_add(&batch->operations, 1, __ATOMIC_RELAXED);
  if (kernel == XSI_WORK_INSIDE) {
    if (is_full(batch, most)) xsi_work_open();
    return;
  }
  if (is_new(batch->context, kernel) || __atomic_load_n(&stream->watched, __ATOMIC_RELAXED)) {
    xsi_work_open();
    return;
  }
  if (is_full(batch, most)) xsi_work_open();
  if (is_closed(batch) && __atomic_load_n(&stream->batch_value, __ATOMIC_RELAXED) ==
                              __atomic_load_n(&batch->closed, __ATOMIC_RELAXED))
    return;
  hold(batch, stream);
}
