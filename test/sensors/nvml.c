/* SPDX-License-Identifier: Apache-2.0
 *
 * A double of libnvidia-ml.so.1 with two GPUs. The file $FAKE_NVML says what it reports, a word and
 * its values per line:
 *
 *   free GPU BYTES   xid GPU CODE (once)   lost GPU   integrated GPU   hang   crash   refuse (nvmlInit)
 *
 * -DOLD leaves out what an old release lacks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOTAL (80ULL << 30)

typedef struct gpu {
  unsigned bus;
} * device;

static struct gpu gpus[2] = {{0x65}, {0x17}}; /* not in the order of their addresses */

/* said finds a line of the file; value gets its last number. */
static int said(const char *word, device d, unsigned long long *value) {
  char line[64], found[16];
  int hit = 0, number = d ? (int)(d - gpus) : -1;
  FILE *file = fopen(getenv("FAKE_NVML"), "re");
  if (!file) return 0;
  while (!hit && fgets(line, sizeof line, file)) {
    unsigned long long v = 0;
    int gpu = -1;
    sscanf(line, "%15s %d %llu", found, &gpu, &v);
    hit = strcmp(found, word) == 0 && gpu == number;
    if (hit && value) *value = v;
  }
  fclose(file);
  return hit;
}

int nvmlInit_v2(void) { return said("refuse", NULL, NULL) ? 18 : 0; }
const char *nvmlErrorString(int code) {
  return code == 15 ? "GPU is lost" : code == 18 ? "Driver/library \"version\" mismatch" : "error";
}

int nvmlDeviceGetCount_v2(unsigned *n) { return *n = 2, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device *d) { return *d = &gpus[i], 0; }

int nvmlDeviceGetPciInfo_v3(device d, void *info) {
  unsigned *words = (unsigned *)((char *)info + 16); /* domain, bus, device */
  words[0] = 0;
  words[1] = d->bus;
  words[2] = 0;
  return 0;
}

int nvmlDeviceGetMemoryInfo(device d, unsigned long long *m) {
  if (said("hang", NULL, NULL))
    for (;;)
      pause();
  if (said("crash", NULL, NULL)) abort();
  if (said("lost", d, NULL)) return 15;
  if (said("integrated", d, NULL)) return 3; /* its memory is the host's */
  m[0] = TOTAL;
  m[1] = TOTAL / 2;
  said("free", d, &m[1]);
  m[2] = m[0] - m[1];
  return 0;
}

int nvmlDeviceGetTemperature(device d, int sensor, unsigned *t) {
  return *t = sensor == 0 ? d->bus : 0, 0;
}

int nvmlDeviceGetClockInfo(device d, int clock, unsigned *mhz) {
  return (void)d, *mhz = clock == 1 ? 1980 : 1, 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device d, unsigned long long *bits) {
  return (void)d, *bits = 0x1 | 0x4 | 0x40, 0;
}

#ifndef OLD
static int reported;

int nvmlDeviceGetPowerUsage(device d, unsigned *mw) { return (void)d, *mw = 310250, 0; }
int nvmlDeviceGetEnforcedPowerLimit(device d, unsigned *mw) { return (void)d, *mw = 700000, 0; }

int nvmlDeviceGetTotalEccErrors(device d, int type, int counter, unsigned long long *n) {
  if (d == &gpus[1]) return 3; /* without ECC */
  return *n = counter == 0 ? (type == 0 ? 7 : 2) : 99, 0;
}

int nvmlEventSetCreate(void **set) { return *set = &reported, 0; }
int nvmlDeviceRegisterEvents(device d, unsigned long long types, void *set) {
  return (void)d, types == 8 && set == &reported ? 0 : 3;
}

int nvmlEventSetWait_v2(void *set, void *event, unsigned ms) {
  unsigned long long code;
  for (int i = 0; i < 2 && set == &reported && !reported; i++)
    if (said("xid", &gpus[i], &code)) {
      device d = &gpus[i];
      unsigned long long words[2] = {8, code};
      memcpy(event, &d, sizeof d);
      memcpy((char *)event + 8, words, sizeof words);
      return reported = 1, 0;
    }
  usleep(ms * 1000 / 4); /* the library may be early */
  return 10;
}
#endif
