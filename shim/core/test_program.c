// SPDX-License-Identifier: Apache-2.0
//
// A program for test_programs.sh to run under the built library, compiled with and without
// sanitizers: test_program MODE.
//
//   launch           two threads launch kernels on the driver that is found, then a child exits
//   overrun          writes behind a heap block: a sanitizer must report it
//   race             two threads store to one variable: a sanitizer must report it
//   close LIBRARY    loads the shim late, creates a context, unloads the shim, and goes on
//   fork PAGES       a child may have copied at most so many pages of the shim's data

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAUNCHES = 2000 };

typedef int (*launch_function)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, void *, void **, void **);
static struct {
  int (*init)(unsigned);
  int (*create)(void **, unsigned, int);
  int (*stream_create)(void **, unsigned);
  int (*synchronize)(void *);
  launch_function launch;
} cu;
static void *context;

static int fail(const char *what) {
  fprintf(stderr, "test_program: %s\n", what);
  return 1;
}

static void *find(void *driver, const char *name) {
  void *found = dlsym(driver, name);
  if (found == NULL) exit(fail(name));
  return found;
}

static int start(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == NULL) return fail(dlerror());
  cu.init = (int (*)(unsigned))find(driver, "cuInit");
  cu.create = (int (*)(void **, unsigned, int))find(driver, "cuCtxCreate_v2");
  cu.stream_create = (int (*)(void **, unsigned))find(driver, "cuStreamCreate");
  cu.synchronize = (int (*)(void *))find(driver, "cuStreamSynchronize");
  cu.launch = (launch_function)find(driver, "cuLaunchKernel");
  return cu.init(0) != 0 || cu.create(&context, 0, 0) != 0 ? fail("no context") : 0;
}

static void *work(void *unused) {
  (void)unused;
  void *stream;
  if (cu.stream_create(&stream, 0) != 0) return (void *)1;
  for (int i = 0; i < LAUNCHES; i++)
    if (cu.launch(NULL, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) != 0) return (void *)1;
  return (void *)(intptr_t)cu.synchronize(stream);
}

static int work_in_threads(void) {
  pthread_t threads[2];
  intptr_t failed = 0;
  for (int i = 0; i < 2; i++)
    if (pthread_create(&threads[i], NULL, work, NULL) != 0) return fail("no thread");
  for (int i = 0; i < 2; i++) {
    void *result;
    pthread_join(threads[i], &result);
    failed |= (intptr_t)result;
  }
  return failed != 0 ? fail("a launch failed") : 0;
}

static int wait_for(pid_t child) {
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child) return fail("no child");
  return status != 0 ? fail("the child failed") : 0;
}

static int launch(void) {
  if (start() != 0 || work_in_threads() != 0) return 1;
  pid_t child = fork();
  if (child == 0) exit(0);
  return wait_for(child);
}

static void *store(void *shared) {
  *(volatile int *)shared += 1;
  return NULL;
}

static int race(void) {
  int *shared = calloc(1, sizeof *shared);
  pthread_t threads[2];
  for (int i = 0; i < 2; i++)
    pthread_create(&threads[i], NULL, store, shared);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  free(shared);
  return 0;
}

static int overrun(void) {
  volatile char *block = malloc(10);
  volatile int behind = 10;
  block[behind] = 1;
  free((void *)block);
  return 0;
}

static int close_shim(const char *path) {
  void *shim = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (shim == NULL) return fail(dlerror());
  if (start() != 0) return 1;
  launch_function hooked = (launch_function)find(shim, "cuLaunchKernel");
  if (hooked(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) != 0) return fail("a launch failed");
  dlclose(shim);
  usleep(50000); // its threads run on
  if (hooked(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL) != 0)
    return fail("a later launch failed");
  return launch();
}

// Pages of the library's writable memory that this process does not share with its parent.
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
      // What is not in the file follows it without a name.
      ours = strstr(path, "libxsched.so") != NULL || (ours && path[0] == 0 && begin == last);
      found |= ours;
      last = end;
    } else if (ours && sscanf(line, "Private_Dirty: %lu", &kb) == 1) {
      total += (long)kb * 1024 / sysconf(_SC_PAGESIZE);
    }
  }
  fclose(maps);
  return found ? total : -1;
}

static int fork_cheaply(long most) {
  if (start() != 0 || work_in_threads() != 0) return 1;
  pid_t child = fork();
  if (child == 0) {
    long pages = copied_pages();
    fprintf(stderr, "copied pages: %ld\n", pages);
    _exit(pages < 0 || pages > most);
  }
  return wait_for(child);
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "launch") == 0) return launch();
  if (strcmp(mode, "race") == 0) return race();
  if (strcmp(mode, "overrun") == 0) return overrun();
  if (strcmp(mode, "close") == 0 && argc > 2) return close_shim(argv[2]);
  if (strcmp(mode, "fork") == 0 && argc > 2) return fork_cheaply(strtol(argv[2], NULL, 10));
  return fail("usage: test_program launch|race|overrun|close LIBRARY|fork PAGES");
}
