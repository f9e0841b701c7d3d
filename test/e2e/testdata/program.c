/* SPDX-License-Identifier: Apache-2.0
 *
 * One program in many circumstances: program MODE [ARGUMENT...]. It loads libcuda.so.1 as most programs do,
 * works, prints one line with its results, waits for the end of its standard input, and exits with 0 only
 * if every call of the driver succeeded.
 *
 *   work               two threads with a stream each; a child that exits
 *   hello, greet       no GPU; greet does not wait
 *   child PROGRAM      runs another program, then works
 *   refused ERRNO NUMBER...   works in a sandbox that refuses these system calls
 *   memory             works with no address space left once it has a context
 *   files N            works with at most N descriptors
 *   cancelled          a thread is cancelled while it waits for its stream
 *   constructor LIBRARY       a library's constructor destroys a stream while the watcher asks about another
 *   crossing           submits while the oldest work of the stream does not end
 *   closed LIBRARY     loads LIBRARY late, works, unloads it, and works again
 *   forks N            median time of N times fork, exit and wait, with a context, in nanoseconds, and the
 *                      page faults of a child
 *   pages N            a child may have copied at most N pages of the shim's data
 *   overrun, race      bugs for a sanitizer to report
 */
#include <dlfcn.h>
#include <errno.h>
#ifdef __GLIBC__ /* musl's compiler has no headers of the kernel */
#include <linux/filter.h>
#include <linux/seccomp.h>
#endif
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LAUNCHES = 50 };

static struct {
  int (*cuInit)(unsigned);
  int (*cuCtxCreate_v2)(void **, unsigned, int);
  int (*cuCtxSetCurrent)(void *);
  int (*cuModuleLoadData)(void **, const void *);
  int (*cuModuleGetFunction)(void **, void *, const char *);
  int (*cuMemAlloc_v2)(uint64_t *, size_t);
  int (*cuMemsetD8_v2)(uint64_t, unsigned char, size_t);
  int (*cuMemcpyDtoH_v2)(void *, uint64_t, size_t);
  int (*cuStreamCreate)(void **, unsigned);
  int (*cuStreamDestroy_v2)(void *);
  int (*cuStreamSynchronize)(void *);
  int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                        void **, void **);
} cu;
static void *context, *spin;

static void fail(const char *what, int code) {
  fprintf(stderr, "program: %s: %d\n", what, code);
  exit(1);
}
#define CHECK(call)                       \
  do {                                    \
    int code_ = (call);                   \
    if (code_ != 0) fail(#call, code_);   \
  } while (0)

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void open_gpu(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *module;
  if (driver == NULL) fail(dlerror(), 0);
#define FIND(name)                                                       \
  if ((cu.name = (__typeof__(cu.name))dlsym(driver, #name)) == NULL) fail(#name, 0)
  FIND(cuInit);
  FIND(cuCtxCreate_v2);
  FIND(cuCtxSetCurrent);
  FIND(cuModuleLoadData);
  FIND(cuModuleGetFunction);
  FIND(cuMemAlloc_v2);
  FIND(cuMemsetD8_v2);
  FIND(cuMemcpyDtoH_v2);
  FIND(cuStreamCreate);
  FIND(cuStreamDestroy_v2);
  FIND(cuStreamSynchronize);
  FIND(cuLaunchKernel);
  CHECK(cu.cuInit(0));
  CHECK(cu.cuCtxCreate_v2(&context, 0, 0));
  CHECK(cu.cuModuleLoadData(&module, "// xs_spin"));
  CHECK(cu.cuModuleGetFunction(&spin, module, "xs_spin"));
}

struct worker {
  void *stream;
  uint64_t memory, result;
  unsigned seed;
};

static void launch(struct worker *w, unsigned us) {
  unsigned seed = w->seed++;
  void *arguments[] = {&w->memory, &us, &seed};
  CHECK(cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, w->stream, arguments, NULL));
}

static void prepare(struct worker *w, unsigned seed) {
  w->seed = seed;
  CHECK(cu.cuStreamCreate(&w->stream, 1));
  CHECK(cu.cuMemAlloc_v2(&w->memory, 64));
  CHECK(cu.cuMemsetD8_v2(w->memory, 0, 64));
}

static void finish(struct worker *w) {
  CHECK(cu.cuStreamSynchronize(w->stream));
  CHECK(cu.cuMemcpyDtoH_v2(&w->result, w->memory, sizeof w->result));
}

static void *run(void *argument) {
  struct worker *w = argument;
  CHECK(cu.cuCtxSetCurrent(context));
  for (int i = 0; i < LAUNCHES; i++) {
    launch(w, 50);
    if (i % 10 == 0) CHECK(cu.cuStreamSynchronize(w->stream));
  }
  finish(w);
  return NULL;
}

static int wait_for(pid_t child) {
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child) fail("no child", errno);
  return status;
}

/* Both threads' results, and the child's. Prints nothing: what follows may. */
static void work(struct worker *workers) {
  pthread_t threads[2];
  for (int i = 0; i < 2; i++)
    prepare(&workers[i], 1 + 1000 * (unsigned)i);
  /* A process that may have no more threads or memory does it in one. */
  for (int i = 0; i < 2; i++)
    if (pthread_create(&threads[i], NULL, run, &workers[i]) != 0) {
      run(&workers[i]);
      threads[i] = 0;
    }
  for (int i = 0; i < 2; i++)
    if (threads[i] != 0) pthread_join(threads[i], NULL);
  pid_t child = fork();
  if (child == 0) _exit(7);
  if (WEXITSTATUS(wait_for(child)) != 7) fail("the child's exit code", 0);
}

static void work_and_say(void) {
  struct worker workers[2];
  work(workers);
  printf("results %016llx %016llx\n", (unsigned long long)workers[0].result, (unsigned long long)workers[1].result);
}

#ifdef __GLIBC__
static void refuse(int error, char **numbers, int count) {
  struct sock_filter code[64];
  unsigned n = 0;
  code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < count && n < 60; i++) {
    unsigned number = (unsigned)strtoul(numbers[i], NULL, 10);
    if (number == SYS_socket) { /* only sockets that never block: the virtual GPU needs the others */
      code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 4);
      code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1]));
      code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 04000 /* SOCK_NONBLOCK */, 0, 1);
      code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error);
      code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    } else {
      code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
      code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error);
    }
  }
  code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {(unsigned short)n, code};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

#else
static void refuse(int error, char **numbers, int count) {
  (void)numbers, (void)count;
  fail("seccomp", error);
}
#endif

static void limit(int resource, rlim_t most) {
  struct rlimit to = {most, most};
  CHECK(setrlimit(resource, &to));
}

static rlim_t address_space(void) {
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  if (file == NULL || fscanf(file, "%lu", &pages) != 1) fail("statm", errno);
  fclose(file);
  return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* ---- cancellation --------------------------------------------------------------------------- */

static void *wait_for_ever(void *argument) {
  struct worker *w = argument;
  int state; /* the virtual driver is not made to be left in the middle of a call */
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  CHECK(cu.cuCtxSetCurrent(context));
  launch(w, 200000);
  cu.cuStreamSynchronize(w->stream);
  pthread_setcancelstate(state, NULL);
  pthread_testcancel();
  return NULL;
}

static void cancelled(void) {
  struct worker w;
  pthread_t thread;
  void *end = NULL;
  prepare(&w, 1);
  pthread_create(&thread, NULL, wait_for_ever, &w);
  usleep(50000);
  pthread_cancel(thread);
  pthread_join(thread, &end);
  if (end != PTHREAD_CANCELED) fail("not cancelled", 0);
  work_and_say();
}

/* ---- constructors ------------------------------------------------------------------------------- */

static struct worker in_library;
/* Called with the loader's lock held. */
__attribute__((visibility("default"))) void in_constructor(void);
void in_constructor(void) {
  usleep(100000); /* the watcher asks meanwhile */
  CHECK(cu.cuStreamDestroy_v2(in_library.stream));
}

static void constructor(const char *library) {
  struct worker other;
  prepare(&other, 1);
  prepare(&in_library, 2);
  launch(&in_library, 100);
  launch(&other, 20000);
  if (dlopen(library, RTLD_NOW) == NULL) fail(dlerror(), 0);
  finish(&other);
  work_and_say();
}

/* ---- the rest -------------------------------------------------------------------------------------- */

static void crossing(void) {
  struct worker w;
  prepare(&w, 1);
  for (int i = 0; i < 100; i++) { /* until the daemon has set its limit */
    launch(&w, 1000);
    CHECK(cu.cuStreamSynchronize(w.stream));
  }
  uint64_t start = now_ns();
  launch(&w, 4000000);
  for (int i = 0; i < 20; i++)
    launch(&w, 10);
  uint64_t took = now_ns() - start;
  finish(&w);
  if (took > 2500000000u) fail("submission took ms", (int)(took / 1000000));
  printf("result %016llx\n", (unsigned long long)w.result);
}

static void closed(const char *library) {
  void *shim = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (shim == NULL) fail(dlerror(), 0);
  open_gpu();
  struct worker workers[2];
  work(workers);
  dlclose(shim);
  usleep(50000); /* its threads run on */
  work_and_say();
}

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

static void forks(int count) {
  struct worker workers[2];
  work(workers);
  uint64_t *times = malloc((size_t)count * sizeof *times);
  for (int i = 0; i < count; i++) {
    uint64_t start = now_ns();
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (wait_for(child) != 0) fail("a child", 0);
    times[i] = now_ns() - start;
  }
  qsort(times, (size_t)count, sizeof *times, compare);
  struct rusage usage;
  getrusage(RUSAGE_CHILDREN, &usage);
  printf("median %llu faults %ld\n", (unsigned long long)times[count / 2], usage.ru_minflt / (count + 1));
  free(times);
}

/* Pages of the library's writable memory that this process does not share with its parent. */
static long copied_pages(void) {
  FILE *maps = fopen("/proc/self/smaps", "re");
  if (maps == NULL) return -1;
  char line[512];
  unsigned long begin, end, last = 0, kb;
  long total = 0;
  int ours = 0, found = 0;
  while (fgets(line, sizeof line, maps) != NULL) {
    char access[8], path[256] = "";
    if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &begin, &end, access, path) >= 3) {
      /* What is not in the file follows it without a name. */
      ours = strstr(path, "libxsched.so") != NULL || (ours && path[0] == 0 && begin == last);
      found |= ours;
      last = end;
    } else if (ours && sscanf(line, "Private_Dirty: %lu", &kb) == 1) {
      total += (long)kb * 1024 / sysconf(_SC_PAGESIZE);
    }
  }
  fclose(maps);
  return found ? total : 0;
}

static void pages(long most) {
  struct worker workers[2];
  work(workers);
  pid_t child = fork();
  if (child == 0) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    long copied = copied_pages();
    fprintf(stderr, "page faults: %ld, copied pages of the shim: %ld\n", usage.ru_minflt, copied);
    _exit(copied < 0 || copied > most);
  }
  if (wait_for(child) != 0) fail("the child copied too many pages", 0);
  printf("few pages\n");
}

static void *store(void *shared) {
  *(volatile int *)shared += 1;
  return NULL;
}

static void race(void) {
  int *shared = calloc(1, sizeof *shared);
  pthread_t threads[2];
  for (int i = 0; i < 2; i++)
    pthread_create(&threads[i], NULL, store, shared);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  free(shared);
}

static void overrun(void) {
  volatile char *block = malloc(10);
  volatile int behind = 10;
  block[behind] = 1;
  free((void *)block);
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  const char *first = argc > 2 ? argv[2] : "0";
  int number = (int)strtol(first, NULL, 10);
#define IS(name) (strcmp(mode, name) == 0)
  if (IS("greet")) return printf("hello\n") < 0;
  if (IS("refused")) refuse(number, argv + 3, argc - 3);
  if (IS("files")) limit(RLIMIT_NOFILE, (rlim_t)number);
  if (!IS("hello") && !IS("closed")) open_gpu();
  if (IS("work") || IS("refused") || IS("files"))
    work_and_say();
  else if (IS("hello"))
    printf("hello\n");
  else if (IS("child")) {
    pid_t child = fork();
    if (child == 0) {
      execl(first, first, "greet", (char *)NULL);
      _exit(127);
    }
    CHECK(wait_for(child));
    work_and_say();
  } else if (IS("memory")) {
    limit(RLIMIT_AS, address_space() + 65536);
    work_and_say();
  } else if (IS("cancelled"))
    cancelled();
  else if (IS("constructor"))
    constructor(first);
  else if (IS("crossing"))
    crossing();
  else if (IS("closed"))
    closed(first);
  else if (IS("forks"))
    forks(number);
  else if (IS("pages"))
    pages(number);
  else if (IS("race"))
    race();
  else if (IS("overrun"))
    overrun();
  else
    fail("unknown mode", 0);
  printf("done\n");
  fflush(stdout);
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  return 0;
}
