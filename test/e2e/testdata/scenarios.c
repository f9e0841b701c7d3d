/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs whose use of the GPU is hard to track: polling events, never synchronising, capturing all
 * the time, destroying streams with pending work, ... Linked directly against libcuda.so.1. Each
 * prints one JSON line and exits with 0 only if all driver calls returned the expected result.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetPCIBusId(char *, int, CUdevice);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        CUstream, void **, void **);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamBeginCapture_v2(CUstream, int);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphDestroy(CUgraph);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventQuery(CUevent);
CUresult cuEventDestroy_v2(CUevent);

#define CHECK(call)                                                                     \
  do {                                                                                  \
    CUresult rc_ = (call);                                                              \
    if (rc_ != 0) {                                                                     \
      fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, rc_);              \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

#define STREAM_PER_THREAD ((CUstream)2)
#define CAPTURE_RELAXED 2

static CUcontext context;
static CUfunction spin;
static CUdeviceptr out;

static void sleep_us(long us) {
  struct timespec t = {us / 1000000, us % 1000000 * 1000};
  while (nanosleep(&t, &t) == -1 && errno == EINTR) {
  }
}

static void open_gpu(int ordinal) {
  CUdevice device;
  CUmodule module;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, ordinal));
  CHECK(cuCtxCreate_v2(&context, 0, device));
  CHECK(cuModuleLoadData(&module, "// xs_spin"));
  CHECK(cuModuleGetFunction(&spin, module, "xs_spin"));
  CHECK(cuMemAlloc_v2(&out, 64));
}

static CUresult launch(CUstream stream, unsigned us) {
  unsigned seed = 1;
  void *arguments[] = {&out, &us, &seed};
  return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

/* n kernels of 2 ms, each followed by polling an event: n busy periods. */
static void poll_events(int n) {
  CUevent event;
  CHECK(cuEventCreate(&event, 0));
  for (int i = 0; i < n; i++) {
    CHECK(launch(NULL, 2000));
    CHECK(cuEventRecord(event, NULL));
    CUresult rc;
    while ((rc = cuEventQuery(event)) == 600) sleep_us(100);
    CHECK(rc);
    sleep_us(8000);
  }
  CHECK(cuEventDestroy_v2(event));
}

/* Launches one kernel per line of input without waiting; only a watcher can observe its end. */
static void never_sync(int n) {
  for (int i = 0; i < n; i++) {
    if (getchar() == EOF) exit(1);
    CHECK(launch(NULL, 2000));
  }
}

static int stop;

static void *keep_busy(void *unused) {
  CUstream stream;
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&stream, 1));
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    CHECK(launch(stream, 300));
    sleep_us(700); /* never synchronised: keeps the watcher polling */
  }
  CHECK(cuStreamSynchronize(stream));
  return unused;
}

/* n captures with a busy stream; a watcher that queries a capturing stream invalidates one. */
static void capture(int n) {
  pthread_t thread;
  CUstream stream;
  CHECK(cuStreamCreate(&stream, 1));
  if (pthread_create(&thread, NULL, keep_busy, NULL) != 0) exit(1);
  for (int i = 0; i < n; i++) {
    CUgraph graph;
    CHECK(cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED));
    CHECK(launch(stream, 10));
    sleep_us(10); /* long enough for the watcher to poll */
    CHECK(cuStreamEndCapture(stream, &graph));
    if (i % 100 == 0) {
      CUgraphExec exec;
      CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
      CHECK(cuGraphLaunch(exec, stream));
      CHECK(cuStreamSynchronize(stream));
      CHECK(cuGraphExecDestroy(exec));
    }
    CHECK(cuGraphDestroy(graph));
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
}

/* Destroys streams with pending work, whose end cannot be queried. */
static void destroy_pending(int n) {
  for (int i = 0; i < n; i++) {
    CUstream stream;
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(launch(stream, 1000));
    CHECK(cuStreamDestroy_v2(stream));
    sleep_us(500);
  }
}

static void *use_streams(void *argument) {
  int n = *(int *)argument;
  CUstream *streams = calloc((size_t)n, sizeof *streams);
  if (streams == NULL) exit(1);
  CHECK(cuCtxSetCurrent(context));
  for (int i = 0; i < n; i++) CHECK(cuStreamCreate(&streams[i], 1));
  for (int i = 0; i < n; i++) CHECK(launch(streams[i], 20));
  CHECK(launch(STREAM_PER_THREAD, 20));
  CHECK(launch(NULL, 20));
  for (int i = 0; i < n; i++) CHECK(cuStreamSynchronize(streams[i]));
  CHECK(cuStreamSynchronize(STREAM_PER_THREAD));
  for (int i = 0; i < n; i++) CHECK(cuStreamDestroy_v2(streams[i]));
  free(streams);
  return NULL;
}

/* n streams over eight threads, including the legacy and the per-thread stream. */
static void many_streams(int n) {
  pthread_t threads[8];
  int share = n / 8;
  for (int i = 0; i < 8; i++)
    if (pthread_create(&threads[i], NULL, use_streams, &share) != 0) exit(1);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  CHECK(cuCtxSynchronize());
}

static void work(int n) {
  for (int i = 0; i < n; i++) {
    CHECK(launch(NULL, 500));
    CHECK(cuStreamSynchronize(NULL));
  }
}

/* Parent and child of a fork before CUDA both use the GPU; a child of an initialised parent must not. */
static void fork_both(int n) {
  pid_t before = fork();
  if (before < 0) exit(1);
  open_gpu(0);
  work(n);
  if (before == 0) _exit(0);
  pid_t after = fork();
  if (after < 0) exit(1);
  if (after == 0) _exit(launch(NULL, 10) == 0 ? 1 : 0);
  int status = 0;
  if (waitpid(before, &status, 0) != before || status != 0) exit(1);
  if (waitpid(after, &status, 0) != after || status != 0) exit(1);
  work(n);
}

/* Works until killed: the victim of other tests. */
static void forever(unsigned us) {
  for (;;) {
    CHECK(launch(NULL, us));
    CHECK(cuStreamSynchronize(NULL));
  }
}

static void *exec_later(void *argument) {
  sleep_us(*(int *)argument * 1000L);
  execlp("sleep", "sleep", "30", (char *)NULL);
  exit(1);
}

/* Executes another program after n ms, with work in flight. */
static void exec_while_busy(int n) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, exec_later, &n) != 0) exit(1);
  forever(20000);
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: scenarios NAME N [DEVICE]\n");
    return 2;
  }
  const char *name = argv[1];
  int n = atoi(argv[2]);
  if (strcmp(name, "fork") == 0) {
    fork_both(n);
  } else {
    open_gpu(argc > 3 ? atoi(argv[3]) : 0);
    printf("{\"scenario\":\"%s\",\"pid\":%d}\n", name, (int)getpid());
    fflush(stdout);
    if (strcmp(name, "poll-events") == 0) poll_events(n);
    else if (strcmp(name, "never-sync") == 0) never_sync(n);
    else if (strcmp(name, "capture") == 0) capture(n);
    else if (strcmp(name, "destroy-pending") == 0) destroy_pending(n);
    else if (strcmp(name, "many-streams") == 0) many_streams(n);
    else if (strcmp(name, "work") == 0) work(n);
    else if (strcmp(name, "forever") == 0) forever((unsigned)n);
    else if (strcmp(name, "exec") == 0) exec_while_busy(n);
    else return 2;
  }
  /* Wait for a line (or EOF), so that a test can inspect the idle program. */
  printf("{\"done\":true}\n");
  fflush(stdout);
  while (getchar() != EOF) {
  }
  return 0;
}
