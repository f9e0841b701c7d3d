/* SPDX-License-Identifier: Apache-2.0
 *
 * tenant: a CUDA driver API program that a benchmark controls through standard input. The same
 * binary runs on a real GPU, where its kernel fills the device, and on the virtual GPU. With
 * --api hip it is a HIP program, for the virtual GPU only.
 *
 *   tenant --name NAME --kernel-us N [--depth N] [--device N] [--api cuda|hip]
 *          [--grid BLOCKS]                   of a kernel (default: fills the device)
 *          [--feed N]                        N kernels per request, each after 10x CPU time
 *          [--streams N]                     further streams, so that it has more hardware queues
 *          [--memory MIB]                    it holds so much, and compares all of it at the end
 *          [--copy BYTES]                    loop: copies instead of kernels, until `compute`
 *          [--urgent FD | --background FD]   with another one: see tenant_app.h
 *   in:  rate HZ | loop | compute | pause | report | quit
 *   out: R | I start_ns end_ns | P | S launches checksum expected | E what
 *        Q submitted, H from_ns to_ns (before S, of one that schedules itself)
 *
 * Every launch folds its arithmetic into two words of device memory. The host computes their
 * expected values in closed form (real) or block by block (virtual), which reveals lost and
 * repeated work. The exit code is 0 only if they agree.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tenant_api.h"
#include "tenant_app.h"
#include "vgpu.h"

#define MAX_DEPTH 256
#define THREADS 256u
#define BLOCKS_PER_SM 8u
#define LCG_A 6364136223846793005ull
#define LCG_C 1442695040888963407ull
#define SPREAD 0x9E3779B97F4A7C15ull
#define FLUSH_NS 50000000u

static struct {
  const char *name;
  unsigned kernel_us, depth, feed, streams;
  size_t copy; /* bytes; 0: kernels */
  size_t held; /* MiB of memory besides */
  uint64_t *chunks;
  void *copied; /* to here */
  int device;
  int peer; /* socket to the other tenant of an application that schedules itself; 0: none */
  bool urgent;
  bool is_virtual, hip;
  enum { WAIT_SYNC, WAIT_COPY, WAIT_POLL } wait; /* how a request ends */
  handle context, stream, function, events[MAX_DEPTH];
  uint64_t memory;
  unsigned grid;
  uint32_t work; /* microseconds, or iterations */
  uint64_t launches, expected, expected_count;
} t = {.name = "tenant", .kernel_us = 1000, .depth = 1};

static struct {
  char bytes[65536];
  size_t used;
  uint64_t flushed_ns;
  bool broken;
} out;

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void flush(void) {
  size_t at = 0;
  while (at < out.used && !out.broken) {
    ssize_t n = write(STDOUT_FILENO, out.bytes + at, out.used - at);
    if (n > 0)
      at += (size_t)n;
    else if (errno != EINTR)
      out.broken = true;
  }
  out.used = 0;
  out.flushed_ns = now_ns();
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
  if (out.used + 256 > sizeof out.bytes) flush();
  va_list rest;
  va_start(rest, format);
  int n = vsnprintf(out.bytes + out.used, 256, format, rest);
  va_end(rest);
  out.used += n < 0 ? 0 : n > 255 ? 255 : (size_t)n;
}

static void say_iteration(uint64_t start, uint64_t end) {
  say("I %" PRIu64 " %" PRIu64 "\n", start, end);
  if (t.kernel_us >= 2000 || end - out.flushed_ns > FLUSH_NS) flush();
}

/* Reports an error and exits, which only a program of ours may do. */
static void fail(const char *what, result code) {
  say("E %s: %d\n", what, code);
  flush();
  fprintf(stderr, "tenant %s: %s: %d\n", t.name, what, code);
  _exit(2);
}
#define CHECK(call)                                                                                \
  do {                                                                                             \
    result code_ = (call);                                                                         \
    if (code_ != 0) fail(#call, code_);                                                            \
  } while (0)

/* The contribution of one launch to the expected words. */
static void expect(uint32_t work, uint32_t seed) {
  if (t.is_virtual) {
    uint32_t blocks = (uint32_t)(((uint64_t)work * 1000 + VG_BLOCK_NS - 1) / VG_BLOCK_NS);
    if (blocks == 0) blocks = 1;
    for (uint32_t b = 0; b < blocks; b++)
      t.expected = vg_fold(t.expected, seed, b);
    t.expected_count++;
    return;
  }
  uint64_t a = 1, c = 0, step_a = LCG_A, step_c = LCG_C; /* n steps at once: x -> a x + c */
  for (uint32_t n = work; n; n >>= 1) {
    if (n & 1) {
      c = c * step_a + step_c;
      a *= step_a;
    }
    step_c = step_c * step_a + step_c;
    step_a *= step_a;
  }
  uint64_t warps = (uint64_t)t.grid * THREADS / 32;
  uint64_t starts = warps * seed + SPREAD * (32 * (warps * (warps - 1) / 2));
  t.expected += a * starts + warps * c;
  t.expected_count += warps;
}

static void launch(uint32_t work) {
  uint32_t seed = (uint32_t)(t.launches * 2654435761u + 1);
  void *params[] = {&t.memory, &work, &seed};
  CHECK(cu.cuLaunchKernel(t.function, t.grid, 1, 1, THREADS, 1, 1, 0, t.stream, params, NULL));
  t.launches++;
  expect(work, seed);
}

/* Iterations for the wanted time, by the shortest of several measurements, to exclude noise. */
static void calibrate(void) {
  if (t.is_virtual) {
    t.work = t.kernel_us;
    return;
  }
  uint32_t work = 2000;
  for (int round = 0; round < 12; round++) {
    float best = 0;
    for (int i = 0; i < 3; i++) {
      float ms;
      CHECK(cu.cuEventRecord(t.events[0], t.stream));
      launch(work);
      CHECK(cu.cuEventRecord(t.events[1], t.stream));
      CHECK(cu.cuEventSynchronize(t.events[1]));
      CHECK(cu.cuEventElapsedTime(&ms, t.events[0], t.events[1]));
      if (i == 0 || ms < best) best = ms;
    }
    double wanted = t.kernel_us / 1000.0, factor = wanted / (best > 0.002f ? best : 0.002f);
    if (factor > 0.98 && factor < 1.02) break;
    if (factor > 20) factor = 20;
    double next = work * factor;
    work = next < 1 ? 1 : next > 4e9 ? 4000000000u : (uint32_t)next;
  }
  t.work = work;
}

/* HIP has no contexts to create; each thread selects its device. */
static result use_device(int device) {
  if (t.hip) return ((result(*)(int))(void *)cu.cuCtxCreate_v2)(device);
  return cu.cuCtxCreate_v2(&t.context, 0, device);
}

#define CHUNK_MIB 8u
#define CHUNK_BYTES ((size_t)CHUNK_MIB << 20)

static size_t chunk_count(void) { return (t.held + CHUNK_MIB - 1) / CHUNK_MIB; }
static unsigned char chunk_byte(size_t i) { return (unsigned char)(i % 251 + 1); }

static void take_chunks(void) {
  t.chunks = calloc(chunk_count(), sizeof *t.chunks);
  if (!t.chunks) fail("calloc", 2);
  for (size_t i = 0; i < chunk_count(); i++) {
    CHECK(cu.cuMemAlloc_v2(&t.chunks[i], CHUNK_BYTES));
    CHECK(cu.cuMemsetD8_v2(t.chunks[i], chunk_byte(i), CHUNK_BYTES));
  }
}

/* Is all memory that the program holds as it was? */
static bool chunks_kept(void) {
  unsigned char *host = t.held ? malloc(CHUNK_BYTES) : NULL;
  bool kept = true;
  for (size_t i = 0; host && i < chunk_count(); i++) {
    CHECK(cu.cuMemcpyDtoH_v2(host, t.chunks[i], CHUNK_BYTES));
    for (size_t at = 0; at < CHUNK_BYTES && kept; at++)
      kept = host[at] == chunk_byte(i);
  }
  free(host);
  return kept;
}

static void set_up(void) {
  void *library = NULL;
  static const char *const runtimes[] = {"libamdhip64.so.7", "libamdhip64.so.6",
                                         "libamdhip64.so.5"};
  for (size_t i = 0; t.hip && !library && i < sizeof runtimes / sizeof *runtimes; i++)
    library = dlopen(runtimes[i], RTLD_NOW);
  if (!t.hip) library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    fprintf(stderr, "tenant %s: %s\n", t.name, dlerror());
    _exit(2);
  }
  void **slots = (void **)&cu;
  const char *const *wanted = t.hip ? hip_names : names;
  for (size_t i = 0; i < CALLS; i++)
    if (!(slots[i] = dlsym(library, wanted[i]))) fail(wanted[i], 500);
  int device, processors;
  char model[128] = "";
  handle module;
  CHECK(cu.cuInit(0));
  CHECK(cu.cuDeviceGet(&device, t.device));
  CHECK(cu.cuDeviceGetName(model, sizeof model, device));
  CHECK(cu.cuDeviceGetAttribute(&processors, t.hip ? 63 : 16, device));
  t.is_virtual = strcmp(model, "XSched virtual GPU") == 0;
  if (t.grid == 0) t.grid = (unsigned)processors * BLOCKS_PER_SM;
  if (t.hip && !t.is_virtual) fail("--api hip is for the virtual GPU", 801);
  CHECK(use_device(device));
  CHECK(cu.cuStreamCreate(&t.stream, 0));
  CHECK(cu.cuModuleLoadData(&module, ptx));
  CHECK(cu.cuModuleGetFunction(&t.function, module, "xs_spin"));
  CHECK(cu.cuMemAlloc_v2(&t.memory, t.copy > 16 ? t.copy : 16));
  if (t.copy && !(t.copied = malloc(t.copy))) fail("malloc", 2);
  CHECK(cu.cuMemsetD8_v2(t.memory, 0, 16));
  if (t.held) take_chunks();
  CHECK(cu.cuCtxSynchronize());
  unsigned events = t.depth > 2 ? t.depth : 2;
  for (unsigned i = 0; i < events; i++)
    CHECK(cu.cuEventCreate(&t.events[i], 0));
  for (unsigned i = 1; i < t.streams; i++) { /* a queue exists once it has been used */
    handle more;
    CHECK(cu.cuStreamCreate(&more, 0));
    CHECK(cu.cuEventRecord(t.events[0], more));
  }
  calibrate();
  if (t.peer > 0) {
    const char *missing = app_begin(t.peer, t.urgent, t.stream);
    if (missing) fail(missing, 1);
  }
}

static bool report(void) {
  uint64_t words[2];
  CHECK(cu.cuStreamSynchronize(t.stream));
  CHECK(cu.cuMemcpyDtoH_v2(words, t.memory, sizeof words));
  uint64_t got = words[0] ^ words[1] * SPREAD, want = t.expected ^ t.expected_count * SPREAD;
  if (!chunks_kept()) got = ~want;
  if (t.peer > 0) say("Q %" PRIu64 "\n", app_submitted());
  uint64_t from, to;
  for (unsigned i = 0; app_suspended(i, &from, &to); i++)
    say("H %" PRIu64 " %" PRIu64 "\n", from, to);
  say("S %" PRIu64 " %016" PRIx64 " %016" PRIx64 "\n", t.launches, got, want);
  flush();
  return got == want;
}

/* ---- commands ------------------------------------------------------------------------------- */

enum mode { IDLE, RATE, LOOP, QUIT };
static enum mode mode;
static double rate_hz;
static struct {
  uint64_t start[MAX_DEPTH];
  unsigned first, count;
} flight;

static void land_one(void) {
  if (out.used && now_ns() - out.flushed_ns > FLUSH_NS) flush();
  CHECK(cu.cuEventSynchronize(t.events[flight.first]));
  say_iteration(flight.start[flight.first], now_ns());
  flight.first = (flight.first + 1) % t.depth;
  flight.count--;
}

static void command(char *line) {
  double hz;
  while (flight.count)
    land_one();
  if (sscanf(line, "rate %lf", &hz) == 1 && hz > 0)
    mode = RATE, rate_hz = hz;
  else if (strcmp(line, "loop") == 0)
    mode = LOOP;
  else if (strcmp(line, "compute") == 0)
    t.copy = 0;
  else if (strcmp(line, "report") == 0)
    report();
  else if (strcmp(line, "quit") == 0)
    mode = QUIT;
  else if (strcmp(line, "pause") == 0) {
    mode = IDLE;
    say("P\n");
    flush();
  } else
    fail(line, 1);
}

/* Reads commands; waits up to timeout_ms for one (-1: indefinitely). */
static bool read_commands(int timeout_ms) {
  static char line[256];
  static size_t used;
  struct pollfd input = {STDIN_FILENO, POLLIN, 0};
  bool any = false;
  while (mode != QUIT && poll(&input, 1, any ? 0 : timeout_ms) > 0) {
    ssize_t n = read(STDIN_FILENO, line + used, sizeof line - 1 - used);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      while (flight.count)
        land_one();
      mode = QUIT; /* end of input */
      return true;
    }
    used += (size_t)n;
    line[used] = 0;
    char *start = line, *end;
    while (mode != QUIT && (end = strchr(start, '\n'))) {
      *end = 0;
      command(start);
      any = true;
      start = end + 1;
    }
    used = strlen(start);
    memmove(line, start, used + 1);
    if (used == sizeof line - 1) used = 0;
  }
  return any;
}

static void sleep_until(uint64_t when) {
  struct timespec time = {(time_t)(when / 1000000000u), (long)(when % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) {
  }
}

#define NOT_READY 600

/* As frameworks do: a result in pageable memory is copied and then waited for once more. */
static void finish_request(void) {
  static uint64_t words[2];
  result got = 0;
  if (t.wait == WAIT_COPY)
    CHECK(cu.cuMemcpyDtoHAsync_v2(words, t.memory, sizeof words, t.stream));
  else if (t.wait == WAIT_POLL)
    while ((got = cu.cuStreamQuery(t.stream)) == NOT_READY) {
    }
  CHECK(got);
  CHECK(cu.cuStreamSynchronize(t.stream));
}

/* Open loop: arrivals do not wait for completions, and latencies count from the scheduled
 * arrival. */
static void run_rate(void) {
  double hz = rate_hz;
  uint64_t begin = now_ns();
  for (uint64_t n = 1; mode == RATE && rate_hz == hz && !out.broken; n++) {
    uint64_t due = begin + (uint64_t)((double)n * 1e9 / hz);
    for (uint64_t now = now_ns(); now < due; now = now_ns()) {
      if (now - out.flushed_ns > FLUSH_NS) flush();
      if (read_commands(0) && (mode != RATE || rate_hz != hz)) return;
      sleep_until(due - now > 20000000 ? now + 20000000 : due);
    }
    app_request(true);
    launch(t.work);
    for (unsigned more = 1; more < t.feed; more++) {
      for (uint64_t until = now_ns() + 10000ull * t.kernel_us; now_ns() < until;) {
      }
      launch(t.work);
    }
    finish_request();
    say_iteration(due, now_ns());
    app_request(false);
    read_commands(0);
  }
}

static void run_loop(void) {
  while (mode == LOOP && !out.broken) {
    if (t.copy) {
      uint64_t start = now_ns();
      CHECK(cu.cuMemcpyDtoH_v2(t.copied, t.memory, t.copy));
      say_iteration(start, now_ns());
      read_commands(0);
      continue;
    }
    if (flight.count == t.depth) land_one();
    unsigned slot = (flight.first + flight.count) % t.depth;
    flight.start[slot] = now_ns();
    launch(t.work);
    CHECK(cu.cuEventRecord(t.events[slot], t.stream));
    flight.count++;
    read_commands(0);
  }
}

static void read_options(int argc, char **argv) {
  for (int i = 1; i < argc; i += 2) {
    const char *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (value && strcmp(argv[i], "--name") == 0)
      t.name = value;
    else if (value && strcmp(argv[i], "--kernel-us") == 0)
      t.kernel_us = (unsigned)atoi(value);
    else if (value && strcmp(argv[i], "--depth") == 0)
      t.depth = (unsigned)atoi(value);
    else if (value && strcmp(argv[i], "--grid") == 0)
      t.grid = (unsigned)atoi(value);
    else if (value && strcmp(argv[i], "--device") == 0)
      t.device = atoi(value);
    else if (value && strcmp(argv[i], "--feed") == 0)
      t.feed = (unsigned)atoi(value);
    else if (value && strcmp(argv[i], "--streams") == 0)
      t.streams = (unsigned)atoi(value);
    else if (value && strcmp(argv[i], "--memory") == 0)
      t.held = (size_t)atol(value);
    else if (value && strcmp(argv[i], "--copy") == 0)
      t.copy = (size_t)atol(value);
    else if (value && strcmp(argv[i], "--wait") == 0 && strcmp(value, "sync") == 0)
      t.wait = WAIT_SYNC;
    else if (value && strcmp(argv[i], "--wait") == 0 && strcmp(value, "copy") == 0)
      t.wait = WAIT_COPY;
    else if (value && strcmp(argv[i], "--wait") == 0 && strcmp(value, "poll") == 0)
      t.wait = WAIT_POLL;
    else if (value && strcmp(argv[i], "--api") == 0 && strcmp(value, "hip") == 0)
      t.hip = true;
    else if (value && strcmp(argv[i], "--api") == 0 && strcmp(value, "cuda") == 0)
      t.hip = false;
    else if (value && strcmp(argv[i], "--urgent") == 0)
      t.peer = atoi(value), t.urgent = true;
    else if (value && strcmp(argv[i], "--background") == 0)
      t.peer = atoi(value);
    else {
      fprintf(stderr, "usage: tenant --name NAME --kernel-us N [--depth N] [--device N] "
                      "[--api cuda|hip] [--grid BLOCKS] [--feed N] [--streams N] "
                      "[--memory MIB] [--copy BYTES] [--wait sync|copy|poll] [--urgent FD | "
                      "--background FD]\n");
      _exit(64);
    }
  }
  if (t.depth < 1 || t.depth > MAX_DEPTH || t.kernel_us < 1 || t.kernel_us > 60000000) {
    fprintf(stderr, "tenant: --depth is 1..%d, --kernel-us 1..60000000\n", MAX_DEPTH);
    _exit(64);
  }
}

int main(int argc, char **argv) {
  read_options(argc, argv);
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  /* Raise the CPU priority where permitted, because the benchmark measures the GPU. */
  struct sched_param first = {.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) != 0)
    (void)setpriority(PRIO_PROCESS, 0, -15);
  set_up();
  say("R\n");
  flush();
  while (mode != QUIT && !out.broken) {
    if (mode == RATE)
      run_rate();
    else if (mode == LOOP)
      run_loop();
    else
      read_commands(-1);
  }
  return report() ? 0 : 1;
}
