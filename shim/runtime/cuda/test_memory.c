// SPDX-License-Identifier: Apache-2.0
//
// Quotas and the account of device memory, with a driver that hands out addresses in order.

#include "test_fake.h"

#include <pthread.h>

#include "core/memory.h"

#define MIB (1ull << 20)

static const struct xsi_memory_place first = {0, 0x3bu << 8 | 1u << 3 | 3};
static const struct xsi_memory_place second = {0, 0x3bu << 8 | 1u << 3 | 5};
static CUresult answer;    // of allocations
static CUresult freed;     // of what frees
static uint64_t next = 64; // address
static uint64_t driver_calls;
static _Thread_local void (*in_free)(void);

static CUresult give(uint64_t *address) {
  __atomic_fetch_add(&driver_calls, 1, __ATOMIC_RELAXED);
  if (answer == 0 && address) *address = __atomic_add_fetch(&next, 64, __ATOMIC_RELAXED);
  return answer;
}
static CUresult alloc(CUdeviceptr_v2 *address, size_t bytes) {
  (void)bytes;
  return give((uint64_t *)address);
}
static CUresult alloc_pitch(CUdeviceptr_v2 *address, size_t *pitch, size_t width, size_t height,
                            unsigned element) {
  (void)height, (void)element;
  *pitch = (width + 511) / 512 * 512;
  return give((uint64_t *)address);
}
static CUresult alloc_managed(CUdeviceptr_v2 *address, size_t bytes, unsigned flags) {
  (void)bytes, (void)flags;
  return give((uint64_t *)address);
}
static CUresult alloc_async(CUdeviceptr_v2 *address, size_t bytes, CUstream stream) {
  (void)bytes, (void)stream;
  return give((uint64_t *)address);
}
static CUresult alloc_pool(CUdeviceptr_v2 *address, size_t bytes, CUmemoryPool pool,
                           CUstream stream) {
  (void)bytes, (void)pool, (void)stream;
  return give((uint64_t *)address);
}
static CUresult free_it(CUdeviceptr_v2 address) {
  (void)address;
  void (*during)(void) = in_free;
  in_free = NULL;
  if (during) during();
  return freed;
}
static CUresult free_async(CUdeviceptr_v2 address, CUstream stream) {
  (void)address, (void)stream;
  return freed;
}
static CUresult create(CUmemGenericAllocationHandle_v1 *handle, size_t bytes,
                       const CUmemAllocationProp_v1 *properties, unsigned long long flags) {
  (void)bytes, (void)properties, (void)flags;
  return give((uint64_t *)handle);
}
static CUresult release(CUmemGenericAllocationHandle_v1 handle) {
  (void)handle;
  return freed;
}
static CUresult map(CUdeviceptr_v2 address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle_v1 handle, unsigned long long flags) {
  (void)address, (void)bytes, (void)offset, (void)handle, (void)flags;
  return answer;
}
static CUresult unmap(CUdeviceptr_v2 address, size_t bytes) {
  (void)address, (void)bytes;
  return freed;
}
static CUresult retain(CUmemGenericAllocationHandle_v1 *handle, void *address) {
  *handle = (uintptr_t)address;
  return answer;
}
static CUresult array(CUarray *made, const CUDA_ARRAY_DESCRIPTOR_v2 *descriptor) {
  (void)descriptor;
  return give((uint64_t *)made);
}
static CUresult array_3d(CUarray *made, const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor) {
  (void)descriptor;
  return give((uint64_t *)made);
}
static CUresult mipmapped(CUmipmappedArray *made, const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor,
                          unsigned levels) {
  (void)descriptor, (void)levels;
  return give((uint64_t *)made);
}
static CUresult array_destroy(CUarray gone) {
  (void)gone;
  return freed;
}
static CUresult mipmapped_destroy(CUmipmappedArray gone) {
  (void)gone;
  return freed;
}
static CUresult info(size_t *free_bytes, size_t *total) {
  *free_bytes = 70 * MIB;
  *total = 80 * MIB;
  return answer;
}
static CUresult total_memory(size_t *bytes, CUdevice_v1 device) {
  (void)device;
  *bytes = 80 * MIB;
  return answer;
}

static CUresult pci(char *name, int bytes, CUdevice_v1 device) {
  snprintf(name, (size_t)bytes, "0000:3B:01.%d", device);
  return 0;
}

static void install(void) {
  fake_install();
#define BIND(symbol, function) xsi_cu_real[XSI_CU_##symbol] = (void *)(function)
  BIND(cuDeviceGetPCIBusId, pci);
  BIND(cuMemAlloc_v2, alloc);
  BIND(cuMemAllocPitch_v2, alloc_pitch);
  BIND(cuMemAllocManaged, alloc_managed);
  BIND(cuMemAllocAsync, alloc_async);
  BIND(cuMemAllocAsync_ptsz, alloc_async);
  BIND(cuMemAllocFromPoolAsync, alloc_pool);
  BIND(cuMemAllocFromPoolAsync_ptsz, alloc_pool);
  BIND(cuMemFree_v2, free_it);
  BIND(cuMemFreeAsync, free_async);
  BIND(cuMemFreeAsync_ptsz, free_async);
  BIND(cuMemCreate, create);
  BIND(cuMemRelease, release);
  BIND(cuMemMap, map);
  BIND(cuMemUnmap, unmap);
  BIND(cuMemRetainAllocationHandle, retain);
  BIND(cuArrayCreate_v2, array);
  BIND(cuArray3DCreate_v2, array_3d);
  BIND(cuMipmappedArrayCreate, mipmapped);
  BIND(cuArrayDestroy, array_destroy);
  BIND(cuMipmappedArrayDestroy, mipmapped_destroy);
  BIND(cuMemGetInfo_v2, info);
  BIND(cuDeviceTotalMem_v2, total_memory);
}

static void set_quota(uint64_t bytes) { xsi_header()->memory_quota = bytes; }
static uint64_t used(void) { return xsi_memory_used(first); }
#define USED(bytes) CHECK(used() == (bytes) && xsi_page_memory()->devices[0].used == (bytes))

// A full device's code, before the driver is asked; a byte less fits.
static void test_limit(void) {
  CUdeviceptr_v2 a = 7, b = 7;
  set_quota(10 * MIB);
  CHECK(cuMemAlloc_v2(&a, 6 * MIB) == 0 && a != 7);
  uint64_t calls = driver_calls, refused = xsi_page_memory()->devices[0].refused;
  CHECK(cuMemAlloc_v2(&b, 4 * MIB + 1) == XSI_CU_OUT_OF_MEMORY && b == 7 && driver_calls == calls);
  CHECK(xsi_page_memory()->devices[0].refused == refused + 1);
  USED(6 * MIB);
  CHECK(cuMemAlloc_v2(&b, 4 * MIB) == 0);
  USED(10 * MIB);
  CHECK(cuMemAlloc_v2(&a, SIZE_MAX) == XSI_CU_OUT_OF_MEMORY); // no overflow
  CHECK(cuMemFree_v2(b) == 0);
  USED(6 * MIB);
  CHECK(cuMemFree_v2(b) == 0); // unknown to us, and the driver's to judge
  USED(6 * MIB);
  set_quota(1 * MIB); // below the use: nothing is taken away
  CHECK(cuMemAlloc_v2(&b, 1) == XSI_CU_OUT_OF_MEMORY);
  USED(6 * MIB);
  set_quota(XSW_MEMORY_NO_QUOTA);
  CHECK(cuMemAlloc_v2(&b, 1ull << 40) == 0);
  CHECK(cuMemFree_v2(a) == 0 && cuMemFree_v2(b) == 0);
}

static void test_failures(void) {
  CUdeviceptr_v2 a;
  uint64_t before = used();
  set_quota(before + 10 * MIB);
  answer = XSI_CU_OUT_OF_MEMORY;
  CHECK(cuMemAlloc_v2(&a, 8 * MIB) == XSI_CU_OUT_OF_MEMORY);
  USED(before);
  answer = 0;
  CHECK(cuMemAlloc_v2(&a, 8 * MIB) == 0);
  freed = XSI_CU_INVALID_VALUE;
  CHECK(cuMemFree_v2(a) == XSI_CU_INVALID_VALUE && cuMemFreeAsync(a, NULL) == XSI_CU_INVALID_VALUE);
  USED(before + 8 * MIB);
  freed = 0;
  CHECK(cuMemFree_v2(a) == 0);
  USED(before);
}

// Every way to allocate obeys, and is given back by its own way to free.
static void test_kinds(void) {
  CUdeviceptr_v2 a;
  CUarray flat;
  CUmipmappedArray levels;
  size_t pitch;
  CUDA_ARRAY_DESCRIPTOR_v2 flat_of = {1024, 1024, XSI_CU_FORMAT_FLOAT, 1};         // 4 MiB
  CUDA_ARRAY3D_DESCRIPTOR_v2 deep_of = {1024, 512, 4, XSI_CU_FORMAT_HALF, 2, 0};   // 8 MiB
  CUDA_ARRAY3D_DESCRIPTOR_v2 levels_of = {1024, 1024, 0, XSI_CU_FORMAT_U16, 2, 0}; // 4, then 1 MiB
  uint64_t before = used();
#define EACH(allocate, give_back, bytes)                                                           \
  set_quota(before + (bytes)-1);                                                                   \
  CHECK((allocate) == XSI_CU_OUT_OF_MEMORY);                                                       \
  USED(before);                                                                                    \
  set_quota(before + (bytes));                                                                     \
  CHECK((allocate) == 0);                                                                          \
  USED(before + (bytes));                                                                          \
  CHECK((give_back) == 0);                                                                         \
  USED(before)
  EACH(cuMemAllocPitch_v2(&a, &pitch, MIB, 3, 4), cuMemFree_v2(a), 3 * MIB);
  CHECK(cuMemAllocPitch_v2(&a, &pitch, 1, 4096, 4) == 0); // with what is between the rows
  USED(before + 512 * 4096);
  CHECK(cuMemFree_v2(a) == 0);
  USED(before);
  EACH(cuMemAllocManaged(&a, 5 * MIB, 1), cuMemFree_v2(a), 5 * MIB);
  EACH(cuMemAllocAsync(&a, 5 * MIB, NULL), cuMemFreeAsync(a, NULL), 5 * MIB);
  EACH(cuMemAllocAsync_ptsz(&a, 5 * MIB, NULL), cuMemFree_v2(a), 5 * MIB);
  EACH(cuMemAllocFromPoolAsync(&a, 5 * MIB, NULL, NULL), cuMemFreeAsync_ptsz(a, NULL), 5 * MIB);
  EACH(cuMemAllocFromPoolAsync_ptsz(&a, 5 * MIB, NULL, NULL), cuMemFreeAsync(a, NULL), 5 * MIB);
  EACH(cuArrayCreate_v2(&flat, &flat_of), cuArrayDestroy(flat), 4 * MIB);
  EACH(cuArray3DCreate_v2(&flat, &deep_of), cuArrayDestroy(flat), 8 * MIB);
  EACH(cuMipmappedArrayCreate(&levels, &levels_of, 2), cuMipmappedArrayDestroy(levels), 5 * MIB);
}

// Memory stays while a handle or a mapping has it.
static void test_mapped(void) {
  CUmemAllocationProp_v1 there = {.type = 1, .location = {XSI_CU_LOCATION_DEVICE, 3}};
  CUmemGenericAllocationHandle_v1 h, again;
  uint64_t before = used(), at = 0x100000000;
  set_quota(before + 4 * MIB);
  CHECK(cuMemCreate(&h, 4 * MIB + 1, &there, 0) == XSI_CU_OUT_OF_MEMORY);
  CHECK(cuMemCreate(&h, 4 * MIB, &there, 0) == 0);
  CHECK(cuMemMap(at, 2 * MIB, 0, h, 0) == 0 && cuMemMap(at + 2 * MIB, 2 * MIB, 0, h, 0) == 0);
  CHECK(cuMemRelease(h) == 0);
  USED(before + 4 * MIB);
  freed = XSI_CU_INVALID_VALUE;
  CHECK(cuMemUnmap(at, 4 * MIB) == XSI_CU_INVALID_VALUE);
  freed = 0;
  USED(before + 4 * MIB);
  CHECK(cuMemUnmap(at, 2 * MIB) == 0);
  USED(before + 4 * MIB);
  CHECK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)h) == 0 && again == h);
  CHECK(cuMemUnmap(at + 2 * MIB, 2 * MIB) == 0);
  USED(before + 4 * MIB);
  freed = XSI_CU_INVALID_VALUE;
  CHECK(cuMemRelease(again) == XSI_CU_INVALID_VALUE);
  freed = 0;
  USED(before + 4 * MIB);
  CHECK(cuMemRelease(again) == 0);
  USED(before);
  CHECK(cuMemCreate(&h, 4 * MIB, &there, 0) == 0 && cuMemMap(at, 4 * MIB, 0, h, 0) == 0);
  CHECK(cuMemUnmap(at, 4 * MIB) == 0); // the other order
  USED(before + 4 * MIB);
  CHECK(cuMemRelease(h) == 0 && cuMemRelease(h) == 0);
  USED(before);
  there.location.type = 2; // in the host's memory
  CHECK(cuMemCreate(&h, 8 * MIB, &there, 0) == 0 && cuMemRelease(h) == 0);
  USED(before);
}

static void test_answers(void) {
  size_t room, total;
  CUdeviceptr_v2 a;
  uint64_t before = used();
  set_quota(before + 10 * MIB);
  CHECK(cuMemAlloc_v2(&a, 4 * MIB) == 0);
  CHECK(cuMemGetInfo_v2(&room, &total) == 0 && room == 6 * MIB && total == before + 10 * MIB);
  CHECK(cuDeviceTotalMem_v2(&total, 3) == 0 && total == before + 10 * MIB);
  CHECK(cuDeviceTotalMem_v2(&total, 5) == 0 && total == before + 10 * MIB);
  set_quota(1 * MIB); // more is in use than that
  CHECK(cuMemGetInfo_v2(&room, &total) == 0 && room == 0 && total == 1 * MIB);
  set_quota(1000 * MIB); // more than there is
  CHECK(cuMemGetInfo_v2(&room, &total) == 0 && room == 70 * MIB && total == 80 * MIB);
  CHECK(cuMemFree_v2(a) == 0);
}

// The last quota of the daemon outlives it. Before the first one that of the environment holds.
static void test_daemon_dies(void) {
  CUdeviceptr_v2 a;
  uint64_t before = used();
  set_quota(before + 2 * MIB);
  xsi_memory_remember();
  set_quota(0); // an empty page
  CHECK(cuMemAlloc_v2(&a, 3 * MIB) == XSI_CU_OUT_OF_MEMORY);
  CHECK(cuMemAlloc_v2(&a, 2 * MIB) == 0 && cuMemFree_v2(a) == 0);
  set_quota(before + 5 * MIB); // the next daemon's
  CHECK(cuMemAlloc_v2(&a, 3 * MIB) == 0 && cuMemFree_v2(a) == 0);
}

// Each device has its own account.
static void test_devices(void) {
  CUdeviceptr_v2 a;
  CUmemGenericAllocationHandle_v1 h;
  CUmemAllocationProp_v1 there = {.type = 1, .location = {XSI_CU_LOCATION_DEVICE, 5}};
  set_quota(used() + 4 * MIB);
  CHECK(cuMemAlloc_v2(&a, 4 * MIB) == 0);
  CHECK(cuMemCreate(&h, 4 * MIB, &there, 0) == 0); // on the other one
  CHECK(xsi_memory_used(second) == 4 * MIB && xsi_page_memory()->devices[1].used == 4 * MIB);
  CHECK(xsi_page_memory()->devices[1].pci_bus_slot == second.pci_bus_slot);
  CHECK(cuMemRelease(h) == 0 && cuMemFree_v2(a) == 0 && xsi_memory_used(second) == 0);
}

// What a context had goes with it, and nothing else does.
static void test_contexts(void) {
  CUdeviceptr_v2 a, b;
  set_quota(XSW_MEMORY_NO_QUOTA);
  uint64_t before = used();
  CHECK(cuMemAlloc_v2(&a, 3 * MIB) == 0);
  static struct fake_context *other; // the sanitizer finds it here
  other = fake_context();
  CHECK(cuMemAlloc_v2(&b, 5 * MIB) == 0);
  USED(before + 8 * MIB);
  CHECK(cuCtxDestroy_v2((CUcontext)other) == 0);
  USED(before + 3 * MIB);
  CHECK(cuMemFree_v2(a) == 0);
  USED(before);
}

// An address that the driver gives to another thread before the free has returned.
static CUdeviceptr_v2 reused;
static void takes_it(void) {
  next -= 64;
  CHECK(cuMemAlloc_v2(&reused, 2 * MIB) == 0);
}
static void test_reuse(void) {
  CUdeviceptr_v2 a;
  uint64_t before = used();
  CHECK(cuMemAlloc_v2(&a, 6 * MIB) == 0);
  in_free = takes_it;
  CHECK(cuMemFree_v2(a) == 0 && reused == a);
  USED(before + 2 * MIB);
  CHECK(cuMemFree_v2(reused) == 0);
  USED(before);
}

enum { THREADS = 4, ROUNDS = 20000 };
static uint64_t most; // ever used
static void *churn(void *context) {
  CHECK(xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)context) == 0);
  for (int i = 0; i < ROUNDS; i++) {
    CUdeviceptr_v2 a;
    if (cuMemAlloc_v2(&a, 3 * MIB) != 0) continue;
    uint64_t now = used(), before = __atomic_load_n(&most, __ATOMIC_RELAXED);
    while (now > before && !__atomic_compare_exchange_n(&most, &before, now, false,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      ;
    CHECK(cuMemFree_v2(a) == 0);
  }
  return NULL;
}
static void test_threads(struct fake_context *context) {
  pthread_t threads[THREADS];
  uint64_t before = used();
  set_quota(before + 8 * MIB); // two of four fit
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, churn, context) == 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  CHECK(most > before && most <= before + 8 * MIB);
  USED(before);
}

int main(void) {
  install();
  struct fake_context *context = fake_context();
  xsi_options.hint.memory = 5 * MIB; // before there is a daemon
  CUdeviceptr_v2 a;
  CHECK(cuMemAlloc_v2(&a, 5 * MIB + 1) == XSI_CU_OUT_OF_MEMORY);
  CHECK(cuMemAlloc_v2(&a, 5 * MIB) == 0 && cuMemFree_v2(a) == 0);
  test_limit();
  test_failures();
  test_kinds();
  test_mapped();
  test_answers();
  test_daemon_dies();
  test_devices();
  test_contexts();
  CHECK(xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)context) == 0);
  test_reuse();
  test_threads(context);
  CHECK(used() == 0);
  xsi_memory_reset();
  printf("%s\n", failures ? "FAILED" : "ok");
  return failures != 0;
}
