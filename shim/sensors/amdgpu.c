/* SPDX-License-Identifier: Apache-2.0
 *
 * The values that the kernel's driver amdgpu has in sysfs (Documentation/gpu/amdgpu in Linux). A
 * file that a GPU lacks leaves its value out.
 */
#include "sensors.h"

#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VENDOR 0x1002

/* read_text reads the first word of a file below a folder. */
static bool read_text(const char *folder, const char *name, char *text, size_t size) {
  char path[PATH_MAX], format[16];
  snprintf(format, sizeof format, "%%%zus", size - 1);
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return false;
  FILE *file = fopen(path, "re");
  if (!file) return false;
  bool ok = fscanf(file, format, text) == 1;
  fclose(file);
  return ok;
}

static bool read_number(const char *folder, const char *name, long long *value) {
  char text[32], *end;
  if (!read_text(folder, name, text, sizeof text)) return false;
  *value = strtoll(text, &end, 0);
  return *end == 0 && *value >= 0;
}

static void hwmon(const char *device) {
  char pattern[PATH_MAX];
  long long value;
  glob_t found = {0};
  if (snprintf(pattern, sizeof pattern, "%s/hwmon/hwmon*", device) >= (int)sizeof pattern) return;
  if (glob(pattern, 0, NULL, &found) == 0) {
    const char *folder = found.gl_pathv[0];
    if (read_number(folder, "power1_average", &value) ||
        read_number(folder, "power1_input", &value))
      line_real("power_watts", (double)value / 1e6);
    if (read_number(folder, "power1_cap", &value))
      line_real("power_limit_watts", (double)value / 1e6);
    /* Of the edge; GPUs without that sensor have one of the junction. */
    if (read_number(folder, "temp1_input", &value) || read_number(folder, "temp2_input", &value))
      line_real("temperature_celsius", (double)value / 1e3);
    if (read_number(folder, "freq1_input", &value)) line_count("clock_hertz", (uint64_t)value);
  }
  globfree(&found);
}

static void report(const char *card) {
  char device[PATH_MAX], real[PATH_MAX], power[16];
  long long vendor, total, used;
  if (snprintf(device, sizeof device, "%s/device", card) >= (int)sizeof device) return;
  if (!read_number(device, "vendor", &vendor) || vendor != VENDOR || !realpath(device, real))
    return;
  line_gpu(strrchr(real, '/') + 1);
  /* Questions would wake a GPU that the kernel has switched off. */
  if (read_text(device, "power/runtime_status", power, sizeof power) &&
      strcmp(power, "suspended") == 0) {
    line_text("unknown", "the GPU is switched off while nobody uses it");
    line_gpu_end();
    return;
  }
  if (read_number(device, "mem_info_vram_total", &total) &&
      read_number(device, "mem_info_vram_used", &used) && used <= total) {
    line_count("memory_total_bytes", (uint64_t)total);
    line_count("memory_used_bytes", (uint64_t)used);
    line_count("memory_free_bytes", (uint64_t)(total - used));
  }
  hwmon(device);
  line_gpu_end();
}

void amdgpu_report(const char *root) {
  char pattern[PATH_MAX];
  snprintf(pattern, sizeof pattern, "%s/sys/class/drm/card*", root);
  for (;; sleep_ms(PERIOD_MS)) {
    glob_t found = {0};
    line_begin();
    if (glob(pattern, 0, NULL, &found) == 0)
      for (size_t i = 0; i < found.gl_pathc; i++)
        if (!strchr(strrchr(found.gl_pathv[i], '/'), '-'))
          report(found.gl_pathv[i]); /* no outputs */
    globfree(&found);
    line_end();
  }
}
