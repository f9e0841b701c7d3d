// SPDX-License-Identifier: Apache-2.0
//
// The table of blocks, sorted by address. Who adds or removes one is between xsi_move_enter and xsi_move_leave, so
// that the mover reads the table without the lock while it has the memory alone.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fork.h"
#include "move_internal.h"

static XSI_FORK_STATE struct xsi_lock lock;
static XSI_FORK_STATE struct xsi_block **blocks;
static XSI_FORK_STATE size_t count, room;

static void reset_in_child(void) {
  lock = (struct xsi_lock){0};
  blocks = NULL;
  count = room = 0;
}

// ---- the table, under the lock ---------------------------------------------------------------------

// The number of blocks that begin at or below an address.
static size_t up_to(uint64_t address) {
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (blocks[middle]->address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static struct xsi_block *containing(uint64_t address) {
  size_t at = up_to(address);
  struct xsi_block *block = at > 0 ? blocks[at - 1] : NULL;
  return block && address - block->address < block->bytes ? block : NULL;
}

static bool insert(struct xsi_block *block) {
  static bool registered;
  if (!registered) xsi_at_fork_child(reset_in_child);
  registered = true;
  if (count == room) {
    size_t more = room ? 2 * room : 64;
    struct xsi_block **longer = realloc(blocks, more * sizeof *longer);
    if (!longer) return false;
    blocks = longer;
    room = more;
  }
  size_t at = up_to(block->address);
  memmove(&blocks[at + 1], &blocks[at], (count - at) * sizeof *blocks);
  blocks[at] = block;
  count++;
  return true;
}

static void take_out(const struct xsi_block *block) {
  size_t at = up_to(block->address) - 1;
  memmove(&blocks[at], &blocks[at + 1], (count - at - 1) * sizeof *blocks);
  count--;
}

static struct xsi_block *beginning_at(uint64_t address) {
  struct xsi_block *block = containing(address);
  return block && block->address == address ? block : NULL;
}

static void fill(struct xsi_block_view *view, const struct xsi_block *block) {
  *view = (struct xsi_block_view){.address = block->address,
                                  .bytes = block->bytes,
                                  .asked = block->asked,
                                  .properties = block->properties,
                                  .context = block->context,
                                  .device = block->device,
                                  .fixed = block->fixed};
}

// ---- figures -----------------------------------------------------------------------------------------

static uint64_t away(const struct xsi_block *block) {
  uint64_t bytes = 0;
  for (unsigned i = 0; i < block->count; i++)
    if (xsi_piece_away(&block->pieces[i])) bytes += block->pieces[i].at.bytes;
  return bytes;
}

static void count_movable(const struct xsi_block *block, bool more) {
  struct xsw_memory_device *entry = xsi_memory_edit(block->device.place);
  if (!entry) return;
  entry->movable += more ? block->bytes : -block->bytes;
  if (!more) entry->away -= away(block);
  xsi_memory_edited(entry);
}

// ---- blocks come -------------------------------------------------------------------------------------

static struct xsi_block *allocate(const struct xsi_move_platform *platform,
                                  const struct xsi_move_device *device, uint64_t address,
                                  uint64_t bytes, uint64_t piece, uint64_t properties,
                                  uintptr_t context) {
  unsigned pieces = (unsigned)((bytes + piece - 1) / piece);
  struct xsi_mover *mover = xsi_mover_of(platform, device);
  if (!mover) return NULL;
  struct xsi_block *block = calloc(1, sizeof *block + pieces * sizeof *block->pieces);
  if (!block) return NULL;
  block->mover = mover;
  block->device = *device;
  block->address = address;
  block->bytes = block->asked = bytes;
  block->properties = properties;
  block->context = context;
  block->count = pieces;
  for (unsigned i = 0; i < pieces; i++) {
    block->pieces[i].at.address = address + i * piece;
    block->pieces[i].at.bytes = i + 1 < pieces ? piece : bytes - i * piece;
  }
  return block;
}

static int put_in(struct xsi_block *block) {
  xsi_lock_take(&lock);
  bool done = insert(block);
  xsi_lock_give(&lock);
  if (done) count_movable(block, true);
  return done ? 0 : -EAGAIN; // not -ENOMEM, which is about the device
}

int xsi_piece_map(const struct xsi_block *block, struct xsi_piece *piece) {
  const struct xsi_move_platform *platform = block->mover->platform;
  uint64_t handle = 0;
  int result = platform->create(&block->device, piece->at.bytes, block->properties, &handle);
  if (result != 0) return result;
  result =
      platform->map(&block->device, piece->at.address, piece->at.bytes, block->properties, handle);
  if (result != 0)
    platform->release(handle);
  else
    piece->at.handle = handle;
  return result;
}

int xsi_piece_unmap(const struct xsi_block *block, struct xsi_piece *piece) {
  int result = block->mover->platform->unmap(piece->at.address, piece->at.bytes);
  if (result != 0) return result;
  block->mover->platform->release(piece->at.handle);
  piece->at.handle = 0;
  return 0;
}

// Memory whose context has gone can't be unmapped, but its handle still holds it.
static void unmap_all(struct xsi_block *block) {
  for (unsigned i = 0; i < block->count; i++) {
    struct xsi_piece *piece = &block->pieces[i];
    if (piece->at.handle != 0 && xsi_piece_unmap(block, piece) != 0)
      block->mover->platform->release(piece->at.handle);
    xsi_arena_give(piece->host);
    piece->host = NULL;
  }
}

int xsi_block_make(const struct xsi_move_platform *platform, const struct xsi_move_device *device,
                   uint64_t address, uint64_t bytes, uint64_t asked, uint64_t properties,
                   uintptr_t context) {
  if (!xsi_move_inside()) return -EPERM;
  int saved = errno;
  struct xsi_block *block =
      allocate(platform, device, address, bytes, XSI_MOVE_CHUNK, properties, context);
  int result = block ? 0 : -EAGAIN;
  for (unsigned i = 0; result == 0 && i < block->count; i++)
    result = xsi_piece_map(block, &block->pieces[i]);
  if (result == 0) {
    block->asked = asked;
    result = put_in(block);
  }
  if (result != 0 && block) {
    unmap_all(block);
    free(block);
  }
  errno = saved;
  return result;
}

int xsi_block_add(const struct xsi_move_platform *platform, const struct xsi_move_device *device,
                  uint64_t address, uint64_t bytes, uint64_t handle, uint64_t properties,
                  uintptr_t context) {
  if (!xsi_move_inside()) return -EPERM;
  int saved = errno;
  struct xsi_block *block = allocate(platform, device, address, bytes, bytes, properties, context);
  int result = block ? 0 : -EAGAIN;
  if (block) {
    block->pieces[0].at.handle = handle;
    result = put_in(block);
    if (result != 0) free(block);
  }
  errno = saved;
  return result;
}

// ---- blocks go ---------------------------------------------------------------------------------------

static struct xsi_block *remove_block(uint64_t address, struct xsi_block_view *view) {
  xsi_lock_take(&lock);
  struct xsi_block *block = beginning_at(address);
  if (block) {
    take_out(block);
    fill(view, block);
  }
  xsi_lock_give(&lock);
  if (block && block->fixed)
    xsi_memory_count_fixed(block->device.place, block->why, -(int64_t)block->bytes);
  else if (block)
    count_movable(block, false);
  return block;
}

bool xsi_block_end(uint64_t address, struct xsi_block_view *view) {
  int saved = errno;
  struct xsi_block *block = remove_block(address, view);
  if (block) {
    unmap_all(block);
    if (__atomic_load_n(&block->mover->residency, __ATOMIC_RELAXED) != XSW_RESIDENT)
      xsi_mover_wake(); // that may have been all that was away
  }
  free(block);
  errno = saved;
  return block != NULL;
}

bool xsi_block_forget(uint64_t address, struct xsi_block_view *view) {
  int saved = errno;
  struct xsi_block *block = remove_block(address, view);
  free(block);
  errno = saved;
  return block != NULL;
}

void xsi_block_fix(uint64_t address, enum xsw_fixed why) {
  xsi_lock_take(&lock);
  struct xsi_block *block = containing(address);
  bool now = block && !block->fixed;
  if (now) {
    block->fixed = true;
    block->why = why;
  }
  xsi_lock_give(&lock);
  if (!now) return;
  count_movable(block, false);
  xsi_memory_count_fixed(block->device.place, why, (int64_t)block->bytes);
}

// ---- questions ---------------------------------------------------------------------------------------

bool xsi_block_find(uint64_t address, struct xsi_block_view *view) {
  xsi_lock_take(&lock);
  const struct xsi_block *block = containing(address);
  if (block) fill(view, block);
  xsi_lock_give(&lock);
  return block != NULL;
}

bool xsi_block_piece_at(uint64_t address, struct xsi_block_piece *piece) {
  xsi_lock_take(&lock);
  const struct xsi_block *block = containing(address);
  unsigned at = 0;
  while (block && address - block->pieces[at].at.address >= block->pieces[at].at.bytes)
    at++;
  if (block) *piece = block->pieces[at].at;
  xsi_lock_give(&lock);
  return block != NULL;
}

struct xsi_block *xsi_block_at(size_t index) {
  return index < count ? blocks[index] : NULL;
}

void xsi_block_each(struct xsi_memory_place place,
                    bool (*each)(const struct xsi_block_view *view, void *data), void *data) {
  struct xsi_block_view view;
  uint64_t after = 0;
  for (bool more = true; more;) {
    xsi_lock_take(&lock);
    size_t at = after == 0 ? 0 : up_to(after - 1);
    while (at < count && !xsi_move_same(blocks[at]->device.place, place))
      at++;
    more = at < count;
    if (more) fill(&view, blocks[at]);
    xsi_lock_give(&lock);
    more = more && each(&view, data);
    after = view.address + 1;
  }
}
