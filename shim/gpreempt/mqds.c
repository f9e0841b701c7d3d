// SPDX-License-Identifier: Apache-2.0
//
// The driver's dump of queue descriptors, /sys/kernel/debug/kfd/mqds. It has no queue ids, and one
// block of words per die; the first is enough.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "list.h"

// Offsets of the gfx9 descriptor. From drivers/gpu/drm/amd/include/v9_structs.h.
enum {
  HEADER_AT = 0,
  PRIORITY_AT = 0x218,
  RING_LOW_AT = 0x220,
  RING_HIGH_AT = 0x224,
  CONTROL_AT = 0x244,
};
#define HEADER 0xc0310800u

struct parser {
  struct list *out;
  struct mqd mqd;
  bool compute, known;   // known: a gfx9 header
  unsigned blocks, seen; // dies, fields
};

static bool finish(struct parser *p) {
  bool complete = p->compute && p->known && p->seen == 4;
  p->compute = p->known = false;
  p->seen = 0;
  return !complete || list_add(p->out, &p->mqd, sizeof p->mqd);
}

static void word(struct parser *p, unsigned at, uint32_t value) {
  switch (at) {
  case HEADER_AT: p->known = value == HEADER; break;
  case PRIORITY_AT: p->mqd.priority = value, p->seen++; break;
  case RING_LOW_AT: p->mqd.ring = (uint64_t)value << 8, p->seen++; break;
  case RING_HIGH_AT: p->mqd.ring |= (uint64_t)value << 40, p->seen++; break;
  case CONTROL_AT: // the size is 4 << (order + 1)
    p->mqd.ring_bytes = (value & 0x3f) < 28 ? 8u << (value & 0x3f) : 0, p->seen++;
    break;
  default: break;
  }
}

static void words(struct parser *p, const char *line) {
  char *at;
  unsigned long offset = strtoul(line, &at, 16);
  if (*at != ':') return;
  if (offset == 0) p->blocks++;
  if (p->blocks != 1) return;
  at++;
  for (; *at != 0 && *at != '\n'; offset += 4) {
    char *end;
    unsigned long value = strtoul(at, &end, 16);
    if (end == at) return;
    word(p, (unsigned)offset, (uint32_t)value);
    at = end;
  }
}

int mqds_read(struct list *out) {
  FILE *file = fopen("/sys/kernel/debug/kfd/mqds", "r");
  if (file == NULL) return -errno;
  struct parser p = {.out = out};
  char line[512], device[32];
  pid_t pid = 0;
  bool memory = true;
  while (memory && fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, " Process %d", &pid) == 1) {
      memory = finish(&p);
    } else if (strstr(line, " queue on device ") != NULL) {
      memory = finish(&p);
      p.compute = sscanf(line, " Compute queue on device %31[0-9a-f]", device) == 1;
      p.blocks = 0;
      p.mqd = (struct mqd){.pid = pid};
      if (p.compute) p.mqd.gpu_id = (uint32_t)strtoul(device, NULL, 16);
    } else if (p.compute) {
      words(&p, line);
    }
  }
  memory = memory && finish(&p);
  int error = ferror(file) ? -EIO : memory ? 0 : -ENOMEM;
  fclose(file);
  return error;
}
