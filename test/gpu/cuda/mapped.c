// SPDX-License-Identifier: Apache-2.0
//
// What does the driver answer about memory of cuMemAlloc, and about memory that is mapped (cuMemCreate, cuMemMap)? Movable memory
// must answer like the former. Without the shim the columns "allocated" and "mapped" differ; with it (and XSCHED_MOVABLE=1)
// "allocated" must look as it did without.
//
//   mapped [allocated|mapped|captures|waits|costs|churn|contexts|graphs|others|ipc]...
//
// Prints lines "section: question: answer". Returns 0 whatever the answers are.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GRANULE (2 * MIB)

typedef unsigned long long U64;
typedef void *P;
struct location {
  int type, id;
};
struct properties {
  int type, handle_types;
  struct location location;
  void *win32;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
struct access_of {
  struct location location;
  int flags;
};

static void *library;
static int unknown(void) { return -1; }
static int (*look(const char *name))() {
  int (*f)() = NULL;
  *(void **)&f = dlsym(library, name);
  return f ? f : unknown;
}
#define CU(name, types, ...)                    \
  ({                                            \
    static int (*found)();                      \
    if (!found) found = look(#name);            \
    ((int(*) types)found)(__VA_ARGS__);         \
  })

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
static const char *section = "";
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
#include <stdarg.h>
static void say(const char *format, ...) {
  va_list list;
  va_start(list, format);
  printf("%s: ", section);
  vprintf(format, list);
  putchar('\n');
  fflush(stdout);
  va_end(list);
}

static P context;
static struct properties on_device = {.type = 1, .location = {1, 0}};
static struct access_of both = {{1, 0}, 3};

static int alloc(U64 *a, size_t n) { return CU(cuMemAlloc_v2, (U64 *, size_t), a, n); }
static int release(U64 a) { return CU(cuMemFree_v2, (U64), a); }
static int reserve(U64 *a, size_t n) {
  return CU(cuMemAddressReserve, (U64 *, size_t, size_t, U64, U64), a, n, 0, 0, 0);
}
static int unreserve(U64 a, size_t n) { return CU(cuMemAddressFree, (U64, size_t), a, n); }
static int create(U64 *h, size_t n, const struct properties *p) {
  return CU(cuMemCreate, (U64 *, size_t, const struct properties *, U64), h, n, p, 0);
}
static int drop(U64 h) { return CU(cuMemRelease, (U64), h); }
static int map(U64 a, size_t n, U64 h) { return CU(cuMemMap, (U64, size_t, size_t, U64, U64), a, n, 0, h, 0); }
static int permit(U64 a, size_t n) {
  return CU(cuMemSetAccess, (U64, size_t, const struct access_of *, size_t), a, n, &both, 1);
}
static int unmap(U64 a, size_t n) { return CU(cuMemUnmap, (U64, size_t), a, n); }
static int set8(U64 a, int v, size_t n) { return CU(cuMemsetD8_v2, (U64, unsigned char, size_t), a, (unsigned char)v, n); }
static int to_host(void *h, U64 a, size_t n) { return CU(cuMemcpyDtoH_v2, (void *, U64, size_t), h, a, n); }
static int synchronize(void) { return CU(cuCtxSynchronize, (void)); }

/* ---- attributes --------------------------------------------------------------------------------- */

static const struct {
  int id, bytes;
  const char *name;
} attributes[] = {
    {1, 8, "CONTEXT"},        {2, 4, "MEMORY_TYPE"},   {3, 8, "DEVICE_POINTER"}, {4, 8, "HOST_POINTER"},
    {6, 1, "SYNC_MEMOPS"},    {7, 8, "BUFFER_ID"},     {8, 1, "IS_MANAGED"},     {9, 4, "DEVICE_ORDINAL"},
    {10, 1, "LEGACY_IPC"},    {11, 8, "RANGE_START"},  {12, 8, "RANGE_SIZE"},    {13, 1, "MAPPED"},
    {14, 8, "HANDLE_TYPES"},  {15, 1, "RDMA_CAPABLE"}, {16, 4, "ACCESS_FLAGS"},  {17, 8, "MEMPOOL"},
    {18, 8, "MAPPING_SIZE"},  {19, 8, "MAPPING_BASE"}, {20, 8, "BLOCK_ID"},      {21, 1, "DECOMPRESS"},
};
enum { ATTRIBUTES = sizeof attributes / sizeof *attributes };

static void show_value(const char *what, int at, int error, uint64_t value, U64 base) {
  if (error)
    say("%s: %s: error %d", what, attributes[at].name, error);
  else if (base && value >= base && value - base < 1u << 30)
    say("%s: %s: base + %#llx", what, attributes[at].name, (U64)value - base);
  else if ((uint64_t)(uintptr_t)context == value)
    say("%s: %s: the context", what, attributes[at].name);
  else
    say("%s: %s: %#llx", what, attributes[at].name, (U64)value);
}

static void ask(const char *what, U64 address, U64 base) {
  uint64_t values[ATTRIBUTES];
  int ids[ATTRIBUTES];
  void *data[ATTRIBUTES];
  U64 start = 0;
  size_t bytes = 0;
  int error = CU(cuMemGetAddressRange_v2, (U64 *, size_t *, U64), &start, &bytes, address);
  if (error)
    say("%s: address range: error %d", what, error);
  else
    say("%s: address range: base %+lld, %zu", what, (long long)(start - base), bytes);
  for (int i = 0; i < ATTRIBUTES; i++) {
    values[i] = 0;
    ids[i] = attributes[i].id;
    data[i] = &values[i];
    error = CU(cuPointerGetAttribute, (void *, int, U64), &values[i], ids[i], address);
    show_value(what, i, error, values[i], base);
  }
  for (int i = 0; i < ATTRIBUTES; i++)
    values[i] = 0x77;
  error = CU(cuPointerGetAttributes, (unsigned, int *, void **, U64), 12, ids, data, address);
  say("%s: 12 at once: error %d", what, error);
  for (int i = 0; !error && i < 12; i++)
    show_value("  at once", i, 0, values[i], base);
  for (int i = 0; i < ATTRIBUTES; i++) {
    values[i] = 0x77;
    error = CU(cuPointerGetAttributes, (unsigned, int *, void **, U64), 1, &ids[i], &data[i], address);
    if (error || i >= 12) say("%s: alone of several: %s: error %d, %#llx", what, attributes[i].name, error, (U64)values[i]);
  }
  char handle[64];
  say("%s: ipc: error %d", what, CU(cuIpcGetMemHandle, (void *, U64), handle, address));
  int fd = -1;
  error = CU(cuMemGetHandleForAddressRange, (void *, U64, size_t, int, U64), &fd, base, (size_t)GRANULE, 1, 0);
  say("%s: dma-buf: error %d", what, error);
  if (fd >= 0) close(fd);
  U64 retained = 0;
  error = CU(cuMemRetainAllocationHandle, (U64 *, void *), &retained, (void *)(uintptr_t)address);
  say("%s: retain: error %d", what, error);
  if (!error) drop(retained);
  unsigned value = 1;
  error = CU(cuPointerSetAttribute, (const void *, int, U64), &value, 6, address);
  say("%s: set SYNC_MEMOPS: error %d", what, error);
  value = 0;
  CU(cuPointerSetAttribute, (const void *, int, U64), &value, 6, address);
  U64 flags = 9;
  struct location here = {1, 0};
  error = CU(cuMemGetAccess, (U64 *, struct location *, U64), &flags, &here, address);
  say("%s: access: error %d, %llu", what, error, flags);
}

static void bounds(const char *what, U64 base, size_t asked) {
  char byte = 0;
  size_t round = (asked + GRANULE - 1) / GRANULE * GRANULE;
  say("%s: last byte: error %d", what, to_host(&byte, base + asked - 1, 1));
  say("%s: byte behind: error %d", what, to_host(&byte, base + asked, 1));
  say("%s: copy over the end: error %d", what, set8(base + asked - 16, 1, 32));
  say("%s: last byte of the granules: error %d", what, to_host(&byte, base + round - 1, 1));
  say("%s: behind the granules: error %d", what, to_host(&byte, base + round, 1));
  say("%s: after that: error %d", what, synchronize());
  say("%s: free in the middle: error %d", what, release(base + 256));
}

static void allocated(void) {
  U64 a = 0, b = 0, small = 0;
  size_t sizes[] = {GRANULE, 3 * MIB, 5 * MIB + 1, 64 * MIB + 4096, MIB + 4};
  for (unsigned i = 0; i < 5; i++) {
    int error = alloc(&a, sizes[i]);
    say("%zu bytes: error %d, alignment %#llx", sizes[i], error, a & -a);
    if (error) continue;
    char name[64];
    snprintf(name, sizeof name, "start of %zu", sizes[i]);
    if (i < 3) ask(name, a, a);
    if (i == 2) {
      ask("middle", a + 3 * MIB + 5, a);
      bounds("bounds", a, sizes[i]);
    }
    say("free: error %d, again %d", release(a), release(a));
  }
  say("0 bytes: error %d", alloc(&a, 0));
  say("NULL: error %d", alloc(NULL, 4 * MIB));
  say("a petabyte: error %d", alloc(&a, (size_t)1 << 50));
  say("all bits: error %d", alloc(&a, SIZE_MAX));
  alloc(&a, 4 * MIB), alloc(&b, 4 * MIB), alloc(&small, 4096);
  uint64_t id[3] = {0};
  CU(cuPointerGetAttribute, (void *, int, U64), &id[0], 7, a);
  CU(cuPointerGetAttribute, (void *, int, U64), &id[1], 7, b);
  CU(cuPointerGetAttribute, (void *, int, U64), &id[2], 7, small);
  say("buffer ids of three: %#llx %+lld %+lld", (U64)id[0], (long long)(id[1] - id[0]), (long long)(id[2] - id[0]));
  release(a), release(b), release(small);
  ask("freed", a, a);
  size_t pitch = 0, widths[] = {1, 100, 512, 513, 4096, 100000, 4 * MIB};
  for (unsigned i = 0; i < 7; i++)
    for (unsigned j = 0; j < 3; j++) {
      size_t height = j == 0 ? 1 : j == 1 ? 3 : 5000;
      int error = CU(cuMemAllocPitch_v2, (U64 *, size_t *, size_t, size_t, unsigned), &a, &pitch, widths[i], height, 4);
      U64 start = 0;
      size_t bytes = 0;
      if (!error) CU(cuMemGetAddressRange_v2, (U64 *, size_t *, U64), &start, &bytes, a);
      say("pitch of %zu x %zu: error %d, %zu, range %zu", widths[i], height, error, pitch, bytes);
      if (!error) release(a);
    }
  say("pitch of element 5: error %d",
      CU(cuMemAllocPitch_v2, (U64 *, size_t *, size_t, size_t, unsigned), &a, &pitch, 4096, 4096, 5));
  size_t before = 0, after = 0, total = 0;
  alloc(&b, GRANULE);
  CU(cuMemGetInfo_v2, (size_t *, size_t *), &before, &total);
  alloc(&a, 5 * MIB + 1);
  CU(cuMemGetInfo_v2, (size_t *, size_t *), &after, &total);
  say("5 MiB + 1 takes %zu", before - after);
  release(a), release(b);
}

static void mapped(void) {
  struct properties kinds[3] = {on_device, on_device, on_device};
  kinds[1].handle_types = 1;
  kinds[2].rdma = 1;
  const char *names[] = {"plain", "posix", "rdma"};
  U64 a = 0, h[2] = {0};
  size_t granularity[2] = {0};
  CU(cuMemGetAllocationGranularity, (size_t *, const struct properties *, int), &granularity[0], &on_device, 0);
  CU(cuMemGetAllocationGranularity, (size_t *, const struct properties *, int), &granularity[1], &on_device, 1);
  say("granularity: %zu, recommended %zu", granularity[0], granularity[1]);
  for (int i = 0; i < 3; i++) {
    int e[6] = {reserve(&a, 3 * GRANULE), create(&h[0], 2 * GRANULE, &kinds[i]), create(&h[1], GRANULE, &kinds[i])};
    e[3] = map(a, 2 * GRANULE, h[0]), e[4] = map(a + 2 * GRANULE, GRANULE, h[1]), e[5] = permit(a, 3 * GRANULE);
    say("%s: errors %d %d %d %d %d %d, alignment %#llx", names[i], e[0], e[1], e[2], e[3], e[4], e[5], a & -a);
    char name[64];
    snprintf(name, sizeof name, "%s, start", names[i]);
    ask(name, a, a);
    if (i == 0) {
      ask("plain, in the second mapping", a + 2 * GRANULE + 5, a);
      bounds("plain", a, 5 * MIB + 1);
      char byte;
      say("plain: copy across mappings: error %d", set8(a + 2 * GRANULE - 8, 3, 16));
      say("plain: cuMemFree: error %d", release(a));
      say("plain: cuMemFreeAsync: error %d", CU(cuMemFreeAsync, (U64, P), a, NULL));
      say("plain: unmap half a mapping: error %d", unmap(a, GRANULE));
      say("plain: unmap both: error %d", unmap(a, 3 * GRANULE));
      ask("reserved, not mapped", a, a);
      say("reserved: copy: error %d", to_host(&byte, a, 1));
      say("reserved: after that: error %d", synchronize());
      say("map again: error %d %d %d", map(a, 2 * GRANULE, h[0]), map(a + 2 * GRANULE, GRANULE, h[1]), permit(a, 3 * GRANULE));
      struct properties got;
      memset(&got, 0x55, sizeof got);
      say("properties: error %d, %d %d %d %d",
          CU(cuMemGetAllocationPropertiesFromHandle, (struct properties *, U64), &got, h[0]), got.type, got.handle_types,
          got.location.type, got.location.id);
    }
    int fd = -1;
    say("%s: export: error %d", names[i], CU(cuMemExportToShareableHandle, (void *, U64, int, U64), &fd, h[0], 1, 0));
    if (fd >= 0) {
      U64 imported = 0;
      say("%s: import: error %d, same handle %d", names[i],
          CU(cuMemImportFromShareableHandle, (U64 *, void *, int), &imported, (void *)(intptr_t)fd, 1), imported == h[0]);
      drop(imported);
      close(fd);
    }
    U64 retained = 0;
    say("%s: retain: error %d, same handle %d", names[i],
        CU(cuMemRetainAllocationHandle, (U64 *, void *), &retained, (void *)(uintptr_t)a), retained == h[0]);
    drop(retained);
    say("%s: free addresses while mapped: error %d", names[i], unreserve(a, 3 * GRANULE));
    say("%s: end: %d %d %d %d", names[i], unmap(a, 3 * GRANULE), drop(h[0]), drop(h[1]), unreserve(a, 3 * GRANULE));
    ask("gone", a, a);
  }
  struct properties wrong = on_device;
  say("create of a byte too many: error %d", create(h, GRANULE + 1, &on_device));
  say("create of a terabyte: error %d", create(h, (size_t)1 << 40, &on_device));
  wrong.location.id = 99;
  say("create on device 99: error %d", create(h, GRANULE, &wrong));
  int e = reserve(&a, (size_t)1 << 46);
  say("reserve 64 TiB: error %d", e);
  if (!e) unreserve(a, (size_t)1 << 46);
}

/* ---- captures ------------------------------------------------------------------------------------- */

static void captures(void) {
  P stream = NULL, graph = NULL;
  CU(cuStreamCreate, (P *, unsigned), &stream, 1);
  for (int mode = 0; mode < 3; mode++) {
    const char *name = mode == 0 ? "global" : mode == 1 ? "thread" : "relaxed";
    for (int what = 0; what < 12; what++) {
      U64 a = 0, h = 0, kept = 0, room = 0, kept_handle = 0;
      alloc(&kept, 4 * MIB);
      reserve(&a, GRANULE), create(&kept_handle, GRANULE, &on_device);
      if (what >= 5) map(a, GRANULE, kept_handle);
      if (what >= 6) permit(a, GRANULE);
      int error = CU(cuStreamBeginCapture_v2, (P, int), stream, mode), result = -2;
      size_t x = 0, y = 0;
      char byte;
      const char *did = "";
      int m = 2;
      switch (what) {
      case 0: did = "alloc", result = alloc(&h, 4 * MIB), kept = kept ? kept : h; if (!result) release(h); break;
      case 1: did = "free", result = release(kept); if (!result) kept = 0; break;
      case 2: did = "reserve", result = reserve(&room, GRANULE); if (!result) unreserve(room, GRANULE); break;
      case 3: did = "create", result = create(&h, GRANULE, &on_device); if (!result) drop(h); break;
      case 4: did = "map", result = map(a, GRANULE, kept_handle); break;
      case 5: did = "access", result = permit(a, GRANULE); break;
      case 6: did = "unmap", result = unmap(a, GRANULE); break;
      case 7: did = "info", result = CU(cuMemGetInfo_v2, (size_t *, size_t *), &x, &y); break;
      case 8: did = "range", result = CU(cuMemGetAddressRange_v2, (U64 *, size_t *, U64), &room, &x, kept); break;
      case 9: did = "synchronous copy", result = to_host(&byte, kept, 1); break;
      case 10: did = "context synchronize", result = synchronize(); break;
      case 11:
        did = "alloc in relaxed mode of the thread";
        CU(cuThreadExchangeStreamCaptureMode, (int *), &m);
        result = alloc(&h, 4 * MIB);
        CU(cuThreadExchangeStreamCaptureMode, (int *), &m);
        if (!result) release(h);
        break;
      }
      int end = CU(cuStreamEndCapture, (P, P *), stream, &graph);
      say("%s: %s: begin %d, error %d, end %d", name, did, error, result, end);
      if (!end) CU(cuGraphDestroy, (P), graph);
      unmap(a, GRANULE), drop(kept_handle), unreserve(a, GRANULE);
      if (kept) release(kept);
    }
  }
  CU(cuStreamDestroy_v2, (P), stream);
}

/* ---- what waits for work --------------------------------------------------------------------------- */

static volatile uint32_t *flag;
static void *later(void *nothing) {
  (void)nothing;
  usleep(200000);
  *flag = 1;
  return NULL;
}

static void waits(void) {
  void *host = NULL;
  U64 seen = 0;
  P stream = NULL, other = NULL;
  CU(cuMemHostAlloc, (void **, size_t, unsigned), &host, 4096, 3);
  CU(cuMemHostGetDevicePointer_v2, (U64 *, void *, unsigned), &seen, host, 0);
  flag = host;
  CU(cuStreamCreate, (P *, unsigned), &stream, 1);
  for (int what = 0; what < 12; what++) {
    U64 a = 0, m = 0, h = 0, x = 0;
    const char *did = "";
    alloc(&a, 4 * MIB), reserve(&m, GRANULE), create(&h, GRANULE, &on_device), map(m, GRANULE, h), permit(m, GRANULE);
    if (what == 10 && !other) CU(cuCtxCreate_v2, (P *, unsigned, int), &other, 0, 0);
    if (what == 10) CU(cuCtxSetCurrent, (P), other);
    P in = stream;
    P before = NULL;
    CU(cuCtxGetCurrent, (P *), &before);
    if (what == 10) CU(cuStreamCreate, (P *, unsigned), &in, 1), CU(cuCtxSetCurrent, (P), context);
    *flag = 0;
    int error = CU(cuStreamWaitValue32_v2, (P, U64, uint32_t, unsigned), in, seen, 1, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, later, NULL);
    double begun = now();
    int result = -2;
    switch (what) {
    case 0: did = "free", result = release(a); a = 0; break;
    case 1: did = "unmap", result = unmap(m, GRANULE); break;
    case 2: did = "release", result = drop(h); break;
    case 3: did = "create", result = create(&x, GRANULE, &on_device); drop(x); break;
    case 4: did = "access", result = permit(m, GRANULE); break;
    case 5: did = "alloc", result = alloc(&x, 4 * MIB); break;
    case 6: did = "context synchronize", result = synchronize(); break;
    case 7: did = "free of 4 KiB", result = alloc(&x, 4096), begun = now(), result = release(x), x = 0; break;
    case 8: did = "reserve, free addresses", result = reserve(&x, GRANULE) | unreserve(x, GRANULE), x = 0; break;
    case 9: did = "register 1 MiB", result = CU(cuMemHostRegister_v2, (void *, size_t, unsigned), calloc(1, MIB), MIB, 1); break;
    case 10: did = "free, with work in another context", result = release(a); a = 0; break;
    case 11: did = "free of a bad address", result = release(0x12345600); break;
    }
    double took = now() - begun;
    pthread_join(thread, NULL);
    say("%s: error %d, begun %d, %s (%.1f ms)", did, result, error, took > 0.15 ? "waits" : "does not wait", took * 1e3);
    synchronize();
    if (what == 10 && other) CU(cuCtxSetCurrent, (P), other), synchronize(), CU(cuCtxSetCurrent, (P), context);
    if (x && what == 5) release(x);
    if (a) release(a);
    unmap(m, GRANULE), drop(h), unreserve(m, GRANULE);
  }
  if (other) CU(cuCtxDestroy_v2, (P), other);
  CU(cuCtxSetCurrent, (P), context);
}

/* ---- costs ----------------------------------------------------------------------------------------- */

static void costs(void) {
  size_t sizes[] = {GRANULE, 8 * MIB, 64 * MIB, 512 * MIB};
  for (int i = 0; i < 4; i++) {
    enum { ROUNDS = 200 };
    size_t n = sizes[i];
    double t[8] = {0};
    U64 a = 0, h = 0;
    int error = 0;
    for (int r = 0; r < ROUNDS; r++) {
      double b = now();
      error |= alloc(&a, n), t[0] += now() - b, b = now();
      error |= release(a), t[1] += now() - b, b = now();
      error |= reserve(&a, n), t[2] += now() - b, b = now();
      error |= create(&h, n, &on_device), t[3] += now() - b, b = now();
      error |= map(a, n, h), t[4] += now() - b, b = now();
      error |= permit(a, n), t[5] += now() - b, b = now();
      error |= unmap(a, n), error |= drop(h), t[6] += now() - b, b = now();
      error |= unreserve(a, n), t[7] += now() - b;
    }
    for (int j = 0; j < 8; j++)
      t[j] *= 1e6 / ROUNDS;
    say("%zu MiB, microseconds: alloc %.1f free %.1f; reserve %.1f create %.1f map %.1f access %.1f unmap+release %.1f free addresses "
        "%.1f; error %d",
        (size_t)(n / MIB), t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], error);
  }
  double begun = now();
  uint64_t id;
  U64 a;
  alloc(&a, 4 * MIB);
  for (int i = 0; i < 100000; i++)
    CU(cuPointerGetAttribute, (void *, int, U64), &id, 7, a);
  say("an attribute: %.0f ns", (now() - begun) * 1e4);
  release(a);
}

/* 10,000 allocations and frees of mixed sizes, as an allocator makes them: up to 64 live. */
static void churn(void) {
  enum { ROUNDS = 10000, LIVE = 64 };
  U64 live[LIVE] = {0};
  uint32_t seed = 12345, failed = 0;
  int (*take)() = look("cuMemAlloc_v2"), (*give)() = look("cuMemFree_v2");
  double begun = now(), taking = 0, giving = 0;
  for (int i = 0; i < ROUNDS; i++) {
    seed = seed * 1664525u + 1013904223u;
    unsigned at = seed >> 8 & (LIVE - 1);
    double b = now();
    if (live[at]) ((int (*)(U64))give)(live[at]);
    giving += now() - b, b = now();
    size_t bytes = (size_t)256 << (seed >> 16) % 18; /* 256 bytes to 32 MiB */
    if (((int (*)(U64 *, size_t))take)(&live[at], bytes) != 0) failed++, live[at] = 0;
    taking += now() - b;
  }
  for (int i = 0; i < LIVE; i++)
    if (live[i]) ((int (*)(U64))give)(live[i]);
  say("%d pairs of 256 B to 32 MiB: %.3f s, alloc %.1f us, free %.1f us, failed %u", ROUNDS, now() - begun,
      taking * 1e6 / ROUNDS, giving * 1e6 / ROUNDS, failed);
}

/* ---- contexts -------------------------------------------------------------------------------------- */

static void contexts(void) {
  P other = NULL, got = NULL, primary = NULL;
  U64 a = 0, m = 0, h = 0;
  char byte = 0;
  CU(cuCtxCreate_v2, (P *, unsigned, int), &other, 0, 0);
  say("alloc in the second: error %d", alloc(&a, 4 * MIB));
  reserve(&m, GRANULE), create(&h, GRANULE, &on_device), map(m, GRANULE, h), permit(m, GRANULE);
  CU(cuPointerGetAttribute, (void *, int, U64), &got, 1, a);
  say("context of allocated: %s", got == other ? "second" : got == context ? "first" : got ? "another" : "none");
  int error = CU(cuPointerGetAttribute, (void *, int, U64), &got, 1, m);
  say("context of mapped: error %d, %s", error, got == other ? "second" : got == context ? "first" : got ? "another" : "none");
  CU(cuDevicePrimaryCtxRetain, (P *, int), &primary, 0);
  say("the first is the primary one: %d", primary == context);
  CU(cuCtxSetCurrent, (P), context);
  got = NULL;
  error = CU(cuPointerGetAttribute, (void *, int, U64), &got, 1, m);
  say("context of mapped, asked in the first: error %d, %s", error,
      got == other ? "second" : got == context ? "first" : got == primary ? "primary" : got ? "another" : "none");
  say("allocated of the second, used in the first: errors %d %d", set8(a, 7, 4096), to_host(&byte, a, 1));
  say("mapped of the second, used in the first: errors %d %d", set8(m, 7, 4096), to_host(&byte, m, 1));
  say("freed in the first: error %d", release(a));
  CU(cuCtxSetCurrent, (P), other);
  alloc(&a, 4 * MIB);
  size_t free_before = 0, free_after = 0, total = 0;
  CU(cuCtxSetCurrent, (P), context);
  CU(cuMemGetInfo_v2, (size_t *, size_t *), &free_before, &total);
  say("destroy the second: error %d", CU(cuCtxDestroy_v2, (P), other));
  CU(cuMemGetInfo_v2, (size_t *, size_t *), &free_after, &total);
  say("that freed %lld MiB", (long long)(free_after - free_before) / (long long)MIB);
  say("its allocated memory: error %d, free %d", to_host(&byte, a, 1), release(a));
  say("its mapped memory: error %d", to_host(&byte, m, 1));
  say("unmap, release, free: %d %d %d", unmap(m, GRANULE), drop(h), unreserve(m, GRANULE));
  CU(cuDevicePrimaryCtxRelease_v2, (int), 0);
  CU(cuCtxSetCurrent, (P), NULL);
  say("without a context: alloc %d, create %d, reserve %d", alloc(&a, 4 * MIB), create(&h, GRANULE, &on_device), reserve(&m, GRANULE));
  drop(h), unreserve(m, GRANULE);
  CU(cuCtxSetCurrent, (P), context);
}

/* ---- graphs that know addresses -------------------------------------------------------------------- */

static void graphs(void) {
  U64 m = 0, h = 0, out = 0;
  P stream = NULL, graph = NULL, exec = NULL;
  char back[4] = {0}, word[4] = {1, 2, 3, 4};
  reserve(&m, GRANULE), create(&h, GRANULE, &on_device), map(m, GRANULE, h), permit(m, GRANULE);
  alloc(&out, 4 * MIB);
  CU(cuStreamCreate, (P *, unsigned), &stream, 1);
  CU(cuStreamBeginCapture_v2, (P, int), stream, 2);
  int e1 = CU(cuMemcpyDtoDAsync_v2, (U64, U64, size_t, P), out, m, 4, stream);
  int e2 = CU(cuMemsetD8Async, (U64, unsigned char, size_t, P), m + 4096, 9, 4096, stream);
  int e3 = CU(cuStreamEndCapture, (P, P *), stream, &graph);
  int e4 = CU(cuGraphInstantiateWithFlags, (P *, P, U64), &exec, graph, 0);
  say("captured: errors %d %d %d %d", e1, e2, e3, e4);
  for (int round = 0; round < 3; round++) {
    CU(cuMemcpyHtoD_v2, (U64, const void *, size_t), m, word, 4);
    int launched = CU(cuGraphLaunch, (P, P), exec, stream), done = CU(cuStreamSynchronize, (P), stream);
    int read = to_host(back, out, 4);
    char byte = 0;
    to_host(&byte, m + 4096, 1);
    say("round %d: launch %d, end %d, copy %d, right %d", round, launched, done, read, !memcmp(back, word, 4) && byte == 9);
    int r[6] = {unmap(m, GRANULE), drop(h)};
    if (round == 1) {
      U64 x = 0; /* other memory than before */
      create(&x, 64 * MIB, &on_device);
      r[2] = create(&h, GRANULE, &on_device);
      drop(x);
    } else {
      r[2] = create(&h, GRANULE, &on_device);
    }
    r[3] = map(m, GRANULE, h), r[4] = permit(m, GRANULE);
    say("moved: errors %d %d %d %d %d", r[0], r[1], r[2], r[3], r[4]);
    word[0]++;
  }
  unmap(m, GRANULE);
  say("launch while away: error %d, end %d", CU(cuGraphLaunch, (P, P), exec, stream), CU(cuStreamSynchronize, (P), stream));
}

/* ---- the rest -------------------------------------------------------------------------------------- */

static void others(void) {
  U64 a = 0, m = 0, h = 0;
  struct location here = {1, 0};
  alloc(&a, 4 * MIB), reserve(&m, GRANULE), create(&h, GRANULE, &on_device), map(m, GRANULE, h), permit(m, GRANULE);
  for (int i = 0; i < 2; i++) {
    const char *name = i ? "mapped" : "allocated";
    U64 at = i ? m : a;
    int value = -1;
    say("%s: advise: error %d", name, CU(cuMemAdvise, (U64, size_t, int, int), at, GRANULE, 1, 0));
    say("%s: prefetch: error %d", name, CU(cuMemPrefetchAsync, (U64, size_t, int, P), at, GRANULE, 0, NULL));
    say("%s: range attribute: error %d", name, CU(cuMemRangeGetAttribute, (void *, size_t, int, U64, size_t), &value, 4, 1, at, GRANULE));
    say("%s: host register: error %d", name, CU(cuMemHostRegister_v2, (void *, size_t, unsigned), (void *)(uintptr_t)at, GRANULE, 0));
    U64 object = 0;
    struct {
      int type, pad;
      U64 address;
      int format;
      unsigned channels;
      size_t bytes;
      char rest[128];
    } resource = {2, 0, at, 0x20, 1, GRANULE, {0}};
    char texture[256] = {0};
    say("%s: linear texture: error %d", name,
        CU(cuTexObjectCreate, (U64 *, void *, void *, void *), &object, &resource, texture, NULL));
    if (object) CU(cuTexObjectDestroy, (U64), object);
    say("%s: stream attach: error %d", name, CU(cuStreamAttachMemAsync, (P, U64, size_t, unsigned), NULL, at, 0, 4));
    say("%s: free async: error %d", name, i ? -9 : CU(cuMemFreeAsync, (U64, P), at, NULL));
    say("%s: synchronize: error %d", name, synchronize());
  }
  unmap(m, GRANULE), drop(h), unreserve(m, GRANULE);
  int value = -1;
  struct {
    int id;
    const char *name;
  } list[] = {{75, "stream priorities"}, {102, "mapping supported"}, {103, "posix handles"}, {110, "rdma with mapping"}, {116, "rdma"}, {124, "dma-buf"},
              {128, "fabric handles"}};
  for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
    CU(cuDeviceGetAttribute, (int *, int, int), &value, list[i].id, 0);
    say("device attribute %d (%s): %d", list[i].id, list[i].name, value);
  }
  (void)here;
}

/* ---- another process --------------------------------------------------------------------------------- */

struct shared {
  char handle[64];
};

static int other_process(void) {
  struct shared got;
  U64 a = 0;
  char byte = 0;
  if (fread(&got, sizeof got, 1, stdin) != 1) return 2;
  int opened = CU(cuIpcOpenMemHandle_v2, (U64 *, struct shared, unsigned), &a, got, 1);
  int read = opened ? -1 : to_host(&byte, a + 99 * MIB, 1);
  int written = opened ? -1 : set8(a + 99 * MIB, 9, 16);
  synchronize();
  printf("ipc: opened there: error %d, read %d: %d, write %d, close %d\n", opened, read, byte, written,
         opened ? -1 : CU(cuIpcCloseMemHandle, (U64), a));
  return 0;
}

static void ipc(void) {
  U64 a = 0;
  struct shared handle;
  char byte = 0;
  alloc(&a, 100 * MIB + 1);
  set8(a, 7, 100 * MIB);
  synchronize();
  int error = CU(cuIpcGetMemHandle, (void *, U64), &handle, a + 5 * MIB);
  say("handle: error %d", error);
  fflush(stdout);
  char command[4096 + 32], self[4096] = "";
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return;
  snprintf(command, sizeof command, "'%s' other-process", self);
  FILE *child = error ? NULL : popen(command, "w");
  if (!child) return;
  fwrite(&handle, sizeof handle, 1, child);
  say("the other process: %d", pclose(child));
  error = to_host(&byte, a + 99 * MIB, 1);
  say("written there: error %d, %d", error, byte);
  say("free: error %d", release(a));
}

int main(int count, char **names) {
  static const struct {
    const char *name;
    void (*run)(void);
  } all[] = {{"allocated", allocated}, {"mapped", mapped},     {"captures", captures}, {"waits", waits},
             {"costs", costs},         {"churn", churn},       {"contexts", contexts}, {"graphs", graphs},
             {"others", others},       {"ipc", ipc}};
  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
  int error = CU(cuInit, (unsigned), 0);
  if (!error) error = CU(cuDevicePrimaryCtxRetain, (P *, int), &context, 0);
  if (!error) error = CU(cuCtxSetCurrent, (P), context);
  if (error) return fprintf(stderr, "no context: error %d\n", error), 2;
  if (count == 2 && strcmp(names[1], "other-process") == 0) return other_process();
  for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
    bool wanted = count == 1;
    for (int j = 1; j < count; j++)
      wanted = wanted || strcmp(names[j], all[i].name) == 0;
    section = all[i].name;
    if (wanted) all[i].run();
  }
  return 0;
}
