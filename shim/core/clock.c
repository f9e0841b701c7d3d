// SPDX-License-Identifier: Apache-2.0
//
// The one clock: the shared page, leases and watch times are all CLOCK_MONOTONIC of the initial time
// namespace. A container may have a namespace of its own, in which the clock is shifted: without the
// correction every heartbeat of the daemon would look too old, or come from the future.

#include "clock.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int64_t offset_ns; // of this namespace; written before any other thread of ours exists

// Reads a decimal number and what follows it.
static const char *number(const char *text, int64_t *value) {
  while (*text == ' ' || *text == '\t')
    text++;
  bool negative = *text == '-';
  if (negative) text++;
  *value = 0;
  for (; *text >= '0' && *text <= '9' && *value < INT64_MAX / 20; text++)
    *value = 10 * *value + (*text - '0');
  if (negative) *value = -*value;
  return text;
}

static bool same_link(const char *a, const char *b) {
  char one[64], other[64];
  ssize_t n = readlink(a, one, sizeof one), m = readlink(b, other, sizeof other);
  return n > 0 && n == m && memcmp(one, other, (size_t)n) == 0;
}

void xsi_clock_init(void) {
  // The file has the offsets of the namespace for children. A process that has just made one is not in it.
  if (!same_link("/proc/self/ns/time", "/proc/self/ns/time_for_children")) return;
  int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return; // a kernel without them
  char text[256];
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return;
  text[length] = 0;
  const char *at = strstr(text, "monotonic");
  if (at == NULL) return;
  int64_t seconds, nanoseconds;
  number(number(at + strlen("monotonic"), &seconds), &nanoseconds);
  if (seconds > INT64_MAX / 2000000000 || seconds < -INT64_MAX / 2000000000) return;
  offset_ns = seconds * 1000000000 + nanoseconds;
}

uint64_t xsi_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - (uint64_t)offset_ns;
}
