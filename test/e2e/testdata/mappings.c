/* SPDX-License-Identifier: Apache-2.0
 *
 * mappings N: a process with N mappings, or as many as it may have. It ends with its input. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
  long n = argc > 1 ? atol(argv[1]) : 0;
  for (long i = 0; i < n; i++) { /* neighbours with unlike protection do not merge */
    if (mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
        MAP_FAILED) {
      break;
    }
  }
  puts("R");
  fflush(stdout);
  while (getchar() != EOF) {
  }
  return 0;
}
