// SPDX-License-Identifier: Apache-2.0
//
// struct xsi_move_platform for HIP. Only real functions of the runtime are called here.

#include "move.h"

#include <errno.h>

#include "core/fork.h"

// The mover's streams, by device.
static XSI_FORK_STATE hipStream_t streams[XSI_HIP_DEVICES];

static void reset_in_child(void) {
  for (int i = 0; i < XSI_HIP_DEVICES; i++)
    streams[i] = NULL;
}

bool xsi_hip_can_move(void) {
  enum { UNKNOWN, NO, YES };
  static int known; // atomic
  int can = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  if (can == UNKNOWN) {
    int version = 0;
    can = xsi_hip_call_real(hipRuntimeGetVersion, &version) == XSI_HIP_SUCCESS &&
                  version >= XSI_HIP_VERSION_6
              ? YES
              : NO;
    if (__atomic_exchange_n(&known, can, __ATOMIC_SEQ_CST) == UNKNOWN && can == YES)
      xsi_at_fork_child(reset_in_child);
  }
  return can == YES && !__atomic_load_n(&xsi_hip_several, __ATOMIC_RELAXED);
}

// ---- one call on a device ------------------------------------------------------------------------

static int code(hipError_t result) {
  if (result == XSI_HIP_SUCCESS) return 0;
  return result == XSI_HIP_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

/* A call with the block's device as the thread's. */
#define ON(device, call)                                                                           \
  ({                                                                                               \
    int before_;                                                                                   \
    hipError_t result_ = xsi_hip_turn_to((device)->context, &before_);                             \
    if (result_ == XSI_HIP_SUCCESS) result_ = (call);                                              \
    xsi_hip_turn_back(before_);                                                                    \
    code(result_);                                                                                 \
  })

// ---- memory --------------------------------------------------------------------------------------

static int create(const struct xsi_move_device *device, uint64_t bytes, uint64_t properties,
                  uint64_t *handle) {
  (void)properties;
  hipMemGenericAllocationHandle_t made = NULL;
  const struct xsi_hip_properties here = {.type = XSI_HIP_PINNED,
                                          .location = {XSI_HIP_LOCATION_DEVICE, device->ordinal}};
  int result = ON(device, xsi_hip_call_real(hipMemCreate, &made, bytes, (const void *)&here, 0ull));
  if (result == 0) *handle = (uintptr_t)made;
  return result;
}

static void release(uint64_t handle) {
  xsi_hip_call_real(hipMemRelease, (hipMemGenericAllocationHandle_t)(uintptr_t)handle);
}

// May a device use the memory of another: [owner][user].
static uint8_t peers[XSI_HIP_DEVICES][XSI_HIP_DEVICES]; // atomic

static hipError_t allow(uint64_t address, uint64_t bytes, int user, int flags) {
  const struct hipMemAccessDesc access = {{XSI_HIP_LOCATION_DEVICE, user}, flags};
  return xsi_hip_call_real(hipMemSetAccess, (void *)(uintptr_t)address, bytes, &access, (size_t)1);
}

static hipError_t map_here(const struct xsi_move_device *device, void *at, uint64_t bytes,
                           uint64_t handle) {
  hipError_t result = xsi_hip_call_real(hipMemMap, at, bytes, (size_t)0,
                                        (hipMemGenericAllocationHandle_t)(uintptr_t)handle, 0ull);
  if (result != XSI_HIP_SUCCESS) return result;
  for (int i = 0; i < XSI_HIP_DEVICES && result == XSI_HIP_SUCCESS; i++)
    if (i == device->ordinal || __atomic_load_n(&peers[device->ordinal][i], __ATOMIC_RELAXED) != 0)
      result = allow((uintptr_t)at, bytes, i, XSI_HIP_ACCESS_BOTH);
  if (result != XSI_HIP_SUCCESS) xsi_hip_call_real(hipMemUnmap, at, bytes);
  return result;
}

static int map(const struct xsi_move_device *device, uint64_t address, uint64_t bytes,
               uint64_t properties, uint64_t handle) {
  (void)properties;
  return ON(device, map_here(device, (void *)(uintptr_t)address, bytes, handle));
}

static int unmap(uint64_t address, uint64_t bytes) {
  return code(xsi_hip_call_real(hipMemUnmap, (void *)(uintptr_t)address, bytes));
}

// ---- host memory and copies ----------------------------------------------------------------------

static int pin(const struct xsi_move_device *device, void *host, size_t bytes) {
  return ON(device, xsi_hip_call_real(hipHostRegister, host, bytes, (unsigned)XSI_HIP_PORTABLE));
}

static void unpin(const struct xsi_move_device *device, void *host) {
  ON(device, xsi_hip_call_real(hipHostUnregister, host));
}

// From the mover's thread alone.
static hipError_t stream_of(int ordinal, hipStream_t *stream) {
  hipError_t result = XSI_HIP_SUCCESS;
  if (!streams[ordinal])
    result = xsi_hip_call_real(hipStreamCreateWithFlags, &streams[ordinal],
                               (unsigned)XSI_HIP_NON_BLOCKING);
  *stream = streams[ordinal];
  return result;
}

static hipError_t copy_here(int ordinal, void *host, void *at, uint64_t bytes, bool out) {
  hipStream_t stream;
  hipError_t result = stream_of(ordinal, &stream);
  if (result != XSI_HIP_SUCCESS) return result;
  return out ? xsi_hip_call_real(hipMemcpyDtoHAsync, host, at, bytes, stream)
             : xsi_hip_call_real(hipMemcpyHtoDAsync, at, host, bytes, stream);
}

static int copy(const struct xsi_move_device *device, void *host, uint64_t address, uint64_t bytes,
                bool out) {
  return ON(device, copy_here(device->ordinal, host, (void *)(uintptr_t)address, bytes, out));
}

static int finish(const struct xsi_move_device *device) {
  hipStream_t stream = streams[device->ordinal];
  return stream ? ON(device, xsi_hip_call_real(hipStreamSynchronize, stream)) : 0;
}

static int settle(const struct xsi_move_device *device) {
  return ON(device, xsi_hip_call_real(hipDeviceSynchronize));
}

static int room(const struct xsi_move_device *device, uint64_t *bytes) {
  size_t there = 0, total = 0;
  int result = ON(device, xsi_hip_call_real(hipMemGetInfo, &there, &total));
  *bytes = there;
  return result;
}

const struct xsi_move_platform xsi_hip_move_platform = {
    .create = create,
    .release = release,
    .map = map,
    .unmap = unmap,
    .pin = pin,
    .unpin = unpin,
    .copy = copy,
    .finish = finish,
    .settle = settle,
    .room = room,
};

// ---- peers ---------------------------------------------------------------------------------------

struct grant {
  int owner, user, flags;
};

static bool grant(const struct xsi_block_view *view, void *data) {
  const struct grant *to = data;
  if (view->device.ordinal == to->owner) allow(view->address, view->bytes, to->user, to->flags);
  return true;
}

// Inside enter: the owner's blocks are all mapped.
static void change_peer(int owner, bool may) {
  uintptr_t current = xsi_hip_current();
  int user = (int)(current - xsi_hip_context(0));
  struct xsi_memory_place place;
  if (!current || owner < 0 || owner >= XSI_HIP_DEVICES || owner == user) return;
  __atomic_store_n(&peers[owner][user], may, __ATOMIC_RELAXED);
  struct grant to = {owner, user, may ? XSI_HIP_ACCESS_BOTH : 0};
  if (xsi_hip_place_of(xsi_hip_context(owner), &place)) xsi_block_each(place, grant, &to);
}

hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  XSI_HIP_REAL(hipDeviceEnablePeerAccess);
  XSI_HIP_GUARD(hipDeviceEnablePeerAccess, peer, flags);
  if (!xsi_hip_enter()) return real(peer, flags);
  xsi_move_enter();
  hipError_t result = xsi_hip_done(real(peer, flags));
  if (result == XSI_HIP_SUCCESS) change_peer(peer, true);
  xsi_move_leave();
  return result;
}
XSI_HOOK(hipDeviceEnablePeerAccess)

hipError_t hipDeviceDisablePeerAccess(int peer) {
  XSI_HIP_REAL(hipDeviceDisablePeerAccess);
  XSI_HIP_GUARD(hipDeviceDisablePeerAccess, peer);
  if (!xsi_hip_enter()) return real(peer);
  xsi_move_enter();
  hipError_t result = xsi_hip_done(real(peer));
  if (result == XSI_HIP_SUCCESS) change_peer(peer, false);
  xsi_move_leave();
  return result;
}
XSI_HOOK(hipDeviceDisablePeerAccess)
