/* SPDX-License-Identifier: Apache-2.0
 *
 * sensors: reads the values of GPUs once a second and writes them as lines of JSON. It runs apart
 * from the daemon, because a call of a vendor's library or a read from sysfs may never return.
 *
 *   sensors nvml          through NVIDIA's management library
 *   sensors amdgpu ROOT   from the files of the kernel driver below ROOT/sys
 */
#include "sensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

static bool more; /* the line has a GPU */

static void flush(void) {
  if (fflush(stdout) != 0) exit(1); /* the daemon is gone */
}

/* quoted writes a JSON string. The texts are messages of libraries. */
static void quoted(const char *text) {
  putchar('"');
  for (; *text; text++)
    putchar((unsigned char)*text < ' ' || strchr("\"\\", *text) || *text & 0x80 ? ' ' : *text);
  putchar('"');
}

void line_begin(void) {
  more = false;
  printf("{\"gpus\":[");
}

void line_gpu(const char *id) {
  printf("%s{\"id\":", more ? "," : "");
  more = true;
  quoted(id);
}

void line_count(const char *name, uint64_t value) { printf(",\"%s\":%" PRIu64, name, value); }
void line_real(const char *name, double value) { printf(",\"%s\":%.3f", name, value); }

void line_text(const char *name, const char *text) {
  printf(",\"%s\":", name);
  quoted(text);
}

void line_list(const char *name, const char *elements) { printf(",\"%s\":[%s]", name, elements); }

void line_gpu_end(void) { putchar('}'); }

void line_end(void) {
  printf("]}\n");
  flush();
}

void line_xid(const char *id, uint64_t xid) {
  printf("{\"xid\":%" PRIu64 ",\"id\":", xid);
  quoted(id);
  printf("}\n");
  flush();
}

void line_last(const char *kind, const char *text) {
  printf("{\"%s\":", kind);
  quoted(text);
  printf("}\n");
  flush();
  exit(0);
}

void sleep_ms(int64_t ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

int main(int argc, char **argv) {
  prctl(PR_SET_NAME, "xsched-sensors");
  if (argc == 2 && strcmp(argv[1], "nvml") == 0) nvml_report();
  if (argc == 3 && strcmp(argv[1], "amdgpu") == 0) amdgpu_report(argv[2]);
  fprintf(stderr, "sensors: for `xsched serve`; usage: sensors nvml | sensors amdgpu ROOT\n");
  return 64;
}
