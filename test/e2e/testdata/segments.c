/* SPDX-License-Identifier: Apache-2.0
 *
 * segments: uses device memory as allocators do, while it moves. One thread grows and shrinks a range of addresses by
 * mapping memory, one allocates and frees and asks about addresses, one makes contexts with memory and destroys them.
 * Each compares what it wrote.
 *
 *   in:  anything ends it
 *   out: R; X text if something is wrong; S ROUNDS of each thread at the end
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
typedef void *handle;
struct properties {
  int type, handle_types, location_type, device;
  void *win32;
  unsigned char flags[8];
};
struct access_of {
  int type, device, flags;
};
int cuInit(unsigned);
int cuCtxCreate_v2(handle *, unsigned, int);
int cuCtxDestroy_v2(handle);
int cuDevicePrimaryCtxRetain(handle *, int);
int cuCtxSetCurrent(handle);
int cuStreamCreate(handle *, unsigned);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);
int cuMemFreeAsync(address, handle);
int cuMemsetD8_v2(address, unsigned char, size_t);
int cuMemcpyDtoH_v2(void *, address, size_t);
int cuMemGetAddressRange_v2(address *, size_t *, address);
int cuPointerGetAttribute(void *, int, address);
int cuMemAddressReserve(address *, size_t, size_t, address, unsigned long long);
int cuMemAddressFree(address, size_t);
int cuMemCreate(unsigned long long *, size_t, const struct properties *, unsigned long long);
int cuMemRelease(unsigned long long);
int cuMemMap(address, size_t, size_t, unsigned long long, unsigned long long);
int cuMemUnmap(address, size_t);
int cuMemSetAccess(address, size_t, const struct access_of *, size_t);

#define MIB (1ull << 20)
enum { SEGMENT = 32, PIECES = 8 };

static atomic_int stop;
static atomic_ulong rounds[3];
static handle primary;

static void wrong(const char *what, long detail) {
  printf("X %s %ld\n", what, detail);
  fflush(stdout);
  exit(1);
}
#define OK(call)                                                                                   \
  do {                                                                                             \
    int result_ = (call);                                                                          \
    if (result_ != 0) wrong(#call, result_);                                                       \
  } while (0)

static void compare(address at, unsigned char value, size_t bytes) {
  static _Thread_local unsigned char host[64 << 10];
  size_t part = bytes < sizeof host ? bytes : sizeof host;
  OK(cuMemcpyDtoH_v2(host, at + bytes - part, part));
  for (size_t i = 0; i < part; i++)
    if (host[i] != value) wrong("content", (long)i);
}

// As PyTorch's expandable segments.
static void *segments(void *count) {
  struct properties there = {1, 0, 1, 0, NULL, {0}};
  struct access_of both = {1, 0, 3};
  struct {
    unsigned long long handle;
    size_t bytes;
    unsigned char value;
  } pieces[PIECES];
  unsigned seed = 7, used = 0;
  address base, end;
  OK(cuCtxSetCurrent(primary));
  OK(cuMemAddressReserve(&base, SEGMENT * MIB, 0, 0, 0));
  end = base;
  while (!stop || used > 0) {
    seed = seed * 1103515245 + 12345;
    size_t bytes = (2 + seed / 65536 % 2 * 2) * MIB;
    if (!stop && used < PIECES && seed / 1024 % 3 > 0 && end + bytes <= base + SEGMENT * MIB) {
      pieces[used].bytes = bytes;
      pieces[used].value = (unsigned char)(seed >> 9);
      OK(cuMemCreate(&pieces[used].handle, bytes, &there, 0));
      OK(cuMemMap(end, bytes, 0, pieces[used].handle, 0));
      OK(cuMemSetAccess(end, bytes, &both, 1));
      OK(cuMemsetD8_v2(end, pieces[used].value, bytes));
      end += bytes;
      used++;
    } else if (used > 0) {
      used--;
      end -= pieces[used].bytes;
      compare(end, pieces[used].value, pieces[used].bytes);
      OK(cuMemUnmap(end, pieces[used].bytes));
      OK(cuMemRelease(pieces[used].handle));
    }
    address at = base;
    for (unsigned i = 0; i < used; at += pieces[i++].bytes)
      compare(at, pieces[i].value, pieces[i].bytes);
    ++*(atomic_ulong *)count;
  }
  OK(cuMemAddressFree(base, SEGMENT * MIB));
  return NULL;
}

static void *allocations(void *count) {
  handle stream;
  OK(cuCtxSetCurrent(primary));
  OK(cuStreamCreate(&stream, 1));
  for (unsigned i = 0; !stop; i++) {
    address a, small, start;
    size_t bytes = (2 + i % 3) * MIB + i % 2, got;
    uint64_t id = 0, again = 0;
    OK(cuMemAlloc_v2(&a, bytes));
    OK(cuMemAlloc_v2(&small, 4096));
    OK(cuMemsetD8_v2(a, (unsigned char)i, bytes));
    OK(cuMemGetAddressRange_v2(&start, &got, a + bytes / 2));
    if (start != a || got != bytes) wrong("range", (long)got);
    OK(cuPointerGetAttribute(&id, 7, a));
    OK(cuPointerGetAttribute(&again, 7, a + bytes - 1));
    if (id != again || id == 0) wrong("buffer id", (long)id);
    compare(a, (unsigned char)i, bytes);
    if (i % 2)
      OK(cuMemFree_v2(a));
    else
      OK(cuMemFreeAsync(a, stream));
    OK(cuMemFree_v2(small));
    ++*(atomic_ulong *)count;
  }
  return NULL;
}

static void *contexts(void *count) {
  for (unsigned i = 0; !stop; i++) {
    handle context;
    address a, b;
    OK(cuCtxCreate_v2(&context, 0, (int)(i % 2)));
    OK(cuMemAlloc_v2(&a, 4 * MIB));
    OK(cuMemAlloc_v2(&b, 2 * MIB));
    OK(cuMemsetD8_v2(a, (unsigned char)i, 4 * MIB));
    compare(a, (unsigned char)i, 4 * MIB);
    OK(cuMemFree_v2(b));
    OK(cuCtxDestroy_v2(context)); /* and with it the other one */
    ++*(atomic_ulong *)count;
  }
  return NULL;
}

int main(void) {
  void *(*const run[3])(void *) = {segments, allocations, contexts};
  pthread_t threads[3];
  char line[16];
  address kept;
  if (cuInit(0)) return 2;
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  OK(cuMemAlloc_v2(&kept, 16 * MIB + 1)); /* always something to move */
  OK(cuMemsetD8_v2(kept, 99, 16 * MIB + 1));
  for (int i = 0; i < 3; i++)
    pthread_create(&threads[i], NULL, run[i], (void *)&rounds[i]);
  printf("R\n");
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) return 3;
  stop = 1;
  for (int i = 0; i < 3; i++)
    pthread_join(threads[i], NULL);
  compare(kept, 99, 16 * MIB + 1);
  OK(cuMemFree_v2(kept));
  printf("S %lu %lu %lu\n", rounds[0], rounds[1], rounds[2]);
  return 0;
}
