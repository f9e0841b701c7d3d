/* SPDX-License-Identifier: Apache-2.0
 *
 * Movable memory: blocks of device memory whose content can leave the device and return to the same addresses.
 * This part knows no runtime. A runtime backs allocations by memory that it maps, adds each as a block, and
 * gives the operations of struct xsi_move_platform. docs/memory.md describes the states.
 *
 * One thread of this part, the mover, moves. It never holds a lock that a program's thread needs for anything
 * but its own memory, and the helper thread never waits for it. While the memory of any device is not
 * resident, every call of the process that may use memory waits: this gate protects data, so it obeys nobody,
 * neither the daemon nor its absence.
 *
 * Lock order: the moves' lock (xsi_move_enter, xsi_move_leave) -> the blocks' lock. Program threads have the first
 * one shared around a call that allocates, frees, maps or asks about memory; the mover has it alone.
 */
#ifndef XSCHED_CORE_MOVE_H
#define XSCHED_CORE_MOVE_H

#include "base.h"
#include "memory.h"
#include "page.h"

#define XSI_MOVE_GRANULE (2ull << 20)
#define XSI_MOVE_CHUNK                                                                             \
  (64ull << 20) /* mapping costs 60 us a piece of 64 MiB, 25 us one of 2 MiB (H200) */

struct xsi_move_device {
  struct xsi_memory_place place;
  uintptr_t context; /* some context of the device, for copies */
  int ordinal;
};

/* All from the mover's thread, unless it says otherwise. They return 0 or -errno, and change no error state of
 * the program. */
struct xsi_move_platform {
  /* -ENOMEM: the device has no room now. From any thread. */
  int (*create)(const struct xsi_move_device *device, uint64_t bytes, uint64_t properties,
                uint64_t *handle);
  void (*release)(uint64_t handle);
  /* Maps it and restores the access that the range had. From any thread. */
  int (*map)(const struct xsi_move_device *device, uint64_t address, uint64_t bytes,
             uint64_t handle);
  int (*unmap)(uint64_t address, uint64_t bytes);
  /* Host memory becomes ready for fast copies; unpin undoes it. */
  int (*pin)(const struct xsi_move_device *device, void *host, size_t bytes);
  void (*unpin)(const struct xsi_move_device *device, void *host);
  /* Begins a copy; finish waits until all copies of the device have ended, and reports the first error. */
  int (*copy)(const struct xsi_move_device *device, void *host, uint64_t address, uint64_t bytes,
              bool out);
  int (*finish)(const struct xsi_move_device *device);
  /* Waits until everything that the process submitted to any context is over; called when the streams that we
   * know are empty, so it returns soon. */
  int (*settle)(const struct xsi_move_device *device);
  /* Free bytes of the device. From any thread. */
  int (*room)(const struct xsi_move_device *device, uint64_t *bytes);
};

/* A range of addresses with one or more handles, each mapped as a whole. */
struct xsi_block;
struct xsi_block_piece {
  uint64_t offset, bytes;
  uint64_t handle; /* the driver's; changes with each move. 0: away */
};

/* Movable memory is asked for: by the program's environment, or by the daemon. */
bool xsi_move_asked(void);

/* Around every call that allocates, frees, maps or unmaps memory, or asks about an address: waits until the
 * memory is resident, and keeps it so until leave. Calls nest. The mover and the helper pass. */
void xsi_move_enter(void);
void xsi_move_leave(void);

/* Allocates, maps and adds a block of whole granules at an address range that the runtime has reserved. -ENOMEM:
 * no room. context: the program's, for xsi_block_drop_context. asked: bytes that the program asked for. */
int xsi_block_make(const struct xsi_move_platform *platform, const struct xsi_move_device *device,
                   uint64_t address, uint64_t bytes, uint64_t asked, uintptr_t context);
struct xsi_block_view {
  uint64_t address, bytes, asked;
  uintptr_t context;
  struct xsi_move_device device;
};
/* The block that contains an address. */
bool xsi_block_find(uint64_t address, struct xsi_block_view *view);
/* Unmaps and releases the block that begins there, or drops its copy in host memory, and forgets it; false: no
 * block begins there. The caller has waited for the device, and gives the addresses back. */
bool xsi_block_end(uint64_t address, struct xsi_block_view *view);
/* Others may use it from now on: it never moves again. */
void xsi_block_fix(uint64_t address, enum xsw_fixed why);
/* Calls each with every block of a device; stops at the first that returns false. */
void xsi_block_each(struct xsi_memory_place place,
                    bool (*each)(const struct xsi_block_view *view, void *data), void *data);
/* Bytes of an allocation that is not movable, for the reasons in the page; negative when it goes. */
void xsi_move_count_fixed(struct xsi_memory_place place, enum xsw_fixed why, int64_t bytes);

/* The device had no room for an allocation of these bytes: asks the daemon to make some, and waits. True: try
 * again. False: out of memory. Without a daemon it returns false at once. No lock may be held, xsi_move_enter
 * included: the daemon may move this very program. */
bool xsi_move_wants(struct xsi_memory_place place, uint64_t bytes, uint64_t room);

/* Work was submitted that we can't wait for: the process never moves from now on. */
void xsi_move_never(const char *why);

/* For the session and the helper thread: the daemon gave an order, came or went. They only wake the mover. */
void xsi_move_wake(void);

#endif /* XSCHED_CORE_MOVE_H */
