// SPDX-License-Identifier: Apache-2.0
//
// Looks a name up among the hooked ones. This runs for each dlsym of the process, also for those of a
// sanitizer that has not bound libc's functions yet: it calls nothing.

#include "runtime.h"

static bool begins(const char *name, const char *prefix) {
  for (; *prefix != 0; name++, prefix++)
    if (*name != *prefix) return false;
  return true;
}

static int compare(const char *a, const char *b) {
  for (; *a == *b && *a != 0; a++, b++)
    ;
  return (unsigned char)*a - (unsigned char)*b;
}

bool xsi_runtime_submits(const struct xsi_runtime *runtime, const char *name) {
  for (const char *const *prefix = runtime->submits; prefix != NULL && *prefix != NULL; prefix++)
    if (begins(name, *prefix)) return true;
  return false;
}

int xsi_runtime_find(const struct xsi_runtime *runtime, const char *name) {
  const char *const *prefix = runtime->prefixes;
  while (*prefix != NULL && !begins(name, *prefix))
    prefix++;
  if (*prefix == NULL) return -1;
  unsigned low = 0, high = runtime->hooks;
  while (low < high) {
    unsigned middle = (low + high) / 2;
    int order = compare(name, runtime->symbols[middle].name);
    if (order == 0) return (int)middle;
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
  return -1;
}
