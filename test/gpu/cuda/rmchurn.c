// SPDX-License-Identifier: Apache-2.0
//
// Allocates and frees RM root clients without a CUDA context. Their handles increase, so a search for the client of a
// process by handle takes longer.
//
//   rmchurn [COUNT]     prints the first and the last handle
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct rm_alloc { // NVOS21_PARAMETERS
  uint32_t root, parent, object, class;
  uint64_t params;
  uint32_t params_bytes, status;
};
struct rm_free { // NVOS00_PARAMETERS
  uint32_t root, parent, object, status;
};
#define RM_ALLOC _IOWR('F', 0x2B, struct rm_alloc)
#define RM_FREE _IOWR('F', 0x29, struct rm_free)
#define ROOT_CLIENT 0x41u

int main(int argc, char **argv) {
  long count = argc > 1 ? atol(argv[1]) : 5000;
  int fd = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    fprintf(stderr, "rmchurn: open /dev/nvidiactl: %s\n", strerror(errno));
    return 1;
  }
  uint32_t first = 0, last = 0;
  for (long i = 0; i < count; i++) {
    struct rm_alloc a = {.class = ROOT_CLIENT};
    if (ioctl(fd, RM_ALLOC, &a) != 0 || a.status != 0) {
      fprintf(stderr, "rmchurn: allocate client %ld: %s, status 0x%x\n", i, strerror(errno), a.status);
      return 1;
    }
    if (i == 0) first = a.object;
    last = a.object;
    struct rm_free f = {.root = a.object, .object = a.object};
    if (ioctl(fd, RM_FREE, &f) != 0 || f.status != 0) {
      fprintf(stderr, "rmchurn: free client %ld: %s, status 0x%x\n", i, strerror(errno), f.status);
      return 1;
    }
  }
  printf("%ld clients, 0x%x to 0x%x\n", count, first, last);
  return 0;
}
