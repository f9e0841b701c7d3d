/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs AMD's thunk library on the virtual GPU: topology, memory, and the life of a queue. The Go
 * test of internal/virtual/amd builds it where the library is installed.
 */
#include <fcntl.h>
#include <hsakmt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "vkfd.h"

#define CHECK(call)                                                                                \
  do {                                                                                             \
    int status_ = (int)(call);                                                                     \
    if (status_ != HSAKMT_STATUS_SUCCESS) {                                                        \
      printf("FAIL %s: %d\n", #call, status_);                                                     \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)
#define EXPECT(condition)                                                                          \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("FAIL line %d: %s\n", __LINE__, #condition);                                          \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static int own; /* a second file of the same process, for requests that the thunk lacks */

static uint64_t retired(uint32_t queue, int wait, uint64_t sequence) {
  struct vk_retired r = {.queue_id = queue, .wait = (uint32_t)wait, .sequence = sequence};
  EXPECT(ioctl(own, VK_IOC_RETIRED, &r) == 0);
  return r.retired;
}

static void submit(uint32_t queue, uint32_t count, uint64_t duration_ns) {
  struct vk_submit s = {.queue_id = queue, .count = count, .duration_ns = duration_ns, .seed = 7};
  EXPECT(ioctl(own, VK_IOC_SUBMIT, &s) == 0);
}

static void *ring(HSAuint32 node, HSAuint64 bytes) {
  HsaMemFlags flags;
  memset(&flags, 0, sizeof flags);
  flags.ui32.HostAccess = 1;
  flags.ui32.ExecuteAccess = 1;
  flags.ui32.PageSize = HSA_PAGE_SIZE_4KB;
  void *memory = NULL;
  CHECK(hsaKmtAllocMemory(0, bytes, flags, &memory));
  HSAuint64 gpu_address = 0;
  HsaMemMapFlags map;
  memset(&map, 0, sizeof map);
  map.ui32.HostAccess = 1;
  HSAuint32 nodes[1] = {node};
  CHECK(hsaKmtMapMemoryToGPUNodes(memory, bytes, &gpu_address, map, 1, nodes));
  memset(memory, 0, bytes);
  return memory;
}

int main(void) {
  CHECK(hsaKmtOpenKFD());
  HsaVersionInfo version;
  CHECK(hsaKmtGetVersion(&version));
  EXPECT(version.KernelInterfaceMajorVersion == 1 && version.KernelInterfaceMinorVersion == 17);
  HsaSystemProperties system;
  CHECK(hsaKmtAcquireSystemProperties(&system));
  HSAuint32 gpu = 0;
  printf("nodes %u\n", system.NumNodes);
  for (HSAuint32 n = 0; n < system.NumNodes; n++) {
    HsaNodeProperties node;
    CHECK(hsaKmtGetNodeProperties(n, &node));
    printf("node %u: simds %u, gfx %u.%u.%u\n", n, node.NumFComputeCores, node.EngineId.ui32.Major,
           node.EngineId.ui32.Minor, node.EngineId.ui32.Stepping);
    if (gpu == 0 && node.NumFComputeCores > 0) gpu = n;
  }
  EXPECT(system.NumNodes == 3 && gpu == 1);
  own = open("/dev/kfd", O_RDWR | O_CLOEXEC);
  EXPECT(own >= 0);

  enum { RING = 65536 };
  void *first = ring(gpu, RING), *second = ring(gpu, 4096);
  HsaQueueResource queue, sdma;
  memset(&queue, 0, sizeof queue), memset(&sdma, 0, sizeof sdma);
  CHECK(hsaKmtCreateQueue(gpu, HSA_QUEUE_COMPUTE, 100, HSA_QUEUE_PRIORITY_NORMAL, first, RING, NULL,
                          &queue));
  CHECK(hsaKmtCreateQueue(gpu, HSA_QUEUE_SDMA, 100, HSA_QUEUE_PRIORITY_NORMAL, second, 4096, NULL,
                          &sdma));

  submit(0, 3, 1000000);
  EXPECT(retired(0, 1, 3) == 3);
  /* Like kfdtest's DisableCpQueueByUpdateWithZeroPercentage: work queued at 0 % does not run. */
  CHECK(hsaKmtUpdateQueue(queue.QueueId, 0, HSA_QUEUE_PRIORITY_NORMAL, first, RING, NULL));
  submit(0, 2, 1000000);
  usleep(50000);
  EXPECT(retired(0, 0, 0) == 3);
  CHECK(hsaKmtUpdateQueue(queue.QueueId, 100, HSA_QUEUE_PRIORITY_NORMAL, first, RING, NULL));
  EXPECT(retired(0, 1, 5) == 5);

  /* A wrong size matches no mapping. */
  EXPECT(hsaKmtUpdateQueue(queue.QueueId, 100, HSA_QUEUE_PRIORITY_NORMAL, first, RING / 2, NULL) !=
         HSAKMT_STATUS_SUCCESS);
  HSAuint32 mask[2] = {0xff, 0};
  CHECK(hsaKmtSetQueueCUMask(queue.QueueId, 64, mask));

  if (getenv("HOLD") != NULL) { /* a test inspects this process */
    printf("holding\n");
    fflush(stdout);
    char line[8];
    EXPECT(read(0, line, sizeof line) >= 0);
  }
  CHECK(hsaKmtDestroyQueue(queue.QueueId));
  CHECK(hsaKmtDestroyQueue(sdma.QueueId));
  CHECK(hsaKmtReleaseSystemProperties());
  CHECK(hsaKmtCloseKFD());
  printf("ok hsakmt\n");
  return 0;
}
