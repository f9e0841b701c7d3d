// SPDX-License-Identifier: Apache-2.0
//
// Entry points that allocate and free device memory, or ask how much there is. core/memory.h has the account.
// Memory of others (imports, IPC) and of graph nodes is not counted. A pool's memory counts while the program
// has it.

#include "core/memory.h"
#include "move.h"
#include "runtime/pci.h"

#define ORDINALS XSI_CU_ORDINALS

// ---- where ---------------------------------------------------------------------------------------

static struct {
  int state; // atomic; 0: unknown, 1: known
  struct xsi_memory_place place;
} places[ORDINALS];

bool xsi_cu_place_of(CUdevice_v1 ordinal, struct xsi_memory_place *place) {
  if (ordinal < 0 || ordinal >= ORDINALS) return false;
  if (__atomic_load_n(&places[ordinal].state, __ATOMIC_ACQUIRE) == 1) {
    *place = places[ordinal].place;
    return true;
  }
  char name[32] = "";
  if (xsi_cu_call_real(cuDeviceGetPCIBusId, name, (int)sizeof name - 1, ordinal) !=
          XSI_CU_SUCCESS ||
      xsi_pci_parse(name, &place->pci_domain, &place->pci_bus_slot) != 0)
    return false;
  __atomic_store_n(&places[ordinal].place.pci_domain, place->pci_domain, __ATOMIC_RELAXED);
  __atomic_store_n(&places[ordinal].place.pci_bus_slot, place->pci_bus_slot, __ATOMIC_RELAXED);
  __atomic_store_n(&places[ordinal].state, 1, __ATOMIC_RELEASE);
  return true;
}

static bool current_device(struct xsi_move_device *device) {
  *device = (struct xsi_move_device){0};
  return xsi_cu_call_real(cuCtxGetDevice, &device->ordinal) == XSI_CU_SUCCESS &&
         xsi_cu_place_of(device->ordinal, &device->place);
}

// ---- claims --------------------------------------------------------------------------------------

struct claim {
  struct xsi_memory_claim claim;
  struct xsi_move_device device; // and the context
  bool placed;                   // the device is known
};

// False: out of memory. Without a context, the driver says what is wrong.
static bool claims(struct claim *claim, uint64_t bytes, enum xsw_fixed why) {
  *claim = (struct claim){.claim = {-1, bytes, (int)why}};
  if (!xsi_cu_enter() || !current_device(&claim->device)) return true;
  claim->placed = true;
  uintptr_t context = claim->device.context = (uintptr_t)xsi_cu_current();
  // Whoever allocates uses the context: the daemon learns of it, and says what the quota is.
  if (__atomic_load_n(&xsi_work_hot.only, __ATOMIC_ACQUIRE) != context)
    xsi_work_context_seen(&xsi_cu_platform, context);
  bool fits = xsi_memory_claim(&claim->claim, claim->device.place, bytes);
  claim->claim.fixed = (int)why;
  return fits;
}

// A stream of its own may be in another context than the current one.
static bool claims_in(struct claim *claim, uint64_t bytes, CUstream stream) {
  CUcontext context = NULL, before;
  bool pushed = (uintptr_t)stream > XSI_WORK_THREAD && xsi_cu_active() &&
                xsi_cu_call_real(cuStreamGetCtx, stream, &context) == XSI_CU_SUCCESS && context &&
                context != xsi_cu_current() &&
                xsi_cu_call_real(cuCtxPushCurrent_v2, context) == XSI_CU_SUCCESS;
  bool fits = claims(claim, bytes, XSW_FIXED_POOL);
  if (pushed) xsi_cu_call_real(cuCtxPopCurrent_v2, &before);
  return fits;
}

static CUresult settle(const struct claim *claim, CUresult result, enum xsi_memory_kind kind,
                       uint64_t key) {
  xsi_memory_settle(&claim->claim, result == XSI_CU_SUCCESS, kind, key, claim->device.context);
  return result;
}

// The device had no room, although the quota has: the daemon may make some.
static bool tries_again(struct xsi_move_want *want, const struct claim *claim) {
  size_t room = 0, total = 0;
  if (!claim->placed || xsi_cu_call_real(cuMemGetInfo_v2, &room, &total) != XSI_CU_SUCCESS ||
      claim->claim.bytes > total)
    return false;
  return xsi_move_wants(want, claim->device.place, claim->claim.bytes, room);
}

// A call that allocates: no move meanwhile, and again while room is being made.
#define TAKES(claim, call)                                                                         \
  ({                                                                                               \
    struct xsi_move_want want_ = {0};                                                              \
    CUresult took_;                                                                                \
    do {                                                                                           \
      xsi_move_enter();                                                                            \
      took_ = (call);                                                                              \
      xsi_move_leave();                                                                            \
    } while (XSI_UNLIKELY(took_ == XSI_CU_OUT_OF_MEMORY) && tries_again(&want_, claim));           \
    xsi_move_wanted(&want_);                                                                       \
    took_;                                                                                         \
  })

// ---- addresses -----------------------------------------------------------------------------------

#define AT(address) ((address) ? *(address) : 0)

// True: *result is the allocation's. False: the driver shall allocate.
static bool backs(struct claim *claim, CUdeviceptr_v2 *address, uint64_t bytes, CUresult *result) {
  enum xsw_fixed why = XSW_FIXED_NOT_ASKED;
  enum xsi_cu_backed backed = XSI_CU_NOT_BACKED;
  if (xsi_move_asked() && claim->placed && address) {
    why = XSW_FIXED_SMALL;
    if (bytes >= XSI_MOVE_GRANULE) backed = xsi_cu_back(&claim->device, address, bytes, &why);
  }
  claim->claim.fixed = backed == XSI_CU_BACKED ? XSI_MEMORY_MOVABLE : (int)why;
  *result = backed == XSI_CU_BACKED ? XSI_CU_SUCCESS : XSI_CU_OUT_OF_MEMORY;
  return backed != XSI_CU_NOT_BACKED;
}

static CUresult alloc(__typeof__(&cuMemAlloc_v2) real, struct claim *claim, CUdeviceptr_v2 *address,
                      size_t bytes) {
  CUresult result;
  return backs(claim, address, bytes, &result) ? result : real(address, bytes);
}

CUresult cuMemAlloc_v2(CUdeviceptr_v2 *address, size_t bytes) {
  XSI_CU_REAL(cuMemAlloc_v2);
  struct claim claim;
  if (!claims(&claim, bytes, XSW_FIXED_NOT_ASKED)) return XSI_CU_OUT_OF_MEMORY;
  CUresult result = TAKES(&claim, alloc(real, &claim, address, bytes));
  return settle(&claim, result, XSI_MEMORY_ADDRESS, AT(address));
}
XSI_HOOK(cuMemAlloc_v2)

CUresult cuMemAllocManaged(CUdeviceptr_v2 *address, size_t bytes, unsigned flags) {
  XSI_CU_REAL(cuMemAllocManaged);
  struct claim claim;
  if (!claims(&claim, bytes, XSW_FIXED_MANAGED)) return XSI_CU_OUT_OF_MEMORY;
  CUresult result = TAKES(&claim, real(address, bytes, flags));
  return settle(&claim, result, XSI_MEMORY_ADDRESS, AT(address));
}
XSI_HOOK(cuMemAllocManaged)

// How far apart the rows are is a property of the device, and depends on the width alone.
static size_t row_of(int ordinal, size_t width, __typeof__(&cuMemAllocPitch_v2) real) {
  static size_t units[ORDINALS]; // atomic
  size_t unit = __atomic_load_n(&units[ordinal], __ATOMIC_RELAXED);
  CUdeviceptr_v2 kept; // freeing it would wait for the device
  if (unit == 0) {
    if (real(&kept, &unit, 1, 1, 4) != XSI_CU_SUCCESS) return 0;
    __atomic_store_n(&units[ordinal], unit, __ATOMIC_RELAXED);
  }
  return xsi_memory_product((width + unit - 1) / unit, unit);
}

static CUresult alloc_pitch(__typeof__(&cuMemAllocPitch_v2) real, struct claim *claim,
                            CUdeviceptr_v2 *address, size_t *pitch, size_t width, size_t height,
                            unsigned element) {
  CUresult result;
  bool sound = pitch && width && height && (element == 4 || element == 8 || element == 16);
  if (sound && xsi_move_asked() && claim->placed) {
    size_t row = row_of(claim->device.ordinal, width, real);
    if (row && backs(claim, address, xsi_memory_product(row, height), &result)) {
      if (result == XSI_CU_SUCCESS) *pitch = row;
      return result;
    }
  }
  return real(address, pitch, width, height, element);
}

// The driver says afterwards how far apart rows are.
CUresult cuMemAllocPitch_v2(CUdeviceptr_v2 *address, size_t *pitch, size_t width, size_t height,
                            unsigned element) {
  XSI_CU_REAL(cuMemAllocPitch_v2);
  struct claim claim;
  if (!claims(&claim, xsi_memory_product(width, height), XSW_FIXED_NOT_ASKED))
    return XSI_CU_OUT_OF_MEMORY;
  CUresult result =
      TAKES(&claim, alloc_pitch(real, &claim, address, pitch, width, height, element));
  if (result == XSI_CU_SUCCESS && pitch)
    xsi_memory_grow(&claim.claim, xsi_memory_product(*pitch, height));
  return settle(&claim, result, XSI_MEMORY_ADDRESS, AT(address));
}
XSI_HOOK(cuMemAllocPitch_v2)

static CUresult alloc_async(__typeof__(&cuMemAllocAsync) real, CUdeviceptr_v2 *address,
                            size_t bytes, CUstream stream) {
  struct claim claim;
  if (!claims_in(&claim, bytes, stream)) return XSI_CU_OUT_OF_MEMORY;
  CUresult result = TAKES(&claim, real(address, bytes, stream));
  return settle(&claim, result, XSI_MEMORY_ADDRESS, AT(address));
}

CUresult cuMemAllocAsync(CUdeviceptr_v2 *address, size_t bytes, CUstream stream) {
  XSI_CU_REAL(cuMemAllocAsync);
  return alloc_async(real, address, bytes, stream);
}
XSI_HOOK(cuMemAllocAsync)

CUresult cuMemAllocAsync_ptsz(CUdeviceptr_v2 *address, size_t bytes, CUstream stream) {
  XSI_CU_REAL(cuMemAllocAsync_ptsz);
  return alloc_async(real, address, bytes, stream);
}
XSI_HOOK(cuMemAllocAsync_ptsz)

static CUresult alloc_from_pool(__typeof__(&cuMemAllocFromPoolAsync) real, CUdeviceptr_v2 *address,
                                size_t bytes, CUmemoryPool pool, CUstream stream) {
  struct claim claim;
  if (!claims_in(&claim, bytes, stream)) return XSI_CU_OUT_OF_MEMORY;
  CUresult result = TAKES(&claim, real(address, bytes, pool, stream));
  return settle(&claim, result, XSI_MEMORY_ADDRESS, AT(address));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr_v2 *address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  XSI_CU_REAL(cuMemAllocFromPoolAsync);
  return alloc_from_pool(real, address, bytes, pool, stream);
}
XSI_HOOK(cuMemAllocFromPoolAsync)

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr_v2 *address, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
  XSI_CU_REAL(cuMemAllocFromPoolAsync_ptsz);
  return alloc_from_pool(real, address, bytes, pool, stream);
}
XSI_HOOK(cuMemAllocFromPoolAsync_ptsz)

CUresult cuMemFree_v2(CUdeviceptr_v2 address) {
  XSI_CU_REAL(cuMemFree_v2);
  if (!xsi_cu_enter()) return real(address);
  struct xsi_memory_entry *entry = xsi_memory_detach(XSI_MEMORY_ADDRESS, address);
  CUresult result;
  xsi_move_enter_to_free();
  if (!xsi_cu_unback(address, &result)) result = real(address);
  xsi_move_leave();
  xsi_memory_detached(entry, result == XSI_CU_SUCCESS);
  return result;
}
XSI_HOOK(cuMemFree_v2)

static CUresult free_async(__typeof__(&cuMemFreeAsync) real, CUdeviceptr_v2 address,
                           CUstream stream) {
  if (!xsi_cu_enter()) return real(address, stream);
  struct xsi_memory_entry *entry = xsi_memory_detach(XSI_MEMORY_ADDRESS, address);
  CUresult result;
  xsi_move_enter_to_free();
  if (!xsi_cu_unback_behind(address, stream, &result)) result = real(address, stream);
  xsi_move_leave();
  xsi_memory_detached(entry, result == XSI_CU_SUCCESS);
  return result;
}

CUresult cuMemFreeAsync(CUdeviceptr_v2 address, CUstream stream) {
  XSI_CU_REAL(cuMemFreeAsync);
  return free_async(real, address, stream);
}
XSI_HOOK(cuMemFreeAsync)

CUresult cuMemFreeAsync_ptsz(CUdeviceptr_v2 address, CUstream stream) {
  XSI_CU_REAL(cuMemFreeAsync_ptsz);
  return free_async(real, address, stream);
}
XSI_HOOK(cuMemFreeAsync_ptsz)

// ---- handles and mappings: they belong to no context ---------------------------------------------

// Memory on the host is not counted.
CUresult cuMemCreate(CUmemGenericAllocationHandle_v1 *handle, size_t bytes,
                     const CUmemAllocationProp_v1 *properties, unsigned long long flags) {
  XSI_CU_REAL(cuMemCreate);
  struct claim claim = {.claim = {-1, bytes, XSW_FIXED_NOT_ASKED}};
  if (!xsi_cu_enter() || !handle) return real(handle, bytes, properties, flags);
  if (properties && properties->location.type == XSI_CU_LOCATION_DEVICE &&
      xsi_cu_place_of(properties->location.id, &claim.device.place)) {
    claim.placed = true;
    if (!xsi_memory_claim(&claim.claim, claim.device.place, bytes)) return XSI_CU_OUT_OF_MEMORY;
    claim.claim.fixed = xsi_move_asked() ? XSI_MEMORY_MOVABLE : XSW_FIXED_NOT_ASKED;
  }
  CUresult result = TAKES(&claim, xsi_cu_handle_create(handle, bytes, properties, flags));
  return settle(&claim, result, XSI_MEMORY_HANDLE, AT(handle));
}
XSI_HOOK(cuMemCreate)

CUresult cuMemRelease(CUmemGenericAllocationHandle_v1 handle) {
  XSI_CU_REAL(cuMemRelease);
  if (!xsi_cu_enter()) return real(handle);
  struct xsi_memory_release release;
  xsi_memory_release(&release, handle);
  xsi_move_enter();
  CUresult result = xsi_cu_handle_release(handle);
  xsi_move_leave();
  xsi_memory_released(&release, result == XSI_CU_SUCCESS);
  return result;
}
XSI_HOOK(cuMemRelease)

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle_v1 *handle, void *address) {
  XSI_CU_REAL(cuMemRetainAllocationHandle);
  if (!xsi_cu_enter_submit()) return real(handle, address);
  xsi_move_enter();
  CUresult result = xsi_cu_handle_retain(handle, address);
  xsi_move_leave();
  if (result == XSI_CU_SUCCESS && handle) xsi_memory_retained(*handle);
  return result;
}
XSI_HOOK(cuMemRetainAllocationHandle)

CUresult cuMemMap(CUdeviceptr_v2 address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle_v1 handle, unsigned long long flags) {
  XSI_CU_REAL(cuMemMap);
  if (!xsi_cu_enter()) return real(address, bytes, offset, handle, flags);
  xsi_move_enter();
  CUresult result = xsi_cu_handle_map(address, bytes, offset, handle, flags);
  xsi_move_leave();
  if (result == XSI_CU_SUCCESS) xsi_memory_mapped(address, bytes, handle);
  return result;
}
XSI_HOOK(cuMemMap)

CUresult cuMemUnmap(CUdeviceptr_v2 address, size_t bytes) {
  XSI_CU_REAL(cuMemUnmap);
  if (!xsi_cu_enter()) return real(address, bytes);
  struct xsi_memory_entry *list = xsi_memory_unmap(address, bytes);
  xsi_move_enter();
  CUresult result = xsi_cu_handle_unmap(address, bytes);
  xsi_move_leave();
  xsi_memory_unmapped(list, result == XSI_CU_SUCCESS);
  return result;
}
XSI_HOOK(cuMemUnmap)

// ---- arrays --------------------------------------------------------------------------------------

// Bytes of one channel; formats that compress have at most one.
static uint64_t channel_bytes(int format) {
  switch (format) {
  case XSI_CU_FORMAT_U16:
  case XSI_CU_FORMAT_S16:
  case XSI_CU_FORMAT_HALF: return 2;
  case XSI_CU_FORMAT_U32:
  case XSI_CU_FORMAT_S32:
  case XSI_CU_FORMAT_FLOAT: return 4;
  default: return 1;
  }
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v2 *d, unsigned level) {
  uint64_t width = d->Width >> level, height = d->Height >> level, depth = d->Depth >> level;
  uint64_t element = channel_bytes(d->Format) * d->NumChannels;
  uint64_t rows = xsi_memory_product(height ? height : 1, depth ? depth : 1);
  return xsi_memory_product(xsi_memory_product(width ? width : 1, rows), element);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v2 *descriptor) {
  XSI_CU_REAL(cuArrayCreate_v2);
  CUDA_ARRAY3D_DESCRIPTOR_v2 all = {0};
  if (descriptor)
    all = (CUDA_ARRAY3D_DESCRIPTOR_v2){descriptor->Width,  descriptor->Height,      0,
                                       descriptor->Format, descriptor->NumChannels, 0};
  struct claim claim;
  if (!claims(&claim, array_bytes(&all, 0), XSW_FIXED_ARRAY)) return XSI_CU_OUT_OF_MEMORY;
  CUresult result = TAKES(&claim, real(array, descriptor));
  return settle(&claim, result, XSI_MEMORY_OBJECT, (uintptr_t)AT(array));
}
XSI_HOOK(cuArrayCreate_v2)

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor) {
  XSI_CU_REAL(cuArray3DCreate_v2);
  struct claim claim;
  if (!claims(&claim, descriptor ? array_bytes(descriptor, 0) : 0, XSW_FIXED_ARRAY))
    return XSI_CU_OUT_OF_MEMORY;
  CUresult result = TAKES(&claim, real(array, descriptor));
  return settle(&claim, result, XSI_MEMORY_OBJECT, (uintptr_t)AT(array));
}
XSI_HOOK(cuArray3DCreate_v2)

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor, unsigned levels) {
  XSI_CU_REAL(cuMipmappedArrayCreate);
  uint64_t bytes = 0;
  for (unsigned i = 0; descriptor && i < levels && i < 32; i++)
    if (__builtin_add_overflow(bytes, array_bytes(descriptor, i), &bytes)) bytes = UINT64_MAX / 2;
  struct claim claim;
  if (!claims(&claim, bytes, XSW_FIXED_ARRAY)) return XSI_CU_OUT_OF_MEMORY;
  CUresult result = TAKES(&claim, real(array, descriptor, levels));
  return settle(&claim, result, XSI_MEMORY_OBJECT, (uintptr_t)AT(array));
}
XSI_HOOK(cuMipmappedArrayCreate)

CUresult cuArrayDestroy(CUarray array) {
  XSI_CU_REAL(cuArrayDestroy);
  if (!xsi_cu_enter()) return real(array);
  struct xsi_memory_entry *entry = xsi_memory_detach(XSI_MEMORY_OBJECT, (uintptr_t)array);
  CUresult result = real(array);
  xsi_memory_detached(entry, result == XSI_CU_SUCCESS);
  return result;
}
XSI_HOOK(cuArrayDestroy)

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  XSI_CU_REAL(cuMipmappedArrayDestroy);
  if (!xsi_cu_enter()) return real(array);
  struct xsi_memory_entry *entry = xsi_memory_detach(XSI_MEMORY_OBJECT, (uintptr_t)array);
  CUresult result = real(array);
  xsi_memory_detached(entry, result == XSI_CU_SUCCESS);
  return result;
}
XSI_HOOK(cuMipmappedArrayDestroy)

// ---- questions: they return at once ----------------------------------------------------------------

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  XSI_CU_REAL(cuMemGetInfo_v2);
  CUresult result = real(free_bytes, total);
  struct xsi_move_device device;
  if (xsi_cu_enter_submit() && result == XSI_CU_SUCCESS && current_device(&device))
    xsi_memory_answer(device.place, free_bytes, total);
  return result;
}
XSI_HOOK(cuMemGetInfo_v2)

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice_v1 device) {
  XSI_CU_REAL(cuDeviceTotalMem_v2);
  CUresult result = real(bytes, device);
  struct xsi_memory_place place;
  if (xsi_cu_enter_submit() && result == XSI_CU_SUCCESS && xsi_cu_place_of(device, &place))
    xsi_memory_answer(place, NULL, bytes);
  return result;
}
XSI_HOOK(cuDeviceTotalMem_v2)
