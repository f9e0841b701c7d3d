/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver that knows which addresses are reserved, which memory is created, what is mapped where, and for whom. An
 * exported handle is a descriptor that has its number.
 */
#ifndef XSCHED_TEST_FAKE_MAPS_H
#define XSCHED_TEST_FAKE_MAPS_H

#include "test_fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/memory.h"
#include "move.h"

#define MIB (1ull << 20)
#define BASE 0x7000000000ull
enum { GRANULES = 4096, HANDLES = 512 };

static struct {
  int handle; // 0: not mapped
  bool first; // of its mapping
  uint64_t readers, writers;
} granules[GRANULES];
static bool reserved[GRANULES];
static struct {
  uint64_t bytes;
  int references, mappings;
} made[HANDLES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t room; // bytes that can be created
static int map_result, access_result;
static int synchronized, plain_allocs, plain_frees; // atomic
static CUcontext second;                            // on device 5
static bool all_second;                             // as are all others

static unsigned granule(CUdeviceptr_v2 address) { return (unsigned)((address - BASE) >> 21); }

static CUresult reserve(CUdeviceptr_v2 *address, size_t bytes, size_t alignment,
                        CUdeviceptr_v2 wanted, unsigned long long flags) {
  (void)alignment, (void)wanted, (void)flags;
  unsigned count = (unsigned)(bytes >> 21), run = 0;
  CHECK(bytes % XSI_MOVE_GRANULE == 0);
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < GRANULES && run < count; i++) {
    run = reserved[i] ? 0 : run + 1;
    if (run < count) continue;
    for (unsigned j = i + 1 - count; j <= i; j++)
      reserved[j] = true;
    *address = BASE + ((uint64_t)(i + 1 - count) << 21);
  }
  pthread_mutex_unlock(&lock);
  return run == count ? 0 : XSI_CU_OUT_OF_MEMORY;
}
static CUresult unreserve(CUdeviceptr_v2 address, size_t bytes) {
  pthread_mutex_lock(&lock);
  for (unsigned i = granule(address); i < granule(address + bytes); i++) {
    CHECK(reserved[i] && granules[i].handle == 0);
    reserved[i] = false;
  }
  pthread_mutex_unlock(&lock);
  return 0;
}
static CUresult create(CUmemGenericAllocationHandle_v1 *handle, size_t bytes,
                       const CUmemAllocationProp_v1 *properties, unsigned long long flags) {
  CHECK(properties->type == XSI_CU_PINNED && flags == 0);
  static int last; // the next one has another number
  CUresult result = XSI_CU_OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  for (int n = 1; n < HANDLES && result != 0 && bytes <= room; n++) {
    int i = last = last % (HANDLES - 1) + 1;
    if (made[i].references || made[i].mappings) continue;
    made[i].bytes = bytes;
    made[i].references = 1;
    room -= bytes;
    *handle = (CUmemGenericAllocationHandle_v1)i;
    result = 0;
  }
  pthread_mutex_unlock(&lock);
  return result;
}
static void drop(int handle) {
  if (made[handle].references == 0 && made[handle].mappings == 0) room += made[handle].bytes;
}
static CUresult release(CUmemGenericAllocationHandle_v1 handle) {
  if (handle >= HANDLES || made[handle].references == 0) return XSI_CU_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  made[handle].references--;
  drop((int)handle);
  pthread_mutex_unlock(&lock);
  return 0;
}
static CUresult map(CUdeviceptr_v2 address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle_v1 handle, unsigned long long flags) {
  if (map_result) return map_result;
  if (handle >= HANDLES || made[handle].references == 0 || offset || flags)
    return XSI_CU_INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (unsigned i = granule(address); i < granule(address + bytes); i++) {
    CHECK(reserved[i] && granules[i].handle == 0);
    granules[i].handle = (int)handle;
    granules[i].readers = granules[i].writers = 0;
    granules[i].first = i == granule(address);
  }
  made[handle].mappings++;
  pthread_mutex_unlock(&lock);
  return 0;
}
static CUresult unmap(CUdeviceptr_v2 address, size_t bytes) {
  pthread_mutex_lock(&lock);
  bool whole = true;
  for (unsigned i = granule(address); i < granule(address + bytes); i++)
    whole = whole && granules[i].handle != 0;
  for (unsigned i = granule(address); whole && i < granule(address + bytes); i++) {
    if (granules[i].first) {
      made[granules[i].handle].mappings--;
      drop(granules[i].handle);
    }
    granules[i].handle = 0;
  }
  pthread_mutex_unlock(&lock);
  return whole ? 0 : XSI_CU_INVALID_VALUE;
}
static CUresult set_access(CUdeviceptr_v2 address, size_t bytes, const CUmemAccessDesc_v1 *list,
                           size_t count) {
  if (access_result) return access_result;
  pthread_mutex_lock(&lock);
  for (unsigned i = granule(address); i < granule(address + bytes); i++)
    for (size_t j = 0; j < count; j++) {
      uint64_t bit = 1ull << list[j].location.id;
      CHECK(granules[i].handle != 0 && list[j].location.type == XSI_CU_LOCATION_DEVICE);
      granules[i].readers &= ~bit;
      granules[i].writers &= ~bit;
      if (list[j].flags == XSI_CU_ACCESS_READ) granules[i].readers |= bit;
      if (list[j].flags == XSI_CU_ACCESS_BOTH) granules[i].writers |= bit;
    }
  pthread_mutex_unlock(&lock);
  return 0;
}
static CUresult properties_of(CUmemAllocationProp_v1 *properties,
                              CUmemGenericAllocationHandle_v1 handle) {
  if (handle >= HANDLES || made[handle].references == 0) return XSI_CU_INVALID_VALUE;
  *properties = (CUmemAllocationProp_v1){.type = (int)handle};
  return 0;
}
static CUresult export(void *out, CUmemGenericAllocationHandle_v1 handle, int type,
                       unsigned long long flags) {
  (void)type, (void)flags;
  if (handle >= HANDLES || made[handle].references == 0) return XSI_CU_INVALID_VALUE;
  int fd = memfd_create("handle", 0), number = (int)handle;
  CHECK(fd >= 0 && pwrite(fd, &number, sizeof number, 0) == sizeof number);
  *(int *)out = fd;
  return 0;
}
static int imported; // the number that the last one had where it was exported
static CUresult create(CUmemGenericAllocationHandle_v1 *handle, size_t bytes,
                       const CUmemAllocationProp_v1 *properties, unsigned long long flags);
static CUresult import(CUmemGenericAllocationHandle_v1 *handle, void *fd, int type) {
  CUmemAllocationProp_v1 any = {.type = XSI_CU_PINNED};
  CHECK(type == XSI_CU_HANDLE_POSIX);
  CHECK(pread((int)(intptr_t)fd, &imported, sizeof imported, 0) == sizeof imported);
  return create(handle, 0, &any, 0);
}
static CUresult plain_alloc(CUdeviceptr_v2 *address, size_t bytes) {
  (void)bytes;
  *address = 64ull * (uint64_t)__atomic_add_fetch(&plain_allocs, 1, __ATOMIC_SEQ_CST);
  return 0;
}
static CUresult plain_free(CUdeviceptr_v2 address) {
  if (address > 64ull * (uint64_t)plain_allocs || address % 64) return XSI_CU_INVALID_VALUE;
  __atomic_add_fetch(&plain_frees, 1, __ATOMIC_SEQ_CST);
  return 0;
}
static CUresult plain_pitch(CUdeviceptr_v2 *address, size_t *pitch, size_t width, size_t height,
                            unsigned element) {
  (void)height, (void)element;
  *pitch = (width + 511) / 512 * 512;
  return plain_alloc(address, 0);
}
static CUresult info(size_t *free_bytes, size_t *total) {
  *free_bytes = room;
  *total = 1ull << 40;
  return 0;
}
static CUresult synchronize(void) {
  __atomic_add_fetch(&synchronized, 1, __ATOMIC_SEQ_CST);
  return 0;
}
static CUresult device(CUdevice_v1 *ordinal) {
  CUcontext current;
  CHECK(xsi_cu_call_real(cuCtxGetCurrent, &current) == 0);
  *ordinal = current == second || all_second ? 5 : 3;
  return 0;
}
static CUresult pci(char *name, int bytes, CUdevice_v1 ordinal) {
  snprintf(name, (size_t)bytes, "0000:3B:01.%d", ordinal);
  return 0;
}
static CUresult attribute(int *value, int which, CUdevice_v1 ordinal) {
  (void)which, (void)ordinal;
  *value = 1;
  return 0;
}
static CUresult peer(CUcontext context, unsigned flags) {
  (void)context, (void)flags;
  return 0;
}
static CUresult no_peer(CUcontext context) {
  (void)context;
  return 0;
}
static CUresult pointer(void *data, CUpointer_attribute which, CUdeviceptr_v2 address) {
  (void)address;
  if (which != XSI_CU_POINTER_MEMORY_TYPE) return 801;
  *(int *)data = XSI_CU_MEMORY_DEVICE;
  return 0;
}
static CUresult range(CUdeviceptr_v2 *base, size_t *bytes, CUdeviceptr_v2 address) {
  (void)base, (void)bytes, (void)address;
  return XSI_CU_NOT_FOUND;
}

static int copies; // each with access to what it copies
static CUresult copy(CUdeviceptr_v2 address) {
  CHECK(granules[granule(address)].handle != 0 && granules[granule(address)].writers != 0);
  copies++;
  return 0;
}
static CUresult copy_out(void *to, CUdeviceptr_v2 from, size_t bytes, CUstream stream) {
  (void)to, (void)bytes, (void)stream;
  return copy(from);
}
static CUresult copy_in(CUdeviceptr_v2 to, const void *from, size_t bytes, CUstream stream) {
  (void)from, (void)bytes, (void)stream;
  return copy(to);
}

static CUresult not_mine(void) { return XSI_CU_INVALID_VALUE; }

static void install(void) {
  fake_install();
#define BIND(symbol, function) xsi_cu_real[XSI_CU_##symbol] = (void *)(function)
  BIND(cuMemAddressReserve, reserve);
  BIND(cuMemAddressFree, unreserve);
  BIND(cuMemCreate, create);
  BIND(cuMemRelease, release);
  BIND(cuMemMap, map);
  BIND(cuMemUnmap, unmap);
  BIND(cuMemSetAccess, set_access);
  BIND(cuMemGetAllocationPropertiesFromHandle, properties_of);
  BIND(cuMemExportToShareableHandle, export);
  BIND(cuMemImportFromShareableHandle, import);
  BIND(cuIpcGetMemHandle, not_mine);
  BIND(cuIpcOpenMemHandle_v2, not_mine);
  BIND(cuIpcCloseMemHandle, not_mine);
  BIND(cuMemAlloc_v2, plain_alloc);
  BIND(cuMemAllocPitch_v2, plain_pitch);
  BIND(cuMemFree_v2, plain_free);
  BIND(cuMemGetInfo_v2, info);
  BIND(cuCtxSynchronize, synchronize);
  BIND(cuCtxGetDevice, device);
  BIND(cuDeviceGetPCIBusId, pci);
  BIND(cuDeviceGetAttribute, attribute);
  BIND(cuCtxEnablePeerAccess, peer);
  BIND(cuCtxDisablePeerAccess, no_peer);
  BIND(cuPointerGetAttribute, pointer);
  BIND(cuMemGetAddressRange_v2, range);
  BIND(cuMemcpyDtoHAsync_v2, copy_out);
  BIND(cuMemFreeAsync, not_mine);
  BIND(cuMemRetainAllocationHandle, not_mine);
  BIND(cuMemcpyHtoDAsync_v2, copy_in);
}

static const struct xsw_memory_device *entry(void) { return &xsi_page_memory()->devices[0]; }
// The mover publishes at any time.
#define ENTRY(field) __atomic_load_n(&entry()->field, __ATOMIC_ACQUIRE)
static uint64_t fixed(enum xsw_fixed why) { return ENTRY(fixed[why]); }

static unsigned in_use(void) { // of addresses
  unsigned count = 0;
  for (unsigned i = 0; i < GRANULES; i++)
    count += reserved[i];
  return count;
}

#endif /* XSCHED_TEST_FAKE_MAPS_H */
