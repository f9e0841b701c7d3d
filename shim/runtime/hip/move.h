/* SPDX-License-Identifier: Apache-2.0
 *
 * Movable memory of HIP programs (core/move.h): allocations of hipMalloc that the shim backs by mapped memory. What
 * the program maps itself stays with the runtime.
 */
#ifndef XSCHED_HIP_MOVE_H
#define XSCHED_HIP_MOVE_H

#include "account.h"
#include "core/move.h"

/* Only from HIP 6 on: what says where memory shall be had another layout before. */
bool xsi_hip_can_move(void);
extern const struct xsi_move_platform xsi_hip_move_platform;

/* Makes the device the thread's for what follows, unless it is; turn_back undoes it. */
hipError_t xsi_hip_turn_to(uintptr_t context, int *before);
void xsi_hip_turn_back(int before);

/* ---- allocations: between xsi_move_enter and xsi_move_leave -------------------------------------------- */

enum xsi_hip_backed {
  XSI_HIP_BACKED,
  XSI_HIP_NOT_BACKED, /* the runtime allocates */
  XSI_HIP_NO_ROOM,
};
enum xsi_hip_backed xsi_hip_back(const struct xsi_move_device *device, void **address,
                                 uint64_t bytes);
/* The allocation that contains an address of the program's. */
bool xsi_hip_is_backed(const void *address, struct xsi_block_view *view);
/* Frees the allocation that begins there, as hipFree does, or behind the stream's work. False: there is none. */
bool xsi_hip_unback(void *address, hipError_t *result);
bool xsi_hip_unback_behind(void *address, hipStream_t stream, hipError_t *result);
/* A device is reset. Before: the process never moves from now on. Afterwards its allocations are gone. */
void xsi_hip_moves_no_more(void);
void xsi_hip_unback_device(uintptr_t context);

#endif /* XSCHED_HIP_MOVE_H */
