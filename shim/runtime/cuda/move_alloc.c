// SPDX-License-Identifier: Apache-2.0
//
// Allocations that the shim backs by mapped memory: what cuMemAlloc and cuMemFree do with them, and what the driver's
// questions about them answer.

#include "move.h"

#include <errno.h>
#include <stdlib.h>

#define WHOLE(bytes) (((bytes) + XSI_MOVE_GRANULE - 1) / XSI_MOVE_GRANULE * XSI_MOVE_GRANULE)

static struct xsi_cu_memory *memory_of(const struct xsi_block_view *view) {
  return (struct xsi_cu_memory *)(uintptr_t)view->properties;
}

// The driver counts its own buffers from 1.
static uint64_t last_id = 1ull << 40; // atomic

// ---- allocating ----------------------------------------------------------------------------------

// A capture forbids cuMemAlloc to some threads, and none of the calls that map memory. The driver shall say so.
static bool may_be_forbidden(void) {
  if (__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0) return false;
  int mode = xsi_cu_relax();
  xsi_cu_unrelax(mode);
  return mode != XSI_CU_CAPTURE_RELAXED;
}

static bool has(int ordinal, int attribute) {
  int value = 0;
  return xsi_cu_call_real(cuDeviceGetAttribute, &value, attribute, ordinal) == XSI_CU_SUCCESS &&
         value != 0;
}

// What the memory can be used for should not depend on how it is backed.
static CUmemAllocationProp_v1 properties_of(int ordinal) {
  static struct {
    int known, rdma, posix; // known: atomic
  } devices[XSI_CU_ORDINALS];
  if (!__atomic_load_n(&devices[ordinal].known, __ATOMIC_ACQUIRE)) {
    devices[ordinal].rdma = has(ordinal, XSI_CU_DEVICE_RDMA_MAPPED);
    devices[ordinal].posix = has(ordinal, XSI_CU_DEVICE_POSIX_HANDLES);
    __atomic_store_n(&devices[ordinal].known, 1, __ATOMIC_RELEASE);
  }
  return (CUmemAllocationProp_v1){
      .type = XSI_CU_PINNED,
      .handle_types = devices[ordinal].posix ? XSI_CU_HANDLE_POSIX : 0,
      .location = {XSI_CU_LOCATION_DEVICE, ordinal},
      .rdma = (unsigned char)devices[ordinal].rdma,
  };
}

static enum xsi_cu_backed refused(enum xsw_fixed *why) {
  *why = XSW_FIXED_REFUSED;
  return XSI_CU_NOT_BACKED;
}

enum xsi_cu_backed xsi_cu_back(const struct xsi_move_device *device, CUdeviceptr_v2 *address,
                               uint64_t bytes, enum xsw_fixed *why) {
  CUdeviceptr_v2 at = 0;
  if (device->ordinal < 0 || device->ordinal >= XSI_CU_ORDINALS || may_be_forbidden() ||
      bytes > UINT64_MAX / 2)
    return refused(why);
  struct xsi_cu_memory *memory = calloc(1, sizeof *memory);
  if (!memory) return refused(why);
  memory->properties = properties_of(device->ordinal);
  memory->buffer_id = __atomic_add_fetch(&last_id, 1, __ATOMIC_RELAXED);
  xsi_cu_move_context((CUcontext)device->context);
  __atomic_store_n(&xsi_cu_moves, true, __ATOMIC_SEQ_CST);
  CUresult result = xsi_cu_call_real(cuMemAddressReserve, &at, WHOLE(bytes), (size_t)0, 0ull, 0ull);
  if (result != XSI_CU_SUCCESS) {
    free(memory);
    return refused(why);
  }
  int made = xsi_block_make(&xsi_cu_move_platform, device, at, WHOLE(bytes), bytes,
                            (uintptr_t)memory, device->context);
  if (made == 0) {
    *address = at;
    return XSI_CU_BACKED;
  }
  xsi_cu_call_real(cuMemAddressFree, at, WHOLE(bytes));
  free(memory);
  return made == -ENOMEM ? XSI_CU_NO_ROOM : refused(why);
}

// ---- freeing -------------------------------------------------------------------------------------

bool xsi_cu_backed(CUdeviceptr_v2 address, struct xsi_block_view *view) {
  return __atomic_load_n(&xsi_cu_moves, __ATOMIC_ACQUIRE) && xsi_block_find(address, view) &&
         memory_of(view)->buffer_id != 0;
}

static void give_back(const struct xsi_block_view *view) {
  xsi_cu_call_real(cuMemAddressFree, view->address, view->bytes);
  free(memory_of(view));
}

static bool end(CUdeviceptr_v2 address) {
  struct xsi_block_view view;
  if (!xsi_block_end(address, &view)) return false;
  give_back(&view);
  return true;
}

// In a capture, only cuMemFree itself knows whether it may wait.
static CUresult wait_as_free_does(CUcontext context) {
  CUcontext before;
  CUdeviceptr_v2 nothing = 0;
  CUresult result = XSI_CU_SUCCESS;
  bool push = context != xsi_cu_current();
  if (push) result = xsi_cu_call_real(cuCtxPushCurrent_v2, context);
  if (result != XSI_CU_SUCCESS) return result;
  if (__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0) {
    result = xsi_cu_call_real(cuCtxSynchronize);
  } else {
    result = xsi_cu_call_real(cuMemAlloc_v2, &nothing, (size_t)1);
    if (result == XSI_CU_SUCCESS) result = xsi_cu_call_real(cuMemFree_v2, nothing);
  }
  if (push) xsi_cu_call_real(cuCtxPopCurrent_v2, &before);
  return result;
}

static bool begins(CUdeviceptr_v2 address, struct xsi_block_view *view) {
  return xsi_cu_backed(address, view) && view->address == address;
}

bool xsi_cu_unback(CUdeviceptr_v2 address, CUresult *result) {
  struct xsi_block_view view;
  if (!begins(address, &view)) return false;
  *result = wait_as_free_does((CUcontext)view.context);
  if (*result == XSI_CU_SUCCESS && !end(address)) *result = XSI_CU_INVALID_VALUE;
  return true;
}

bool xsi_cu_unback_behind(CUdeviceptr_v2 address, CUstream stream, CUresult *result) {
  struct xsi_block_view view;
  if (!begins(address, &view) || xsi_captured(&xsi_cu_account, (uintptr_t)stream)) return false;
  *result = xsi_cu_call_real(cuStreamSynchronize, stream);
  if (*result == XSI_CU_SUCCESS && !end(address)) *result = XSI_CU_INVALID_VALUE;
  return true;
}

static bool end_of_context(const struct xsi_block_view *view, void *context) {
  if (view->context == *(uintptr_t *)context && memory_of(view)->buffer_id != 0) end(view->address);
  return true;
}

void xsi_cu_unback_context(CUcontext context) {
  struct xsi_memory_place place;
  uintptr_t gone = (uintptr_t)context;
  int ordinal = xsi_cu_move_forget(context);
  if (ordinal >= 0 && xsi_cu_place_of(ordinal, &place))
    xsi_block_each(place, end_of_context, &gone);
}

// ---- questions -----------------------------------------------------------------------------------

// Behind what the program asked for there is nothing of its own.
static bool is_behind(CUdeviceptr_v2 address, const struct xsi_block_view *view) {
  return address - view->address >= view->asked;
}

// What the driver would say of memory of its own. False: it says the same of ours.
static bool answer(void *data, CUpointer_attribute attribute, const struct xsi_block_view *view) {
  uint64_t value;
  switch (attribute) {
  case XSI_CU_POINTER_CONTEXT: value = view->context; break;
  case XSI_CU_POINTER_BUFFER_ID:
  case XSI_CU_POINTER_BLOCK_ID: value = memory_of(view)->buffer_id; break;
  case XSI_CU_POINTER_RANGE_START:
  case XSI_CU_POINTER_MAPPING_BASE: value = view->address; break;
  case XSI_CU_POINTER_RANGE_SIZE: value = view->asked; break;
  case XSI_CU_POINTER_MAPPING_SIZE: value = view->bytes; break;
  case XSI_CU_POINTER_HANDLE_TYPES: value = 0; break;
  case XSI_CU_POINTER_LEGACY_IPC:
    *(bool *)data = memory_of(view)->properties.handle_types != 0; // move_ipc.c
    return true;
  default: return false;
  }
  *(uint64_t *)data = value;
  return true;
}

// Another device reads the memory past us.
static void shares(CUpointer_attribute attribute, CUdeviceptr_v2 address) {
  if (attribute == XSI_CU_POINTER_P2P_TOKENS || attribute == XSI_CU_POINTER_SYNC_MEMOPS)
    xsi_block_fix(address, XSW_FIXED_EXPORTED);
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr_v2 address) {
  XSI_CU_REAL(cuPointerGetAttribute);
  struct xsi_block_view view;
  if (!xsi_cu_memory_enter()) return real(data, attribute, address);
  if (attribute == XSI_CU_POINTER_P2P_TOKENS) shares(attribute, address);
  bool ours = data && xsi_cu_backed(address, &view);
  CUresult result = XSI_CU_SUCCESS;
  if (ours && is_behind(address, &view))
    result = XSI_CU_INVALID_VALUE;
  else if (!ours || !answer(data, attribute, &view))
    result = real(data, attribute, address);
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuPointerGetAttribute)

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr_v2 address) {
  XSI_CU_REAL(cuPointerGetAttributes);
  struct xsi_block_view view;
  if (!xsi_cu_memory_enter()) return real(count, attributes, data, address);
  CUresult result = real(count, attributes, data, address);
  if (result == XSI_CU_SUCCESS && xsi_cu_backed(address, &view))
    for (unsigned i = 0; i < count; i++)
      if (data[i]) answer(data[i], attributes[i], &view);
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuPointerGetAttributes)

// The driver refuses to synchronise operations on mapped memory (801).
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                               CUdeviceptr_v2 address) {
  XSI_CU_REAL(cuPointerSetAttribute);
  xsi_cu_enter();
  if (!xsi_cu_memory_enter()) return real(value, attribute, address);
  shares(attribute, address);
  CUresult result = real(value, attribute, address);
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuPointerSetAttribute)

CUresult cuMemGetAddressRange_v2(CUdeviceptr_v2 *base, size_t *bytes, CUdeviceptr_v2 address) {
  XSI_CU_REAL(cuMemGetAddressRange_v2);
  struct xsi_block_view view;
  if (!xsi_cu_memory_enter()) return real(base, bytes, address);
  CUresult result = XSI_CU_SUCCESS;
  if (xsi_cu_backed(address, &view) && is_behind(address, &view)) {
    result = XSI_CU_NOT_FOUND;
  } else if (xsi_cu_backed(address, &view)) {
    if (base) *base = view.address;
    if (bytes) *bytes = view.asked;
  } else {
    result = real(base, bytes, address);
  }
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuMemGetAddressRange_v2)

// ---- others use it -------------------------------------------------------------------------------

void xsi_cu_export(CUdeviceptr_v2 address, uint64_t bytes) {
  struct xsi_block_view view;
  for (uint64_t at = 0; at < bytes;) {
    bool found = xsi_block_find(address + at, &view);
    if (found) xsi_block_fix(address + at, XSW_FIXED_EXPORTED);
    at += found ? view.address + view.bytes - (address + at) : XSI_MOVE_GRANULE;
  }
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr_v2 address, size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  XSI_CU_REAL(cuMemGetHandleForAddressRange);
  if (xsi_cu_enter()) xsi_work_never_batch();
  if (!xsi_cu_memory_enter()) return real(handle, address, bytes, type, flags);
  CUresult result = real(handle, address, bytes, type, flags);
  if (result == XSI_CU_SUCCESS) xsi_cu_export(address, bytes);
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuMemGetHandleForAddressRange)
