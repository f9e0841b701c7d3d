/* SPDX-License-Identifier: Apache-2.0
 *
 * A HIP program that knows nothing of XSched. It launches until its standard input ends.
 */
#include "kernel.hpp"

#include <poll.h>

int main() {
  struct pollfd input = {0, POLLIN, 0};
  hipStream_t stream;
  void *memory;
  register_spin();
  CHECK(hipMalloc(&memory, 64));
  CHECK(hipStreamCreate(&stream));
  while (poll(&input, 1, 1) == 0) {
    spin(memory, 100, stream);
    CHECK(hipStreamSynchronize(stream));
  }
  CHECK(hipStreamDestroy(stream));
  return 0;
}
