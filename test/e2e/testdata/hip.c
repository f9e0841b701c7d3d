/* SPDX-License-Identifier: Apache-2.0
 *
 * A HIP program, linked with the runtime by symbol versions. Covers most of the stand-in: events and
 * timestamps, dependent streams, graphs captured from two streams, ordered copies, both kinds of
 * default streams, all launch functions, and host functions. Prints "ok NAME" per test, with and
 * without the shim.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/hip/abi.h"
#define XSI_HIP_EXPORT
#include "runtime/hip/hooks_gen.h"
#include "virtual/vgpu.h"

hipError_t hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name);
hipError_t hipGraphInstantiate(hipGraphExec_t *exec, hipGraph_t graph, hipGraphNode_t *node,
                               char *log, size_t bytes);
hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t *nodes, size_t *count);
hipError_t hipGraphDestroy(hipGraph_t graph);
hipError_t hipGraphExecDestroy(hipGraphExec_t exec);
hipError_t hipGetLastError(void);
void __hipRegisterFunction(void **module, const void *stub, char *device, const char *name,
                           unsigned threads, void *tid, void *bid, void *block, void *grid,
                           int *warp);

#define EXPECT(condition)                                                                          \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("FAIL line %d: %s\n", __LINE__, #condition);                                          \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)
#define DONE(call) EXPECT((call) == 0)

enum { NOT_READY = 600, CAPTURE_UNSUPPORTED = 900 };
static const dim3 one = {1, 1, 1}, block = {64, 1, 1};
static hipFunction_t spin;
static void stub(void) {} /* hipcc's host stub, whose address identifies the kernel */

struct result {
  void *memory;
  uint64_t word, count;
};

static struct result make_result(void) {
  struct result r = {0};
  DONE(hipMalloc(&r.memory, 16));
  DONE(hipMemset(r.memory, 0, 16));
  DONE(hipDeviceSynchronize());
  return r;
}

static void expect(struct result *r, uint32_t us, uint32_t seed) {
  for (uint32_t b = 0; b < us * 1000 / VG_BLOCK_NS; b++) r->word = vg_fold(r->word, seed, b);
  r->count++;
}

static void launch(struct result *r, hipStream_t stream, uint32_t us, uint32_t seed) {
  void *params[] = {&r->memory, &us, &seed};
  DONE(hipModuleLaunchKernel(spin, 1, 1, 1, 64, 1, 1, 0, stream, params, NULL));
  expect(r, us, seed);
}

static void check(struct result *r) {
  uint64_t words[2];
  DONE(hipMemcpy(words, r->memory, sizeof words, 2));
  EXPECT(words[0] == r->word && words[1] == r->count);
}

static void test_launches(void) {
  struct result r = make_result();
  hipStream_t stream;
  hipEvent_t start, stop;
  uint32_t us = 200, seed = 7;
  float ms = 0;
  void *params[] = {&r.memory, &us, &seed};
  DONE(hipStreamCreate(&stream));
  DONE(hipEventCreate(&start));
  DONE(hipEventCreate(&stop));
  DONE(hipLaunchKernel((void *)stub, one, block, params, 0, stream));
  DONE(hipLaunchKernel_spt((void *)stub, one, block, params, 0, stream));
  DONE(hipLaunchCooperativeKernel((void *)stub, one, block, params, 0, stream));
  DONE(hipModuleLaunchCooperativeKernel(spin, 1, 1, 1, 64, 1, 1, 0, stream, params));
  DONE(hipExtLaunchKernel((void *)stub, one, block, params, 0, stream, start, stop, 0));
  DONE(hipExtModuleLaunchKernel(spin, 64, 1, 1, 64, 1, 1, 0, stream, params, NULL, NULL, NULL, 0));
  DONE(_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j(
      spin, 64, 1, 1, 64, 1, 1, 0, stream, params, NULL, NULL, NULL, 0));
  for (int i = 0; i < 7; i++) expect(&r, us, seed);
  EXPECT(hipEventSynchronize(stop) == 0 && hipEventElapsedTime(&ms, start, stop) == 0);
  EXPECT(ms > 0.19f && ms < 10000);
  DONE(hipStreamSynchronize(stream));
  check(&r);
  EXPECT(hipLaunchKernel((void *)check, one, block, params, 0, stream) == 98); /* not registered */
  EXPECT(hipGetLastError() == 98 && hipGetLastError() == 0);
  DONE(hipStreamDestroy(stream));
  printf("ok launches\n");
}

static void test_order(void) {
  struct result r = make_result();
  hipStream_t a, b;
  hipEvent_t event;
  uint64_t between[2] = {1, 1}, after[2];
  void *pinned;
  DONE(hipStreamCreateWithFlags(&a, 1)); /* not ordered with the default stream */
  DONE(hipStreamCreateWithFlags(&b, 1));
  DONE(hipEventCreateWithFlags(&event, 2));
  DONE(hipHostMalloc(&pinned, 16, 0));
  launch(&r, a, 300000, 1); /* a delay of the program must not outlast it */
  EXPECT(hipStreamQuery(a) == NOT_READY && hipStreamQuery(b) == 0);
  DONE(hipEventRecord(event, a));
  EXPECT(hipEventQuery(event) == NOT_READY);
  DONE(hipStreamWaitEvent(b, event, 0));
  launch(&r, b, 500, 2); /* after the event, hence the same order of folding */
  DONE(hipMemcpyAsync(pinned, r.memory, 16, 2, b));
  DONE(hipMemsetAsync(r.memory, 0, 16, b));
  DONE(hipStreamSynchronize(b));
  EXPECT(hipEventQuery(event) == 0 && hipStreamQuery(a) == 0);
  memcpy(between, pinned, 16);
  EXPECT(between[0] == r.word && between[1] == 2);
  DONE(hipMemcpyDtoH(after, r.memory, 16));
  EXPECT(after[0] == 0 && after[1] == 0);
  DONE(hipStreamDestroy(a));
  DONE(hipStreamDestroy(b));
  printf("ok order\n");
}

static void test_capture(void) {
  struct result r = make_result();
  hipStream_t a, b;
  hipEvent_t fork, join;
  hipGraph_t graph;
  hipGraphExec_t exec;
  size_t nodes = 0;
  DONE(hipStreamCreateWithFlags(&a, 1));
  DONE(hipStreamCreateWithFlags(&b, 1));
  DONE(hipEventCreate(&fork));
  DONE(hipEventCreate(&join));
  struct result busy = make_result();
  launch(&busy, b, 30000, 9); /* keeps the watcher polling */
  DONE(hipStreamSynchronize(b));
  DONE(hipStreamBeginCapture(a, 0)); /* global: unsafe calls of any thread would break it */
  launch(&r, a, 1000, 3);
  DONE(hipEventRecord(fork, a));
  DONE(hipStreamWaitEvent(b, fork, 0));
  launch(&r, b, 1000, 4); /* captured: the stream joined by the event */
  DONE(hipEventRecord(join, b));
  DONE(hipStreamWaitEvent(a, join, 0));
  usleep(30000);
  DONE(hipStreamEndCapture(a, &graph));
  EXPECT(hipGraphGetNodes(graph, NULL, &nodes) == 0 && nodes == 2);
  check(&(struct result){.memory = r.memory}); /* nothing ran */
  DONE(hipGraphInstantiate(&exec, graph, NULL, NULL, 0));
  DONE(hipGraphLaunch(exec, a));
  DONE(hipGraphLaunch_spt(exec, a));
  expect(&r, 1000, 3), expect(&r, 1000, 4);
  DONE(hipStreamSynchronize(a));
  check(&r);
  /* The shim does not change which calls invalidate a capture. */
  DONE(hipStreamBeginCapture(a, 0));
  EXPECT(hipStreamQuery(a) == CAPTURE_UNSUPPORTED);
  EXPECT(hipStreamEndCapture(a, &graph) != 0);
  DONE(hipGraphExecDestroy(exec));
  DONE(hipStreamDestroy(a));
  DONE(hipStreamDestroy(b));
  printf("ok capture\n");
}

static void *on_thread(void *argument) {
  struct result *r = argument;
  launch(r, (hipStream_t)2, 3000, 5);
  DONE(hipStreamSynchronize_spt(NULL));
  launch(r, NULL, 3000, 6);
  DONE(hipStreamSynchronize(NULL));
  return NULL;
}

static void test_default_streams(void) {
  struct result mine = make_result(), others = make_result();
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, on_thread, &others) == 0);
  launch(&mine, NULL, 3000, 1);
  launch(&mine, (hipStream_t)1, 3000, 2);
  check(&mine); /* the copy waits on the same stream */
  pthread_join(thread, NULL);
  check(&others);
  printf("ok default streams\n");
}

static void count(void *number) { ++*(int *)number; }
static void called(hipStream_t stream, hipError_t status, void *number) {
  (void)stream;
  if (status == 0) ++*(int *)number;
}

static void test_host_functions(void) {
  struct result r = make_result();
  hipStream_t stream;
  int number = 0;
  DONE(hipStreamCreate(&stream));
  launch(&r, stream, 2000, 1);
  DONE(hipLaunchHostFunc(stream, count, &number));
  DONE(hipStreamAddCallback(stream, called, &number, 0));
  DONE(hipStreamSynchronize(stream));
  EXPECT(number == 2);
  check(&r);
  DONE(hipStreamDestroy(stream));
  printf("ok host functions\n");
}

int main(void) {
  hipModule_t module;
  DONE(hipModuleLoadData(&module, "image"));
  DONE(hipModuleGetFunction(&spin, module, "xs_spin"));
  __hipRegisterFunction(NULL, (void *)stub, NULL, "xs_spin", 0, NULL, NULL, NULL, NULL, NULL);
  test_launches();
  test_order();
  test_capture();
  test_default_streams();
  test_host_functions();
  DONE(hipDeviceReset());
  printf("end\n");
  return 0;
}
