/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the stand-in's device memory: its end, who has how much, and mapped memory. The Go test starts it on a
 * GPU with 64 MiB, sets faults between lines, and reads the device's accounts.
 *
 *   test_memory            runs all checks and prints "ok NAME" or "FAIL ..."
 *   test_memory stray      uses memory that is not mapped, prints "held FAILURES 0", waits for a line
 *   test_memory hold MiB   allocates, prints "held RESULT", waits for a line, repeats
 */
#include <string.h>
#include <sys/mman.h>

#include "test_call.h"

#define MIB (1ull << 20)
#define PAGE (2 * MIB)

struct properties {
  int type, handle_types, location_type, device;
  void *win32;
  unsigned char flags[8];
};
struct access_of {
  int type, device, flags;
};

static handle context, spin;
static struct properties on_first = {1, 0, 1, 0, NULL, {0}};
static struct access_of both = {1, 0, 3};

static uint64_t free_bytes(void) {
  size_t room = 0, total = 0;
  OK(CU(cuMemGetInfo_v2, &room, &total));
  TRUE(total == 64 * MIB);
  return room;
}

static void test_capacity(void) {
  size_t total = 0;
  OK(CU(cuDeviceTotalMem_v2, &total, 0));
  TRUE(total == 64 * MIB && free_bytes() == 64 * MIB);
  uint64_t a = 0, b = 0, c = 77;
  OK(CU(cuMemAlloc_v2, &a, (size_t)(40 * MIB)));
  TRUE(free_bytes() == 24 * MIB);
  IS(2, CU(cuMemAlloc_v2, &c, (size_t)(24 * MIB + 1))); /* 13 pages are too many */
  TRUE(c == 77 && free_bytes() == 24 * MIB);
  OK(CU(cuMemAlloc_v2, &b, (size_t)(24 * MIB)));
  IS(2, CU(cuMemAlloc_v2, &c, (size_t)1));
  void *host = NULL;
  OK(CU(cuMemHostAlloc, &host, (size_t)(8 * MIB), 0u)); /* not on the device */
  OK(CU(cuMemFree_v2, a));
  TRUE(free_bytes() == 40 * MIB);
  IS(1, CU(cuMemFree_v2, a));
  TRUE(free_bytes() == 40 * MIB);
  OK(CU(cuMemFree_v2, b));
  OK(CU(cuMemFreeHost, host));
  TRUE(free_bytes() == 64 * MIB);
}

static void test_small(void) {
  uint64_t blocks[5];
  for (int i = 0; i < 4; i++)
    OK(CU(cuMemAlloc_v2, &blocks[i], (size_t)(MIB / 2)));
  TRUE(free_bytes() == 62 * MIB);
  OK(CU(cuMemAlloc_v2, &blocks[4], (size_t)512));
  TRUE(free_bytes() == 60 * MIB);
  for (int i = 0; i < 5; i++)
    OK(CU(cuMemFree_v2, blocks[(i * 2) % 5]));
  TRUE(free_bytes() == 64 * MIB);
  size_t pitch = 0;
  OK(CU(cuMemAllocPitch_v2, &blocks[0], &pitch, (size_t)1000, (size_t)4096, 4u));
  TRUE(pitch == 1024 && free_bytes() == 60 * MIB);
  OK(CU(cuMemFree_v2, blocks[0]));
  OK(CU(cuMemAllocAsync, &blocks[0], (size_t)PAGE, NULL));
  OK(CU(cuMemFreeAsync, blocks[0], NULL));
  TRUE(free_bytes() == 64 * MIB);
}

static void test_rules(void) {
  uint64_t at = 0, other = 0, h = 0;
  size_t granularity = 0;
  OK(CU(cuMemGetAllocationGranularity, &granularity, &on_first, 0));
  TRUE(granularity == PAGE);
  IS(1, CU(cuMemAddressReserve, &at, (size_t)(PAGE + 1), (size_t)0, 0ull, 0ull));
  IS(1, CU(cuMemAddressReserve, &at, (size_t)0, (size_t)0, 0ull, 0ull));
  OK(CU(cuMemAddressReserve, &at, (size_t)(8 * PAGE), (size_t)0, 0ull, 0ull));
  OK(CU(cuMemAddressReserve, &other, (size_t)PAGE, (size_t)0, at, 0ull));
  TRUE(other != at && other % PAGE == 0);
  OK(CU(cuMemAddressFree, other, (size_t)PAGE));
  OK(CU(cuMemAddressReserve, &other, (size_t)PAGE, (size_t)0, at + 64 * PAGE, 0ull));
  TRUE(other == at + 64 * PAGE); /* on request */
  OK(CU(cuMemAddressFree, other, (size_t)PAGE));
  IS(1, CU(cuMemCreate, &h, (size_t)MIB, &on_first, 0ull));
  IS(2, CU(cuMemCreate, &h, (size_t)(33 * PAGE), &on_first, 0ull));
  OK(CU(cuMemCreate, &h, (size_t)(2 * PAGE), &on_first, 0ull));
  TRUE(free_bytes() == 60 * MIB);
  IS(1, CU(cuMemMap, at + 7 * PAGE, (size_t)(2 * PAGE), (size_t)0, h, 0ull)); /* beyond its end */
  IS(1, CU(cuMemMap, at + MIB, (size_t)PAGE, (size_t)0, h, 0ull));
  IS(1, CU(cuMemMap, at, (size_t)(4 * PAGE), (size_t)0, h, 0ull)); /* more than there is */
  OK(CU(cuMemMap, at, (size_t)(2 * PAGE), (size_t)0, h, 0ull));
  IS(1, CU(cuMemMap, at + PAGE, (size_t)(2 * PAGE), (size_t)0, h, 0ull)); /* mapped */
  IS(1, CU(cuMemcpyHtoD_v2, at, "no", (size_t)2));                        /* no access yet */
  IS(1, CU(cuMemSetAccess, at, (size_t)(3 * PAGE), &both, (size_t)1));    /* a gap */
  OK(CU(cuMemSetAccess, at, (size_t)(2 * PAGE), &both, (size_t)1));
  IS(1, CU(cuMemAddressFree, at, (size_t)(8 * PAGE))); /* mapped */
  IS(1, CU(cuMemUnmap, at, (size_t)PAGE));             /* a part */
  IS(1, CU(cuMemFree_v2, at));
  OK(CU(cuMemRelease, h));
  IS(1, CU(cuMemRelease, h));
  TRUE(free_bytes() == 60 * MIB); /* the mapping keeps it */
  OK(CU(cuMemUnmap, at, (size_t)(2 * PAGE)));
  TRUE(free_bytes() == 64 * MIB);
  IS(1, CU(cuMemUnmap, at, (size_t)(2 * PAGE)));
  IS(1, CU(cuMemAddressFree, at, (size_t)(4 * PAGE)));
  OK(CU(cuMemAddressFree, at, (size_t)(8 * PAGE)));
}

static void map_pages(uint64_t at, uint64_t *handles, int count) {
  for (int i = 0; i < count; i++) {
    OK(CU(cuMemCreate, &handles[i], (size_t)PAGE, &on_first, 0ull));
    OK(CU(cuMemMap, at + (uint64_t)i * PAGE, (size_t)PAGE, (size_t)0, handles[i], 0ull));
  }
  OK(CU(cuMemSetAccess, at, (size_t)((uint64_t)count * PAGE), &both, (size_t)1));
}

static void unmap_pages(uint64_t at, uint64_t *handles, int count) {
  OK(CU(cuMemUnmap, at, (size_t)((uint64_t)count * PAGE)));
  for (int i = 0; i < count; i++)
    OK(CU(cuMemRelease, handles[i]));
}

/* What was copied away comes back to the same addresses, in other memory; graphs find it there. */
static void test_moves(void) {
  enum { PAGES = 4 };
  static unsigned char out[PAGES * PAGE], back[PAGES * PAGE];
  uint64_t at, plain, handles[PAGES], words[2] = {0}, again[2] = {0};
  OK(CU(cuMemAddressReserve, &at, (size_t)sizeof out, (size_t)0, 0ull, 0ull));
  map_pages(at, handles, PAGES);
  for (size_t i = 0; i < sizeof out; i++)
    out[i] = (unsigned char)(i * 7 + i / PAGE);
  OK(CU(cuMemcpyHtoD_v2, at, out, sizeof out)); /* over several pieces */
  OK(CU(cuCtxSynchronize)); /* a non-blocking stream does not wait for a staged copy */
  uint64_t word = at + 3 * PAGE;
  handle stream, graph, exec;
  uint32_t us = 20, seed = 5;
  void *params[] = {&word, &us, &seed};
  OK(CU(cuStreamCreate, &stream, 1u));
  OK(CU(cuStreamBeginCapture_v2, stream, 2));
  OK(CU(cuLaunchKernel, spin, 8u, 1u, 1u, 32u, 1u, 1u, 0u, stream, params, NULL));
  OK(CU(cuMemsetD8Async, at + PAGE - 8, (unsigned char)9, (size_t)16, stream)); /* two pieces */
  OK(CU(cuStreamEndCapture, stream, &graph));
  OK(CU(cuGraphInstantiateWithFlags, &exec, graph, 0ull));
  OK(CU(cuGraphLaunch, exec, stream));
  OK(CU(cuStreamSynchronize, stream));
  OK(CU(cuMemcpyDtoH_v2, words, word, sizeof words));
  OK(CU(cuMemcpyDtoH_v2, out, at, sizeof out));
  TRUE(out[PAGE - 8] == 9 && out[PAGE + 7] == 9 && words[1] != 0);
  unmap_pages(at, handles, PAGES);
  IS(1, CU(cuMemcpyDtoH_v2, back, at, sizeof back));
  OK(CU(cuMemAlloc_v2, &plain, (size_t)(PAGES * PAGE))); /* takes the place */
  OK(CU(cuMemsetD8_v2, plain, (unsigned char)0xee, (size_t)(PAGES * PAGE)));
  map_pages(at, handles, PAGES);
  OK(CU(cuMemcpyHtoD_v2, at, out, sizeof out));
  OK(CU(cuMemcpyDtoH_v2, back, at, sizeof back));
  TRUE(memcmp(out, back, sizeof out) == 0);
  OK(CU(cuGraphLaunch, exec, stream));
  OK(CU(cuStreamSynchronize, stream));
  OK(CU(cuMemcpyDtoH_v2, again, word, sizeof again));
  TRUE(again[0] != words[0] && again[1] == words[1] + 1);
  OK(CU(cuMemcpyDtoH_v2, back, plain, sizeof back));
  TRUE(back[3 * PAGE] == 0xee && back[PAGE - 8] == 0xee);
  OK(CU(cuMemFree_v2, plain));
  unmap_pages(at, handles, PAGES);
  OK(CU(cuMemAddressFree, at, sizeof out));
  TRUE(free_bytes() == 64 * MIB);
}

/* Registered memory is copied without staging, and keeps its content. */
static void test_pinned(void) {
  unsigned char *own =
      mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  static unsigned char back[PAGE];
  uint64_t at = 0, shared = 0;
  memset(own, 3, 2 * PAGE);
  OK(CU(cuMemAlloc_v2, &at, (size_t)PAGE));
  IS(1, CU(cuMemHostRegister_v2, own + 1, (size_t)PAGE, 0u));
  OK(CU(cuMemHostRegister_v2, own, (size_t)PAGE, 0u));
  IS(712, CU(cuMemHostRegister_v2, own + PAGE / 2, (size_t)PAGE, 0u));
  IS(713, CU(cuMemHostUnregister, own + PAGE));
  TRUE(own[0] == 3 && own[PAGE - 1] == 3 && own[PAGE] == 3);
  OK(CU(cuMemHostGetDevicePointer_v2, &shared, own, 0u));
  own[5] = 7;
  OK(CU(cuMemcpyHtoDAsync_v2, at, own, (size_t)PAGE, NULL));
  OK(CU(cuMemsetD8Async, at + 6, (unsigned char)9, (size_t)1, NULL));
  OK(CU(cuMemcpyDtoHAsync_v2, own, at, (size_t)PAGE, NULL));
  OK(CU(cuCtxSynchronize));
  TRUE(own[5] == 7 && own[6] == 9 && own[7] == 3);
  OK(CU(cuMemHostUnregister, own));
  IS(713, CU(cuMemHostUnregister, own));
  TRUE(own[5] == 7 && own[6] == 9);
  OK(CU(cuMemcpyDtoH_v2, back, at, (size_t)PAGE));
  TRUE(memcmp(own, back, PAGE) == 0);
  OK(CU(cuMemFree_v2, at));
  munmap(own, 2 * PAGE);
}

/* The end of a context frees what it had; ranges stay. */
static void test_contexts(void) {
  handle second;
  uint64_t at, h, plain;
  OK(CU(cuCtxCreate_v2, &second, 0u, 0));
  OK(CU(cuMemAlloc_v2, &plain, (size_t)(10 * PAGE)));
  OK(CU(cuMemAddressReserve, &at, (size_t)PAGE, (size_t)0, 0ull, 0ull));
  OK(CU(cuMemCreate, &h, (size_t)PAGE, &on_first, 0ull));
  OK(CU(cuMemMap, at, (size_t)PAGE, (size_t)0, h, 0ull));
  TRUE(free_bytes() == 64 * MIB - 11 * PAGE);
  OK(CU(cuMemSetAccess, at, (size_t)PAGE, &both, (size_t)1));
  OK(CU(cuMemsetD8_v2, at, (unsigned char)4, (size_t)PAGE));
  OK(CU(cuCtxSynchronize));
  OK(CU(cuCtxSetCurrent, context)); /* it is the device's */
  uint32_t us = 20, seed = 5;
  uint64_t words[3];
  void *params[] = {&at, &us, &seed};
  OK(CU(cuMemsetD8_v2, at + 8, (unsigned char)0, (size_t)8));
  OK(CU(cuLaunchKernel, spin, 8u, 1u, 1u, 32u, 1u, 1u, 0u, NULL, params, NULL));
  OK(CU(cuMemcpyDtoH_v2, words, at, sizeof words));
  TRUE(words[0] != 0x0404040404040404ull && words[1] == 1 && words[2] == 0x0404040404040404ull);
  OK(CU(cuMemcpyDtoD_v2, at + MIB, at, (size_t)(MIB / 2))); /* in the background */
  OK(CU(cuCtxSynchronize));
  OK(CU(cuCtxDestroy_v2, second));
  OK(CU(cuCtxSetCurrent, context));
  TRUE(free_bytes() == 64 * MIB);
  IS(1, CU(cuMemRelease, h));
  OK(CU(cuMemAddressFree, at, (size_t)PAGE));
}

/* Work that uses memory which is not mapped, or not any more: the device counts. */
static int stray(void) {
  uint64_t at = 0, h = 0;
  uint32_t us = 20000, seed = 5;
  void *params[] = {&at, &us, &seed};
  OK(CU(cuMemAddressReserve, &at, (size_t)(2 * PAGE), (size_t)0, 0ull, 0ull));
  map_pages(at, &h, 1);
  IS(1, CU(cuMemsetD8_v2, at + PAGE, (unsigned char)1, (size_t)8));
  OK(CU(cuLaunchKernel, spin, 8u, 1u, 1u, 32u, 1u, 1u, 0u, NULL, params, NULL));
  unmap_pages(at, &h, 1); /* under the kernel */
  OK(CU(cuLaunchKernel, spin, 8u, 1u, 1u, 32u, 1u, 1u, 0u, NULL, params, NULL));
  IS(700, CU(cuCtxSynchronize));
  IS(700, CU(cuMemcpyDtoH_v2, &h, at, sizeof h));
  printf("held %d %d\n", failures, 0);
  fflush(stdout);
  (void)getchar();
  return 0;
}

static int hold(uint64_t bytes) {
  char line[16];
  uint64_t address, h;
  void *own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  OK(CU(cuMemHostRegister_v2, own, (size_t)PAGE, 0u));
  OK(CU(cuMemAddressReserve, &address, (size_t)PAGE, (size_t)0, 0ull, 0ull));
  do {
    uint64_t a = 0;
    int result = CU(cuMemAlloc_v2, &a, (size_t)bytes);
    if (a && CU(cuMemcpyHtoD_v2, a, own, (size_t)16)) result = 1;
    int mapped = CU(cuMemCreate, &h, (size_t)PAGE, &on_first, 0ull);
    if (mapped == 0) {
      mapped = CU(cuMemMap, address, (size_t)PAGE, (size_t)0, h, 0ull);
      if (mapped == 0) OK(CU(cuMemUnmap, address, (size_t)PAGE));
      OK(CU(cuMemRelease, h));
    }
    printf("held %d %d\n", result, mapped);
    fflush(stdout);
  } while (fgets(line, sizeof line, stdin));
  return 0;
}

int main(int count, char **arguments) {
  test = "start";
  library = dlopen("libcuda.so.1", RTLD_NOW);
  handle module;
  if (!library || CU(cuInit, 0u) || CU(cuCtxCreate_v2, &context, 0u, 0) ||
      CU(cuModuleLoadData, &module, "any") || CU(cuModuleGetFunction, &spin, module, "xs_spin")) {
    printf("FAIL start\n");
    return 1;
  }
  if (count > 1 && strcmp(arguments[1], "stray") == 0) return stray();
  if (count > 2) return hold(strtoull(arguments[2], NULL, 10) * MIB);
  static const struct {
    const char *name;
    void (*run)(void);
  } tests[] = {{"capacity", test_capacity}, {"small", test_small},   {"rules", test_rules},
               {"moves", test_moves},       {"pinned", test_pinned}, {"contexts", test_contexts}};
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    int before = failures;
    test = tests[i].name;
    tests[i].run();
    if (failures == before) printf("ok %s\n", test);
    fflush(stdout);
  }
  return failures != 0;
}
