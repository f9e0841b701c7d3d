/* SPDX-License-Identifier: Apache-2.0
 *
 * What the move*.c files share.
 */
#ifndef XSCHED_CORE_MOVE_INTERNAL_H
#define XSCHED_CORE_MOVE_INTERNAL_H

#include "lock.h"
#include "move.h"

static inline bool xsi_move_same(struct xsi_memory_place a, struct xsi_memory_place b) {
  return a.pci_domain == b.pci_domain && a.pci_bus_slot == b.pci_bus_slot;
}

/* ---- host memory (move_host.c) --------------------------------------------------------- */

/* Host memory of one device's moves: pinned slabs of XSI_MOVE_CHUNK, given out in granules. */
struct xsi_slab;
struct xsi_arena {
  struct xsi_slab *slabs;
  uint64_t pinned, unused; /* atomic; unused: of pinned */
};
/* Where a piece's content is: extents in order. */
struct xsi_extent {
  struct xsi_extent *next;
  struct xsi_slab *slab;
  unsigned char *memory;
  uint64_t bytes;
};
/* One slab more; -ENOMEM: the host has no memory, or the driver does not pin it. */
int xsi_arena_grow(struct xsi_arena *arena, const struct xsi_move_platform *platform,
                   const struct xsi_move_device *device);
/* Gives back one slab that is not in use; false: there is none. */
bool xsi_arena_shrink(struct xsi_arena *arena, const struct xsi_move_platform *platform,
                      const struct xsi_move_device *device);
/* Room for so many bytes; NULL: there is not enough, or no memory for the list. */
struct xsi_extent *xsi_arena_take(struct xsi_arena *arena, uint64_t bytes);
void xsi_arena_give(struct xsi_extent *list); /* to where it came from */

void xsi_arena_reset(void); /* in the child of a fork */

/* ---- blocks (move_block.c) -------------------------------------------------------------- */

struct xsi_piece {
  struct xsi_block_piece at; /* handle 0: away */
  struct xsi_extent *host;   /* the content; while memory returns both are there, and equal */
  bool stale;                /* unless this: mapped, and not copied yet */
};
static inline bool xsi_piece_away(const struct xsi_piece *piece) {
  return piece->at.handle == 0 || piece->stale;
}

struct xsi_block {
  uint64_t address, bytes, asked, properties;
  uintptr_t context;
  struct xsi_mover *mover;
  struct xsi_move_device device;
  bool fixed;
  enum xsw_fixed why;
  unsigned count;
  struct xsi_piece pieces[];
};

int xsi_piece_map(const struct xsi_block *block, struct xsi_piece *piece);
int xsi_piece_unmap(const struct xsi_block *block, struct xsi_piece *piece);
/* By address, while the mover has the memory alone; NULL after the last. */
struct xsi_block *xsi_block_at(size_t index);

/* ---- the lock of the moves (move_gate.c) ------------------------------------------------ */

bool xsi_move_inside(void); /* this thread is between enter and leave */
void xsi_move_passes(void); /* this thread is the mover */
/* The mover has the memory alone from begin to end; false: a call about memory did not end in time. Calls that use
 * memory wait from then on, until end opens. */
bool xsi_move_begin(uint64_t until_ns);
void xsi_move_end(bool open);
/* A thread begins, or ends, to wait for memory. */
void xsi_move_on_wait(void (*callback)(bool begins));

/* ---- moves (move_thread.c) ------------------------------------------------------------------------------- */

/* The movable memory of a device. What changes is the mover's. */
struct xsi_mover {
  const struct xsi_move_platform *platform;
  struct xsi_memory_place place;
  struct xsi_move_device device; /* of the first block */
  struct xsi_arena arena;
  enum xsw_residency residency; /* atomic */
  bool complained;              /* about this return */
  bool comes_back;              /* a move out failed half-way: it returns without an order */
  uint64_t next_ns;             /* unless woken: nothing before */
  uint64_t surplus_ns; /* since when there is more host memory than needed; 0: there is not */
};
/* What the daemon wants now, or what its absence makes of it. */
struct xsi_goal {
  enum xsw_memory_want want; /* XSW_WANT_NOTHING: what is, stays; also after the order is done */
  bool obeyed;               /* a daemon is there */
  uint64_t sequence;         /* of an order that is not done; 0: none */
  uint64_t bytes, host_bytes;
};
struct xsi_goal xsi_mover_goal(const struct xsi_mover *mover);
/* The mover of a place; makes it, and starts the thread. NULL: no more fit. */
struct xsi_mover *xsi_mover_of(const struct xsi_move_platform *platform,
                               const struct xsi_move_device *device);
/* Everything is where it should be, or the order can't be done: the page says so. */
void xsi_mover_done(struct xsi_mover *mover, uint64_t sequence, enum xsw_move_result result);
void xsi_mover_say(struct xsi_mover *mover, enum xsw_residency residency);
bool xsi_mover_all_resident(void);
bool xsi_mover_stopping(void); /* the process ends: no more of it */
void xsi_mover_wake(void);

/* move_out.c: moves bytes of a device's memory out, and reports. */
void xsi_mover_out(struct xsi_mover *mover, const struct xsi_goal *goal);
bool xsi_mover_pin(struct xsi_mover *mover); /* one slab more, and in the page */
void xsi_mover_unpin(struct xsi_mover *mover);
uint64_t xsi_mover_resident(const struct xsi_mover *mover); /* movable bytes on the device */
/* move_back.c: as much as there is room for; returns when to come again. undo: what has returned so far goes. */
uint64_t xsi_mover_back(struct xsi_mover *mover, const struct xsi_goal *goal);
void xsi_mover_undo(struct xsi_mover *mover);

/* Copies one piece; finish says when. */
int xsi_piece_copy(const struct xsi_block *block, const struct xsi_piece *piece, bool out);

#endif /* XSCHED_CORE_MOVE_INTERNAL_H */
