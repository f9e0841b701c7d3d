/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a thread, of all layers. It lies together because a launch must touch as few cache lines as
 * possible. Only the layer that is named above a struct uses it.
 */
#ifndef XSCHED_CORE_PER_THREAD_H
#define XSCHED_CORE_PER_THREAD_H

#include "base.h"

/* Of counters.h. */
struct xsi_counters {
  uint64_t copies, syncs, captured, gate_waits, gate_wait_ns, unhooked;
  struct xsi_counters *next, *previous; /* list of live blocks */
  /* what a launch touches begins here */
  uint64_t hooked_calls, launches;
  bool listed;
};

/* Of work.h. A driver's launch walks through most of the cache, so each line of ours has to be fetched
 * again. */
struct xsi_work_stream;
struct xsi_work_seen {
  uintptr_t key; /* says which stream of which context: xsi_work_key */
  struct xsi_work_stream *stream;
};
struct xsi_work_thread {
  uint64_t token; /* names the thread for the life of the process; 0: it has used no stream */
  uint64_t epoch; /* in which it saw last */
  struct xsi_work_seen last;
  uint32_t believed; /* how often xsi_work_hot.only was taken for the current context */
  /* Its calls that have counted work in last.stream and not returned. Atomic: who takes a stream from its owner
   * makes sure that it is in none. */
  uint16_t calling;
  /* what a launch touches ends here */
  struct xsi_work_stream *syncs; /* the one it waits for as its owner */
  int cancel_state;              /* before it excluded the watcher */
  uint64_t fed;                  /* launches and copies of the thread when it last began to wait, */
  uint64_t fed_ns;               /* and when that was, for the first time after the last of them */
  uint64_t polled, polled_ns; /* the same of its first answer "not ready" since the last of them, */
  uintptr_t polled_what;      /* of what the answer was about, */
  unsigned polls;             /* and of how many there were */
  const struct xsi_work_stream *small; /* stream of the last copy of a run of small copies, */
  uint64_t small_mark;                 /* and what was submitted there by then */
  struct xsi_work_suit { /* its submissions in a row to a stream of which it is not the owner */
    const struct xsi_work_stream *stream;
    uint64_t others, owners; /* what the next one finds, if nobody else submits */
    uint32_t count;
  } suit;
  struct xsi_work_thread *next, *previous; /* live threads, under the work lock */
  bool listed, ended;
};

struct xsi_thread {
  struct xsi_counters counters;
  struct xsi_work_thread work;
} __attribute__((aligned(64)));
_Static_assert(offsetof(struct xsi_thread, counters.hooked_calls) == 64 &&
                   offsetof(struct xsi_thread, work.syncs) <= 128,
               "a launch touches one line of it");
extern XSI_THREAD struct xsi_thread xsi_thread;

#endif /* XSCHED_CORE_PER_THREAD_H */
