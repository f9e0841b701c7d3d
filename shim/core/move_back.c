// SPDX-License-Identifier: Apache-2.0
//
// The way back: as many pieces as there is room for, until all are there. Until then the host keeps what it has, so
// that a return can be undone without a copy.

#include <errno.h>

#include "clock.h"
#include "log.h"
#include "move_internal.h"
#include "work.h"

enum {
  LIMIT_NS = 1000000000, /* for calls that free memory */
  GROUP = 16,            /* pieces between two looks at the order */
  ROOM_NS = 2000000,     /* until the next attempt where another program leaves */
  ALONE_NS = 20000000,   /* and where nobody makes room for us */
  FAILED_NS = 100000000,
};

struct group {
  struct xsi_block *blocks[GROUP];
  struct xsi_piece *pieces[GROUP];
  unsigned count;
};

// Where to go on.
struct cursor {
  size_t block;
  unsigned piece;
};

static bool next_away(const struct xsi_mover *mover, struct cursor *at, struct xsi_block **block,
                      struct xsi_piece **piece) {
  for (; (*block = xsi_block_at(at->block)); at->block++, at->piece = 0) {
    if ((*block)->mover != mover) continue;
    for (; at->piece < (*block)->count; at->piece++) {
      *piece = &(*block)->pieces[at->piece];
      if (!xsi_piece_away(*piece)) continue;
      at->piece++;
      return true;
    }
  }
  return false;
}

static int finish(const struct group *group) {
  int result = 0;
  for (unsigned i = 0; i < group->count; i++) {
    const struct xsi_move_device *device = &group->blocks[i]->device;
    if (i > 0 && device->context == group->blocks[i - 1]->device.context) continue;
    int got = group->blocks[i]->mover->platform->finish(device);
    if (result == 0) result = got;
  }
  return result;
}

// Maps and copies a group; true: this was the last one. -ENOMEM: what fitted is there.
static int return_group(struct xsi_mover *mover, struct cursor *at, bool *last) {
  struct group group = {.count = 0};
  int result = 0;
  *last = false;
  while (group.count < GROUP && result == 0) {
    struct xsi_block *block;
    struct xsi_piece *piece;
    *last = !next_away(mover, at, &block, &piece);
    if (*last) break;
    result = piece->stale ? 0 : xsi_piece_map(block, piece);
    if (result != 0) break;
    piece->stale = true;
    group.blocks[group.count] = block;
    group.pieces[group.count++] = piece;
    result = xsi_piece_copy(block, piece, false);
  }
  int finished = finish(&group);
  if (finished != 0) result = finished;
  // Which copy failed is unknown: all are repeated.
  bool copied = result == 0 || result == -ENOMEM;
  uint64_t bytes = 0;
  for (unsigned i = 0; i < group.count; i++) {
    struct xsi_piece *piece = group.pieces[i];
    if (copied) bytes += piece->at.bytes;
    if (copied || xsi_piece_unmap(group.blocks[i], piece) == 0) piece->stale = false;
  }
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (!entry) return result;
  entry->away -= bytes;
  entry->moved += bytes;
  xsi_memory_edited(entry);
  return result;
}

static void begin(struct xsi_mover *mover) {
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (entry) {
    entry->move_begun_ns = xsi_now_ns();
    entry->move_bytes = entry->away;
    entry->moved = 0;
    xsi_memory_edited(entry);
  }
  mover->complained = false;
  xsi_mover_say(mover, XSW_RETURNING);
}

static void give_up_copies(const struct xsi_mover *mover) {
  struct xsi_block *block;
  for (size_t i = 0; (block = xsi_block_at(i)); i++)
    for (unsigned k = 0; block->mover == mover && k < block->count; k++) {
      xsi_arena_give(block->pieces[k].host);
      block->pieces[k].host = NULL;
    }
}

// All of it is back: the program goes on, unless memory of another device is away.
static void complete(struct xsi_mover *mover, const struct xsi_goal *goal) {
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (entry) {
    entry->move_ended_ns = xsi_now_ns();
    entry->moves_back++;
    entry->bytes_back += entry->moved;
    xsi_memory_edited(entry);
  }
  give_up_copies(mover);
  // Without an order: the move out failed, and this was the rest of it.
  bool failed = mover->comes_back && goal->sequence == 0;
  mover->comes_back = false;
  __atomic_store_n(&mover->residency, XSW_RESIDENT, __ATOMIC_SEQ_CST);
  bool open = xsi_mover_all_resident();
  if (open) xsi_work_reopen();
  xsi_move_end(open);
  xsi_mover_say(mover, XSW_RESIDENT);
  xsi_mover_done(mover, goal->sequence, failed ? XSW_MOVE_FAILED : XSW_MOVE_DONE);
}

static uint64_t wait_for_room(struct xsi_mover *mover, const struct xsi_goal *goal, int result) {
  struct xsw_memory_device *entry;
  uint64_t room = 0;
  bool full = result == -ENOMEM, known = mover->platform->room(&mover->device, &room) == 0;
  if ((entry = xsi_memory_edit(mover->place)) != NULL) {
    if (known) entry->room = room;
    entry->result = full ? XSW_MOVE_NO_ROOM : XSW_MOVE_FAILED;
    xsi_memory_edited(entry);
  }
  if (!full) {
    if (!mover->complained)
      xsi_log(XSI_WARN, "memory does not return to the device, trying again: errno=%d", -result);
    mover->complained = true;
    return xsi_now_ns() + FAILED_NS;
  }
  return xsi_now_ns() + (goal->sequence != 0 ? ROOM_NS : ALONE_NS);
}

uint64_t xsi_mover_back(struct xsi_mover *mover, const struct xsi_goal *goal) {
  if (mover->residency != XSW_RETURNING) begin(mover);
  if (!xsi_move_begin(xsi_now_ns() + LIMIT_NS)) return xsi_now_ns() + ROOM_NS;
  struct cursor at = {0};
  bool last = false;
  int result = 0;
  while (!last && result == 0 && !xsi_mover_stopping() &&
         xsi_mover_goal(mover).sequence == goal->sequence)
    result = return_group(mover, &at, &last);
  if (last && result == 0) {
    complete(mover, goal);
    return xsi_now_ns();
  }
  xsi_move_end(false);
  return result != 0 ? wait_for_room(mover, goal, result) : xsi_now_ns();
}

// What has returned goes again; the host has it still.
void xsi_mover_undo(struct xsi_mover *mover) {
  if (!xsi_move_begin(xsi_now_ns() + LIMIT_NS)) return;
  uint64_t bytes = 0;
  struct xsi_block *block;
  for (size_t i = 0; (block = xsi_block_at(i)); i++)
    for (unsigned k = 0; block->mover == mover && k < block->count; k++) {
      struct xsi_piece *piece = &block->pieces[k];
      bool was_away = xsi_piece_away(piece);
      if (!piece->host || piece->at.handle == 0 || xsi_piece_unmap(block, piece) != 0) continue;
      piece->stale = false;
      if (!was_away) bytes += piece->at.bytes;
    }
  struct xsw_memory_device *entry = xsi_memory_edit(mover->place);
  if (entry) {
    entry->away += bytes;
    entry->move_ended_ns = xsi_now_ns();
    xsi_memory_edited(entry);
  }
  xsi_move_end(false);
  xsi_mover_say(mover, XSW_AWAY);
}
