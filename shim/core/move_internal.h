/* SPDX-License-Identifier: Apache-2.0
 *
 * What the move*.c files share.
 */
#ifndef XSCHED_CORE_MOVE_INTERNAL_H
#define XSCHED_CORE_MOVE_INTERNAL_H

#include "lock.h"
#include "move.h"

struct xsi_block {
  uint64_t address, bytes, asked, properties;
  uintptr_t context;
  const struct xsi_move_platform *platform;
  struct xsi_move_device device;
  uint64_t away; /* bytes of pieces without a handle */
  bool fixed;
  enum xsw_fixed why;
  unsigned count;
  struct xsi_block_piece pieces[];
};

static inline bool xsi_move_same(struct xsi_memory_place a, struct xsi_memory_place b) {
  return a.pci_domain == b.pci_domain && a.pci_bus_slot == b.pci_bus_slot;
}

/* ---- blocks (move_block.c) ------------------------------------------------------------ */

int xsi_block_map(struct xsi_block *block, struct xsi_block_piece *piece);
int xsi_block_unmap(struct xsi_block *block, struct xsi_block_piece *piece);
/* By address, while the mover has the memory alone; NULL after the last. */
struct xsi_block *xsi_block_at(size_t index);

/* ---- the lock of the moves (move_gate.c) ---------------------------------------------- */

bool xsi_move_inside(void); /* this thread is between enter and leave */

#endif /* XSCHED_CORE_MOVE_INTERNAL_H */
