/* SPDX-License-Identifier: Apache-2.0
 *
 * uploads COUNT: after each line of input, so many small copies to the device, each into an idle stream and waited for. Checks
 * the bytes, and answers with a line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *handle;
typedef unsigned long long address;
int cuInit(unsigned);
int cuCtxCreate_v2(handle *, unsigned, int);
int cuMemAlloc_v2(address *, size_t);
int cuMemcpyHtoDAsync_v2(address, const void *, size_t, handle);
int cuMemcpyDtoH_v2(void *, address, size_t);
int cuStreamCreate(handle *, unsigned);
int cuStreamSynchronize(handle);

enum { BYTES = 4096, NON_BLOCKING = 1 };

static void check(int result) {
  if (result == 0) return;
  printf("FAIL %d\n", result);
  exit(1);
}

int main(int argc, char **argv) {
  static unsigned char from[BYTES], back[BYTES];
  int count = argc > 1 ? atoi(argv[1]) : 1, c;
  handle context, stream;
  address memory;
  check(cuInit(0));
  check(cuCtxCreate_v2(&context, 0, 0));
  check(cuStreamCreate(&stream, NON_BLOCKING));
  check(cuMemAlloc_v2(&memory, BYTES));
  check(cuMemcpyHtoDAsync_v2(memory, from, BYTES, stream)); /* XSched knows the stream from here on */
  check(cuStreamSynchronize(stream));
  printf("R\n");
  fflush(stdout);
  while ((c = getchar()) != EOF) {
    if (c != '\n') continue;
    for (int i = 0; i < count; i++) {
      memset(from, i + 1, BYTES);
      check(cuMemcpyHtoDAsync_v2(memory, from, BYTES, stream));
      check(cuStreamSynchronize(stream));
      usleep(2000);
    }
    check(cuMemcpyDtoH_v2(back, memory, BYTES));
    puts(memcmp(from, back, BYTES) == 0 ? "right" : "WRONG");
    fflush(stdout);
  }
  return 0;
}
