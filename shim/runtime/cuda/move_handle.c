// SPDX-License-Identifier: Apache-2.0
//
// Memory that the program creates and maps itself. Where movable memory is asked for, the program gets handles of
// ours. One that is mapped once and as a whole is a block, from when its own device may use it. What is exported, or
// mapped in another way, stays where it is.

#include "move.h"

#include <stdlib.h>

#include "core/fork.h"
#include "core/lock.h"

struct handle {
  struct xsi_cu_memory memory; // first: the block's properties
  struct handle *next;
  uint64_t bytes;
  uint32_t program;  // the program's references
  uint32_t mappings; // each may be a part, or the same once more
  bool fixed;
};

struct mapping {
  struct mapping *next;
  CUdeviceptr_v2 address;
  uint64_t bytes;
  struct handle *handle;
  bool block;
};

enum { BUCKETS = 4096 };
static XSI_FORK_STATE struct xsi_lock lock;
static XSI_FORK_STATE struct handle **handles;   // [BUCKETS]
static XSI_FORK_STATE struct mapping **mappings; // [BUCKETS], by the first granule

static void reset_in_child(void) {
  lock = (struct xsi_lock){0};
  handles = NULL;
  mappings = NULL;
}

// ---- tables, under the lock ----------------------------------------------------------------------

static bool prepare(void) {
  if (handles) return true;
  struct handle **one = calloc(BUCKETS, sizeof *one);
  struct mapping **two = calloc(BUCKETS, sizeof *two);
  if (!one || !two) {
    free(one);
    free(two);
    return false;
  }
  mappings = two;
  handles = one;
  xsi_at_fork_child(reset_in_child);
  __atomic_store_n(&xsi_cu_moves, true, __ATOMIC_SEQ_CST);
  return true;
}

static unsigned bucket(uint64_t key) { return (unsigned)((key * 0x9E3779B97F4A7C15ull) >> 52); }

static struct handle **find_handle(CUmemGenericAllocationHandle_v1 key) {
  struct handle **at = &handles[bucket(key)];
  while (*at && (uintptr_t)*at != key)
    at = &(*at)->next;
  return at;
}

static struct mapping **find_mapping(CUdeviceptr_v2 address) {
  struct mapping **at = &mappings[bucket(address / XSI_MOVE_GRANULE)];
  while (*at && (*at)->address != address)
    at = &(*at)->next;
  return at;
}

// One of ours that the program has, or NULL: the driver's.
static struct handle *ours(CUmemGenericAllocationHandle_v1 key, bool *stale) {
  struct handle *handle = handles ? *find_handle(key) : NULL;
  *stale = handle && handle->program == 0;
  return handle;
}

static struct handle *look(CUmemGenericAllocationHandle_v1 key, bool *stale) {
  xsi_lock_take(&lock);
  struct handle *handle = ours(key, stale);
  xsi_lock_give(&lock);
  return handle;
}

static void drop_if_unused(struct handle *handle) {
  if (handle->program > 0 || handle->mappings > 0) return;
  struct handle **at = find_handle((uintptr_t)handle);
  *at = handle->next;
}

// ---- handles -------------------------------------------------------------------------------------

static bool is_movable(const CUmemAllocationProp_v1 *properties) {
  return xsi_move_asked() && properties && properties->type == XSI_CU_PINNED &&
         properties->location.type == XSI_CU_LOCATION_DEVICE && properties->location.id >= 0 &&
         properties->location.id < XSI_CU_ORDINALS && !properties->win32;
}

CUresult xsi_cu_handle_create(CUmemGenericAllocationHandle_v1 *handle, size_t bytes,
                              const CUmemAllocationProp_v1 *properties, unsigned long long flags) {
  CUmemGenericAllocationHandle_v1 driver = 0;
  CUresult result = xsi_cu_call_real(cuMemCreate, handle, bytes, properties, flags);
  if (result != XSI_CU_SUCCESS || flags != 0 || !is_movable(properties)) return result;
  struct handle *made = calloc(1, sizeof *made);
  if (!made) return result;
  driver = *handle;
  *made = (struct handle){
      .memory = {.properties = *properties, .driver = driver}, .bytes = bytes, .program = 1};
  xsi_lock_take(&lock);
  bool kept = prepare();
  if (kept) {
    struct handle **at = &handles[bucket((uintptr_t)made)];
    made->next = *at;
    *at = made;
    *handle = (uintptr_t)made;
  }
  xsi_lock_give(&lock);
  if (!kept) free(made);
  return result;
}

CUresult xsi_cu_handle_release(CUmemGenericAllocationHandle_v1 key) {
  bool stale, last = false;
  xsi_lock_take(&lock);
  struct handle *handle = ours(key, &stale);
  if (handle && !stale) {
    handle->program--;
    drop_if_unused(handle);
    last = handle->program == 0 && handle->mappings == 0;
  }
  xsi_lock_give(&lock);
  if (!handle) return xsi_cu_call_real(cuMemRelease, key);
  if (stale) return XSI_CU_INVALID_VALUE;
  if (!last) return XSI_CU_SUCCESS;
  CUresult result = xsi_cu_call_real(cuMemRelease, handle->memory.driver);
  free(handle);
  return result;
}

// Under the lock: the mapping of ours that contains an address. Programs hardly ever ask.
static struct mapping *containing(CUdeviceptr_v2 address) {
  for (unsigned i = 0; mappings && i < BUCKETS; i++)
    for (struct mapping *at = mappings[i]; at; at = at->next)
      if (address - at->address < at->bytes) return at;
  return NULL;
}

CUresult xsi_cu_handle_retain(CUmemGenericAllocationHandle_v1 *handle, void *address) {
  struct xsi_block_view view;
  if (!handle || xsi_cu_backed((uintptr_t)address, &view)) return XSI_CU_INVALID_VALUE;
  xsi_lock_take(&lock);
  struct mapping *mapping = containing((uintptr_t)address);
  if (mapping) {
    mapping->handle->program++;
    *handle = (uintptr_t)mapping->handle;
  }
  xsi_lock_give(&lock);
  return mapping ? XSI_CU_SUCCESS : xsi_cu_call_real(cuMemRetainAllocationHandle, handle, address);
}

// The driver's handle of one of ours, for a call that keeps the memory where it is from then on.
static CUresult pinned(CUmemGenericAllocationHandle_v1 *key) {
  bool stale;
  struct handle *handle = look(*key, &stale);
  if (!handle) return XSI_CU_SUCCESS;
  if (stale) return XSI_CU_INVALID_VALUE;
  xsi_lock_take(&lock);
  handle->fixed = true;
  xsi_lock_give(&lock);
  *key = handle->memory.driver;
  CUdeviceptr_v2 at = 0;
  xsi_lock_take(&lock);
  for (unsigned i = 0; i < BUCKETS && !at; i++)
    for (struct mapping *m = mappings[i]; m; m = m->next)
      if (m->handle == handle && m->block) at = m->address;
  xsi_lock_give(&lock);
  if (at) xsi_block_fix(at, XSW_FIXED_EXPORTED);
  return XSI_CU_SUCCESS;
}

// ---- mappings ------------------------------------------------------------------------------------

static CUresult add_mapping(struct handle *handle, CUdeviceptr_v2 address, size_t bytes) {
  struct mapping *mapping = calloc(1, sizeof *mapping);
  if (!mapping) return XSI_CU_OUT_OF_MEMORY;
  *mapping = (struct mapping){NULL, address, bytes, handle, false};
  CUdeviceptr_v2 other = 0;
  xsi_lock_take(&lock);
  if (handle->mappings > 0 || bytes != handle->bytes) {
    handle->fixed = true;
    struct xsi_block_view view;
    for (unsigned i = 0; i < BUCKETS && !other; i++)
      for (struct mapping *m = mappings[i]; m; m = m->next)
        if (m->handle == handle && xsi_block_find(m->address, &view)) other = m->address;
  }
  handle->mappings++;
  struct mapping **at = &mappings[bucket(address / XSI_MOVE_GRANULE)];
  mapping->next = *at;
  *at = mapping;
  xsi_lock_give(&lock);
  if (other) xsi_block_fix(other, XSW_FIXED_EXPORTED);
  return XSI_CU_SUCCESS;
}

CUresult xsi_cu_handle_map(CUdeviceptr_v2 address, size_t bytes, size_t offset,
                           CUmemGenericAllocationHandle_v1 key, unsigned long long flags) {
  bool stale;
  struct handle *handle = look(key, &stale);
  if (stale) return XSI_CU_INVALID_VALUE;
  CUresult result = xsi_cu_call_real(cuMemMap, address, bytes, offset,
                                     handle ? handle->memory.driver : key, flags);
  if (!handle || result != XSI_CU_SUCCESS) return result;
  result = add_mapping(handle, address, bytes);
  if (result != XSI_CU_SUCCESS) xsi_cu_call_real(cuMemUnmap, address, bytes);
  return result;
}

// Takes the mappings in a range out of the table; their blocks are forgotten.
static struct mapping *take(CUdeviceptr_v2 address, size_t bytes) {
  struct mapping *list = NULL;
  struct xsi_block_view view;
  CUdeviceptr_v2 end = address + bytes;
  for (uint64_t step; mappings && address < end; address += step) {
    xsi_lock_take(&lock);
    struct mapping **at = find_mapping(address), *mapping = *at;
    if (mapping) {
      *at = mapping->next;
      mapping->next = list;
      list = mapping;
    }
    xsi_lock_give(&lock);
    step = mapping ? mapping->bytes : XSI_MOVE_GRANULE;
    if (mapping && mapping->block) xsi_block_forget(mapping->address, &view);
  }
  return list;
}

// The block's device, if the program has shown us a context of it.
static bool device_of(const struct handle *handle, struct xsi_move_device *device) {
  CUdevice_v1 current = -1;
  CUcontext context = xsi_cu_current();
  int ordinal = handle->memory.properties.location.id;
  if (context && xsi_cu_call_real(cuCtxGetDevice, &current) == XSI_CU_SUCCESS) {
    xsi_cu_move_context(context);
    if (current != ordinal) context = NULL;
  }
  *device = (struct xsi_move_device){.context = (uintptr_t)context, .ordinal = ordinal};
  return xsi_cu_place_of(ordinal, &device->place);
}

static void make_block(struct mapping *mapping) {
  struct handle *handle = mapping->handle;
  struct xsi_move_device device;
  uint64_t own = 1ull << handle->memory.properties.location.id;
  if (mapping->block || !(handle->memory.writers & own) || !device_of(handle, &device)) return;
  mapping->block =
      xsi_block_add(&xsi_cu_move_platform, &device, mapping->address, mapping->bytes,
                    handle->memory.driver, (uintptr_t)&handle->memory, device.context) == 0;
  if (mapping->block && handle->fixed) xsi_block_fix(mapping->address, XSW_FIXED_EXPORTED);
}

static void put_back(struct mapping *list) {
  while (list) {
    struct mapping *mapping = list;
    list = mapping->next;
    bool was_block = mapping->block;
    mapping->block = false;
    if (was_block) make_block(mapping);
    xsi_lock_take(&lock);
    struct mapping **at = &mappings[bucket(mapping->address / XSI_MOVE_GRANULE)];
    mapping->next = *at;
    *at = mapping;
    xsi_lock_give(&lock);
  }
}

CUresult xsi_cu_handle_unmap(CUdeviceptr_v2 address, size_t bytes) {
  struct xsi_block_view view;
  if (xsi_cu_backed(address, &view)) return XSI_CU_INVALID_VALUE;
  struct mapping *list = take(address, bytes);
  CUresult result = xsi_cu_call_real(cuMemUnmap, address, bytes);
  if (result != XSI_CU_SUCCESS) {
    put_back(list);
    return result;
  }
  while (list) {
    struct mapping *mapping = list;
    struct handle *handle = mapping->handle;
    list = mapping->next;
    xsi_lock_take(&lock);
    bool last = --handle->mappings == 0 && handle->program == 0;
    drop_if_unused(handle);
    xsi_lock_give(&lock);
    if (last) {
      xsi_cu_call_real(cuMemRelease, handle->memory.driver);
      free(handle);
    }
    free(mapping);
  }
  return XSI_CU_SUCCESS;
}

// ---- access --------------------------------------------------------------------------------------

static void note_access(struct handle *handle, const CUmemAccessDesc_v1 *list, size_t count) {
  struct xsi_cu_memory *memory = &handle->memory;
  for (size_t i = 0; i < count; i++) {
    int ordinal = list[i].location.id;
    if (list[i].location.type != XSI_CU_LOCATION_DEVICE || ordinal < 0 ||
        ordinal >= XSI_CU_ORDINALS) {
      handle->fixed = true; // we could not restore it
      continue;
    }
    uint64_t bit = 1ull << ordinal;
    memory->readers &= ~bit;
    memory->writers &= ~bit;
    if (list[i].flags == XSI_CU_ACCESS_BOTH) memory->writers |= bit;
    if (list[i].flags == XSI_CU_ACCESS_READ) memory->readers |= bit;
  }
}

static void changed(struct mapping *mapping) {
  struct xsi_block_view view;
  uint64_t own = 1ull << mapping->handle->memory.properties.location.id;
  make_block(mapping);
  if (mapping->block && !(mapping->handle->memory.writers & own))
    mapping->block = !xsi_block_forget(mapping->address, &view);
  if (mapping->block && mapping->handle->fixed) xsi_block_fix(mapping->address, XSW_FIXED_EXPORTED);
}

CUresult cuMemSetAccess(CUdeviceptr_v2 address, size_t bytes, const CUmemAccessDesc_v1 *list,
                        size_t count) {
  XSI_CU_REAL(cuMemSetAccess);
  xsi_cu_enter();
  if (!xsi_cu_memory_enter()) return real(address, bytes, list, count);
  struct xsi_block_view view;
  CUresult result =
      xsi_cu_backed(address, &view) ? XSI_CU_INVALID_VALUE : real(address, bytes, list, count);
  CUdeviceptr_v2 end = address + bytes;
  for (uint64_t step; result == XSI_CU_SUCCESS && mappings && address < end; address += step) {
    xsi_lock_take(&lock);
    struct mapping *mapping = *find_mapping(address);
    xsi_lock_give(&lock);
    step = mapping ? mapping->bytes : XSI_MOVE_GRANULE;
    if (!mapping) continue;
    if (step > end - address) mapping->handle->fixed = true; // a part of it
    note_access(mapping->handle, list, count);
    changed(mapping);
  }
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuMemSetAccess)

// ---- calls that take a handle --------------------------------------------------------------------

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp_v1 *properties,
                                                CUmemGenericAllocationHandle_v1 key) {
  XSI_CU_REAL(cuMemGetAllocationPropertiesFromHandle);
  bool stale;
  if (!xsi_cu_memory_enter()) return real(properties, key);
  struct handle *handle = look(key, &stale);
  CUresult result =
      stale ? XSI_CU_INVALID_VALUE : real(properties, handle ? handle->memory.driver : key);
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuMemGetAllocationPropertiesFromHandle)

// Others use the memory from then on, so it moves no more.
#define SHARED(key, ...)                                                                           \
  if (xsi_cu_enter()) xsi_work_never_batch();                                                      \
  bool inside = xsi_cu_memory_enter();                                                             \
  CUresult result = inside ? pinned(&(key)) : XSI_CU_SUCCESS;                                      \
  if (result == XSI_CU_SUCCESS) result = real(__VA_ARGS__);                                        \
  if (inside) xsi_move_leave();                                                                    \
  return result

#define SHARED_RANGE(address, bytes, ...)                                                          \
  if (xsi_cu_enter()) xsi_work_never_batch();                                                      \
  bool inside = xsi_cu_memory_enter();                                                             \
  if (inside) xsi_cu_export(address, bytes);                                                       \
  CUresult result = real(__VA_ARGS__);                                                             \
  if (inside) xsi_move_leave();                                                                    \
  return result

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle_v1 handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  XSI_CU_REAL(cuMemExportToShareableHandle);
  SHARED(handle, out, handle, type, flags);
}
XSI_HOOK(cuMemExportToShareableHandle)

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle_v1 many, size_t at,
                            CUmemGenericAllocationHandle_v1 handle, size_t offset, size_t bytes,
                            unsigned long long flags) {
  XSI_CU_REAL(cuMulticastBindMem);
  SHARED(handle, many, at, handle, offset, bytes, flags);
}
XSI_HOOK(cuMulticastBindMem)

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle_v1 many, CUdevice_v1 device, size_t at,
                               CUmemGenericAllocationHandle_v1 handle, size_t offset, size_t bytes,
                               unsigned long long flags) {
  XSI_CU_REAL(cuMulticastBindMem_v2);
  SHARED(handle, many, device, at, handle, offset, bytes, flags);
}
XSI_HOOK(cuMulticastBindMem_v2)

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice_v1 device, cuuint64_t at,
                                  CUmemGenericAllocationHandle_v1 handle, cuuint64_t offset,
                                  cuuint64_t bytes, unsigned long long flags) {
  XSI_CU_REAL(cuLogicalEndpointBindMem);
  SHARED(handle, id, device, at, handle, offset, bytes, flags);
}
XSI_HOOK(cuLogicalEndpointBindMem)

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle_v1 many, size_t at,
                             CUdeviceptr_v2 address, size_t bytes, unsigned long long flags) {
  XSI_CU_REAL(cuMulticastBindAddr);
  SHARED_RANGE(address, bytes, many, at, address, bytes, flags);
}
XSI_HOOK(cuMulticastBindAddr)

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle_v1 many, CUdevice_v1 device, size_t at,
                                CUdeviceptr_v2 address, size_t bytes, unsigned long long flags) {
  XSI_CU_REAL(cuMulticastBindAddr_v2);
  SHARED_RANGE(address, bytes, many, device, at, address, bytes, flags);
}
XSI_HOOK(cuMulticastBindAddr_v2)

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice_v1 device, cuuint64_t at,
                                   void *address, cuuint64_t bytes, unsigned long long flags) {
  XSI_CU_REAL(cuLogicalEndpointBindAddr);
  SHARED_RANGE((uintptr_t)address, bytes, id, device, at, address, bytes, flags);
}
XSI_HOOK(cuLogicalEndpointBindAddr)

static CUresult map_arrays(__typeof__(&cuMemMapArrayAsync) real, CUarrayMapInfo_v1 *list,
                           unsigned count, CUstream stream) {
  xsi_cu_enter();
  if (!xsi_cu_memory_enter()) return real(list, count, stream);
  CUresult result = XSI_CU_SUCCESS;
  CUarrayMapInfo_v1 *own = list ? calloc(count ? count : 1, sizeof *own) : NULL;
  for (unsigned i = 0; own && i < count && result == XSI_CU_SUCCESS; i++) {
    own[i] = list[i];
    result = pinned(&own[i].handle);
  }
  if (result == XSI_CU_SUCCESS) result = real(own ? own : list, count, stream);
  free(own);
  xsi_move_leave();
  return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo_v1 *list, unsigned count, CUstream stream) {
  XSI_CU_REAL(cuMemMapArrayAsync);
  return map_arrays(real, list, count, stream);
}
XSI_HOOK(cuMemMapArrayAsync)

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo_v1 *list, unsigned count, CUstream stream) {
  XSI_CU_REAL(cuMemMapArrayAsync_ptsz);
  return map_arrays(real, list, count, stream);
}
XSI_HOOK(cuMemMapArrayAsync_ptsz)
