// SPDX-License-Identifier: Apache-2.0
//
// Entry points that allocate and free device memory, or ask how much there is. core/memory.h has the account.
// Arrays, and memory of others (imports, IPC) and of graph nodes are not counted. A pool's memory counts while
// the program has it.

#include "core/memory.h"
#include "account.h"

#define BEGIN(symbol, ...)                                                                         \
  XSI_HIP_REAL(symbol);                                                                            \
  XSI_HIP_GUARD(symbol, __VA_ARGS__)

// The runtime keeps each thread's last error; it has not seen a refusal of ours.
static _Thread_local bool refused __attribute__((tls_model("initial-exec")));

// ---- claims --------------------------------------------------------------------------------------

struct claim {
  struct xsi_memory_claim claim;
  uintptr_t context;
  bool early; // the call may start the runtime: the claim follows it
};

// Asked once per device, because a question writes to AMD's log.
static bool place_of(uintptr_t context, struct xsi_memory_place *place) {
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
  struct xsi_memory_place place;
  claim->context = context_of(stream);
  if (!place_of(claim->context, &place)) return true;
  // Whoever allocates uses the device: the daemon learns of it, and says what the quota is.
  if (__atomic_load_n(&xsi_work_hot.only, __ATOMIC_ACQUIRE) != claim->context)
    xsi_work_context_seen(&xsi_hip_platform, claim->context);
  bool fit = xsi_memory_claim(&claim->claim, place, claim->claim.bytes);
  refused |= !fit;
  return fit;
}

// False: out of memory. Before the runtime has started, nothing is asked: it may have no device.
static bool claims(struct claim *claim, uint64_t bytes, hipStream_t stream) {
  *claim = (struct claim){.claim = {-1, bytes}};
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
  xsi_memory_settle(&claim->claim, result == XSI_HIP_SUCCESS, kind, (uintptr_t)key, claim->context);
  return result;
}

// ---- addresses -----------------------------------------------------------------------------------

#define AT(address) ((address) ? *(address) : NULL)

/* An allocation of so many bytes for a stream, NULL for none; then the parameters and the arguments. */
#define ALLOCATION(symbol, BYTES, STREAM, PARAMETERS, ...)                                         \
  hipError_t symbol PARAMETERS {                                                                   \
    XSI_HIP_REAL(symbol);                                                                          \
    xsi_hip_look();                                                                                \
    XSI_HIP_GUARD(symbol, __VA_ARGS__);                                                            \
    struct claim claim;                                                                            \
    if (!claims(&claim, BYTES, STREAM)) return XSI_HIP_OUT_OF_MEMORY;                              \
    hipError_t result = real(__VA_ARGS__);                                                         \
    return settle(&claim, result, XSI_MEMORY_ADDRESS, AT(address));                                \
  }                                                                                                \
  XSI_HOOK(symbol)
ALLOCATION(hipMalloc, bytes, NULL, (void **address, size_t bytes), address, bytes)
ALLOCATION(hipMallocManaged, bytes, NULL, (void **address, size_t bytes, unsigned flags), address,
           bytes, flags)
ALLOCATION(hipExtMallocWithFlags, bytes, NULL, (void **address, size_t bytes, unsigned flags),
           address, bytes, flags)
ALLOCATION(hipMallocAsync, bytes, stream, (void **address, size_t bytes, hipStream_t stream),
           address, bytes, stream)
ALLOCATION(hipMallocFromPoolAsync, bytes, stream,
           (void **address, size_t bytes, hipMemPool_t pool, hipStream_t stream), address, bytes,
           pool, stream)

// The runtime says afterwards how far apart rows are.
static hipError_t settle_rows(struct claim *claim, hipError_t result, uint64_t pitch, uint64_t rows,
                              void *address) {
  if (result == XSI_HIP_SUCCESS) xsi_memory_grow(&claim->claim, xsi_memory_product(pitch, rows));
  return settle(claim, result, XSI_MEMORY_ADDRESS, address);
}

hipError_t hipMallocPitch(void **address, size_t *pitch, size_t width, size_t height) {
  BEGIN(hipMallocPitch, address, pitch, width, height);
  struct claim claim;
  if (!claims(&claim, xsi_memory_product(width, height), NULL)) return XSI_HIP_OUT_OF_MEMORY;
  hipError_t result = real(address, pitch, width, height);
  return settle_rows(&claim, result, pitch ? *pitch : 0, height, AT(address));
}
XSI_HOOK(hipMallocPitch)

hipError_t hipMemAllocPitch(hipDeviceptr_t *address, size_t *pitch, size_t width, size_t height,
                            unsigned element) {
  BEGIN(hipMemAllocPitch, address, pitch, width, height, element);
  struct claim claim;
  if (!claims(&claim, xsi_memory_product(width, height), NULL)) return XSI_HIP_OUT_OF_MEMORY;
  hipError_t result = real(address, pitch, width, height, element);
  return settle_rows(&claim, result, pitch ? *pitch : 0, height, AT(address));
}
XSI_HOOK(hipMemAllocPitch)

hipError_t hipMalloc3D(hipPitchedPtr *address, hipExtent extent) {
  BEGIN(hipMalloc3D, address, extent);
  struct claim claim;
  uint64_t rows = xsi_memory_product(extent.height, extent.depth);
  if (!claims(&claim, xsi_memory_product(extent.width, rows), NULL)) return XSI_HIP_OUT_OF_MEMORY;
  hipError_t result = real(address, extent);
  return settle_rows(&claim, result, address ? address->pitch : 0, rows,
                     address ? address->ptr : NULL);
}
XSI_HOOK(hipMalloc3D)

hipError_t hipFree(void *address) {
  BEGIN(hipFree, address);
  if (!xsi_hip_enter()) return real(address);
  struct xsi_memory_entry *entry = xsi_memory_detach(XSI_MEMORY_ADDRESS, (uintptr_t)address);
  hipError_t result = xsi_hip_done(real(address));
  xsi_memory_detached(entry, result == XSI_HIP_SUCCESS);
  return result;
}
XSI_HOOK(hipFree)

hipError_t hipFreeAsync(void *address, hipStream_t stream) {
  BEGIN(hipFreeAsync, address, stream);
  if (!xsi_hip_enter()) return real(address, stream);
  struct xsi_memory_entry *entry = xsi_memory_detach(XSI_MEMORY_ADDRESS, (uintptr_t)address);
  hipError_t result = xsi_hip_done(real(address, stream));
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
  if (!claims(&claim, bytes, NULL)) return XSI_HIP_OUT_OF_MEMORY;
  hipError_t result = real(handle, bytes, properties, flags);
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
  if (xsi_hip_enter() && result == XSI_HIP_SUCCESS && place_of(xsi_hip_current(), &place))
    xsi_memory_answer(place, free_bytes, total);
  return result;
}
XSI_HOOK(hipMemGetInfo)

hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device) {
  BEGIN(hipDeviceTotalMem, bytes, device);
  struct xsi_memory_place place;
  hipError_t result = xsi_hip_done(real(bytes, device));
  if (xsi_hip_enter() && result == XSI_HIP_SUCCESS && place_of(xsi_hip_context(device), &place))
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
