/* SPDX-License-Identifier: Apache-2.0
 *
 * memory: allocates on request. Linked directly against libcuda.so.1, or with -DHIP against libamdhip64.so.
 *
 *   in:  alloc GPU MIB | free GPU | info GPU | launch GPU | error GPU
 *   out: R, then for each line: A result | F result | M free_mib total_mib | L result | E error, once more
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef HIP
int hipSetDevice(int);
int hipMalloc(void **, size_t);
int hipFree(void *);
int hipMemGetInfo(size_t *, size_t *);
int hipMemset(void *, int, size_t);
int hipPeekAtLastError(void);
int hipGetLastError(void);
typedef void *address;
static int start(void) { return 0; }
static int use(int gpu) { /* the first call of the process may be an allocation */
  static int current;
  int result = gpu == current ? 0 : hipSetDevice(gpu);
  current = gpu;
  return result;
}
#define allocate hipMalloc
#define release hipFree
#define information hipMemGetInfo
#define fill hipMemset
#else
typedef unsigned long long address;
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemsetD8_v2(address, unsigned char, size_t);
static void *contexts[2];
static int start(void) {
  return cuInit(0) || cuDevicePrimaryCtxRetain(&contexts[0], 0) ||
         cuDevicePrimaryCtxRetain(&contexts[1], 1);
}
static int use(int gpu) { return cuCtxSetCurrent(contexts[gpu]); }
static int hipPeekAtLastError(void) { return -1; }
static int hipGetLastError(void) { return -1; }
#define allocate cuMemAlloc_v2
#define release cuMemFree_v2
#define information cuMemGetInfo_v2
#define fill cuMemsetD8_v2
#endif

int main(void) {
  address blocks[2][64];
  size_t counts[2] = {0}, free_bytes, total;
  char line[64], word[16];
  if (start()) return 1;
  printf("R\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    int gpu = 0, mib = 0, result;
    if (sscanf(line, "%15s %d %d", word, &gpu, &mib) < 2 || gpu < 0 || gpu > 1) return 2;
    if (use(gpu)) return 3;
    if (strcmp(word, "alloc") == 0 && counts[gpu] < 64) {
      result = allocate(&blocks[gpu][counts[gpu]], (size_t)mib << 20);
      if (result == 0) counts[gpu]++;
      printf("A %d\n", result);
    } else if (strcmp(word, "free") == 0 && counts[gpu] > 0) {
      printf("F %d\n", release(blocks[gpu][--counts[gpu]]));
    } else if (strcmp(word, "info") == 0) {
      if (information(&free_bytes, &total)) return 4;
      printf("M %zu %zu\n", free_bytes >> 20, total >> 20);
    } else if (strcmp(word, "error") == 0) {
      int kept = hipPeekAtLastError(), taken = hipGetLastError();
      printf("E %d %d %d\n", kept, taken, hipGetLastError());
    } else {
      printf("L %d\n", counts[gpu] ? fill(blocks[gpu][0], 1, 4096) : -1);
    }
    fflush(stdout);
  }
  return 0;
}
