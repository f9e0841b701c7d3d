// SPDX-License-Identifier: Apache-2.0
//
// Allocations that the shim backs by mapped memory: what hipMalloc and hipFree do with them, and what the runtime's
// questions about them answer.

#include "move.h"

#include <errno.h>

#include "core/log.h"

#define WHOLE(bytes) (((bytes) + XSI_MOVE_GRANULE - 1) / XSI_MOVE_GRANULE * XSI_MOVE_GRANULE)

static bool moves; // atomic: there is, or was, such an allocation

// ---- allocating ----------------------------------------------------------------------------------

// A capture forbids hipMalloc to some threads, and none of the calls that map memory. The runtime shall say so.
static bool may_be_forbidden(void) {
  if (__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0) return false;
  hipStreamCaptureMode mode = XSI_HIP_CAPTURE_RELAXED;
  xsi_hip_call_real(hipThreadExchangeStreamCaptureMode, &mode);
  hipStreamCaptureMode before = mode;
  xsi_hip_call_real(hipThreadExchangeStreamCaptureMode, &mode);
  return before != XSI_HIP_CAPTURE_RELAXED;
}

static enum xsi_hip_backed make(const struct xsi_move_device *device, void **address,
                                uint64_t bytes) {
  void *at = NULL;
  hipError_t reserved =
      xsi_hip_call_real(hipMemAddressReserve, &at, WHOLE(bytes), (size_t)0, NULL, 0ull);
  if (reserved != XSI_HIP_SUCCESS) return XSI_HIP_NOT_BACKED;
  int made = xsi_block_make(&xsi_hip_move_platform, device, (uintptr_t)at, WHOLE(bytes), bytes, 0,
                            device->context);
  if (made == 0) {
    *address = at;
    return XSI_HIP_BACKED;
  }
  xsi_hip_call_real(hipMemAddressFree, at, WHOLE(bytes));
  return made == -ENOMEM ? XSI_HIP_NO_ROOM : XSI_HIP_NOT_BACKED;
}

enum xsi_hip_backed xsi_hip_back(const struct xsi_move_device *device, void **address,
                                 uint64_t bytes) {
  if (bytes > UINT64_MAX / 2 || !xsi_hip_can_move() || may_be_forbidden())
    return XSI_HIP_NOT_BACKED;
  __atomic_store_n(&moves, true, __ATOMIC_SEQ_CST);
  bool clean = xsi_hip_call_real(hipPeekAtLastError) == XSI_HIP_SUCCESS;
  enum xsi_hip_backed backed = make(device, address, bytes);
  // What failed was a call of ours.
  if (backed != XSI_HIP_BACKED && clean) xsi_hip_call_real(hipGetLastError);
  return backed;
}

// ---- freeing -------------------------------------------------------------------------------------

bool xsi_hip_is_backed(const void *address, struct xsi_block_view *view) {
  return __atomic_load_n(&moves, __ATOMIC_ACQUIRE) && xsi_block_find((uintptr_t)address, view);
}

static bool begins(const void *address, struct xsi_block_view *view) {
  return xsi_hip_is_backed(address, view) && view->address == (uintptr_t)address;
}

static bool end(uint64_t address) {
  struct xsi_block_view view;
  if (!xsi_block_end(address, &view)) return false;
  xsi_hip_call_real(hipMemAddressFree, (void *)(uintptr_t)view.address, view.bytes);
  return true;
}

// In a capture, only hipFree itself knows whether it may wait.
static hipError_t wait_as_free_does(uintptr_t context) {
  int before;
  void *nothing = NULL;
  hipError_t result = xsi_hip_turn_to(context, &before);
  if (result != XSI_HIP_SUCCESS) return result;
  if (__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0) {
    result = xsi_hip_call_real(hipDeviceSynchronize);
  } else {
    result = xsi_hip_call_real(hipMalloc, &nothing, (size_t)1);
    if (result == XSI_HIP_SUCCESS) result = xsi_hip_call_real(hipFree, nothing);
  }
  xsi_hip_turn_back(before);
  return result;
}

bool xsi_hip_unback(void *address, hipError_t *result) {
  struct xsi_block_view view;
  if (!begins(address, &view)) return false;
  *result = wait_as_free_does(view.context);
  if (*result == XSI_HIP_SUCCESS && !end(view.address)) *result = XSI_HIP_INVALID_VALUE;
  return true;
}

bool xsi_hip_unback_behind(void *address, hipStream_t stream, hipError_t *result) {
  struct xsi_block_view view;
  if (!begins(address, &view) || xsi_captured(&xsi_hip_account, (uintptr_t)xsi_hip_legacy(stream)))
    return false;
  *result = xsi_hip_call_real(hipStreamSynchronize, stream);
  if (*result == XSI_HIP_SUCCESS && !end(view.address)) *result = XSI_HIP_INVALID_VALUE;
  return true;
}

static bool end_of_device(const struct xsi_block_view *view, void *context) {
  if (view->context == *(uintptr_t *)context) end(view->address);
  return true;
}

void xsi_hip_moves_no_more(void) {
  if (__atomic_load_n(&moves, __ATOMIC_ACQUIRE)) xsi_move_never("a device is reset");
}

void xsi_hip_unback_device(uintptr_t context) {
  struct xsi_memory_place place;
  if (__atomic_load_n(&moves, __ATOMIC_ACQUIRE) && xsi_hip_place_of(context, &place))
    xsi_block_each(place, end_of_device, &context);
}

// ---- questions -----------------------------------------------------------------------------------

/* Begins a question about an address: its memory is mapped meanwhile. */
#define BEGIN(symbol, ...)                                                                         \
  XSI_HIP_REAL(symbol);                                                                            \
  XSI_HIP_GUARD(symbol, __VA_ARGS__);                                                              \
  if (!xsi_hip_enter()) return real(__VA_ARGS__);                                                  \
  xsi_move_enter()

#define END(result)                                                                                \
  do {                                                                                             \
    hipError_t result_ = xsi_hip_done(result);                                                     \
    xsi_move_leave();                                                                              \
    return result_;                                                                                \
  } while (0)

hipError_t hipMemGetAddressRange(hipDeviceptr_t *base, size_t *bytes, hipDeviceptr_t address) {
  BEGIN(hipMemGetAddressRange, base, bytes, address);
  struct xsi_block_view view;
  if (!xsi_hip_is_backed(address, &view) || (uintptr_t)address - view.address >= view.asked)
    END(real(base, bytes, address));
  if (base) *base = (void *)(uintptr_t)view.address;
  if (bytes) *bytes = view.asked;
  END(XSI_HIP_SUCCESS);
}
XSI_HOOK(hipMemGetAddressRange)

hipError_t hipMemPtrGetInfo(void *address, size_t *bytes) {
  BEGIN(hipMemPtrGetInfo, address, bytes);
  struct xsi_block_view view;
  if (!bytes || !begins(address, &view)) END(real(address, bytes));
  *bytes = view.asked;
  END(XSI_HIP_SUCCESS);
}
XSI_HOOK(hipMemPtrGetInfo)

static void answer(void *data, hipPointer_attribute attribute, const struct xsi_block_view *view) {
  if (attribute == XSI_HIP_POINTER_RANGE_START) *(uint64_t *)data = view->address;
  if (attribute == XSI_HIP_POINTER_RANGE_SIZE) *(uint64_t *)data = view->asked;
}

hipError_t hipPointerGetAttribute(void *data, hipPointer_attribute attribute,
                                  hipDeviceptr_t address) {
  BEGIN(hipPointerGetAttribute, data, attribute, address);
  struct xsi_block_view view;
  hipError_t result = real(data, attribute, address);
  if (result == XSI_HIP_SUCCESS && xsi_hip_is_backed(address, &view))
    answer(data, attribute, &view);
  END(result);
}
XSI_HOOK(hipPointerGetAttribute)

hipError_t hipDrvPointerGetAttributes(unsigned count, hipPointer_attribute *attributes, void **data,
                                      hipDeviceptr_t address) {
  BEGIN(hipDrvPointerGetAttributes, count, attributes, data, address);
  struct xsi_block_view view;
  hipError_t result = real(count, attributes, data, address);
  if (result == XSI_HIP_SUCCESS && xsi_hip_is_backed(address, &view))
    for (unsigned i = 0; i < count; i++)
      if (data[i]) answer(data[i], attributes[i], &view);
  END(result);
}
XSI_HOOK(hipDrvPointerGetAttributes)

hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *address) {
  BEGIN(hipPointerGetAttributes, attributes, address);
  END(real(attributes, address));
}
XSI_HOOK(hipPointerGetAttributes)

// ---- others use it -------------------------------------------------------------------------------

// The runtime says whether it exports mapped memory.
hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *handle, void *address) {
  BEGIN(hipIpcGetMemHandle, handle, address);
  static bool said;
  struct xsi_block_view view;
  hipError_t result = real(handle, address);
  bool ours = xsi_hip_is_backed(address, &view);
  if (ours && result == XSI_HIP_SUCCESS) xsi_block_fix(view.address, XSW_FIXED_EXPORTED);
  if (ours && result != XSI_HIP_SUCCESS && !__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
    xsi_log(XSI_WARN, "HIP exports no movable memory to other processes: run without --movable");
  END(result);
}
XSI_HOOK(hipIpcGetMemHandle)
