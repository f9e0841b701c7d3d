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

static bool is_known(const struct xsi_runtime *runtime, const char *name) {
  unsigned low = 0, high = *runtime->known_count;
  while (low < high) {
    unsigned middle = (low + high) / 2;
    if (compare(runtime->known[middle], name) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < *runtime->known_count && is_version(runtime->known[low], name);
}

bool xsi_runtime_suspects(const struct xsi_runtime *runtime, const char *name) {
  static const char *const words[] = {"Launch",  "Enqueue", "Memcpy",   "Memset",      "Async",
                                      "Capture", "capture", "Wait",     "Synchronize", "Record",
                                      "Signal",  "Upload",  "Prefetch", "MemOp",       "Submit",
                                      "Finish",  "Execute"};
  const char *const *prefix = runtime->prefixes;
  while (*prefix != NULL && !begins(name, *prefix))
    prefix++;
  if (*prefix == NULL) return false;
  const char *rest = name;
  for (const char *at = *prefix; *at != 0; at++)
    rest++;
  if (*rest < 'A' || *rest > 'Z') return false; // of another library: cudaLaunchKernel, hipblas...
  for (; *rest != 0; rest++)
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
      if (begins(rest, words[i])) return !is_known(runtime, name);
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
