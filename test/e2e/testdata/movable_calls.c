/* SPDX-License-Identifier: Apache-2.0
 *
 * movable_calls: what HIP says of allocations that can move is what it says of its own. Prints one line per difference,
 * then D, and R after a reset of the device. Reads a line before each.
 */
#include <stddef.h>
#include <stdio.h>

int hipInit(unsigned);
int hipSetDevice(int);
int hipDeviceReset(void);
int hipDeviceSynchronize(void);
int hipGetLastError(void);
int hipMalloc(void **, size_t);
int hipFree(void *);
int hipFreeAsync(void *, void *);
int hipMemGetInfo(size_t *, size_t *);
int hipMemGetAddressRange(void **, size_t *, void *);
int hipMemset(void *, int, size_t);
int hipStreamCreateWithFlags(void **, unsigned);
int hipStreamBeginCapture(void *, int);
int hipStreamEndCapture(void *, void **);

enum { MIB = 1 << 20, SIZE = 5 * MIB + 100, INVALID = 1 };

#define WANT(what, value, want)                                                                    \
  do {                                                                                             \
    long long value_ = (long long)(value), want_ = (long long)(want);                              \
    if (value_ != want_) printf("X %s: %lld, want %lld\n", what, value_, want_);                   \
  } while (0)

static size_t room(void) {
  size_t there = 0, total = 0;
  hipMemGetInfo(&there, &total);
  return there;
}

static void calls(void) {
  void *a = NULL, *b = NULL, *base = NULL, *stream = NULL, *graph = NULL;
  size_t bytes = 0, before = room();
  WANT("hipMalloc", hipMalloc(&a, SIZE), 0);
  WANT("alignment", (size_t)a % 256, 0);
  WANT("range", hipMemGetAddressRange(&base, &bytes, (char *)a + SIZE - 1), 0);
  WANT("begin of the range", base == a, 1);
  WANT("bytes of the range", bytes, SIZE);
  WANT("hipMemset", hipMemset(a, 1, SIZE), 0);
  WANT("hipFree inside", hipFree((char *)a + MIB) != 0, 1);
  hipGetLastError();
  WANT("hipFree", hipFree(a), 0);
  WANT("hipFree again", hipFree(a) != 0, 1);
  hipGetLastError();
  WANT("hipFree of nothing", hipFree(NULL), 0);
  WANT("stream", hipStreamCreateWithFlags(&stream, 1), 0);
  WANT("hipMalloc", hipMalloc(&b, SIZE), 0);
  WANT("hipFreeAsync", hipFreeAsync(b, stream), 0);
  WANT("hipDeviceSynchronize", hipDeviceSynchronize(), 0);
  WANT("room", room(), before);
  WANT("too much", hipMalloc(&a, (size_t)1 << 50), 2);
  WANT("the last error", hipGetLastError(), 2);
  WANT("the last error, again", hipGetLastError(), 0);
  WANT("capture", hipStreamBeginCapture(stream, 2), 0);
  WANT("hipMalloc in a relaxed capture", hipMalloc(&a, SIZE), 0);
  WANT("end of the capture", hipStreamEndCapture(stream, &graph), 0);
  WANT("hipMalloc", hipMalloc(&b, SIZE), 0);
  WANT("the last error after all", hipGetLastError(), 0);
}

int main(void) {
  char line[16];
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (hipInit(0) || hipSetDevice(0)) return 2;
  for (int i = 0; i < 3; i++)
    calls(); /* each leaves two allocations, of which the runtime has one */
  puts("D");
  if (!fgets(line, sizeof line, stdin)) return 1;
  WANT("hipDeviceReset", hipDeviceReset(), 0);
  void *a = NULL;
  WANT("hipMalloc", hipMalloc(&a, SIZE), 0);
  WANT("hipMemset", hipMemset(a, 1, SIZE), 0);
  puts("R");
  if (!fgets(line, sizeof line, stdin)) return 1;
  WANT("hipFree", hipFree(a), 0);
  return 0;
}
