/* SPDX-License-Identifier: Apache-2.0
 *
 * A program with two streams that sets hints from lines on standard input: PLACE NAME=VALUE... with
 * PLACE "process" or the index of a queue, and NAME a member of struct xs_hint. The reply is the
 * result code. The command "queues" prints the indices of the queues.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hints_gen.h" /* the list of all hints */
#include "xsched/wire.h"
#include "xsched/xsched.h"

extern int cuInit(unsigned);
extern int cuDeviceGet(int *, int);
extern int cuCtxCreate_v2(void **, unsigned, int);
extern int cuModuleLoadData(void **, const void *);
extern int cuModuleGetFunction(void **, void *, const char *);
extern int cuMemAlloc_v2(unsigned long long *, size_t);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, CUstream, void **, void **);
extern int cuStreamCreate(CUstream *, unsigned);
extern int cuStreamSynchronize(CUstream);

/* Creates a stream and submits work; only then can it become a queue. */
static int use(void *kernel) {
  static unsigned long long memory;
  unsigned us = 100, seed = 1;
  void *arguments[] = {&memory, &us, &seed};
  CUstream stream;
  if (memory == 0 && cuMemAlloc_v2(&memory, 64) != 0) return 1;
  if (cuStreamCreate(&stream, 1) != 0 ||
      cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL) != 0)
    return 1;
  return cuStreamSynchronize(stream);
}

static void set(xs_hint *hint, const char *name, const char *value) {
  long long number = atoll(value);
#define NUMBER(member, bit)                                                                        \
  if (strcmp(name, #member) == 0) {                                                                \
    hint->member = number;                                                                         \
    hint->said |= (bit);                                                                           \
  }
#define TEXT(member, bit)                                                                          \
  if (strcmp(name, #member) == 0) {                                                                \
    hint->member = value;                                                                          \
    hint->said |= (bit);                                                                           \
  }
  XSI_HINT_API_FIELDS(NUMBER, TEXT)
}

int main(void) {
  int device = 0;
  void *context = NULL, *module = NULL, *kernel = NULL;
  if (cuInit(0) != 0 || cuDeviceGet(&device, 0) != 0 || cuCtxCreate_v2(&context, 0, device) != 0 ||
      cuModuleLoadData(&module, "// xs_spin") != 0 ||
      cuModuleGetFunction(&kernel, module, "xs_spin") != 0 || use(kernel) != 0 || use(kernel) != 0)
    return 1;
  puts("ready");
  fflush(stdout);
  char line[512];
  while (fgets(line, sizeof line, stdin) != NULL) {
    char *place = strtok(line, " \n");
    if (place == NULL) continue;
    if (strcmp(place, "queues") == 0) {
      xs_queue_info list[8];
      uint32_t count = xs_queues(list, 8);
      printf("queues");
      for (uint32_t i = 0; i < count && i < 8; i++)
        printf(" %u", list[i].index);
      puts("");
    } else {
      xs_hint hint = {.bytes = sizeof hint};
      for (char *word; (word = strtok(NULL, " \n")) != NULL;) {
        char *value = strchr(word, '=');
        if (value == NULL) return 2;
        *value = 0;
        set(&hint, word, value + 1);
      }
      XResult result = strcmp(place, "process") == 0 ? xs_hint_set(0, &hint)
                                                     : xs_queue_hint((uint32_t)atoi(place), &hint);
      printf("result %d\n", (int)result);
    }
    fflush(stdout);
  }
  return 0;
}
