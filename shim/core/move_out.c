// SPDX-License-Identifier: Apache-2.0
//
// The way out: host memory first, then the gate, then copies. Until the first piece is unmapped all can be undone.

#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"
#include "move_internal.h"
#include "work.h"

enum {
  LIMIT_NS = 2000000000, /* for submitted work to end */
  NAP_NS = 200000,
  GROUP = 4, /* pieces that are copied while the group before is unmapped */
};

struct chosen {
  struct xsi_block *block;
  struct xsi_piece *piece;
};
struct choice {
  struct chosen *list;
  unsigned count;
  uint64_t bytes;
};

uint64_t xsi_mover_resident(const struct xsi_mover *mover) {
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (!entry) return 0;
  uint64_t bytes = entry->movable - entry->away;
  xsi_memory_edited(entry);
  return bytes;
}

// ---- before ------------------------------------------------------------------------------------------

static void publish_pinned(const struct xsi_mover *mover) {
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (!entry) return;
  entry->pinned = __atomic_load_n(&mover->arena.pinned, __ATOMIC_RELAXED);
  xsi_memory_edited(entry);
}

bool xsi_mover_pin(struct xsi_mover *mover) {
  bool done = xsi_arena_grow(&mover->arena, mover->platform, &mover->device) == 0;
  publish_pinned(mover);
  return done;
}

void xsi_mover_unpin(struct xsi_mover *mover) {
  xsi_arena_shrink(&mover->arena, mover->platform, &mover->device);
  publish_pinned(mover);
}

// The order stands as it was.
static bool stands(const struct xsi_mover *mover, const struct xsi_goal *goal) {
  return xsi_mover_goal(mover).sequence == goal->sequence && !xsi_mover_stopping();
}

// Host memory for so many bytes, and for the rest of the last piece if there may be as much. -ECANCELED: the order does
// not stand any more.
static int prepare(struct xsi_mover *mover, const struct xsi_goal *goal, uint64_t bytes,
                   uint64_t rest) {
  uint64_t unused;
  while ((unused = __atomic_load_n(&mover->arena.unused, __ATOMIC_RELAXED)) < bytes + rest) {
    if (!stands(mover, goal)) return -ECANCELED;
    uint64_t pinned = __atomic_load_n(&mover->arena.pinned, __ATOMIC_RELAXED);
    if (pinned + XSI_MOVE_CHUNK > xsi_mover_goal(mover).host_bytes || !xsi_mover_pin(mover))
      return unused < bytes ? -ENOMEM : 0;
  }
  return 0;
}

// ---- the gate ----------------------------------------------------------------------------------------

// All that was submitted is over. Nothing is, after shut.
static enum xsw_move_result drain(const struct xsi_mover *mover, const struct xsi_goal *goal,
                                  uint64_t until) {
  const struct timespec nap = {.tv_nsec = NAP_NS};
  if (__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) != 0) return XSW_MOVE_CAPTURING;
  while (!xsi_work_quiet() || !xsi_work_drained()) {
    if (xsi_now_ns() >= until || !stands(mover, goal)) return XSW_MOVE_BUSY;
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &nap, NULL);
  }
  return mover->platform->settle(&mover->device) == 0 ? XSW_MOVE_DONE : XSW_MOVE_FAILED;
}

// Nothing has been submitted since another device's memory went.
static enum xsw_move_result close_gate(struct xsi_mover *mover, const struct xsi_goal *goal,
                                       bool shut) {
  uint64_t until = xsi_now_ns() + LIMIT_NS;
  if (!xsi_move_begin(until)) return XSW_MOVE_BUSY;
  if (shut) return XSW_MOVE_DONE;
  enum xsw_move_result result = XSW_MOVE_REFUSED;
  if (xsi_work_shut()) {
    result = drain(mover, goal, until);
    if (result != XSW_MOVE_DONE) xsi_work_reopen();
  }
  if (result != XSW_MOVE_DONE) xsi_move_end(true);
  return result;
}

// ---- which ---------------------------------------------------------------------------------------------

static int by_size(const void *a, const void *b) {
  uint64_t first = (*(struct xsi_block *const *)a)->bytes;
  uint64_t second = (*(struct xsi_block *const *)b)->bytes;
  return first < second ? 1 : first > second ? -1 : 0;
}

static struct xsi_block **sorted(const struct xsi_mover *mover, size_t *count, size_t *pieces) {
  struct xsi_block *block;
  *count = *pieces = 0;
  for (size_t i = 0; (block = xsi_block_at(i)); i++) {
    if (block->mover != mover || block->fixed) continue;
    ++*count;
    *pieces += block->count;
  }
  struct xsi_block **list = malloc((*count + 1) * sizeof *list);
  if (!list) return NULL;
  *count = 0;
  for (size_t i = 0; (block = xsi_block_at(i)); i++)
    if (block->mover == mover && !block->fixed) list[(*count)++] = block;
  qsort(list, *count, sizeof *list, by_size);
  return list;
}

static void give_back(const struct choice *choice) {
  for (unsigned i = 0; i < choice->count; i++) {
    struct xsi_piece *piece = choice->list[i].piece;
    if (piece->at.handle == 0) continue;
    xsi_arena_give(piece->host);
    piece->host = NULL;
  }
}

// Pieces of big blocks first, until they are so many bytes, each with its place in host memory.
static enum xsw_move_result choose(struct xsi_mover *mover, uint64_t bytes, struct choice *choice) {
  size_t count, pieces;
  struct xsi_block **blocks = sorted(mover, &count, &pieces);
  choice->list = malloc((pieces + 1) * sizeof *choice->list);
  enum xsw_move_result result = XSW_MOVE_DONE;
  if (!blocks || !choice->list) result = XSW_MOVE_HOST_FULL;
  for (size_t i = 0; result == XSW_MOVE_DONE && i < count; i++)
    for (unsigned k = 0; k < blocks[i]->count && choice->bytes < bytes; k++) {
      struct xsi_piece *piece = &blocks[i]->pieces[k];
      if (piece->at.handle == 0 || piece->host) continue;
      piece->host = xsi_arena_take(&mover->arena, piece->at.bytes);
      if (!piece->host) {
        result = XSW_MOVE_HOST_FULL;
        break;
      }
      choice->list[choice->count++] = (struct chosen){blocks[i], piece};
      choice->bytes += piece->at.bytes;
    }
  free(blocks);
  if (result == XSW_MOVE_DONE && choice->count == 0) result = XSW_MOVE_NOTHING;
  if (result != XSW_MOVE_DONE) give_back(choice);
  return result;
}

// ---- copies --------------------------------------------------------------------------------------------

int xsi_piece_copy(const struct xsi_block *block, const struct xsi_piece *piece, bool out) {
  uint64_t done = 0;
  for (const struct xsi_extent *at = piece->host; at && done < piece->at.bytes; at = at->next) {
    uint64_t left = piece->at.bytes - done, bytes = at->bytes < left ? at->bytes : left;
    int result = block->mover->platform->copy(&block->device, at->memory, piece->at.address + done,
                                              bytes, out);
    if (result != 0) return result;
    done += bytes;
  }
  return 0;
}

static int begin_group(const struct chosen *group, unsigned count) {
  int result = 0;
  for (unsigned i = 0; i < count && result == 0; i++)
    result = xsi_piece_copy(group[i].block, group[i].piece, true);
  return result;
}

static int finish_group(const struct chosen *group, unsigned count) {
  int result = 0;
  for (unsigned i = 0; i < count; i++) {
    const struct xsi_move_device *device = &group[i].block->device;
    if (i > 0 && device->context == group[i - 1].block->device.context) continue;
    int got = group[i].block->mover->platform->finish(device);
    if (result == 0) result = got;
  }
  return result;
}

static int unmap_group(const struct chosen *group, unsigned count) {
  uint64_t bytes = 0;
  int result = 0;
  for (unsigned i = 0; i < count && result == 0; i++) {
    result = xsi_piece_unmap(group[i].block, group[i].piece);
    if (result == 0) bytes += group[i].piece->at.bytes;
  }
  struct xsw_memory_device *entry = count > 0 ? xsi_memory_edit(group->block->device.place) : NULL;
  if (!entry) return result;
  entry->away += bytes;
  entry->moved += bytes;
  xsi_memory_edited(entry);
  return result;
}

// A group is unmapped while the next one is copied.
static int copy_all(const struct choice *choice) {
  const struct chosen *before = NULL;
  unsigned before_count = 0;
  int result = 0;
  for (unsigned at = 0; at < choice->count && result == 0; at += GROUP) {
    const struct chosen *group = &choice->list[at];
    unsigned count = choice->count - at < GROUP ? choice->count - at : GROUP;
    result = begin_group(group, count);
    int unmapped = result == 0 ? unmap_group(before, before_count) : 0;
    int finished = finish_group(group, count);
    if (result == 0) result = unmapped ? unmapped : finished;
    if (xsi_mover_stopping()) result = -EINTR;
    before = group;
    before_count = count;
  }
  return result == 0 ? unmap_group(before, before_count) : result;
}

static void move_begins(const struct xsi_mover *mover, uint64_t bytes) {
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (!entry) return;
  entry->move_begun_ns = xsi_now_ns();
  entry->move_bytes = bytes;
  entry->moved = 0;
  xsi_memory_edited(entry);
}

static bool move_ends(const struct xsi_mover *mover, bool complete) {
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (!entry) return false;
  entry->move_ended_ns = xsi_now_ns();
  entry->moves_out += complete;
  entry->bytes_out += entry->moved;
  bool away = entry->away != 0;
  xsi_memory_edited(entry);
  return away;
}

// ---- all of it -----------------------------------------------------------------------------------------

static enum xsw_move_result leave(struct xsi_mover *mover, const struct xsi_goal *goal,
                                  uint64_t bytes) {
  bool shut = !xsi_mover_all_resident();
  enum xsw_residency before = mover->residency;
  xsi_mover_say(mover, XSW_DRAINING);
  enum xsw_move_result result = close_gate(mover, goal, shut);
  if (result != XSW_MOVE_DONE) {
    xsi_mover_say(mover, before);
    return result;
  }
  struct choice choice = {0};
  result = choose(mover, bytes, &choice);
  bool away = before != XSW_RESIDENT;
  if (result == XSW_MOVE_DONE) {
    xsi_mover_say(mover, XSW_LEAVING);
    move_begins(mover, choice.bytes);
    int error = copy_all(&choice);
    away = move_ends(mover, error == 0);
    if (error != 0) {
      xsi_log(XSI_WARN, "memory does not leave the device: errno=%d", -error);
      give_back(&choice);
      mover->comes_back = away;
      result = XSW_MOVE_FAILED;
    }
  }
  free(choice.list);
  if (!away && !shut) xsi_work_reopen();
  xsi_move_end(!away && !shut);
  xsi_mover_say(mover, away ? XSW_AWAY : XSW_RESIDENT);
  return result;
}

void xsi_mover_out(struct xsi_mover *mover, const struct xsi_goal *goal) {
  uint64_t resident = xsi_mover_resident(mover);
  uint64_t bytes = goal->bytes != 0 && goal->bytes < resident ? goal->bytes : resident;
  enum xsw_move_result result = XSW_MOVE_REFUSED;
  mover->comes_back = false;
  if (xsi_work_has_unrecorded())
    result = XSW_MOVE_REFUSED;
  else if (bytes == 0)
    result = XSW_MOVE_NOTHING;
  else if (__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) != 0)
    result = XSW_MOVE_CAPTURING;
  else {
    uint64_t stays = resident - bytes, chunk = XSI_MOVE_CHUNK;
    int prepared = prepare(mover, goal, bytes, stays < chunk ? stays : chunk);
    if (prepared == -ECANCELED) return;
    result = prepared == 0 ? leave(mover, goal, bytes) : XSW_MOVE_HOST_FULL;
  }
  if (stands(mover, goal)) xsi_mover_done(mover, goal->sequence, result);
}
