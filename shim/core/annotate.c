// SPDX-License-Identifier: Apache-2.0

#include "annotate.h"

#include <dlfcn.h>

#include "real.h"

typedef void (*annotation)(const char *file, int line);
static annotation ignore_reads, ignore_writes, heed_reads, heed_writes;

void xsi_annotate_init(void) {
#ifndef __SANITIZE_THREAD__ // a test of this library: its own races count
  ignore_reads = (annotation)xsi_real_dlsym(RTLD_DEFAULT, "AnnotateIgnoreReadsBegin");
  ignore_writes = (annotation)xsi_real_dlsym(RTLD_DEFAULT, "AnnotateIgnoreWritesBegin");
  heed_reads = (annotation)xsi_real_dlsym(RTLD_DEFAULT, "AnnotateIgnoreReadsEnd");
  heed_writes = (annotation)xsi_real_dlsym(RTLD_DEFAULT, "AnnotateIgnoreWritesEnd");
  dlerror(); // ours, not the application's
#endif
}

void xsi_annotate_ignore(bool begin) {
  annotation reads = begin ? ignore_reads : heed_reads;
  annotation writes = begin ? ignore_writes : heed_writes;
  if (reads != NULL) reads(__FILE__, __LINE__);
  if (writes != NULL) writes(__FILE__, __LINE__);
}
