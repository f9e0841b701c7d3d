// SPDX-License-Identifier: Apache-2.0
//
// Allocations that another process opens. Each process has a driver of its own; descriptors go between them.

#include "test_fake_maps.h"

#include <sys/wait.h>

#include "core/move_internal.h"

struct told {
  CUipcMemHandle_v1 handle;
  int numbers[2]; // of the pieces
};

static void tell(int fd, const void *data, size_t bytes) {
  CHECK(write(fd, data, bytes) == (ssize_t)bytes);
}
static void hear(int fd, void *data, size_t bytes) {
  CHECK(read(fd, data, bytes) == (ssize_t)bytes);
}

// The process that opens it. Numbers of handles differ, because it has some already.
static int opens(int in, int out) {
  struct told told;
  CUdeviceptr_v2 a, again, other = 0;
  CUmemGenericAllocationHandle_v1 extra;
  CUmemAllocationProp_v1 any = {.type = XSI_CU_PINNED};
  install();
  room = 1024 * MIB;
  fake_context();
  CHECK(create(&extra, 0, &any, 0) == 0);
  hear(in, &told, sizeof told);
  CHECK(cuIpcOpenMemHandle_v2(&a, told.handle, 1) == 0 && in_use() == 51);
  CHECK(imported == told.numbers[1]); // the last piece came last
  CHECK(granules[granule(a)].handle != 0 && granules[granule(a)].writers == 1u << 3);
  CHECK(granules[granule(a + 100 * MIB)].handle != granules[granule(a)].handle);
  CHECK(cuIpcOpenMemHandle_v2(&again, told.handle, 1) == 0 && again == a && in_use() == 51);
  CHECK(cuIpcCloseMemHandle(a) == 0 && granules[granule(a)].handle != 0);
  CHECK(cuIpcCloseMemHandle(a) == 0 && granules[granule(a)].handle == 0 && in_use() == 0);
  CHECK(cuIpcCloseMemHandle(a) == XSI_CU_INVALID_VALUE); // the driver's to judge
  CUipcMemHandle_v1 wrong = told.handle;
  wrong.bytes[32] ^= 1; // another allocation
  CHECK(cuIpcOpenMemHandle_v2(&other, wrong, 1) == XSI_CU_INVALID_VALUE && in_use() == 0);
  wrong = told.handle;
  wrong.bytes[0] ^= 1; // the driver's own
  CHECK(cuIpcOpenMemHandle_v2(&other, wrong, 1) == XSI_CU_INVALID_VALUE);
  tell(out, "f", 1);
  hear(in, &told, 1); // it is freed
  CHECK(cuIpcOpenMemHandle_v2(&other, told.handle, 1) == XSI_CU_INVALID_VALUE && in_use() == 0);
  tell(out, "e", 1);
  hear(in, &told, 1); // the other process has closed its socket
  return failures != 0;
}

int main(void) {
  int to[2], from[2], status = 0;
  char word;
  struct told told;
  CUdeviceptr_v2 a, b;
  struct xsi_block_view view;
  CHECK(pipe(to) == 0 && pipe(from) == 0);
  pid_t child = fork();
  if (child == 0) {
    int result = opens(to[0], from[1]);
    fflush(NULL);
    _exit(result);
  }
  install();
  room = 1024 * MIB;
  xsi_options.hint.movable = 1;
  xsi_header()->memory_quota = XSW_MEMORY_NO_QUOTA;
  fake_context();
  CHECK(cuMemAlloc_v2(&a, 100 * MIB + 1) == 0);
  CHECK(cuIpcGetMemHandle(&told.handle, a + 5 * MIB) == 0); // stands for all of it
  CHECK(xsi_block_find(a, &view) && view.fixed && fixed(XSW_FIXED_EXPORTED) == 102 * MIB);
  CHECK(cuIpcOpenMemHandle_v2(&b, told.handle, 1) == XSI_CU_INVALID_CONTEXT); // its own
  CHECK(cuMemAlloc_v2(&b, 1) == 0 && cuIpcGetMemHandle(&told.handle, b) == XSI_CU_INVALID_VALUE);
  told.numbers[0] = granules[granule(a)].handle;
  told.numbers[1] = granules[granule(a + 100 * MIB)].handle;
  CHECK(xsi_move_begin(UINT64_MAX)); // other memory is away
  xsi_move_end(false);
  tell(to[1], &told, sizeof told);
  hear(from[0], &word, 1);
  xsi_move_end(true);
  CHECK(cuMemFree_v2(a) == 0 && cuMemFree_v2(b) == 0);
  CHECK(room == 1024 * MIB && fixed(XSW_FIXED_EXPORTED) == 0);
  tell(to[1], "f", 1);
  hear(from[0], &word, 1);
  tell(to[1], "e", 1);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  printf("%s\n", failures ? "FAILED" : "ok");
  return failures != 0;
}
