/* SPDX-License-Identifier: Apache-2.0
 *
 * memory: allocates on request. Linked directly against libcuda.so.1.
 *
 *   in:  alloc GPU MIB | free GPU | info GPU | launch GPU
 *   out: R, then for each line: A result | F result | M free_mib total_mib | L result
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef void *handle;

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(handle *, int);
CUresult cuCtxSetCurrent(handle);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t);

int main(void) {
  CUdeviceptr blocks[2][64];
  size_t counts[2] = {0}, free_bytes, total;
  handle contexts[2];
  char line[64], word[16];
  if (cuInit(0)) return 1;
  for (int i = 0; i < 2; i++)
    if (cuDevicePrimaryCtxRetain(&contexts[i], i)) return 1;
  printf("R\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    int gpu = 0, mib = 0, result;
    if (sscanf(line, "%15s %d %d", word, &gpu, &mib) < 2 || gpu < 0 || gpu > 1) return 2;
    if (cuCtxSetCurrent(contexts[gpu])) return 3;
    if (strcmp(word, "alloc") == 0 && counts[gpu] < 64) {
      result = cuMemAlloc_v2(&blocks[gpu][counts[gpu]], (size_t)mib << 20);
      if (result == 0) counts[gpu]++;
      printf("A %d\n", result);
    } else if (strcmp(word, "free") == 0 && counts[gpu] > 0) {
      printf("F %d\n", cuMemFree_v2(blocks[gpu][--counts[gpu]]));
    } else if (strcmp(word, "info") == 0) {
      if (cuMemGetInfo_v2(&free_bytes, &total)) return 4;
      printf("M %zu %zu\n", free_bytes >> 20, total >> 20);
    } else {
      printf("L %d\n", counts[gpu] ? cuMemsetD8_v2(blocks[gpu][0], 1, 4096) : -1);
    }
    fflush(stdout);
  }
  return 0;
}
