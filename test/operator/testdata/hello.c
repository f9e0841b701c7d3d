/* SPDX-License-Identifier: Apache-2.0
 *
 * A program without a GPU that runs until its standard input ends.
 */
#include <stdio.h>

int main(void) {
  puts("R");
  fflush(stdout);
  return getchar() == EOF ? 0 : 1;
}
