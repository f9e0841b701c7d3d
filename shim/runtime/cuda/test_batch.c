// SPDX-License-Identifier: Apache-2.0
//
// Batches. The fake driver blocks a call that waits for a held stream, as hardware does, and counts it: the
// shim must have released the batch before.

#include "test_fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct xsw_queue *slot;
static CUstream stream, second;

static void pause_ms(unsigned ms) {
  const struct timespec time = {.tv_nsec = (long)ms * 1000000};
  nanosleep(&time, NULL);
}

static CUresult kernel(uintptr_t function, CUstream into) {
  return cuLaunchKernel((CUfunction)(0x1000 + function * 16), 1, 1, 1, 1, 1, 1, 0, into, NULL,
                        NULL);
}

// A request as a program would make it: kernels only.
static void launch_some(unsigned count, CUstream into) {
  for (unsigned i = 0; i < count; i++)
    CHECK(kernel(i, into) == 0);
}

// The kernels are known, and the queue is idle.
static void start(uint32_t gate) {
  slot->gate = XSW_GATE_OPEN;
  launch_some(300, stream);
  cuStreamSynchronize(stream);
  slot->gate = XSW_GATE_BATCH;
  launch_some(300, stream); // each is new to the batches
  cuStreamSynchronize(stream);
  slot->gate = gate;
  fake_late = fake_holds = 0;
}

static void test_closes_once(void) {
  start(XSW_GATE_OPEN);
  launch_some(8, stream);
  CHECK(fake_holds == 0 && !fake_is_held(stream)); // nobody asked
  cuStreamSynchronize(stream);
  start(XSW_GATE_BATCH);
  uint64_t bursts = slot->bursts;
  launch_some(8, stream);
  CHECK(fake_holds == 1 && fake_is_held(stream));
  launch_some(8, second); // another stream waits for the same value
  CHECK(fake_holds == 2 && fake_is_held(second));
  CHECK(cuStreamSynchronize(stream) == 0 && fake_late == 0);
  CHECK(!fake_is_held(second) && slot->bursts == bursts + 1);
  CHECK(cuStreamSynchronize(second) == 0);
}

// ---- every way to wait -------------------------------------------------------------------------------

static CUevent event;
static char pageable[64];
static CUcontext other_context;

static void by_stream(void) { cuStreamSynchronize(stream); }
static void by_query(void) { cuStreamQuery(stream); }
static void by_event(void) { cuEventSynchronize(event); }
static void by_event_query(void) { cuEventQuery(event); }
static void by_context(void) { cuCtxSynchronize(); }
static void by_copy(void) { cuMemcpyDtoH_v2(pageable, 0, sizeof pageable); }
static void by_async_copy(void) { cuMemcpyDtoHAsync_v2(pageable, 0, sizeof pageable, stream); }
static void by_upload(void) { cuMemcpyHtoDAsync_v2(0, pageable, sizeof pageable, stream); }
static void by_callback(void) { cuLaunchHostFunc(stream, NULL, NULL); }
static void by_write(void) { cuStreamWriteValue32_v2(second, 0, 1, 0); }
static void by_capture(void) {
  CUgraph graph;
  cuStreamBeginCapture_v2(second, 0);
  cuStreamEndCapture(second, &graph);
}
static void by_stream_destroy(void) {
  CUstream made = fake_stream();
  cuStreamDestroy_v2(made);
}
static void by_context_create(void) {
  cuCtxCreate_v2(&other_context, 0, 3);
  cuCtxDestroy_v2(other_context);
}
static void by_fork(void) { /* what runs before a fork; the child is another test's */
  xsi_work_open();
}

static const struct {
  const char *name;
  void (*call)(void);
} ways[] = {
    {"cuStreamSynchronize", by_stream},   {"cuStreamQuery", by_query},
    {"cuEventSynchronize", by_event},     {"cuEventQuery", by_event_query},
    {"cuCtxSynchronize", by_context},     {"cuMemcpyDtoH", by_copy},
    {"cuMemcpyDtoHAsync", by_async_copy}, {"cuMemcpyHtoDAsync", by_upload},
    {"cuLaunchHostFunc", by_callback},    {"cuStreamWriteValue32", by_write},
    {"cuStreamBeginCapture", by_capture}, {"cuStreamDestroy", by_stream_destroy},
    {"cuCtxCreate", by_context_create},   {"fork", by_fork},
};

static void *call_it(void *argument) {
  const unsigned *which = argument;
  ways[*which].call();
  return NULL;
}

// In the thread that launches, and in another one.
static void test_waits_release(void) {
  struct fake_context *mine = (struct fake_context *)((struct fake_stream *)stream)->context;
  for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
      start(XSW_GATE_BATCH);
      launch_some(4, stream);
      cuEventRecord(event, stream);
      CHECK(fake_is_held(stream)); // recording an event does not wait
      if (elsewhere) {
        pthread_t thread;
        // A thread without a context has nothing to wait for by these.
        if (ways[i].call == by_copy || ways[i].call == by_context || ways[i].call == by_upload)
          continue;
        if (ways[i].call == by_stream_destroy || ways[i].call == by_context_create) continue;
        CHECK(pthread_create(&thread, NULL, call_it, &i) == 0);
        pthread_join(thread, NULL);
      } else {
        ways[i].call();
      }
      if (fake_late != 0 || fake_is_held(stream))
        printf("FAIL %s did not release the batch\n", ways[i].name), failures++;
      if (ways[i].call == by_context_create && !elsewhere)
        xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)mine);
      CHECK(cuStreamSynchronize(stream) == 0);
    }
  }
}

// ---- limits --------------------------------------------------------------------------------------------

static void test_most(void) {
  start(XSW_GATE_BATCH);
  unsigned most = 0, since = 0;
  for (unsigned i = 0; i < 1200; i++) {
    uint64_t before = fake_holds;
    kernel(i % 300, stream);
    since = fake_holds != before ? 1 : since + 1;
    if (since > most) most = since;
  }
  CHECK(most <= 256 && fake_holds >= 4);
  cuStreamSynchronize(stream);
  start(XSW_GATE_BATCH);
  launch_some(2, stream);
  for (unsigned i = 0; i < 1200 && fake_is_held(stream); i++)
    cuMemsetD8Async(0, 0, 1, stream); // work inside the device counts, too
  CHECK(!fake_is_held(stream) && fake_late == 0);
  cuStreamSynchronize(stream);
}

static void test_new_kernel(void) {
  start(XSW_GATE_BATCH);
  launch_some(4, stream);
  CHECK(fake_is_held(stream));
  kernel(100000, stream); // loading it may wait for the context
  CHECK(!fake_is_held(stream));
  kernel(100000, stream);
  CHECK(fake_is_held(stream));
  cuStreamSynchronize(stream);
}

// A call that no hook sees waits: the thread releases the batch by itself, soon.
static void test_stall(void) {
  __atomic_store_n(&xsi_work_batch_by_thread, true, __ATOMIC_RELAXED);
  start(XSW_GATE_BATCH);
  launch_some(4, stream);
  CHECK(fake_is_held(stream));
  int ms = 0;
  while (fake_is_held(stream) && ms++ < 1000)
    pause_ms(1);
  CHECK(ms < 200); // some ticks, on a busy host
  // A program that keeps launching is released after the longest time.
  start(XSW_GATE_BATCH);
  launch_some(4, stream);
  for (ms = 0; fake_holds < 2 && ms < 1000; ms++) {
    pause_ms(1);
    kernel(1, stream);
  }
  CHECK(ms < 200);
  cuStreamSynchronize(stream);
  __atomic_store_n(&xsi_work_batch_by_thread, false, __ATOMIC_RELAXED);
}

// ---- what never has batches, and what ends them -------------------------------------------------------

static void test_never(void) {
  start(XSW_GATE_BATCH);
  launch_some(4, stream);
  __atomic_store_n(&xsi_native, 1, __ATOMIC_SEQ_CST); // the daemon is silent
  launch_some(1, stream);
  CHECK(!fake_is_held(stream));
  __atomic_store_n(&xsi_native, 0, __ATOMIC_SEQ_CST);
  cuStreamSynchronize(stream);

  start(XSW_GATE_BATCH);
  launch_some(4, stream);
  slot->gate = XSW_GATE_OPEN; // the daemon changed its mind, or is gone
  launch_some(1, stream);
  cuStreamSynchronize(stream);
  CHECK(fake_late == 0);

  start(XSW_GATE_BATCH);
  launch_some(4, stream);
  slot->gate = XSW_GATE_HELD;
  noted_gates = 0;
  launch_some(1, stream);
  CHECK(noted_gates == 1 && !fake_is_held(stream)); // what was launched before runs
  cuStreamSynchronize(stream);

  start(XSW_GATE_BATCH);
  CUgraph graph;
  cuStreamBeginCapture_v2(second, 0);
  launch_some(4, stream);
  CHECK(fake_holds == 0); // a capture may involve any stream
  cuStreamEndCapture(second, &graph);
  cuStreamSynchronize(stream);

  start(XSW_GATE_BATCH);
  launch_some(4, stream);
  xsi_work_never_batch();
  CHECK(!fake_is_held(stream));
  launch_some(4, stream);
  CHECK(!fake_is_held(stream));
  cuStreamSynchronize(stream);
}

// ---- threads -------------------------------------------------------------------------------------------

static int finished;

static void *mix(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  CUstream own = fake_stream();
  CUevent event = calloc(1, sizeof(struct fake_event));
  for (int i = 0; i < 20000; i++) {
    switch (rand_r(&seed) % 16) {
    case 0: cuStreamSynchronize(own); break;
    case 1: cuStreamQuery(own); break;
    case 2: cuEventRecord(event, own); break;
    default: kernel(rand_r(&seed) % 300, own); break;
    }
  }
  cuStreamSynchronize(own);
  CHECK(!fake_is_held(own));
  cuStreamDestroy_v2(own);
  __atomic_fetch_add(&finished, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static struct fake_context *shared;
static void *mix_in_context(void *argument) {
  xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)shared);
  return mix(argument);
}

static void test_threads(void) {
  start(XSW_GATE_BATCH);
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; i++)
    CHECK(pthread_create(&threads[i], NULL, mix_in_context, (void *)(i + 1)) == 0);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  CHECK(finished == 4 && fake_holds > 100);
}

int main(void) {
  fake_install();
  xsi_work_watch_by_thread = xsi_work_batch_by_thread = false;
  shared = fake_context();
  slot = xsi_slot(0);
  stream = fake_stream();
  second = fake_stream();
  event = calloc(1, sizeof(struct fake_event));
  test_closes_once();
  test_waits_release();
  test_most();
  test_new_kernel();
  test_stall();
  test_threads();
  test_never();
  printf("%s\n", failures ? "FAILED" : "ok");
  return failures != 0;
}
