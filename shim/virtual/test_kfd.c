/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the virtual AMD GPU through libvkfd.so, with literal numbers and offsets: bad addresses,
 * files after fork, and the acceptance sequence of a self-debugging process. The Go test of
 * internal/virtual/amd builds and runs it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vkfd.h"

#define EXPECT(condition)                                                                          \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("FAIL line %d: %s (errno %d)\n", __LINE__, #condition, errno);                        \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static unsigned char arg[96];
static void put32(unsigned at, uint32_t v) { memcpy(arg + at, &v, 4); }
static void put64(unsigned at, uint64_t v) { memcpy(arg + at, &v, 8); }
static uint32_t get32(unsigned at) {
  uint32_t v;
  memcpy(&v, arg + at, 4);
  return v;
}
static uint64_t pointer(const void *p) { return (uint64_t)(uintptr_t)p; }

static void map(int kfd, uint64_t address, uint64_t bytes) {
  uint32_t gpu = 63420;
  uint64_t handle;
  memset(arg, 0, sizeof arg);
  put64(0, address), put64(8, bytes), put32(32, gpu), put32(36, 2);
  EXPECT(ioctl(kfd, 0xC0284B16u, arg) == 0);
  memcpy(&handle, arg + 16, 8);
  memset(arg, 0, sizeof arg);
  put64(0, handle), put64(8, pointer(&gpu)), put32(16, 1);
  EXPECT(ioctl(kfd, 0xC0184B18u, arg) == 0);
}

static uint32_t create(int kfd, uint64_t ring, uint32_t bytes, uint32_t type,
                       unsigned long request) {
  uint64_t pointers = ring + 0x10000, area = ring + 0x20000;
  map(kfd, ring, bytes), map(kfd, pointers, 4096), map(kfd, area, VK_SAVE_TOTAL);
  memset(arg, 0, sizeof arg);
  put64(8, pointers), put64(16, pointers + 8), put64(72, area), put32(80, VK_SAVE_BYTES);
  put32(84, VK_STACK_BYTES), put64(0, ring), put32(32, bytes), put32(36, 63420), put32(40, type),
      put32(44, 100), put32(48, 7);
  EXPECT(ioctl(kfd, request, arg) == 0);
  return get32(52);
}

static int suspend(int kfd, uint32_t *ids, uint32_t count) {
  memset(arg, 0, sizeof arg);
  put32(0, (uint32_t)getpid()), put32(4, 6), put64(16, pointer(ids)), put32(24, count);
  return ioctl(kfd, 0xC0204B26u, arg);
}

static int resume(int kfd, uint32_t *ids, uint32_t count) {
  memset(arg, 0, sizeof arg);
  put32(0, (uint32_t)getpid()), put32(4, 7), put64(8, pointer(ids)), put32(16, count);
  return ioctl(kfd, 0xC0204B26u, arg);
}

int main(void) {
  int kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
  EXPECT(kfd >= 0);
  EXPECT(ioctl(kfd, 0x80084B01u, arg) == 0 && get32(0) == 1 && get32(4) == 17);
  EXPECT(ioctl(kfd, 0x80084B01u, (void *)8) == -1 && errno == EFAULT);
  EXPECT(ioctl(kfd, 0x80084B7Fu, arg) == -1 && errno == ENOTTY);

  memset(arg, 0, sizeof arg); /* the runtime first: with queues it fails */
  put32(8, 1);
  EXPECT(ioctl(kfd, 0xC0104B25u, arg) == 0);
  int render = open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC);
  memset(arg, 0, sizeof arg);
  put32(0, (uint32_t)render), put32(4, 63420);
  EXPECT(ioctl(kfd, 0x40084B15u, arg) == 0);
  uint32_t first = create(kfd, 0x100000, 4096, 2, 0xC0604B02u);
  uint32_t second = create(kfd, 0x10000000, 4096, 0, 0xC0584B02u); /* the older, shorter form */
  EXPECT(first == 0 && second == 1);

  pid_t child = fork();
  if (child == 0) _exit(ioctl(kfd, 0x80084B01u, arg) == -1 && errno == EBADF ? 0 : 1);
  int status;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);

  /* Acceptance: suspend before NEW is cleared, snapshot, suspend, resume. */
  uint32_t ids[2] = {first, second};
  EXPECT(suspend(kfd, ids, 1) == -1 && errno == EINVAL); /* not enabled */
  int fifo[2];
  EXPECT(pipe(fifo) == 0);
  unsigned char info[16];
  memset(arg, 0, sizeof arg);
  put32(0, (uint32_t)getpid()), put64(16, pointer(info)), put32(24, sizeof info);
  put32(28, 9999);
  EXPECT(ioctl(kfd, 0xC0204B26u, arg) == -1 && errno == EBADF);
  put32(28, (uint32_t)fifo[1]);
  put64(16, 8);
  EXPECT(ioctl(kfd, 0xC0204B26u, arg) == -1 && errno == EFAULT);
  EXPECT(ioctl(kfd, 0xC0204B26u, arg) == -1 && errno == EALREADY); /* the session stays on */
  put32(4, 1);
  EXPECT(ioctl(kfd, 0xC0204B26u, arg) == 0);
  put32(4, 0), put64(16, pointer(info));
  EXPECT(ioctl(kfd, 0xC0204B26u, arg) == 0 && info[8] == 1);
  uint32_t third = create(kfd, 0x20000000, 4096, 2, 0xC0604B02u);
  EXPECT(third == 2);

  ids[0] = third;
  EXPECT(suspend(kfd, ids, 1) == 0 && ids[0] == (third | 0x80000000u));
  unsigned char entries[3 * 64];
  memset(arg, 0, sizeof arg);
  put32(0, (uint32_t)getpid()), put32(4, 13), put64(8, 0x40000000u), put64(16, pointer(entries));
  put32(24, 3), put32(28, 64);
  EXPECT(ioctl(kfd, 0xC0204B26u, arg) == 0 && get32(24) == 3 && get32(28) == 64);
  uint32_t id;
  memcpy(&id, entries + 40, 4);
  EXPECT(id == third); /* newest first */
  ids[0] = first;
  EXPECT(suspend(kfd, ids, 1) == 1 && ids[0] == first);
  struct vk_submit work = {.queue_id = first, .count = 1, .duration_ns = 100000};
  struct vk_retired done = {.queue_id = first};
  EXPECT(ioctl(kfd, VK_IOC_SUBMIT, &work) == 0);
  usleep(20000);
  EXPECT(ioctl(kfd, VK_IOC_RETIRED, &done) == 0 && done.retired == 0);
  EXPECT(resume(kfd, ids, 1) == 1 && ids[0] == first);
  done.wait = 1, done.sequence = 1;
  EXPECT(ioctl(kfd, VK_IOC_RETIRED, &done) == 0 && done.retired == 1);
  printf("ok kfd\n");
  return 0;
}
