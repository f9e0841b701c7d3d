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

// A name, or an older or newer version of it: NAME_v2, NAME_ptsz.
static bool is_version(const char *of, const char *name) {
  for (; *name != 0; of++, name++)
    if (*of != *name) return false;
  return *of == 0 || (of[0] == '_' && (of[1] == 'v' || of[1] == 'p'));
}

int xsi_runtime_known(const struct xsi_runtime *runtime, const char *name) {
  unsigned low = 0, high = *runtime->known_count;
  while (low < high) {
    unsigned middle = (low + high) / 2;
    if (compare(runtime->known[middle], name) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < *runtime->known_count && is_version(runtime->known[low], name) ? (int)low : -1;
}

// The part of a function's name behind the runtime's prefix, or NULL: of another library (cudaLaunchKernel,
// hipblas...).
static const char *own_part(const struct xsi_runtime *runtime, const char *name) {
  const char *const *prefix = runtime->prefixes;
  while (*prefix != NULL && !begins(name, *prefix))
    prefix++;
  if (*prefix == NULL) return NULL;
  for (const char *at = *prefix; *at != 0; at++)
    name++;
  return *name >= 'A' && *name <= 'Z' ? name : NULL;
}

bool xsi_runtime_unlisted(const struct xsi_runtime *runtime, const char *name) {
  return own_part(runtime, name) != NULL && xsi_runtime_known(runtime, name) < 0;
}

bool xsi_runtime_suspects(const struct xsi_runtime *runtime, const char *name) {
  static const char *const words[] = {"Launch",  "Enqueue", "Memcpy",   "Memset",      "Async",
                                      "Capture", "capture", "Wait",     "Synchronize", "Record",
                                      "Signal",  "Upload",  "Prefetch", "MemOp",       "Submit",
                                      "Finish",  "Execute"};
  const char *at = own_part(runtime, name);
  for (; at != NULL && *at != 0; at++)
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
      if (begins(at, words[i])) return xsi_runtime_known(runtime, name) < 0;
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
