// SPDX-License-Identifier: Apache-2.0
//
// The observer between AMD's real thunk library and the double: this program exports ioctl in front
// of both. Built and run by the Go test of internal/virtual/amd.

#include <fcntl.h>
#include <hsakmt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "kfd.h"
#include "virtual/vkfd.h"

#define EXPECT(condition)                                                                          \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("FAIL line %d: %s\n", __LINE__, #condition);                                          \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

enum { RING = 65536, NODE = 1 };
static int own;

static void *ring(void) {
  HsaMemFlags flags;
  HsaMemMapFlags map;
  memset(&flags, 0, sizeof flags), memset(&map, 0, sizeof map);
  flags.ui32.HostAccess = flags.ui32.ExecuteAccess = map.ui32.HostAccess = 1;
  void *memory = NULL;
  HSAuint64 address;
  HSAuint32 nodes[1] = {NODE};
  EXPECT(hsaKmtAllocMemory(0, RING, flags, &memory) == HSAKMT_STATUS_SUCCESS);
  EXPECT(hsaKmtMapMemoryToGPUNodes(memory, RING, &address, map, 1, nodes) == HSAKMT_STATUS_SUCCESS);
  return memory;
}

static HsaQueueResource create(void *memory, HSA_QUEUE_TYPE type) {
  HsaQueueResource queue;
  memset(&queue, 0, sizeof queue);
  EXPECT(hsaKmtCreateQueue(NODE, type, 100, HSA_QUEUE_PRIORITY_NORMAL, memory, RING, NULL,
                           &queue) == HSAKMT_STATUS_SUCCESS);
  return queue;
}

static void submit(uint32_t id) {
  struct vk_submit s = {.queue_id = id, .count = 1, .duration_ns = 1000000};
  EXPECT(ioctl(own, VK_IOC_SUBMIT, &s) == 0);
}

static uint64_t retired(uint32_t id, uint64_t wait_for) {
  struct vk_retired r = {.queue_id = id, .wait = wait_for != 0, .sequence = wait_for};
  EXPECT(ioctl(own, VK_IOC_RETIRED, &r) == 0);
  return r.retired;
}

int main(void) {
  EXPECT(hsaKmtOpenKFD() == HSAKMT_STATUS_SUCCESS);
  HsaSystemProperties system;
  EXPECT(hsaKmtAcquireSystemProperties(&system) == HSAKMT_STATUS_SUCCESS);
  EXPECT((own = open("/dev/kfd", O_RDWR | O_CLOEXEC)) >= 0);
  void *memory = ring();
  HsaQueueResource first = create(memory, HSA_QUEUE_COMPUTE), copy = create(ring(), HSA_QUEUE_SDMA);
  struct xsi_kfd_queue list[8];
  EXPECT(xsi_kfd_list(list, 8) == 2);
  EXPECT(list[0].id == 0 && list[0].ring == (uint64_t)(uintptr_t)memory &&
         list[0].ring_bytes == RING && list[0].kind == XSI_KFD_COMPUTE && list[0].gpu_id == 63420);
  EXPECT(list[1].kind == XSI_KFD_SDMA);

  EXPECT(xsi_kfd_pause(0, XSI_KFD_COMPUTE, 0) == 2);
  submit(0);
  HsaQueueResource late = create(ring(), HSA_QUEUE_COMPUTE);
  submit(2);
  // The runtime's own change of priority says 100 percent, too.
  EXPECT(hsaKmtUpdateQueue(first.QueueId, 100, HSA_QUEUE_PRIORITY_HIGH, memory, RING, NULL) ==
         HSAKMT_STATUS_SUCCESS);
  usleep(50000);
  EXPECT(retired(0, 0) == 0 && retired(2, 0) == 0);
  xsi_kfd_recover(NULL);
  EXPECT(retired(0, 1) == 1 && retired(2, 1) == 1);
  EXPECT(xsi_kfd_list(list, 8) == 3 && !list[0].paused && list[0].priority > 7);

  EXPECT(hsaKmtDestroyQueue(first.QueueId) == HSAKMT_STATUS_SUCCESS);
  EXPECT(hsaKmtDestroyQueue(copy.QueueId) == HSAKMT_STATUS_SUCCESS);
  EXPECT(hsaKmtDestroyQueue(late.QueueId) == HSAKMT_STATUS_SUCCESS);
  EXPECT(xsi_kfd_list(list, 8) == 0);
  printf("ok owner\n");
  return 0;
}
