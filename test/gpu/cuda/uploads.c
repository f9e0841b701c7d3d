// SPDX-License-Identifier: Apache-2.0
//
// What does a small copy with a wait take, on a stream without other work? Next to a process that keeps the multiprocessors busy, a copy
// by a copy engine needs no switch of the GPU's context, and one by the compute channel needs two. A kernel and an idle loop are
// measured in the same way, for comparison.
//
//   in:  measure COUNT HZ | report | quit
//   out: R | C {case} ... one for each case | D | S cases wrong 0
//
// Every case takes COUNT/HZ seconds. Its begin and end are times of CLOCK_MONOTONIC.
#include "driver.h"

enum { MOST = 4096, BYTES = 1 << 20 };
enum kind { IDLE, KERNEL, MEMSET, TO_DEVICE_ASYNC, TO_DEVICE, UNIFIED, MAPPED, TWO_ROWS, OVERLAP, TO_HOST_ASYNC, TO_HOST };
static const char *const names[] = {"idle",        "kernel",  "MemsetD8Async",         "HtoDAsync", "HtoD", "MemcpyAsync",
                                    "DtoDAsync", "2DAsync", "BatchAsync,overlap", "DtoHAsync", "DtoH"};

struct test {
  enum kind kind;
  int pinned;
  size_t bytes;
  int copies; // in a request
  int waits;  // after each copy, not only after the last
  int gap_us; // between two copies
};

static char *pageable, *pinned;
static CUdeviceptr memory;
static uint32_t short_work;
static uint64_t cases, wrong;

static void act(const struct test *t) {
  char *host = t->pinned ? pinned : pageable;
  switch (t->kind) {
  case IDLE: break;
  case KERNEL: launch(short_work); break;
  case MEMSET: CHECK(cuMemsetD8Async(memory, 1, t->bytes, gpu.stream)); break;
  case TO_DEVICE_ASYNC: CHECK(cuMemcpyHtoDAsync(memory, host, t->bytes, gpu.stream)); break;
  case TO_DEVICE: CHECK(cuMemcpyHtoD(memory, host, t->bytes)); break;
  case UNIFIED: CHECK(cuMemcpyAsync(memory, (CUdeviceptr)(uintptr_t)host, t->bytes, gpu.stream)); break;
  case MAPPED: CHECK(cuMemcpyDtoDAsync(memory, (CUdeviceptr)(uintptr_t)host, t->bytes, gpu.stream)); break;
  case TWO_ROWS: {
    struct copy_2d c = {.src_type = 1, .src_host = host, .src_pitch = t->bytes / 2, .dst_type = 2, .dst_device = memory, .dst_pitch = t->bytes / 2, .width = t->bytes / 2, .height = 2};
    CHECK(cuMemcpy2DAsync(&c, gpu.stream));
    break;
  }
  case OVERLAP: {
    CUdeviceptr to = memory, from = (CUdeviceptr)(uintptr_t)host;
    size_t bytes = t->bytes, index = 0, failed = 0;
    struct copy_attributes a = {.order = t->pinned ? 1 : 2, .flags = 1}; // in stream order; during the call
    CHECK(cuMemcpyBatchAsync(&to, &from, &bytes, 1, &a, &index, 1, &failed, gpu.stream));
    break;
  }
  case TO_HOST_ASYNC: CHECK(cuMemcpyDtoHAsync(host, memory, t->bytes, gpu.stream)); break;
  case TO_HOST: CHECK(cuMemcpyDtoH(host, memory, t->bytes)); break;
  }
}

// Sets the bytes on both sides to different values; the copy makes them equal.
static void prepare(const struct test *t) {
  char *host = t->pinned ? pinned : pageable;
  if (t->kind < TO_DEVICE_ASYNC) return;
  memset(host, 0x5A, t->bytes);
  CHECK(cuMemsetD8Async(memory, 0x5B, BYTES, gpu.stream));
  CHECK(cuStreamSynchronize(gpu.stream));
}
static void verify(const struct test *t) {
  if (t->kind < TO_DEVICE_ASYNC) return;
  char *host = t->pinned ? pinned : pageable, expected = t->kind >= TO_HOST_ASYNC ? 0x5B : 0x5A;
  if (t->kind < TO_HOST_ASYNC) {
    memset(host, 0, t->bytes);
    CHECK(cuMemcpyDtoH(host, memory, t->bytes));
  }
  if (host[0] != expected || host[t->bytes - 1] != expected || host[t->bytes / 2] != expected) wrong++;
}

// The caller may write to pageable memory as soon as the call returns, also behind a kernel.
static void reuse(enum kind kind, size_t bytes, int behind) {
  struct test t = {.kind = kind, .bytes = bytes};
  static char back[BYTES];
  for (int i = 0; i < 300; i++) {
    memset(pageable, i, bytes);
    if (behind) launch(short_work);
    act(&t);
    memset(pageable, ~i, bytes);
    CHECK(cuStreamSynchronize(gpu.stream));
    CHECK(cuMemcpyDtoH(back, memory, bytes));
    for (size_t at = 0; at < bytes; at++)
      if (back[at] != (char)i) {
        wrong++;
        break;
      }
  }
}

static void measure(const struct test *t, unsigned count, double hz) {
  static double whole[MOST], inside[MOST];
  prepare(t);
  for (int i = 0; i < 3; i++) act(t);
  CHECK(cuStreamSynchronize(gpu.stream));
  uint64_t begin = now_ns();
  for (unsigned i = 0; i < count; i++) {
    uint64_t due = begin + (uint64_t)((i + 1) * 1e9 / hz);
    pause_until(due);
    uint64_t start = now_ns(), calls = 0;
    for (int copy = 0; copy < t->copies; copy++) {
      if (copy > 0) pause_until(now_ns() + (uint64_t)t->gap_us * 1000);
      uint64_t called = now_ns();
      act(t);
      calls += now_ns() - called;
      if (t->waits || copy + 1 == t->copies) CHECK(cuStreamSynchronize(gpu.stream));
    }
    whole[i] = (double)(now_ns() - start) / 1e3;
    inside[i] = (double)calls / 1e3;
  }
  uint64_t end = now_ns();
  verify(t);
  cases++;
  double late = (double)(end - begin) / 1e9 * hz / count;
  printf("C {\"case\":\"%s\",\"memory\":\"%s\",\"bytes\":%zu,\"copies\":%d,\"waits\":%d,\"gap_us\":%d,\"n\":%u,\"begin\":%llu,\"end\":%llu,"
         "\"p50_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f,\"call_p50_us\":%.1f,\"call_p99_us\":%.1f,\"late\":%.3f}\n",
         names[t->kind], t->kind < MEMSET ? "-" : t->pinned ? "pinned" : "pageable", t->bytes, t->copies, t->waits ? t->copies : 1, t->gap_us,
         count, (unsigned long long)begin, (unsigned long long)end, percentile(whole, count, 0.5), percentile(whole, count, 0.9),
         percentile(whole, count, 0.99), percentile(whole, count, 1), percentile(inside, count, 0.5), percentile(inside, count, 0.99), late);
  fflush(stdout);
}

static void measure_all(unsigned count, double hz) {
  for (size_t bytes = 2; bytes <= 64 << 10; bytes *= 8)
    for (int behind = 0; behind < 2; behind++) {
      reuse(TO_DEVICE_ASYNC, bytes, behind);
      if (cuMemcpy2DAsync) reuse(TWO_ROWS, bytes, behind);
    }
  static const size_t sizes[] = {1 << 10, 4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20};
  static const struct { enum kind kind; int pinned; } ways[] = {{TO_DEVICE_ASYNC, 0}, {TO_DEVICE_ASYNC, 1}, {TO_DEVICE, 0},
                                                                {TO_HOST_ASYNC, 0}, {TO_HOST_ASYNC, 1}, {TO_HOST, 0}};
  measure(&(struct test){.kind = IDLE, .copies = 1}, count, hz);
  measure(&(struct test){.kind = KERNEL, .copies = 1}, count, hz);
  measure(&(struct test){.kind = KERNEL, .copies = 2, .waits = 1, .gap_us = 50}, count, hz);
  measure(&(struct test){.kind = MEMSET, .bytes = 4 << 10, .copies = 1, .pinned = 1}, count, hz);
  for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++)
    for (unsigned size = 0; size < sizeof sizes / sizeof *sizes; size++)
      measure(&(struct test){.kind = ways[way].kind, .pinned = ways[way].pinned, .bytes = sizes[size], .copies = 1}, count, hz);
  // Other calls for the same copy: does one of them use a copy engine?
  static const struct { enum kind kind; int pinned; } others[] = {{UNIFIED, 1}, {MAPPED, 1}, {TWO_ROWS, 0}, {TWO_ROWS, 1}, {OVERLAP, 0}, {OVERLAP, 1}};
  const int has[] = {cuMemcpyAsync != NULL, cuMemcpyDtoDAsync != NULL, cuMemcpy2DAsync != NULL, cuMemcpy2DAsync != NULL, cuMemcpyBatchAsync != NULL, cuMemcpyBatchAsync != NULL};
  for (unsigned way = 0; way < sizeof others / sizeof *others && !gpu.virtual; way++)
    for (unsigned size = 1 << 10; size <= 16 << 10 && has[way]; size *= 4)
      measure(&(struct test){.kind = others[way].kind, .pinned = others[way].pinned, .bytes = size, .copies = 1}, count, hz);
  for (unsigned size = 8 << 10; size <= 24 << 10; size += 8 << 10)
    measure(&(struct test){.kind = TO_DEVICE_ASYNC, .pinned = 1, .bytes = size, .copies = 1}, count, hz);
  // Two copies one after the other: does the GPU switch once or twice?
  for (int memory_kind = 0; memory_kind < 2; memory_kind++)
    for (unsigned size = 4 << 10; size <= 64 << 10; size *= 16) {
      struct test t = {.kind = TO_DEVICE_ASYNC, .pinned = memory_kind, .bytes = size, .copies = 2, .gap_us = 50};
      measure(&t, count, hz);
      t.waits = 1;
      measure(&t, count, hz);
      t.gap_us = 500;
      measure(&t, count, hz);
    }
  printf("D\n");
  fflush(stdout);
}

int main(void) {
  alarm(600); // ends by itself
  start_driver();
  pageable = malloc(BYTES);
  void *host = NULL;
  CHECK(cuMemHostAlloc(&host, BYTES, 0));
  pinned = host;
  CHECK(cuMemAlloc(&memory, BYTES));
  memset(pageable, 1, BYTES);
  memset(pinned, 1, BYTES);
  short_work = calibrate(20);
  printf("R\n");
  fflush(stdout);
  char line[128];
  while (fgets(line, sizeof line, stdin)) {
    unsigned count = 0;
    double hz = 0;
    if (strncmp(line, "quit", 4) == 0) break;
    if (strncmp(line, "report", 6) == 0) {
      printf("S %llu %llu 0\n", (unsigned long long)cases, (unsigned long long)wrong);
      fflush(stdout);
    } else if (sscanf(line, "measure %u %lf", &count, &hz) == 2 && count >= 1 && count <= MOST && hz > 0) {
      measure_all(count, hz);
    } else {
      printf("E unknown command\n");
      fflush(stdout);
      return 2;
    }
  }
  CHECK(cuCtxDestroy(gpu.context));
  printf("S %llu %llu 0\n", (unsigned long long)cases, (unsigned long long)wrong);
  return wrong != 0;
}
