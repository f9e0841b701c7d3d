// SPDX-License-Identifier: Apache-2.0
//
// The owner of a stream counts without locked instructions. See work.h for the rules.

#include <errno.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"
#include "work_internal.h"

// A barrier pays off after so many launches of the owner without a locked instruction. A stream loses its
// owner after so many consecutive barriers that did not pay off. Each time that happens, the next owner needs
// twice the submissions, up to 2^MOST_LOSSES times as many: the barriers become rare.
enum { WORTH = 64, MOST_WASTED = 16, MOST_LOSSES = 16 };
// What the owner saves with a launch: two locked additions. An estimate of their order: a launch by the owner took
// 9 ns and one into another's stream 20 ns where they were measured.
enum { SAVED_NS = 20 };

// ---- threads that can own streams ----------------------------------------------------------------

static XSI_FORK_STATE struct xsi_work_thread *threads; // that live, and say when they end

const struct xsi_work_thread *xsi_work_thread(uint64_t token) {
  const struct xsi_work_thread *at = threads;
  while (at && at->token != token)
    at = at->next;
  return at;
}

void xsi_work_list_thread(void) {
  struct xsi_work_thread *mine = &xsi_thread.work;
  if (mine->listed || mine->ended) return;
  xsi_work_lock();
  mine->previous = NULL;
  mine->next = threads;
  if (threads) threads->previous = mine;
  threads = mine;
  mine->listed = true;
  xsi_work_unlock();
}

// Destructors of others may still launch, but nobody would say when these have ended: not listed again.
void xsi_work_unlist_thread(void) {
  struct xsi_work_thread *mine = &xsi_thread.work;
  mine->ended = true;
  if (!mine->listed) return;
  if (mine->previous)
    mine->previous->next = mine->next;
  else
    threads = mine->next;
  if (mine->next) mine->next->previous = mine->previous;
  mine->listed = false;
}

// The one thread of a child of a fork.
void xsi_work_threads_reset(void) {
  threads = NULL;
  xsi_thread.work.listed = false;
}

// ---- the barrier that others use -----------------------------------------------------------------

static XSI_FORK_STATE bool barrier_is_there;
static uint64_t barrier_ns; // the shortest so far: the longer the more CPUs run this process

// Keeps errno.
static bool barrier(int command) {
  int saved_errno = errno;
  bool done = syscall(SYS_membarrier, command, 0, 0) == 0;
  errno = saved_errno;
  return done;
}

static bool timed_barrier(void) {
  uint64_t start = xsi_now_ns();
  bool done = barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  uint64_t took = xsi_now_ns() - start, least = __atomic_load_n(&barrier_ns, __ATOMIC_RELAXED);
  if (least == 0 || took < least) __atomic_store_n(&barrier_ns, took, __ATOMIC_RELAXED);
  return done;
}

void xsi_work_owners_start(void) {
  bool there = barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  __atomic_store_n(&barrier_is_there, there, __ATOMIC_RELEASE);
}

bool xsi_work_owners(void) { return __atomic_load_n(&barrier_is_there, __ATOMIC_ACQUIRE); }

// Makes the owner's earlier counts visible, and to its later ones that the stream is frozen.
void xsi_work_meet_owner(struct xsi_work_stream *stream) {
  if (barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // A sandbox has forbidden the call since. At most one concurrent launch of the owner is mistaken for
  // idleness.
  xsi_log(XSI_WARN, "membarrier is refused: launches cost more from now on");
  __atomic_store_n(&barrier_is_there, false, __ATOMIC_RELEASE);
  __atomic_store_n(&stream->owner, XSI_WORK_NOBODY, __ATOMIC_RELAXED);
}

bool xsi_work_meet_all(void) { return barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED); }

bool xsi_work_any_calls(void) {
  const struct xsi_work_thread *at = threads;
  while (at && __atomic_load_n(&at->calling, __ATOMIC_ACQUIRE) == 0)
    at = at->next;
  return at != NULL;
}

// Behind a barrier the former owner is in no call, or in one that began after it lost the stream.
static bool has_noticed(uint64_t former) {
  if (former == 0 || former == xsi_thread.work.token) return true;
  if (!timed_barrier()) return false;
  const struct xsi_work_thread *thread = xsi_work_thread(former);
  return thread && __atomic_load_n(&thread->calling, __ATOMIC_ACQUIRE) == 0;
}

// This thread becomes the owner, before it counts. Not in the middle of another call of its own, which has
// counted as another's.
static bool __attribute__((cold)) take(struct xsi_work_stream *stream) {
  struct xsi_work_thread *mine = &xsi_thread.work;
  mine->suit.count = 0;
  if (!xsi_work_owners() || !mine->listed || mine->calling != 1) return false;
  xsi_work_lock();
  uint64_t busy = xsi_work_freeze(stream), owner = stream->owner;
  uint64_t former = owner == XSI_WORK_NOBODY ? stream->former : owner;
  bool mine_now = false;
  if (stream->context) {
    __atomic_store_n(&stream->owner, XSI_WORK_NOBODY, __ATOMIC_RELAXED);
    mine_now = has_noticed(former);
    if (mine_now) {
      owner = mine->token;
      __atomic_store_n(&stream->former, 0, __ATOMIC_RELAXED);
      stream->wasted = 0;
      stream->wasted_at = __atomic_load_n(&stream->landed_owner, __ATOMIC_ACQUIRE);
    }
    __atomic_store_n(&stream->owner, owner, __ATOMIC_RELAXED);
  }
  xsi_work_thaw(stream, busy == 0 ? 0 : owner);
  xsi_work_unlock();
  return mine_now;
}

// A thread that would pay as much for locked additions as the move costs has paid for it.
static bool deserves(const struct xsi_work_stream *stream) {
  const struct xsi_work_suit *suit = &xsi_thread.work.suit;
  if (XSI_LIKELY(suit->count < WORTH) || suit->stream != stream ||
      suit->others != __atomic_load_n(&stream->submitted_others, __ATOMIC_RELAXED) ||
      suit->owners != __atomic_load_n(&stream->submitted_owner, __ATOMIC_RELAXED))
    return false;
  uint64_t needed = __atomic_load_n(&barrier_ns, __ATOMIC_RELAXED) / SAVED_NS;
  if (needed < WORTH) needed = WORTH;
  return suit->count >= needed << stream->losses;
}

bool xsi_work_adopt(struct xsi_work_stream *stream) { return deserves(stream) && take(stream); }

void xsi_work_court(const struct xsi_work_stream *stream, uint64_t others) {
  struct xsi_work_suit *suit = &xsi_thread.work.suit;
  uint64_t owners = __atomic_load_n(&stream->submitted_owner, __ATOMIC_RELAXED);
  bool again = suit->stream == stream && suit->others == others && suit->owners == owners;
  *suit = (struct xsi_work_suit){stream, others + 1, owners, again ? suit->count + 1 : 0};
}

void xsi_work_give_up(struct xsi_work_stream *stream, uint64_t token) {
  uint64_t busy = xsi_work_freeze(stream);
  if (stream->former == token) __atomic_store_n(&stream->former, 0, __ATOMIC_RELAXED);
  if (stream->owner == token) {
    __atomic_store_n(&stream->owner, XSI_WORK_NOBODY, __ATOMIC_RELAXED);
    if (busy != 0) busy = XSI_WORK_NOBODY;
  }
  xsi_work_thaw(stream, busy);
}

// The stream is idle after a barrier, and frozen: decides whether it keeps its owner.
void xsi_work_weigh_owner(struct xsi_work_stream *stream) {
  uint64_t landed = __atomic_load_n(&stream->landed_owner, __ATOMIC_ACQUIRE);
  bool worth = landed - stream->wasted_at >= WORTH;
  stream->wasted_at = landed;
  stream->wasted = worth ? 0 : stream->wasted + 1;
  if (stream->wasted != MOST_WASTED) return;
  __atomic_store_n(&stream->former, stream->owner, __ATOMIC_RELAXED);
  if (stream->losses < MOST_LOSSES) stream->losses++;
  __atomic_store_n(&stream->owner, XSI_WORK_NOBODY, __ATOMIC_RELEASE);
}
