// SPDX-License-Identifier: Apache-2.0
//
// What does the shim add to a launch? Short blocks of launches through the shim and past it take turns in one process, under one daemon:
// two processes differ by more than the shim costs. Past the shim is the driver's own function, found in the driver's table of symbols.
//
//   in:  measure MS | report | quit      MS for each case
//   out: R | P CASE PLAIN OURS (ns a launch, medians of a group of blocks) ... | H launches through the shim | D | S groups 0 0
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>

#include "driver.h"

enum { LAUNCHES = 500, BLOCKS = 8, MOST_THREADS = 8, STREAMS = 64 }; /* blocks of each way in a group */

typedef int launch_function(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
static launch_function *ways[2]; /* past the shim, through it */
static CUstream streams[STREAMS];
static uint64_t hooked, groups;

static const struct test {
  const char *name;
  unsigned streams, threads; /* streams of a thread, in turn */
} tests[] = {{"one", 1, 1}, {"streams", STREAMS, 1}, {"two", 1, 2}, {"eight", 1, MOST_THREADS}};

/* The function as the driver defines it, whatever the loader was told. */
static void *defined(void *library, const char *name) {
  struct link_map *map = NULL;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || !map) return NULL;
  const ElfW(Sym) *symbols = NULL;
  const char *names = NULL;
  const uint32_t *hash = NULL;
  for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
    if (d->d_tag == DT_SYMTAB) symbols = (const void *)d->d_un.d_ptr;
    if (d->d_tag == DT_STRTAB) names = (const void *)d->d_un.d_ptr;
    if (d->d_tag == DT_GNU_HASH) hash = (const void *)d->d_un.d_ptr;
  }
  if (!symbols || !names || !hash) return NULL;
  const uint32_t *buckets = hash + 4 + hash[2] * (sizeof(ElfW(Addr)) / 4), *chain = buckets + hash[0];
  for (uint32_t b = 0; b < hash[0]; b++)
    for (uint32_t i = buckets[b]; i >= hash[1]; i++) {
      if (symbols[i].st_value && strcmp(names + symbols[i].st_name, name) == 0) return (void *)(map->l_addr + symbols[i].st_value);
      if (chain[i - hash[1]] & 1) break;
    }
  return NULL;
}

static const struct test *test;
static pthread_barrier_t barrier;
static double took[MOST_THREADS];
static bool over;
static int way;

static void run(unsigned thread) {
  uint32_t work = 1, seed = 7;
  void *arguments[] = {&gpu.out, &work, &seed};
  launch_function *launch = ways[way];
  uint64_t begun = now_ns();
  for (unsigned i = 0; i < LAUNCHES; i++)
    CHECK(launch(gpu.function, 1, 1, 1, 32, 1, 1, 0, streams[thread + i % test->streams], arguments, NULL));
  took[thread] = (double)(now_ns() - begun) / LAUNCHES;
  for (unsigned i = 0; i < test->streams; i++) CHECK(cuStreamSynchronize(streams[thread + i]));
}

static void *follow(void *thread) {
  CHECK(cuCtxSetCurrent(gpu.context));
  for (;;) {
    pthread_barrier_wait(&barrier);
    if (over) return NULL;
    run((unsigned)(uintptr_t)thread);
    pthread_barrier_wait(&barrier);
  }
}

static double block(int through) {
  double sum = 0;
  way = through;
  pthread_barrier_wait(&barrier);
  run(0);
  pthread_barrier_wait(&barrier);
  for (unsigned i = 0; i < test->threads; i++) sum += took[i];
  if (through) hooked += LAUNCHES * test->threads;
  return sum / test->threads;
}

static void measure(double ms) {
  pthread_t threads[MOST_THREADS];
  pthread_barrier_init(&barrier, NULL, test->threads);
  over = false;
  for (uintptr_t i = 1; i < test->threads; i++)
    if (pthread_create(&threads[i], NULL, follow, (void *)i) != 0) fail("pthread_create", 0);
  block(0), block(1);
  for (uint64_t end = now_ns() + (uint64_t)(ms * 1e6); now_ns() < end; groups++) {
    double found[2][BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
      for (int k = 0; k < 2; k++) {
        int through = (i + k) % 2; /* the order alternates */
        found[through][i] = block(through);
      }
    printf("P %s %.3f %.3f\n", test->name, percentile(found[0], BLOCKS, 0.5), percentile(found[1], BLOCKS, 0.5));
  }
  over = true;
  pthread_barrier_wait(&barrier);
  for (unsigned i = 1; i < test->threads; i++) pthread_join(threads[i], NULL);
}

int main(void) {
  alarm(600); // ends by itself
  start_driver();
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  ways[0] = (launch_function *)defined(library, "cuLaunchKernel");
  ways[1] = cuLaunchKernel;
  if (!ways[0]) fail("the driver's cuLaunchKernel was not found", 0);
  if (ways[0] == ways[1]) fail("no shim", 0);
  for (int i = 0; i < STREAMS; i++) CHECK(cuStreamCreate(&streams[i], 1));
  printf("R\n");
  fflush(stdout);
  char line[128];
  while (fgets(line, sizeof line, stdin) && strncmp(line, "quit", 4) != 0) {
    double ms = 0;
    if (strncmp(line, "report", 6) == 0) {
      printf("S %llu 0 0\n", (unsigned long long)groups);
    } else if (sscanf(line, "measure %lf", &ms) == 1 && ms > 0) {
      for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++) {
        test = &tests[i];
        measure(i == 0 ? 2 * ms : ms);
      }
      printf("H %llu\nD\n", (unsigned long long)hooked);
    } else {
      printf("E unknown command\n");
    }
    fflush(stdout);
  }
  CHECK(cuCtxDestroy(gpu.context));
  printf("S %llu 0 0\n", (unsigned long long)groups);
  return 0;
}
