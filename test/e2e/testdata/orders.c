/* SPDX-License-Identifier: Apache-2.0
 *
 * orders SEED THREADS CALLS [SIGNALS [HALTED]]: random orders of calls from several threads into shared streams. Every stream
 * computes a value that depends on the order of its work; the program knows what it must be. Prints a line with the number
 * of calls, or what was wrong, or which call did not return in time. HALTED: the shim's thread that releases forgotten batches
 * is stopped by a debugger, so that a call which forgets to release one never returns.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
typedef unsigned long long address;
int cuInit(unsigned);
int cuCtxCreate_v2(handle *, unsigned, int);
int cuCtxSetCurrent(handle);
int cuCtxSynchronize(void);
int cuModuleLoadData(handle *, const void *);
int cuModuleGetFunction(handle *, handle, const char *);
int cuModuleUnload(handle);
int cuMemAllocAsync(address *, size_t, handle);
int cuMemFreeAsync(address, handle);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemcpyHtoD_v2(address, const void *, size_t);
int cuStreamIsCapturing(handle, int *);
int cuMemAlloc_v2(address *, size_t);
int cuMemFree_v2(address);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemsetD8_v2(address, unsigned char, size_t);
int cuMemsetD32Async(address, unsigned, size_t, handle);
int cuMemcpyHtoDAsync_v2(address, const void *, size_t, handle);
int cuMemcpyDtoHAsync_v2(void *, address, size_t, handle);
int cuMemcpyDtoH_v2(void *, address, size_t);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   handle, void **, void **);
int cuStreamCreate(handle *, unsigned);
int cuStreamDestroy_v2(handle);
int cuStreamSynchronize(handle);
int cuStreamQuery(handle);
int cuStreamWaitEvent(handle, handle, unsigned);
int cuStreamWaitValue32_v2(handle, address, uint32_t, unsigned);
int cuStreamWriteValue32_v2(handle, address, uint32_t, unsigned);
int cuStreamBeginCapture_v2(handle, int);
int cuStreamEndCapture(handle, handle *);
int cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
int cuGraphLaunch(handle, handle);
int cuGraphDestroy(handle);
int cuGraphExecDestroy(handle);
int cuEventCreate(handle *, unsigned);
int cuEventRecord(handle, handle);
int cuEventSynchronize(handle);
int cuEventQuery(handle);

enum { NOT_READY = 600, NON_BLOCKING = 1, NO_TIMING = 2, RELAXED = 2 };
enum {
  CONTEXTS = 2,
  MOST_THREADS = 16,
  MOST_MODULES = 32,
  STAGED = 64,
  LIMIT_S = 30,
  HALTED_LIMIT_S = 10
};
/* A thread ends after so many turns, and another one begins. */
enum { TURNS = 400 };

struct lane {
  pthread_mutex_t lock;
  unsigned home; /* its context */
  handle stream, event;
  address memory; /* the value, and a word for signals behind it */
  uint64_t value; /* after all that was submitted */
  uint32_t signal;
  volatile uint64_t *pinned; /* STAGED words to copy from, one to copy to */
  unsigned staged;
};

struct worker {
  pthread_t thread;
  uint64_t random, beats; /* atomic */
  const char *doing;      /* atomic */
  int alive, ended;       /* atomic */
};

static struct lane lanes[2 * MOST_THREADS];
static struct worker workers[MOST_THREADS];
static handle contexts[CONTEXTS], kernels[CONTEXTS][MOST_MODULES];
static unsigned lane_count, kernel_count[CONTEXTS]; /* the latter atomic */
static pthread_mutex_t module_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t calls, most; /* the first atomic */
static int signals;          /* streams wait for values: the shim does not batch then */
static int halting = -1;     /* where the debugger reads which thread to stop; -1: no debugger */
static unsigned limit_s = LIMIT_S;

static void stop(const char *what, const char *call, long result) {
  printf("%s: %s gave %ld\n", what, call, result);
  fflush(stdout);
  _exit(1);
}

static __thread struct worker *me;
static __thread handle current; /* the thread's context */
static void begin(const char *call) {
  __atomic_store_n(&me->doing, call, __ATOMIC_RELAXED);
  __atomic_store_n(&me->beats, me->beats + 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
}
#define CU(function, ...)                                                                          \
  ({                                                                                               \
    begin(#function);                                                                              \
    int result_ = function(__VA_ARGS__);                                                           \
    if (result_ != 0 && result_ != NOT_READY) stop("FAIL", #function, result_);                    \
    result_;                                                                                       \
  })

static unsigned draw(unsigned below) {
  me->random ^= me->random << 13, me->random ^= me->random >> 7, me->random ^= me->random << 17;
  return (unsigned)(me->random >> 33) % below;
}

/* As the device computes it: shim/virtual/vgpu.h. */
static uint64_t fold(uint64_t word, uint32_t seed) {
  word ^= (uint64_t)seed << 32;
  word = word << 23 | word >> 41;
  return word * 0x9E3779B97F4A7C15ull + 1;
}

/* Makes the lane's context the thread's. */
static void use(const struct lane *lane) {
  if (current == contexts[lane->home]) return;
  current = contexts[lane->home];
  CU(cuCtxSetCurrent, current);
}

static void load_kernel(unsigned home) {
  handle module;
  pthread_mutex_lock(&module_lock);
  unsigned count = kernel_count[home];
  if (count < MOST_MODULES) {
    CU(cuModuleLoadData, &module, "xs_spin");
    CU(cuModuleGetFunction, &kernels[home][count], module, "xs_spin");
    __atomic_store_n(&kernel_count[home], count + 1, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&module_lock);
}

static void launch_this(struct lane *lane, handle kernel) {
  uint32_t us = 1, seed = draw(1 << 20);
  void *arguments[] = {&lane->memory, &us, &seed};
  CU(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, lane->stream, arguments, NULL);
  lane->value = fold(lane->value, seed);
}

static void launch(struct lane *lane) {
  unsigned count = __atomic_load_n(&kernel_count[lane->home], __ATOMIC_ACQUIRE);
  use(lane);
  launch_this(lane, kernels[lane->home][draw(count)]);
}

static void compare(struct lane *lane, uint64_t got, const char *call) {
  if (got != lane->value) stop("WRONG", call, (long)(lane - lanes));
}

/* More than a channel's ring holds: a launch into a full ring waits, and can't release what it waits for. */
static void flood(struct lane *lane) {
  for (int i = 0; i < 1200; i++)
    launch(lane);
}

/* ---- ways to change the value ------------------------------------------------------------ */

static void fill(struct lane *lane) {
  uint32_t value = draw(1 << 30);
  CU(cuMemsetD32Async, lane->memory, value, 2, lane->stream);
  lane->value = (uint64_t)value << 32 | value;
}

static void upload_pinned(struct lane *lane) {
  if (lane->staged == STAGED) CU(cuStreamSynchronize, lane->stream), lane->staged = 0;
  uint64_t value = me->random;
  lane->pinned[lane->staged] = value;
  CU(cuMemcpyHtoDAsync_v2, lane->memory, (void *)&lane->pinned[lane->staged++], sizeof value,
     lane->stream);
  lane->value = value;
}

static void upload_pageable(struct lane *lane) {
  uint64_t value = me->random;
  CU(cuMemcpyHtoDAsync_v2, lane->memory, &value, sizeof value, lane->stream);
  lane->value = value;
}

static void graph(struct lane *lane) {
  handle graph, exec;
  uint64_t before = lane->value;
  uint32_t us = 1, seeds[3] = {draw(1000), draw(1000), draw(1000)};
  CU(cuStreamBeginCapture_v2, lane->stream, RELAXED);
  for (int i = 0; i < 3; i++) {
    void *arguments[] = {&lane->memory, &us, &seeds[i]};
    CU(cuLaunchKernel, kernels[lane->home][0], 1, 1, 1, 1, 1, 1, 0, lane->stream, arguments, NULL);
  }
  CU(cuStreamEndCapture, lane->stream, &graph);
  CU(cuGraphInstantiateWithFlags, &exec, graph, 0);
  lane->value = before;
  for (unsigned n = 1 + draw(3); n > 0; n--) {
    CU(cuGraphLaunch, exec, lane->stream);
    for (int i = 0; i < 3; i++)
      lane->value = fold(lane->value, seeds[i]);
  }
  CU(cuStreamSynchronize, lane->stream);
  CU(cuGraphExecDestroy, exec);
  CU(cuGraphDestroy, graph);
}

/* ---- ways to wait and look ---------------------------------------------------------------- */

static void wait_stream(struct lane *lane) {
  CU(cuStreamSynchronize, lane->stream);
  lane->staged = 0;
}
static void poll_stream(struct lane *lane) {
  while (CU(cuStreamQuery, lane->stream) == NOT_READY)
    if (draw(4) == 0) usleep(10);
}
static void wait_event(struct lane *lane) {
  CU(cuEventRecord, lane->event, lane->stream);
  CU(cuEventSynchronize, lane->event);
}
static void poll_event(struct lane *lane) {
  CU(cuEventRecord, lane->event, lane->stream);
  while (CU(cuEventQuery, lane->event) == NOT_READY)
    if (draw(4) == 0) usleep(10);
}
static void wait_context(struct lane *lane) {
  (void)lane;
  CU(cuCtxSynchronize);
}
static void read_back(struct lane *lane) {
  uint64_t got = 0;
  CU(cuStreamSynchronize, lane->stream); /* a stream of its own does not wait for the default one */
  CU(cuMemcpyDtoH_v2, &got, lane->memory, sizeof got);
  compare(lane, got, "cuMemcpyDtoH");
}
static void read_pageable(struct lane *lane) {
  uint64_t got = 0;
  CU(cuMemcpyDtoHAsync_v2, &got, lane->memory, sizeof got, lane->stream);
  CU(cuStreamSynchronize, lane->stream);
  compare(lane, got, "cuMemcpyDtoHAsync to pageable memory");
}
static void read_pinned(struct lane *lane) {
  lane->pinned[STAGED] = 0;
  CU(cuMemcpyDtoHAsync_v2, (void *)&lane->pinned[STAGED], lane->memory, 8, lane->stream);
  CU(cuStreamSynchronize, lane->stream);
  compare(lane, lane->pinned[STAGED], "cuMemcpyDtoHAsync to pinned memory");
}
/* Without any call: only the shim's own thread can release a batch. */
static void watch_memory(struct lane *lane) {
  if (halting >= 0) return;
  uint64_t old = ~lane->value;
  lane->pinned[STAGED] = old;
  CU(cuMemcpyDtoHAsync_v2, (void *)&lane->pinned[STAGED], lane->memory, 8, lane->stream);
  begin("watching memory");
  while (__atomic_load_n(&lane->pinned[STAGED], __ATOMIC_ACQUIRE) == old)
    usleep(20);
  compare(lane, lane->pinned[STAGED], "memory that was watched");
}

/* ---- two streams ---------------------------------------------------------------------------- */

static struct lane *another(struct lane *lane) {
  struct lane *other = &lanes[draw(lane_count)];
  return other != lane && pthread_mutex_trylock(&other->lock) == 0 ? other : NULL;
}
static void wait_other_event(struct lane *lane) {
  struct lane *other = another(lane);
  if (!other) return;
  CU(cuEventRecord, lane->event, lane->stream);
  CU(cuStreamWaitEvent, other->stream, lane->event, 0);
  launch(other);
  if (draw(2)) CU(cuStreamSynchronize, other->stream);
  pthread_mutex_unlock(&other->lock);
  use(lane);
}
static void signal_other(struct lane *lane) {
  struct lane *other = signals ? another(lane) : NULL;
  if (!other) return;
  if (other->home != lane->home) { /* its memory is of another context */
    pthread_mutex_unlock(&other->lock);
    return;
  }
  CU(cuStreamWriteValue32_v2, lane->stream, lane->memory + 8, ++lane->signal, 0);
  CU(cuStreamWaitValue32_v2, other->stream, lane->memory + 8, lane->signal, 0);
  launch(other);
  if (draw(2)) CU(cuStreamSynchronize, other->stream);
  pthread_mutex_unlock(&other->lock);
  use(lane);
}
/* With work in it; what comes into the new stream waits for that. */
static void replace_stream(struct lane *lane) {
  handle fresh;
  CU(cuStreamCreate, &fresh, NON_BLOCKING);
  CU(cuEventRecord, lane->event, lane->stream);
  CU(cuStreamWaitEvent, fresh, lane->event, 0);
  CU(cuStreamDestroy_v2, lane->stream);
  lane->stream = fresh;
}

/* ---- others --------------------------------------------------------------------------------- */

static void allocate(struct lane *lane) {
  (void)lane;
  address memory;
  CU(cuMemAlloc_v2, &memory, 4096);
  CU(cuMemFree_v2, memory);
}
static void new_kernel(struct lane *lane) {
  load_kernel(lane->home);
  launch(lane);
}
/* Its handle may come again, for another kernel. */
static void unload_kernel(struct lane *lane) {
  handle module, kernel;
  CU(cuModuleLoadData, &module, "xs_spin");
  CU(cuModuleGetFunction, &kernel, module, "xs_spin");
  for (unsigned n = 1 + draw(3); n > 0; n--)
    launch_this(lane, kernel);
  CU(cuStreamSynchronize, lane->stream);
  CU(cuModuleUnload, module);
}
static void allocate_in_order(struct lane *lane) {
  address memory;
  CU(cuMemAllocAsync, &memory, 4096, lane->stream);
  CU(cuMemsetD32Async, memory, 1, 4, lane->stream);
  CU(cuMemFreeAsync, memory, lane->stream);
}
static void upload_now(struct lane *lane) {
  uint64_t value = me->random;
  CU(cuStreamSynchronize, lane->stream); /* as read_back */
  CU(cuMemcpyHtoD_v2, lane->memory, &value, sizeof value);
  lane->value = value;
}
static void ask(struct lane *lane) {
  size_t room, all;
  int capturing = 0;
  if (draw(2))
    CU(cuMemGetInfo_v2, &room, &all);
  else
    CU(cuStreamIsCapturing, lane->stream, &capturing);
}
static void fork_child(struct lane *lane) {
  (void)lane;
  begin("fork");
  pid_t child = fork();
  if (child == 0) _exit(0);
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) stop("FAIL", "fork", status);
}

static const struct {
  void (*act)(struct lane *);
  unsigned weight;
} acts[] = {
    {launch, 2000},
    {flood, 1},
    {fill, 40},
    {upload_pinned, 40},
    {upload_pageable, 10},
    {graph, 4},
    {wait_stream, 30},
    {poll_stream, 10},
    {wait_event, 15},
    {poll_event, 10},
    {wait_context, 5},
    {read_back, 10},
    {read_pageable, 5},
    {read_pinned, 20},
    {watch_memory, 5},
    {wait_other_event, 20},
    {signal_other, 10},
    {replace_stream, 4},
    {allocate, 5},
    {new_kernel, 2},
    {fork_child, 0},
    {unload_kernel, 2},
    {allocate_in_order, 10},
    {upload_now, 10},
    {ask, 20},
};
enum { ACTS = sizeof acts / sizeof *acts };

static void act(struct lane *lane) {
  unsigned sum = 0;
  for (unsigned i = 0; i < ACTS; i++)
    sum += acts[i].weight;
  unsigned at = draw(sum), i = 0;
  while (at >= acts[i].weight)
    at -= acts[i++].weight;
  acts[i].act(lane);
}

static int over(void) { return __atomic_load_n(&calls, __ATOMIC_RELAXED) >= most; }

static void *work(void *worker) {
  me = worker;
  for (int turn = 0; turn < TURNS && !over(); turn++) {
    struct lane *lane = &lanes[draw(lane_count)];
    if (pthread_mutex_trylock(&lane->lock) != 0) continue;
    use(lane);
    for (unsigned n = 1 + draw(draw(8) ? 40 : 600); n > 0 && !over(); n--)
      act(lane);
    pthread_mutex_unlock(&lane->lock);
    if (draw(2000) == 0) fork_child(lane);
  }
  __atomic_store_n(&me->ended, 1, __ATOMIC_RELEASE);
  return NULL;
}

/* ---- a debugger that stops the shim's thread -------------------------------------------------- */

static void start_debugger(void) {
  int ends[2];
  pid_t parent = getpid(), child, thread;
  if (pipe(ends) != 0 || (child = fork()) < 0) exit(2);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || read(ends[0], &thread, sizeof thread) != sizeof thread) _exit(0);
    if (ptrace(PTRACE_SEIZE, thread, 0, 0) != 0 || ptrace(PTRACE_INTERRUPT, thread, 0, 0) != 0 ||
        waitpid(thread, NULL, __WALL) != thread) {
      perror("the shim's thread can't be stopped");
      kill(parent, SIGKILL);
    }
    for (;;)
      pause();
  }
  prctl(PR_SET_PTRACER, child);
  halting = ends[1];
  limit_s = HALTED_LIMIT_S;
}

/* True: there is such a thread, and it stops now. */
static int halt(void) {
  DIR *tasks = opendir("/proc/self/task");
  int found = 0;
  for (struct dirent *task; !found && tasks && (task = readdir(tasks));) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    FILE *file = fopen(path, "r");
    if (file && fgets(name, sizeof name, file) && strcmp(name, "xsched-batch\n") == 0) {
      pid_t thread = atoi(task->d_name);
      found = write(halting, &thread, sizeof thread) == sizeof thread;
    }
    if (file) fclose(file);
  }
  if (tasks) closedir(tasks);
  return found;
}

static void prepare(void) {
  CU(cuInit, 0);
  for (unsigned home = 0; home < CONTEXTS; home++) {
    CU(cuCtxCreate_v2, &contexts[home], 0, 0);
    for (int i = 0; i < 4; i++)
      load_kernel(home);
  }
  current = contexts[CONTEXTS - 1];
  for (unsigned i = 0; i < lane_count; i++) {
    struct lane *lane = &lanes[i];
    pthread_mutex_init(&lane->lock, NULL);
    lane->home = i % CONTEXTS;
    use(lane);
    CU(cuStreamCreate, &lane->stream, NON_BLOCKING);
    CU(cuEventCreate, &lane->event, NO_TIMING);
    CU(cuMemAlloc_v2, &lane->memory, 64);
    CU(cuMemsetD8_v2, lane->memory, 0, 64);
    CU(cuMemHostAlloc, (void **)&lane->pinned, (STAGED + 1) * 8, 0);
  }
  for (unsigned i = 0; i < CONTEXTS; i++) {
    use(&lanes[i]);
    CU(cuCtxSynchronize);
  }
}

/* Starts threads again that have ended, and finds calls that do not return. */
static void look_after(unsigned threads) {
  uint64_t seen[MOST_THREADS] = {0}, since[MOST_THREADS] = {0};
  int halted = halting < 0;
  for (uint64_t ms = 0;; ms += 5) {
    unsigned alive = 0;
    halted = halted || halt();
    for (unsigned i = 0; i < threads; i++) {
      struct worker *w = &workers[i];
      if (w->alive && __atomic_load_n(&w->ended, __ATOMIC_ACQUIRE)) {
        pthread_join(w->thread, NULL);
        w->alive = w->ended = 0;
      }
      if (!w->alive && !over()) w->alive = pthread_create(&w->thread, NULL, work, w) == 0;
      alive += (unsigned)w->alive;
      uint64_t beats = __atomic_load_n(&w->beats, __ATOMIC_RELAXED);
      if (beats != seen[i] || !w->alive) seen[i] = beats, since[i] = ms;
      if (ms - since[i] > limit_s * 1000)
        stop("HANG", __atomic_load_n(&w->doing, __ATOMIC_RELAXED), (long)i);
    }
    if (alive == 0) return;
    usleep(5000);
  }
}

int main(int argc, char **argv) {
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  unsigned threads = argc > 2 ? (unsigned)atoi(argv[2]) : 4;
  most = argc > 3 ? strtoull(argv[3], NULL, 10) : 100000;
  signals = argc > 4 && atoi(argv[4]);
  if (threads < 1 || threads > MOST_THREADS) return 2;
  lane_count = 2 * threads;
  for (unsigned i = 0; i < threads; i++)
    workers[i].random = (seed * 1000003 + i) * 0x9E3779B97F4A7C15u | 1;
  me = &workers[0];
  if (argc > 5 && atoi(argv[5])) start_debugger();
  prepare();
  printf("R\n");
  fflush(stdout);
  look_after(threads);
  static struct worker last = {.random = 1};
  me = &last;
  for (unsigned i = 0; i < lane_count; i++) {
    use(&lanes[i]);
    read_back(&lanes[i]);
  }
  printf("ok %llu\n", (unsigned long long)calls);
  fflush(stdout);
  getchar(); /* until stdin ends */
  return 0;
}
