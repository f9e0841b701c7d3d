// SPDX-License-Identifier: Apache-2.0
//
// Entry points that allocate and free device memory, or ask how much there is. core/memory.h has the account.
// Arrays, and memory of others (imports, IPC) and of graph nodes are not counted. A pool's memory counts while
// the program has it.

#include "core/memory.h"
#include "move.h"

#define BEGIN(symbol, ...)                                                                         \
  XSI_HIP_REAL(symbol);                                                                            \
  XSI_HIP_GUARD(symbol, __VA_ARGS__)

// The runtime keeps each thread's last error; it has not seen a refusal of ours.
static _Thread_local bool refused __attribute__((tls_model("initial-exec")));

// ---- claims --------------------------------------------------------------------------------------

struct claim {
  struct xsi_memory_claim claim;
  struct xsi_move_device device; // and the context
  bool placed;                   // the device is known
  bool early;                    // the call may start the runtime: the claim follows it
};

// Asked once per device, because a question writes to AMD's log.
bool xsi_hip_place_of(uintptr_t context, struct xsi_memory_place *place) {
  static struct {
    int known; // atomic
    struct xsi_memory_place place;
  } places[XSI_HIP_DEVICES];
  if (!context) return false;
  size_t at = context - xsi_hip_context(0);
  if (__atomic_load_n(&places[at].known, __ATOMIC_ACQUIRE) == 0) {
    struct xsi_work_device device;
    if (xsi_hip_platform.describe(context, &device) != 0) return false;
    __atomic_store_n(&places[at].place.pci_domain, device.pci_domain, __ATOMIC_RELAXED);
    __atomic_store_n(&places[at].place.pci_bus_slot, device.pci_bus_slot, __ATOMIC_RELAXED);
    __atomic_store_n(&places[at].known, 1, __ATOMIC_RELEASE);
  }
  *place = places[at].place;
  return true;
}

// The device of a stream, or else the thread's.
static uintptr_t context_of(hipStream_t stream) {
  int device = (uintptr_t)stream > XSI_WORK_THREAD ? xsi_hip_stream_device(stream) : -1;
  return device >= 0 ? xsi_hip_context(device) : xsi_hip_current();
}

static bool fits(struct claim *claim, hipStream_t stream) {
  uintptr_t context = claim->device.context = context_of(stream);
  if (!xsi_hip_place_of(context, &claim->device.place)) return true;
  claim->placed = true;
  claim->device.ordinal = (int)(context - xsi_hip_context(0));
  // Whoever allocates uses the device: the daemon learns of it, and says what the quota is.
  if (__atomic_load_n(&xsi_work_hot.only, __ATOMIC_ACQUIRE) != context)
    xsi_work_context_seen(&xsi_hip_platform, context);
  bool fit = xsi_memory_claim(&claim->claim, claim->device.place, claim->claim.bytes);
  refused |= !fit;
  return fit;
}

// False: out of memory. Before the runtime has started, nothing is asked: it may have no device.
static bool claims(struct claim *claim, uint64_t bytes, hipStream_t stream, enum xsw_fixed why) {
  *claim = (struct claim){.claim = {-1, bytes, (int)why}};
  if (!xsi_hip_enter() || bytes == 0) return true;
  claim->early = !__atomic_load_n(&xsi_hip_alive, __ATOMIC_ACQUIRE);
  return claim->early || fits(claim, stream);
}

static hipError_t settle(struct claim *claim, hipError_t result, enum xsi_memory_kind kind,
                         void *key) {
  xsi_hip_done(result);
  if (claim->early && result == XSI_HIP_SUCCESS && !fits(claim, NULL)) {
    if (kind == XSI_MEMORY_HANDLE)
      xsi_hip_call_real(hipMemRelease, key);
    else
      xsi_hip_call_real(hipFree, key);
    result = XSI_HIP_OUT_OF_MEMORY;
  }
  xsi_memory_settle(&claim->claim, result == XSI_HIP_SUCCESS, kind, (uintptr_t)key,
                    claim->device.context);
  return result;
}

// The device had no room, although the quota has: the daemon may make some.
static bool tries_again(struct xsi_move_want *want, const struct claim *claim) {
  size_t room = 0, total = 0;
  if (!claim->placed || xsi_hip_call_real(hipMemGetInfo, &room, &total) != XSI_HIP_SUCCESS ||
      claim->claim.bytes > total)
    return false;
  return xsi_move_wants(want, claim->device.place, claim->claim.bytes, room);
}

// A call that allocates: no move meanwhile, and again while room is being made.
#define TAKES(claim, call)                                                                         \
  ({                                                                                               \
    struct xsi_move_want want_ = {0};                                                              \
    hipError_t took_;                                                                              \
    do {                                                                                           \
      xsi_move_enter();                                                                            \
      took_ = (call);                                                                              \
      xsi_move_leave();                                                                            \
    } while (XSI_UNLIKELY(took_ == XSI_HIP_OUT_OF_MEMORY) && tries_again(&want_, claim));          \
    xsi_move_wanted(&want_);                                                                       \
    took_;                                                                                         \
  })

// ---- addresses -----------------------------------------------------------------------------------

#define AT(address) ((address) ? *(address) : NULL)

// Why what the shim does not back stays where it is.
static enum xsw_fixed unmoved(void) {
  return xsi_move_asked() ? XSW_FIXED_REFUSED : XSW_FIXED_NOT_ASKED;
}

/* An allocation of so many bytes for a stream, NULL for none, and why it does not move; then the parameters and the
 * arguments. */
#define ALLOCATION(symbol, BYTES, STREAM, WHY, PARAMETERS, ...)                                    \
  hipError_t symbol PARAMETERS {                                                                   \
    XSI_HIP_REAL(symbol);                                                                          \
    xsi_hip_look();                                                                                \
    XSI_HIP_GUARD(symbol, __VA_ARGS__);                                                            \
    struct claim claim;                                                                            \
    if (!claims(&claim, BYTES, STREAM, WHY)) return XSI_HIP_OUT_OF_MEMORY;                         \
    hipError_t result = TAKES(&claim, real(__VA_ARGS__));                                          \
    return settle(&claim, result, XSI_MEMORY_ADDRESS, AT(address));                                \
  }                                                                                                \
  XSI_HOOK(symbol)
ALLOCATION(hipMallocManaged, bytes, NULL, XSW_FIXED_MANAGED,
           (void **address, size_t bytes, unsigned flags), address, bytes, flags)
ALLOCATION(hipExtMallocWithFlags, bytes, NULL, unmoved(),
           (void **address, size_t bytes, unsigned flags), address, bytes, flags)
ALLOCATION(hipMallocAsync, bytes, stream, XSW_FIXED_POOL,
           (void **address, size_t bytes, hipStream_t stream), address, bytes, stream)
ALLOCATION(hipMallocFromPoolAsync, bytes, stream, XSW_FIXED_POOL,
           (void **address, size_t bytes, hipMemPool_t pool, hipStream_t stream), address, bytes,
           pool, stream)

// True: *result is the allocation's. False: the runtime shall allocate.
static bool backs(struct claim *claim, void **address, uint64_t bytes, hipError_t *result) {
  enum xsi_hip_backed backed = XSI_HIP_NOT_BACKED;
  int why = XSW_FIXED_NOT_ASKED;
  if (xsi_move_asked() && claim->placed && address) {
    why = bytes < XSI_MOVE_GRANULE ? XSW_FIXED_SMALL : XSW_FIXED_REFUSED;
    if (why == XSW_FIXED_REFUSED) backed = xsi_hip_back(&claim->device, address, bytes);
  }
  claim->claim.fixed = backed == XSI_HIP_BACKED ? XSI_MEMORY_MOVABLE : why;
  *result = backed == XSI_HIP_BACKED ? XSI_HIP_SUCCESS : XSI_HIP_OUT_OF_MEMORY;
  return backed != XSI_HIP_NOT_BACKED;
}

static hipError_t alloc(__typeof__(&hipMalloc) real, struct claim *claim, void **address,
                        size_t bytes) {
  hipError_t result;
  return backs(claim, address, bytes, &result) ? result : real(address, bytes);
}

hipError_t hipMalloc(void **address, size_t bytes) {
  XSI_HIP_REAL(hipMalloc);
  xsi_hip_look();
  XSI_HIP_GUARD(hipMalloc, address, bytes);
  struct claim claim;
  if (!claims(&claim, bytes, NULL, XSW_FIXED_NOT_ASKED)) return XSI_HIP_OUT_OF_MEMORY;
  hipError_t result = TAKES(&claim, alloc(real, &claim, address, bytes));
  refused |= result == XSI_HIP_OUT_OF_MEMORY;
  return settle(&claim, result, XSI_MEMORY_ADDRESS, AT(address));
}
XSI_HOOK(hipMalloc)

// The runtime says afterwards how far apart rows are.
static hipError_t settle_rows(struct claim *claim, hipError_t result, uint64_t pitch, uint64_t rows,
                              void *address) {
  if (result == XSI_HIP_SUCCESS) xsi_memory_grow(&claim->claim, xsi_memory_product(pitch, rows));
  return settle(claim, result, XSI_MEMORY_ADDRESS, address);
}

hipError_t hipMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
  BEGIN(hipMallocPitch, address, pitch, width, height);
  struct claim claim;
  if (!claims(&claim, xsi_memory_product(width, height), NULL, unmoved()))
    return XSI_HIP_OUT_OF_MEMORY;
  hipError_t result = TAKES(&claim, real(address, pitch, width, height));
  return settle_rows(&claim, result, pitch ? *pitch : 0, height, AT(address));
}
XSI_HOOK(hipMallocPitch)

hipError_t hipMemAllocPitch(hipDeviceptr_t *address, size_t *pitch, size_t width, size_t height,
                            unsigned element) {
  BEGIN(hipMemAllocPitch, address, pitch, width, height, element);
  struct claim claim;
  if (!claims(&claim, xsi_memory_product(width, height), NULL, unmoved()))
    return XSI_HIP_OUT_OF_MEMORY;
  hipError_t result = TAKES(&claim, real(address, pitch, width, height, element));
  return settle_rows(&claim, result, pitch ? *pitch : 0, height, AT(address));
}
XSI_HOOK(hipMemAllocPitch)

hipError_t hipMalloc3D(hipPitchedPtr *address, hipExtent extent) {
  BEGIN(hipMalloc3D, address, extent);
  struct claim claim;
  uint64_t rows = xsi_memory_product(extent.height, extent.depth);
  if (!claims(&claim, xsi_memory_product(extent.width, rows), NULL, unmoved()))
    return XSI_HIP_OUT_OF_MEMORY;
  hipError_t result = TAKES(&claim, real(address, extent));
  return settle_rows(&claim, result, address ? address->pitch : 0, rows,
                     address ? address->ptr : NULL);
}
XSI_HOOK(hipMalloc3D)

hipError_t hipFree(void *address) {
  BEGIN(hipFree, address);
  if (!xsi_hip_enter()) return real(address);
  struct xsi_memory_entry *entry = xsi_memory_detach(XSI_MEMORY_ADDRESS, (uintptr_t)address);
  hipError_t result;
  xsi_move_enter_to_free();
  if (!xsi_hip_unback(address, &result)) result = xsi_hip_done(real(address));
  xsi_move_leave();
  xsi_memory_detached(entry, result == XSI_HIP_SUCCESS);
  return result;
}
XSI_HOOK(hipFree)

hipError_t hipFreeAsync(void *address, hipStream_t stream) {
  BEGIN(hipFreeAsync, address, stream);
  if (!xsi_hip_enter()) return real(address, stream);
  struct xsi_memory_entry *entry = xsi_memory_detach(XSI_MEMORY_ADDRESS, (uintptr_t)address);
  hipError_t result;
  xsi_move_enter_to_free();
  if (!xsi_hip_unback_behind(address, stream, &result))
    result = xsi_hip_done(real(address, stream));
  xsi_move_leave();
  xsi_memory_detached(entry, result == XSI_HIP_SUCCESS);
  return result;
}
XSI_HOOK(hipFreeAsync)

// ---- handles and mappings ------------------------------------------------------------------------

// Where the properties say the device is differs by version: it is taken to be the thread's.
hipError_t hipMemCreate(hipMemGenericAllocationHandle_t *handle, size_t bytes,
                        const hipMemAllocationProp *properties, unsigned long long flags) {
  BEGIN(hipMemCreate, handle, bytes, properties, flags);
  struct claim claim;
  if (!claims(&claim, bytes, NULL, unmoved())) return XSI_HIP_OUT_OF_MEMORY;
  hipError_t result = TAKES(&claim, real(handle, bytes, properties, flags));
  return settle(&claim, result, XSI_MEMORY_HANDLE, AT(handle));
}
XSI_HOOK(hipMemCreate)

hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle) {
  BEGIN(hipMemRelease, handle);
  if (!xsi_hip_enter()) return real(handle);
  struct xsi_memory_release release;
  xsi_memory_release(&release, (uintptr_t)handle);
  hipError_t result = xsi_hip_done(real(handle));
  xsi_memory_released(&release, result == XSI_HIP_SUCCESS);
  return result;
}
XSI_HOOK(hipMemRelease)

hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t *handle, void *address) {
  BEGIN(hipMemRetainAllocationHandle, handle, address);
  hipError_t result = xsi_hip_done(real(handle, address));
  if (xsi_hip_enter() && result == XSI_HIP_SUCCESS && handle)
    xsi_memory_retained((uintptr_t)*handle);
  return result;
}
XSI_HOOK(hipMemRetainAllocationHandle)

hipError_t hipMemMap(void *address, size_t bytes, size_t offset,
                     hipMemGenericAllocationHandle_t handle, unsigned long long flags) {
  BEGIN(hipMemMap, address, bytes, offset, handle, flags);
  hipError_t result = xsi_hip_done(real(address, bytes, offset, handle, flags));
  if (xsi_hip_enter() && result == XSI_HIP_SUCCESS)
    xsi_memory_mapped((uintptr_t)address, bytes, (uintptr_t)handle);
  return result;
}
XSI_HOOK(hipMemMap)

hipError_t hipMemUnmap(void *address, size_t bytes) {
  BEGIN(hipMemUnmap, address, bytes);
  if (!xsi_hip_enter()) return real(address, bytes);
  struct xsi_memory_entry *list = xsi_memory_unmap((uintptr_t)address, bytes);
  hipError_t result = xsi_hip_done(real(address, bytes));
  xsi_memory_unmapped(list, result == XSI_HIP_SUCCESS);
  return result;
}
XSI_HOOK(hipMemUnmap)

// ---- questions -----------------------------------------------------------------------------------

hipError_t hipMemGetInfo(size_t *free_bytes, size_t *total) {
  BEGIN(hipMemGetInfo, free_bytes, total);
  struct xsi_memory_place place;
  hipError_t result = xsi_hip_done(real(free_bytes, total));
  if (xsi_hip_enter() && result == XSI_HIP_SUCCESS && xsi_hip_place_of(xsi_hip_current(), &place))
    xsi_memory_answer(place, free_bytes, total);
  return result;
}
XSI_HOOK(hipMemGetInfo)

hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device) {
  BEGIN(hipDeviceTotalMem, bytes, device);
  struct xsi_memory_place place;
  hipError_t result = xsi_hip_done(real(bytes, device));
  if (xsi_hip_enter() && result == XSI_HIP_SUCCESS &&
      xsi_hip_place_of(xsi_hip_context(device), &place))
    xsi_memory_answer(place, NULL, bytes);
  return result;
}
XSI_HOOK(hipDeviceTotalMem)

// ---- the last error --------------------------------------------------------------------------------

/* What the runtime says, unless that is nothing and we have refused something; KEEPS: it stays. */
#define LAST_ERROR(symbol, KEEPS)                                                                  \
  hipError_t symbol(void) {                                                                        \
    BEGIN(symbol, );                                                                               \
    hipError_t result = real();                                                                    \
    if (xsi_hip_enter() && result == XSI_HIP_SUCCESS && refused) result = XSI_HIP_OUT_OF_MEMORY;   \
    refused = refused && (KEEPS);                                                                  \
    return result;                                                                                 \
  }                                                                                                \
  XSI_HOOK(symbol)
LAST_ERROR(hipPeekAtLastError, true)
LAST_ERROR(hipGetLastError, false)
LAST_ERROR(hipExtGetLastError, false)
