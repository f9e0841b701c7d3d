/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the bookkeeping: a core that only takes notes, and a scripted driver behind the
 * hooks.
 */
#ifndef XSCHED_TEST_FAKE_H
#define XSCHED_TEST_FAKE_H

#include <stdio.h>

#include "account.h"
#include "core/fork.h"
#include "core/gate.h"
#include "core/init.h"
#include "core/log.h"
#include "core/options.h"
#include "core/queue.h"
#include "core/real.h"
#include "core/work_internal.h"

extern int failures; /* atomic */
#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #condition);                                  \
      __atomic_fetch_add(&failures, 1, __ATOMIC_SEQ_CST);                                          \
    }                                                                                              \
  } while (0)

/* ---- the core's notes --------------------------------------------------------------- */

#define NOTED_QUEUES 1024
extern struct noted_queue {
  int open, busy, streams; /* busy ones */
  int function;            /* the last digit of its PCI address */
  int32_t priority;        /* of a stream's own queue */
  uint64_t changes;
  struct xsi_tally tally;
} noted[NOTED_QUEUES];
extern int noted_room;       /* queues there are */
extern uint32_t noted_gates; /* waits at the gate */
extern uint32_t noted_rings; /* of the doorbell, when a wait begins */
extern uint64_t test_now_ns; /* what xsi_now_ns says, 0: the real clock */
#define MS 1000000u
static inline void later(unsigned ms) { test_now_ns += (uint64_t)ms * MS; }
void noted_fork(void); /* runs what was registered for the child of a fork */
uint64_t counted(size_t offset);
#define COUNTED(field) counted(offsetof(struct xsi_counters, field))

/* ---- the driver ------------------------------------------------------------------------ */

struct fake_context;
struct fake_stream {
  struct fake_context *context;
  uint64_t submitted, done; /* atomic */
  int capturing, destroyed; /* atomic */
  int awaits;               /* atomic; the stream waits for a signal: "not ready" until it comes */
  int priority;             /* as CUDA counts: less is more important */
  const uint32_t *word;     /* atomic; its later work waits until this word is at_least */
  uint32_t at_least;        /* atomic */
};
struct fake_event {
  struct fake_stream *stream;
  uint64_t at;
  int behind; /* atomic; a wait of the stream for a signal */
};
struct fake_context {
  struct fake_stream legacy;
  int destroyed;
  int capturing; /* atomic; its streams in capture */
  int stopped;   /* atomic; a launch waits for room in its channels: questions do not return */
};

void fake_install(void);                        /* binds the driver's functions */
struct fake_context *fake_context(void);        /* a new one, current in this thread */
struct fake_context *fake_unseen_context(void); /* the same, past our hooks */
CUstream fake_stream(void);
void fake_finish(CUstream stream);        /* what was submitted is over */
struct fake_stream *fake_of_thread(void); /* the thread's default stream */

extern _Thread_local uint64_t fake_asked_current; /* times the driver was asked for it */
extern CUresult fake_launch_result;
extern _Thread_local void (*fake_in_sync)(void); /* runs in this thread's next wait or query */
extern uint64_t fake_most_in_flight;             /* of any stream, ever */
extern uint64_t fake_events_made;
extern uint64_t fake_queries;            /* of streams */
void fake_at_launch(void (*call)(void)); /* runs in launches and copies from the host */
extern int fake_stuck;                   /* atomic; work ends only by fake_finish */
extern int fake_blocked;                 /* atomic; questions that wait in a stopped context */
extern uint64_t fake_launches;           /* accepted, outside of captures */
extern uint64_t fake_holds;              /* waits for a value that were submitted */
extern uint64_t
    fake_late; /* calls that found a stream waiting for a value; they block until it comes */
bool fake_is_held(CUstream stream);
/* Copies to pageable memory and up to 64 KB from the host don't wait: the documentation permits it. */
extern bool fake_eager;
extern bool fake_refuses;      /* copies from the host fail */
extern bool fake_refuses_rows; /* those of several rows */
extern uint32_t fake_rows,
    fake_uploads; /* atomic: small copies to the device, by rows and in one piece */
#define FAKE_PINNED ((void *)0x7000) /* the driver knows this host memory */

static inline CUresult launch(CUstream stream) {
  return cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

#endif /* XSCHED_TEST_FAKE_H */
