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
             uint64_t properties, uint64_t handle);
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

/* Movable memory is asked for: by the program's environment, or by the daemon. */
bool xsi_move_asked(void);

/* Around every call that allocates, frees, maps or unmaps memory, or asks about an address: waits until the
 * memory is resident, and keeps it so until leave. Calls nest. The mover and the helper pass. */
void xsi_move_enter(void);
/* The same for calls that only free or forget: memory may be away, but no move is in progress. */
void xsi_move_enter_to_free(void);
void xsi_move_leave(void);

/* A block is a range of addresses with one or more handles, each mapped as a whole. It is added between enter and
 * leave. properties: the runtime's, passed to create and map.
 *
 * make allocates and maps whole granules in pieces of at most XSI_MOVE_CHUNK, where the runtime has reserved the
 * addresses; -ENOMEM: no room. asked: bytes that the program asked for. add: the caller has mapped one handle. */
int xsi_block_make(const struct xsi_move_platform *platform, const struct xsi_move_device *device,
                   uint64_t address, uint64_t bytes, uint64_t asked, uint64_t properties,
                   uintptr_t context);
int xsi_block_add(const struct xsi_move_platform *platform, const struct xsi_move_device *device,
                  uint64_t address, uint64_t bytes, uint64_t handle, uint64_t properties,
                  uintptr_t context);
struct xsi_block_view {
  uint64_t address, bytes, asked, properties;
  uintptr_t context;
  struct xsi_move_device device;
  bool fixed;
};
/* The block that contains an address; also without enter. */
bool xsi_block_find(uint64_t address, struct xsi_block_view *view);
/* The piece that contains an address, between enter and leave: handles change with each move. */
struct xsi_block_piece {
  uint64_t address, bytes;
  uint64_t handle; /* 0: away */
};
bool xsi_block_piece_at(uint64_t address, struct xsi_block_piece *piece);
/* Unmaps and releases the block that begins there, or drops its copy in host memory, and forgets it; false: no
 * block begins there. The caller has waited for the device, and gives the addresses back. */
bool xsi_block_end(uint64_t address, struct xsi_block_view *view);
/* Forgets the block that begins there and leaves mapping and handles to the caller. It must be resident. */
bool xsi_block_forget(uint64_t address, struct xsi_block_view *view);
/* Others may use it from now on: it never moves again. It must be resident. */
void xsi_block_fix(uint64_t address, enum xsw_fixed why);
/* Calls each with every block of a device; stops at the first that returns false. No lock is held, so each may
 * end blocks. */
void xsi_block_each(struct xsi_memory_place place,
                    bool (*each)(const struct xsi_block_view *view, void *data), void *data);
/* An allocation that the device has no room for. Zeros before the first attempt. */
struct xsi_move_want {
  struct xsi_memory_place place;
  uint64_t wanted_ns;
  bool granted;
  int cancel_state;
};
/* The device had no room for these bytes: asks the daemon to make some, and waits. True: try again. False: out
 * of memory; at once without a daemon. No lock may be held, xsi_move_enter included: the daemon may move this
 * very program. */
bool xsi_move_wants(struct xsi_move_want *want, struct xsi_memory_place place, uint64_t bytes,
                    uint64_t room);
/* After the last attempt, whatever came of it. */
void xsi_move_wanted(struct xsi_move_want *want);

/* Work was submitted that we can't wait for: the process never moves from now on. Waits while memory is away. */
void xsi_move_never(const char *why);

#endif /* XSCHED_CORE_MOVE_H */
