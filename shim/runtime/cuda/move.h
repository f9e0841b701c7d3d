/* SPDX-License-Identifier: Apache-2.0
 *
 * Movable memory of CUDA programs (core/move.h): allocations that the shim backs by mapped memory, and memory that
 * the program maps itself.
 *
 * The program sees of an allocation what it would see of the driver's: one range, its own context, its own buffer
 * id. Of memory that it maps, it sees handles of ours, which stand for the driver's: these change with each move.
 */
#ifndef XSCHED_CUDA_MOVE_H
#define XSCHED_CUDA_MOVE_H

#include "account.h"
#include "core/move.h"

#define XSI_CU_ORDINALS 64

/* What the properties of a block point to. */
struct xsi_cu_memory {
  CUmemAllocationProp_v1 properties;
  uint64_t buffer_id;        /* of an allocation; 0: the program has mapped it */
  uint64_t readers, writers; /* devices that may use it, of memory that the program has mapped */
  CUmemGenericAllocationHandle_v1 driver; /* the driver's handle of the same */
};

extern const struct xsi_move_platform xsi_cu_move_platform;

/* In relaxed mode a call of ours can't break a capture. */
static inline int xsi_cu_relax(void) {
  CUstreamCaptureMode mode = XSI_CU_CAPTURE_RELAXED;
  xsi_cu_call_real(cuThreadExchangeStreamCaptureMode, &mode);
  return mode;
}
static inline void xsi_cu_unrelax(int mode) {
  xsi_cu_call_real(cuThreadExchangeStreamCaptureMode, &mode);
}

/* ---- contexts (move_platform.c): the mover needs one of each device ---------------------------------- */

void xsi_cu_move_context(CUcontext context);
/* The context is about to go: waits for the mover's call in it, and there are no further ones unless it stays. */
void xsi_cu_move_goes(CUcontext context, bool goes);
int xsi_cu_move_forget(CUcontext context);                                 /* its device, or -1 */
bool xsi_cu_place_of(CUdevice_v1 ordinal, struct xsi_memory_place *place); /* memory.c */
/* The devices that may use the memory of one, as bits. */
uint64_t xsi_cu_peers_of(int ordinal);
CUresult xsi_cu_allow(CUdeviceptr_v2 address, uint64_t bytes, int flags, uint64_t ordinals);

/* ---- allocations (move_alloc.c): between xsi_move_enter and xsi_move_leave ------------------------------ */

enum xsi_cu_backed {
  XSI_CU_BACKED,
  XSI_CU_NOT_BACKED, /* the driver allocates, for the reason in *why */
  XSI_CU_NO_ROOM,
};
enum xsi_cu_backed xsi_cu_back(const struct xsi_move_device *device, CUdeviceptr_v2 *address,
                               uint64_t bytes, enum xsw_fixed *why);
/* The allocation that contains an address of the program's. */
bool xsi_cu_backed(CUdeviceptr_v2 address, struct xsi_block_view *view);
/* Frees the allocation that begins there, as cuMemFree does, or behind the stream's work. False: there is none. */
bool xsi_cu_unback(CUdeviceptr_v2 address, CUresult *result);
bool xsi_cu_unback_behind(CUdeviceptr_v2 address, CUstream stream, CUresult *result);
/* Others use a range of addresses from now on. */
void xsi_cu_export(CUdeviceptr_v2 address, uint64_t bytes);
/* The context is gone, and with it what was allocated in it. */
void xsi_cu_unback_context(CUcontext context);

/* ---- memory that the program maps (move_handle.c): between xsi_move_enter and xsi_move_leave ------------ */

CUresult xsi_cu_handle_create(CUmemGenericAllocationHandle_v1 *handle, size_t bytes,
                              const CUmemAllocationProp_v1 *properties, unsigned long long flags);
CUresult xsi_cu_handle_release(CUmemGenericAllocationHandle_v1 handle);
CUresult xsi_cu_handle_retain(CUmemGenericAllocationHandle_v1 *handle, void *address);
CUresult xsi_cu_handle_map(CUdeviceptr_v2 address, size_t bytes, size_t offset,
                           CUmemGenericAllocationHandle_v1 handle, unsigned long long flags);
CUresult xsi_cu_handle_unmap(CUdeviceptr_v2 address, size_t bytes);

#endif /* XSCHED_CUDA_MOVE_H */
