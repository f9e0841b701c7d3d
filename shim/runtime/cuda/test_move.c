// SPDX-License-Identifier: Apache-2.0
//
// Movable memory. What the mover does is done by hand, with the platform's operations.

#include <sched.h>

#include "test_fake_maps.h"

static uint64_t id_of(CUdeviceptr_v2 address) {
  uint64_t id = 0;
  CHECK(cuPointerGetAttribute(&id, XSI_CU_POINTER_BUFFER_ID, address) == 0);
  return id;
}

// Large allocations are mapped, in pieces, and look like the driver's own; small ones are the driver's.
static void test_alloc(struct fake_context *context) {
  CUdeviceptr_v2 a, b, base, small;
  size_t bytes, pitch;
  uint64_t value, before = room, small_before = fixed(XSW_FIXED_SMALL);
  int syncs = synchronized;
  CHECK(cuMemAlloc_v2(&a, 100 * MIB + 1) == 0 && a % XSI_MOVE_GRANULE == 0);
  CHECK(granules[granule(a)].handle != granules[granule(a + 64 * MIB)].handle);
  CHECK(granules[granule(a)].writers == 1u << 3 && room == before - 102 * MIB);
  CHECK(ENTRY(movable) == 102 * MIB && ENTRY(used) == 100 * MIB + 1);
  CHECK(cuMemAlloc_v2(&b, 2 * MIB) == 0 && cuMemAlloc_v2(&small, 2 * MIB - 1) == 0 && small < BASE);
  CHECK(fixed(XSW_FIXED_SMALL) == small_before + 2 * MIB - 1);
  CHECK(cuMemGetAddressRange_v2(&base, &bytes, a + 99 * MIB) == 0 && base == a &&
        bytes == 100 * MIB + 1);
  CHECK(cuMemGetAddressRange_v2(&base, &bytes, a + 101 * MIB) == XSI_CU_NOT_FOUND);
  CHECK(id_of(a) == id_of(a + 70 * MIB) && id_of(a) != id_of(b));
  CHECK(cuPointerGetAttribute(&value, XSI_CU_POINTER_CONTEXT, a + 5) == 0 &&
        value == (uintptr_t)context);
  CHECK(cuPointerGetAttribute(&value, XSI_CU_POINTER_MEMORY_TYPE, a) == 0);
  CHECK(cuMemFree_v2(a + 256) == XSI_CU_INVALID_VALUE);
  CHECK(cuMemUnmap(a, 64 * MIB) == XSI_CU_INVALID_VALUE); // not the program's mapping
  CHECK(cuMemFree_v2(a) == 0 && synchronized == syncs + 1);
  CHECK(cuMemFree_v2(a) == XSI_CU_INVALID_VALUE);
  value = id_of(b);
  CHECK(cuMemFreeAsync(b, fake_stream()) == 0);
  CHECK(cuMemAllocPitch_v2(&b, &pitch, 1000, 4096, 4) == 0 && pitch == 1024 && b >= BASE);
  CHECK(ENTRY(used) == 2 * MIB - 1 + 4 * MIB && id_of(b) != value);
  CHECK(cuMemFree_v2(b) == 0 && cuMemFree_v2(small) == 0);
  CHECK(room == before && in_use() == 0 && ENTRY(movable) == 0 && ENTRY(used) == 0);
  CHECK(fixed(XSW_FIXED_SMALL) == small_before);
}

static void test_failures(void) {
  CUdeviceptr_v2 a = 7;
  uint64_t before = room;
  int plain = plain_allocs;
  room = 70 * MIB; // the second piece does not fit
  CHECK(cuMemAlloc_v2(&a, 100 * MIB) == XSI_CU_OUT_OF_MEMORY && a == 7 && plain_allocs == plain);
  CHECK(room == 70 * MIB && in_use() == 0 && ENTRY(used) == 0);
  room = before;
  int *const results[] = {&map_result, &access_result};
  for (int i = 0; i < 2; i++) { // the driver allocates
    *results[i] = 801;
    CHECK(cuMemAlloc_v2(&a, 100 * MIB) == 0 && a < BASE && room == before && in_use() == 0);
    CHECK(fixed(XSW_FIXED_REFUSED) == 100 * MIB && cuMemFree_v2(a) == 0);
    *results[i] = 0;
    CHECK(fixed(XSW_FIXED_REFUSED) == 0);
  }
  xsi_options.hint.movable = 0;
  CHECK(cuMemAlloc_v2(&a, 4 * MIB) == 0 && a < BASE && fixed(XSW_FIXED_NOT_ASKED) == 4 * MIB);
  xsi_options.hint.movable = 1;
  CHECK(cuMemFree_v2(a) == 0 && fixed(XSW_FIXED_NOT_ASKED) == 0);
}

// A capture forbids cuMemAlloc to some threads: the driver decides. It never forbids it in relaxed mode.
static void test_captures(void) {
  CUdeviceptr_v2 a, b;
  CUstreamCaptureMode mode = XSI_CU_CAPTURE_RELAXED;
  CUstream stream = fake_stream();
  int syncs = synchronized, frees = plain_frees;
  CHECK(cuMemAlloc_v2(&b, 4 * MIB) == 0);
  CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
  CHECK(cuMemAlloc_v2(&a, 4 * MIB) == 0 && a < BASE && cuMemFree_v2(a) == 0);
  CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0);
  CHECK(cuMemAlloc_v2(&a, 4 * MIB) == 0 && a >= BASE && cuMemFree_v2(a) == 0);
  CHECK(synchronized == syncs && plain_frees == frees + 2); // waits as cuMemFree does
  CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0 && cuStreamEndCapture(stream, NULL) == 0);
  CHECK(cuMemFree_v2(b) == 0 && in_use() == 0);
}

// What the mover does: away and back, at the same address, with the same access. Only it changes the block's own
// handle: the caller releases the new one.
static uint64_t move(CUdeviceptr_v2 address, uint64_t bytes) {
  const struct xsi_move_platform *p = &xsi_cu_move_platform;
  struct xsi_block_view view;
  struct xsi_block_piece piece;
  uint64_t handle, there;
  static char host[4096];
  CHECK(xsi_block_find(address, &view) && !view.fixed && xsi_block_piece_at(address, &piece));
  CHECK(p->settle(&view.device) == 0 && p->copy(&view.device, host, address, 4096, true) == 0);
  CHECK(p->finish(&view.device) == 0 && p->unmap(address, bytes) == 0);
  p->release(piece.handle);
  CHECK(p->create(&view.device, bytes, view.properties, &handle) == 0);
  CHECK(p->map(&view.device, address, bytes, view.properties, handle) == 0);
  CHECK(p->copy(&view.device, host, address, 4096, false) == 0 && p->finish(&view.device) == 0);
  CHECK(p->room(&view.device, &there) == 0 && there == room && copies % 2 == 0);
  return handle;
}

static CUcontext make_second(void) { // on device 5, and current
  all_second = true;
  CUcontext made = (CUcontext)fake_context();
  all_second = false;
  return made;
}

static void test_peers(struct fake_context *first) {
  CUdeviceptr_v2 a, b;
  uint64_t both = 1u << 3 | 1u << 5;
  CHECK(cuMemAlloc_v2(&a, 4 * MIB) == 0);
  second = make_second();
  CHECK(cuMemAlloc_v2(&b, 4 * MIB) == 0 && granules[granule(b)].writers == 1u << 5);
  CHECK(cuCtxEnablePeerAccess((CUcontext)first, 0) == 0);
  CHECK(granules[granule(a)].writers == both && granules[granule(b)].writers == 1u << 5);
  uint64_t moved = move(a, 4 * MIB);
  CHECK(granules[granule(a)].writers == both);
  CHECK(cuCtxDisablePeerAccess((CUcontext)first) == 0 && granules[granule(a)].writers == 1u << 3);
  // Its memory goes with the context, and only that.
  CHECK(cuCtxDestroy_v2(second) == 0 && granules[granule(b)].handle == 0 && !reserved[granule(b)]);
  second = NULL;
  CHECK(xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)first) == 0);
  CHECK(granules[granule(a)].handle != 0 && cuMemFree_v2(a) == 0 && in_use() == 0);
  CHECK(release(moved) == 0);
}

static int pinning; // atomic
static CUresult pin_slowly(void *host, size_t bytes, unsigned flags) {
  CUcontext context;
  const struct timespec pause = {.tv_nsec = 50000000};
  CHECK(host && bytes == 4096 && flags == XSI_CU_HOST_PORTABLE);
  CHECK(xsi_cu_call_real(cuCtxGetCurrent, &context) == 0);
  __atomic_store_n(&pinning, 1, __ATOMIC_SEQ_CST);
  nanosleep(&pause, NULL);
  CHECK(!__atomic_load_n(&((struct fake_context *)context)->destroyed, __ATOMIC_SEQ_CST));
  return 0;
}

static void *pin_once(void *device) {
  static char host[4096];
  CHECK(xsi_cu_move_platform.pin(device, host, sizeof host) == 0);
  return NULL;
}

// The mover pins host memory at any time, also in a context that is about to go. What the program has mapped stays, and
// is moved in the next context.
static void test_contexts(struct fake_context *first) {
  const struct xsi_move_platform *p = &xsi_cu_move_platform;
  CUmemAllocationProp_v1 there = {.type = 1, .location = {XSI_CU_LOCATION_DEVICE, 5}};
  CUmemAccessDesc_v1 list[] = {{{1, 5}, XSI_CU_ACCESS_BOTH}};
  CUmemGenericAllocationHandle_v1 h;
  CUdeviceptr_v2 at;
  struct xsi_block_view view;
  uint64_t bytes;
  pthread_t thread;
  xsi_cu_real[XSI_CU_cuMemHostRegister_v2] = (void *)pin_slowly;
  second = make_second();
  CHECK(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0) == 0 &&
        cuMemCreate(&h, 2 * MIB, &there, 0) == 0);
  CHECK(cuMemMap(at, 2 * MIB, 0, h, 0) == 0 && cuMemSetAccess(at, 2 * MIB, list, 1) == 0);
  CHECK(xsi_block_find(at, &view) && p->room(&view.device, &bytes) == 0);
  CHECK(pthread_create(&thread, NULL, pin_once, &view.device) == 0);
  while (!__atomic_load_n(&pinning, __ATOMIC_SEQ_CST))
    sched_yield();
  CHECK(cuCtxDestroy_v2(second) == 0 && pthread_join(thread, NULL) == 0);
  CHECK(p->room(&view.device, &bytes) != 0);
  second = make_second();
  CHECK(p->room(&view.device, &bytes) == 0);
  CHECK(cuMemUnmap(at, 2 * MIB) == 0 && cuMemRelease(h) == 0 && cuMemAddressFree(at, 2 * MIB) == 0);
  CHECK(cuCtxDestroy_v2(second) == 0);
  second = NULL;
  CHECK(xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)first) == 0);
}

// Handles of ours stand for the driver's, which change. What is exported stays.
static void test_handles(void) {
  CUmemAllocationProp_v1 there = {.type = 1, .location = {XSI_CU_LOCATION_DEVICE, 3}}, got;
  CUmemAccessDesc_v1 list[] = {{{1, 3}, XSI_CU_ACCESS_BOTH}, {{1, 5}, XSI_CU_ACCESS_READ}};
  CUmemGenericAllocationHandle_v1 h, again;
  CUdeviceptr_v2 at;
  struct xsi_block_view view;
  uint64_t before = room;
  int out;
  CHECK(cuMemAddressReserve(&at, 20 * MIB, 0, 0, 0) == 0 &&
        cuMemCreate(&h, 20 * MIB, &there, 0) == 0);
  CHECK(h >= HANDLES && cuMemMap(at, 20 * MIB, 0, h, 0) == 0 && !xsi_block_find(at, &view));
  CHECK(cuMemSetAccess(at, 20 * MIB, list, 2) == 0 && xsi_block_find(at, &view) && !view.fixed);
  int driver = granules[granule(at)].handle;
  CHECK(cuMemGetAllocationPropertiesFromHandle(&got, h) == 0 && got.type == driver);
  CHECK(move(at, 20 * MIB) != (uint64_t)driver);
  CHECK(granules[granule(at)].handle != driver);
  driver = granules[granule(at)].handle;
  CHECK(granules[granule(at)].writers == 1u << 3 && granules[granule(at)].readers == 1u << 5);
  CHECK(cuMemGetAllocationPropertiesFromHandle(&got, h) == 0 && got.type == driver);
  CHECK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 5)) == 0 && again == h);
  CHECK(cuMemRelease(h) == 0 && cuMemRelease(h) == 0 && cuMemRelease(h) == XSI_CU_INVALID_VALUE);
  CHECK(cuMemExportToShareableHandle(&out, h, 1, 0) == XSI_CU_INVALID_VALUE);
  CHECK(room == before - 20 * MIB && made[driver].references == 1); // the mover's
  CHECK(cuMemRetainAllocationHandle(&h, (void *)(uintptr_t)at) == 0);
  CHECK(cuMemExportToShareableHandle(&out, h, 1, 0) == 0 && close(out) == 0);
  CHECK(xsi_block_find(at, &view) && view.fixed && fixed(XSW_FIXED_EXPORTED) == 20 * MIB);
  CHECK(cuMemUnmap(at, 20 * MIB) == 0 && !xsi_block_find(at, &view));
  CHECK(room == before - 20 * MIB && fixed(XSW_FIXED_EXPORTED) == 0);
  CHECK(cuMemRelease(h) == 0 && room == before);
  CHECK(cuMemRelease(h) == XSI_CU_INVALID_VALUE && cuMemAddressFree(at, 20 * MIB) == 0);
  // Without access of its own device the mover could not copy it.
  CHECK(cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0) == 0 &&
        cuMemCreate(&h, 2 * MIB, &there, 0) == 0);
  CHECK(cuMemMap(at, 2 * MIB, 0, h, 0) == 0 && cuMemSetAccess(at, 2 * MIB, list + 1, 1) == 0);
  CHECK(!xsi_block_find(at, &view) && cuMemSetAccess(at, 2 * MIB, list, 1) == 0);
  CHECK(xsi_block_find(at, &view));
  // Nor can it move what is mapped twice.
  CHECK(cuMemMap(at + 2 * MIB, 2 * MIB, 0, h, 0) == 0 && xsi_block_find(at, &view) && view.fixed);
  CHECK(cuMemUnmap(at, 4 * MIB) == 0 && cuMemRelease(h) == 0);
  CHECK(cuMemAddressFree(at, 4 * MIB) == 0 && room == before && in_use() == 0);
  // Where it is not asked for, the program has the driver's own handles.
  xsi_options.hint.movable = 0;
  CHECK(cuMemCreate(&h, 2 * MIB, &there, 0) == 0 && h < HANDLES && cuMemRelease(h) == 0);
  xsi_options.hint.movable = 1;
}

enum { THREADS = 4, ROUNDS = 2000 };
static void *churn(void *context) {
  CHECK(xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)context) == 0);
  for (int i = 0; i < ROUNDS; i++) {
    CUdeviceptr_v2 a, b, base;
    size_t bytes;
    CHECK(cuMemAlloc_v2(&a, 4 * MIB) == 0 && cuMemAlloc_v2(&b, 70 * MIB) == 0);
    CHECK(cuMemGetAddressRange_v2(&base, &bytes, b + 66 * MIB) == 0 && base == b);
    CHECK(cuMemFree_v2(a) == 0 && cuMemFree_v2(b) == 0);
  }
  return NULL;
}
static void test_threads(struct fake_context *context) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, churn, context) == 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  CHECK(in_use() == 0 && ENTRY(movable) == 0 && ENTRY(used) == 0);
}

int main(void) {
  install();
  room = 4096 * MIB;
  xsi_options.hint.movable = 1;
  xsi_header()->memory_quota = XSW_MEMORY_NO_QUOTA;
  struct fake_context *context = fake_context();
  test_alloc(context);
  test_failures();
  test_captures();
  test_peers(context);
  test_contexts(context);
  test_handles();
  test_threads(context);
  CHECK(room == 4096 * MIB);
  printf("%s\n", failures ? "FAILED" : "ok");
  return failures != 0;
}
