/* SPDX-License-Identifier: Apache-2.0
 *
 * movable: holds device memory and proves that its content is right, whatever moves it meanwhile. Each thread has a
 * GPU, a context, two streams, a graph and blocks of its own. Every iteration changes one block by a kernel, and
 * copies part of it by one of four ways; now and then all bytes are compared, or memory is allocated and freed.
 *
 *   movable GPUS THREADS BLOCKS MIB KERNEL_US
 *   in:  loop | pause | alloc GPU MIB | free GPU | quit (or the end of the input)
 *   out: R; I BEGIN END for each iteration of a thread; P; A result ms; F result; X text if something is wrong;
 *        S ITERATIONS WRONG at the end
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long address;
typedef void *handle;
#ifdef HIP
#include "movable_hip.h"
#else
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(handle *, int);
int cuCtxCreate_v2(handle *, unsigned, int);
int cuCtxSetCurrent(handle);
int cuModuleLoadData(handle *, const void *);
int cuModuleGetFunction(handle *, handle, const char *);
int cuStreamCreate(handle *, unsigned);
int cuStreamSynchronize(handle);
int cuStreamBeginCapture_v2(handle, int);
int cuStreamEndCapture(handle, handle *);
int cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
int cuGraphLaunch(handle, handle);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   handle, void **, void **);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemsetD32Async(address, unsigned, size_t, handle);
int cuMemcpyDtoH_v2(void *, address, size_t);
int cuMemcpyDtoHAsync_v2(void *, address, size_t, handle);
int cuMemcpyHtoDAsync_v2(address, const void *, size_t, handle);
int cuMemcpyDtoDAsync_v2(address, address, size_t, handle);
#endif

enum { GRAPH_SEED = 77, SLOT = 64 << 10 };

struct block {
  address at;
  uint64_t word, count;  /* what its first 16 bytes are */
  uint32_t filled, slot; /* what the rest is, and its last SLOT bytes */
};
struct worker {
  pthread_t thread;
  int gpu, number;
  handle context, streams[2], kernel, graph;
  struct block *blocks;
  void *pinned;
  unsigned char *host;
};

static int gpus, threads, blocks, kernel_us;
static size_t bytes;
static _Atomic bool going, ending;
static _Atomic unsigned paused;
static _Atomic unsigned long iterations, wrong;
static pthread_mutex_t output = PTHREAD_MUTEX_INITIALIZER;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void say(const char *format, ...) {
  va_list list;
  va_start(list, format);
  pthread_mutex_lock(&output);
  vprintf(format, list);
  putchar('\n');
  fflush(stdout);
  pthread_mutex_unlock(&output);
  va_end(list);
}

/* A call that must succeed. */
static void must(struct worker *w, const char *what, int error) {
  if (error == 0) return;
  say("X thread %d: %s: error %d", w->number, what, error);
  wrong++;
  exit(1);
}
#define MUST(call) must(w, #call, call)

/* One launch of xs_spin on a word (vg_fold in shim/virtual/vgpu.h). */
static uint64_t folded(uint64_t word, uint32_t seed) {
  uint32_t count = ((uint32_t)kernel_us + 9) / 10;
  for (uint32_t b = 0; b < count; b++) {
    word ^= (uint64_t)seed << 32 | b;
    word = word << 23 | word >> 41;
    word = word * 0x9E3779B97F4A7C15ull + 1;
  }
  return word;
}

static void launch(struct worker *w, address at, uint32_t seed, handle stream) {
  uint32_t us = (uint32_t)kernel_us;
  void *params[] = {&at, &us, &seed};
  MUST(cuLaunchKernel(w->kernel, 8, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static void setup(struct worker *w) {
  handle module, graph;
  MUST(cuCtxSetCurrent(w->context));
  MUST(cuModuleLoadData(&module, ".visible .entry xs_spin()"));
  MUST(cuModuleGetFunction(&w->kernel, module, "xs_spin"));
  MUST(cuStreamCreate(&w->streams[0], 1));
  MUST(cuStreamCreate(&w->streams[1], 1));
  MUST(cuMemHostAlloc(&w->pinned, SLOT, 0));
  w->host = malloc(bytes);
  w->blocks = calloc((size_t)blocks, sizeof *w->blocks);
  for (int i = 0; i < blocks; i++) {
    struct block *b = &w->blocks[i];
    b->filled = b->slot = (uint32_t)(w->number * 1000 + i + 1);
    b->word = b->count = (uint64_t)b->filled << 32 | b->filled;
    MUST(cuMemAlloc_v2(&b->at, bytes));
    MUST(cuMemsetD32Async(b->at, b->filled, bytes / 4, w->streams[0]));
  }
  MUST(cuStreamSynchronize(w->streams[0]));
  MUST(cuStreamBeginCapture_v2(w->streams[0], 2));
  launch(w, w->blocks[0].at, GRAPH_SEED, w->streams[0]);
  MUST(cuStreamEndCapture(w->streams[0], &graph));
  MUST(cuGraphInstantiateWithFlags(&w->graph, graph, 0));
}

/* Are all bytes of a block what they should be? */
static void compare(struct worker *w, struct block *b) {
  MUST(cuMemcpyDtoH_v2(w->host, b->at, bytes));
  uint64_t *head = (void *)w->host;
  uint32_t *words = (void *)w->host;
  size_t bad = (head[0] != b->word) + (head[1] != b->count);
  for (size_t i = 4; i < bytes / 4; i++)
    bad += words[i] != (i < (bytes - SLOT) / 4 ? b->filled : b->slot);
  if (bad == 0) return;
  wrong++;
  say("X thread %d: wrong result: block %d at %#llx: %zu words differ, word %#llx, want %#llx, "
      "count %#llx, want %#llx",
      w->number, (int)(b - w->blocks), b->at, bad, (address)head[0], (address)b->word,
      (address)head[1], (address)b->count);
}

/* Gives the last bytes of a block a new content. */
static void copy(struct worker *w, struct block *b, uint32_t n, handle stream) {
  struct block *other = &w->blocks[(b - w->blocks + 1) % blocks];
  address to = b->at + bytes - SLOT;
  uint32_t value = n;
  switch (n % 4) {
  case 0: MUST(cuMemsetD32Async(to, value, SLOT / 4, stream)); break;
  case 1: /* pinned */
    for (size_t i = 0; i < SLOT / 4; i++)
      ((uint32_t *)w->pinned)[i] = value;
    MUST(cuMemcpyHtoDAsync_v2(to, w->pinned, SLOT, stream));
    break;
  case 2: /* pageable */
    for (size_t i = 0; i < SLOT / 4; i++)
      ((uint32_t *)(void *)w->host)[i] = value;
    MUST(cuMemcpyHtoDAsync_v2(to, w->host, SLOT, stream));
    break;
  default: /* from another block */
    value = other->slot;
    MUST(cuMemcpyDtoDAsync_v2(to, other->at + bytes - SLOT, SLOT, stream));
  }
  b->slot = value;
}

static void churn(struct worker *w, uint32_t n) {
  address at = 0;
  uint32_t words[4] = {0};
  size_t size = n % 3 == 0 ? 3u << 20 : n % 3 == 1 ? 4096 : 2u << 20;
  int error = cuMemAlloc_v2(&at, size);
  if (error == 2) return; /* full, which is no mistake */
  must(w, "cuMemAlloc", error);
  MUST(cuMemsetD32Async(at, n, size / 4, w->streams[1]));
  MUST(cuMemcpyDtoHAsync_v2(words, at + size - sizeof words, sizeof words, w->streams[1]));
  MUST(cuStreamSynchronize(w->streams[1]));
  if (words[0] != n || words[3] != n) {
    wrong++;
    say("X thread %d: wrong result: a fresh allocation has %u, want %u", w->number, words[3], n);
  }
  MUST(cuMemFree_v2(at));
}

static void iterate(struct worker *w, uint32_t n) {
  struct block *b = &w->blocks[n % (uint32_t)blocks];
  handle stream = w->streams[n / 3 % 2];
  launch(w, b->at, n, stream);
  b->word = folded(b->word, n);
  b->count++;
  if (n % 3 == 0) copy(w, b, n / 3, stream);
  MUST(cuStreamSynchronize(stream));
  if (n % 5 == 0) {
    MUST(cuGraphLaunch(w->graph, stream));
    w->blocks[0].word = folded(w->blocks[0].word, GRAPH_SEED);
    w->blocks[0].count++;
    MUST(cuStreamSynchronize(stream));
  }
  if (n % 17 == 0) churn(w, n);
  if (n % 29 == 0) compare(w, b);
}

static void *work(void *data) {
  struct worker *w = data;
  must(w, "cuCtxSetCurrent", cuCtxSetCurrent(w->context));
  bool rests = false;
  for (uint32_t n = 1; !ending;) {
    if (!going) {
      if (!rests) paused++;
      rests = true;
      struct timespec t = {0, 200000};
      nanosleep(&t, NULL);
      continue;
    }
    if (rests) paused--;
    rests = false;
    uint64_t begun = now_ns();
    iterate(w, n++);
    iterations++;
    say("I %llu %llu", (address)begun, (address)now_ns());
  }
  for (int i = 0; i < blocks; i++)
    compare(w, &w->blocks[i]);
  return NULL;
}

/* Allocations by hand: the newest of each GPU is freed first. */
static void by_hand(struct worker *w, const char *line) {
  static address extra[2][64];
  static int count[2];
  char word[16];
  int gpu = 0, mib = 0;
  if (sscanf(line, "%15s %d %d", word, &gpu, &mib) < 2 || gpu < 0 || gpu >= gpus) return;
  MUST(cuCtxSetCurrent(w[gpu].context));
  uint64_t begun = now_ns();
  if (strcmp(word, "alloc") == 0 && count[gpu] < 64) {
    int error = cuMemAlloc_v2(&extra[gpu][count[gpu]], (size_t)mib << 20);
    if (error == 0) count[gpu]++;
    say("A %d %llu", error, (address)(now_ns() - begun) / 1000000);
  } else if (strcmp(word, "free") == 0 && count[gpu] > 0)
    say("F %d", cuMemFree_v2(extra[gpu][--count[gpu]]));
}

int main(int count, char **arguments) {
  if (count != 6 || cuInit(0)) return 2;
  gpus = atoi(arguments[1]), threads = atoi(arguments[2]), blocks = atoi(arguments[3]);
  bytes = (size_t)atoi(arguments[4]) << 20;
  kernel_us = atoi(arguments[5]);
  struct worker *workers = calloc((size_t)threads, sizeof *workers);
  handle primary[64] = {0};
  for (int i = 0; i < threads; i++) {
    struct worker *w = &workers[i];
    w->number = i;
    w->gpu = i % gpus;
    if (!primary[w->gpu]) {
      MUST(cuDevicePrimaryCtxRetain(&primary[w->gpu], w->gpu));
      w->context = primary[w->gpu];
    } else
      MUST(cuCtxCreate_v2(&w->context, 0, w->gpu));
    setup(w);
  }
  for (int i = 0; i < threads; i++)
    if (pthread_create(&workers[i].thread, NULL, work, &workers[i])) return 2;
  say("R");
  char line[64];
  while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n") != 0) {
    if (strcmp(line, "loop\n") == 0) {
      going = true;
    } else if (strcmp(line, "pause\n") == 0) {
      going = false;
      while (paused < (unsigned)threads) {
        struct timespec t = {0, 200000};
        nanosleep(&t, NULL);
      }
      say("P");
    } else
      by_hand(workers, line);
  }
  ending = true;
  for (int i = 0; i < threads; i++)
    pthread_join(workers[i].thread, NULL);
  say("S %lu %lu", (unsigned long)iterations, (unsigned long)wrong);
  return wrong != 0;
}
