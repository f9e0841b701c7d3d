/* SPDX-License-Identifier: Apache-2.0
 *
 * What the work*.c files share.
 */
#ifndef XSCHED_WORK_INTERNAL_H
#define XSCHED_WORK_INTERNAL_H

#include <pthread.h>

#include "lock.h"
#include "work.h"

struct xsi_work_context {
  const struct xsi_work_platform *platform;
  uintptr_t handle;
  int queue;
  bool known; /* its device */
  struct xsi_work_device device;
  uintptr_t *events; /* spare events of ours */
  unsigned spare, room;
  struct xsi_work_stream *streams;
  struct xsi_work_context *hash_next, *next, *previous;

  /* survives the record's lives */
  struct xsi_lock list_lock;
  /* Streams that were busy since the watcher last looked at them: all busy ones are in it. */
  struct xsi_work_stream *list;
  uint32_t listed;
  pthread_mutex_t watch; /* see xsi_work_exclude */
};
#define XSI_WORK_PLATFORMS 4
extern const struct xsi_work_platform *xsi_work_platforms[XSI_WORK_PLATFORMS]; /* started ones */
extern struct xsi_work_context *xsi_work_contexts;
extern struct xsi_lock xsi_work_the_lock;
static inline void xsi_work_lock(void) { xsi_lock_take(&xsi_work_the_lock); }
static inline void xsi_work_unlock(void) { xsi_lock_give(&xsi_work_the_lock); }

/* Locks the stream's state and returns what busy was; thaw unlocks it with a new value. */
uint64_t xsi_work_freeze(struct xsi_work_stream *stream);
void xsi_work_thaw(struct xsi_work_stream *stream, uint64_t busy);
/* The stream is in the context's list, or leaves it; frozen. */
void xsi_work_list(struct xsi_work_stream *stream);
void xsi_work_unlist(struct xsi_work_stream *stream);
/* Takes the list lock of that context; NULL: there is none. */
struct xsi_work_context *xsi_work_lock_list(uintptr_t handle);
/* Takes idle streams from the list, whose lock is held. */
void xsi_work_prune(struct xsi_work_context *context);
/* Under the work lock, in work_table.c: the tables. */
struct xsi_work_context *xsi_work_lookup_context(uintptr_t handle);
void xsi_work_release(struct xsi_work_stream *stream);
bool xsi_work_owners(void);       /* may streams have owners? */
void xsi_work_owners_start(void); /* finds out; without a lock, it can take milliseconds */
/* Owners (work_owner.c). The first three under the work lock, which list takes itself. */
const struct xsi_work_thread *xsi_work_thread(uint64_t token); /* one that lives, or NULL */
void xsi_work_unlist_thread(void);                             /* this thread ends */
void xsi_work_give_up(struct xsi_work_stream *stream, uint64_t token);
void xsi_work_list_thread(void); /* this thread can own streams, and says when it ends */
void xsi_work_threads_reset(void);
/* Frozen: makes the owner's counts visible here. Then, if it was worth nothing: the stream loses its owner. */
void xsi_work_meet_owner(struct xsi_work_stream *stream);
void xsi_work_weigh_owner(struct xsi_work_stream *stream);
/* Before another thread counts: true if it is the owner from now on. After it counted, so many were there. */
bool xsi_work_adopt(struct xsi_work_stream *stream);
void xsi_work_court(const struct xsi_work_stream *stream, uint64_t others);
bool xsi_work_any_calls(void); /* under the work lock: a listed thread is in a call that counted */
bool xsi_work_meet_all(void);  /* a barrier as for meet_owner; false: refused */
/* In work_shut.c: the slot of all streams while the gate is shut. */
extern struct xsw_queue xsi_work_shut_slot;
extern bool xsi_work_is_shut;                                 /* under the work lock */
bool xsi_work_shut_out(const struct xsi_work_stream *stream); /* after counting: this call waits */
void xsi_work_shut_reset(void);
/* In work_queue.c: what the record counted, in all its lives. */
struct xsi_tally xsi_work_tally(const struct xsi_work_stream *stream);
/* Under the work lock, in work_queue.c: a queue of its own for the stream (its index or -errno),
 * and its end. */
int xsi_work_give_queue(struct xsi_work_stream *stream, int32_t priority);
void xsi_work_take_queue(struct xsi_work_stream *stream);
void xsi_work_let_go(struct xsi_work_stream *stream); /* whom the program holds */
void xsi_work_choose_slot(struct xsi_work_stream *stream);
/* Frozen, in work_queue.c: the stream becomes busy, or idle. True: xsi_queue_changed, without a lock. */
bool xsi_work_enter_queue(struct xsi_work_stream *stream);
bool xsi_work_leave_queue(struct xsi_work_stream *stream);
/* Under the work lock: an event of ours to use again (0: none), and giving one back. */
uintptr_t xsi_work_spare_event(struct xsi_work_context *context);
void xsi_work_keep_event(struct xsi_work_context *context, uintptr_t event);
void xsi_work_limit_forget(struct xsi_work_stream *stream); /* under the work lock */
void xsi_work_watch_busy(bool wake); /* a stream became busy; after the work lock */
bool xsi_work_watch_deep(void);      /* after a stream became busy: must the watcher be woken? */
void xsi_work_batch_forget(uintptr_t context); /* under the work lock, before the context goes */
void xsi_work_events_start(void);
size_t xsi_work_events_room(void); /* entries that have memory; for tests */
bool xsi_work_events_reset(void);  /* true: the kernel has forgotten the tables */
void xsi_work_watch_start(void);   /* once in the life of the process */
void xsi_work_watch_reset(void);

#endif /* XSCHED_WORK_INTERNAL_H */
