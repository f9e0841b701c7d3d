// SPDX-License-Identifier: Apache-2.0
//
// Batches. The fake driver blocks a call that waits for a held stream, as hardware does, and counts it: the
// shim must have released the batch before.

#include "test_fake.h"

#include "stub.h"

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
  uint64_t bursts = xsi_progress(0)->bursts;
  launch_some(8, stream);
  CHECK(fake_holds == 1 && fake_is_held(stream));
  launch_some(8, second); // another stream waits for the same value
  CHECK(fake_holds == 2 && fake_is_held(second));
  CHECK(cuStreamSynchronize(stream) == 0 && fake_late == 0);
  CHECK(!fake_is_held(second) && xsi_progress(0)->bursts == bursts + 1);
  CHECK(cuStreamSynchronize(second) == 0);
}

// As many kernels as the daemon asks for are a burst; the next ones gather anew.
static void test_burst(void) {
  start(XSW_GATE_BATCH | 5u << XSW_BURST_SHIFT);
  uint64_t bursts = xsi_progress(0)->bursts;
  launch_some(5, stream);
  CHECK(fake_holds == 1 && fake_is_held(stream) && xsi_progress(0)->bursts == bursts);
  launch_some(1, stream);
  CHECK(fake_holds == 2 && xsi_progress(0)->bursts == bursts + 1);
  CHECK(cuStreamSynchronize(stream) == 0 && fake_late == 0);
  CHECK(xsi_progress(0)->bursts == bursts + 2);
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
static void by_await(void) { cuStreamWaitValue32_v2(second, 0, 1, 0); }
static void by_batch_of_waits(void) {
  CUstreamBatchMemOpParams_v1 operation = {.operation = XSI_CU_OP_WAIT_32};
  cuStreamBatchMemOp_v2(second, 1, &operation, 0);
}
static void by_signal(void) { cuSignalExternalSemaphoresAsync(NULL, NULL, 0, second); }
static void by_wait_of_signal(void) { cuWaitExternalSemaphoresAsync(NULL, NULL, 0, second); }
static void by_register(void) { cuMemHostRegister(pageable, sizeof pageable, 0); }
static void by_map(void) { cuGraphicsMapResources(0, NULL, second); }
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
static void by_launch_callback(void) { cuStreamAddCallback(stream, NULL, NULL, 0); }
static void by_attach(void) { cuStreamAttachMemAsync(second, 0, 0, 0); }
static void by_graph(void) { cuGraphLaunch(NULL, stream); }
static void by_upload_of_graph(void) { cuGraphUpload(NULL, stream); }
static void by_allocation(void) {
  CUdeviceptr_v2 address;
  cuMemAllocAsync(&address, 1, stream);
}
static void by_peer(void) { cuMemcpyPeerAsync(0, NULL, 0, NULL, 1, stream); }
static void by_cooperative(void) {
  cuLaunchCooperativeKernel((CUfunction)0x1000, 1, 1, 1, 1, 1, 1, 0, stream, NULL);
}
static void by_cooperative_attribute(void) {
  CUlaunchAttribute attribute = {.id = XSI_CU_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
  CUlaunchConfig config = {.hStream = stream, .attrs = &attribute, .numAttrs = 1};
  cuLaunchKernelEx(&config, (CUfunction)0x1000, NULL, NULL);
}
static void by_many_devices(void) { cuLaunchCooperativeKernelMultiDevice(NULL, 65, 0); }
static void by_elapsed(void) {
  float milliseconds;
  cuEventElapsedTime(&milliseconds, event, event);
}
static void by_limit(void) { // the shim itself waits: one more than may be in flight
  slot->in_flight = 2;
  kernel(1, stream);
  slot->in_flight = 0;
}
static void by_fork(void) { /* what runs before a fork; the child is another test's */
  xsi_work_open();
}

static const struct {
  const char *name;
  void (*call)(void);
} ways[] = {
    {"cuStreamSynchronize", by_stream},
    {"cuStreamQuery", by_query},
    {"cuEventSynchronize", by_event},
    {"cuEventQuery", by_event_query},
    {"cuCtxSynchronize", by_context},
    {"cuMemcpyDtoH", by_copy},
    {"cuMemcpyDtoHAsync", by_async_copy},
    {"cuMemcpyHtoDAsync", by_upload},
    {"cuLaunchHostFunc", by_callback},
    {"cuStreamWriteValue32", by_write},
    {"cuStreamBeginCapture", by_capture},
    {"cuStreamDestroy", by_stream_destroy},
    {"cuCtxCreate", by_context_create},
    {"fork", by_fork},
    {"cuStreamAddCallback", by_launch_callback},
    {"cuStreamAttachMemAsync", by_attach},
    {"cuGraphLaunch", by_graph},
    {"cuGraphUpload", by_upload_of_graph},
    {"cuMemAllocAsync", by_allocation},
    {"cuMemcpyPeerAsync", by_peer},
    {"cuLaunchCooperativeKernel", by_cooperative},
    {"cuLaunchKernelEx, cooperative", by_cooperative_attribute},
    {"cuLaunchCooperativeKernelMultiDevice", by_many_devices},
    {"cuEventElapsedTime", by_elapsed},
    {"launch at the limit", by_limit},
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
      xsi_work_batch_never = false; // of by_write
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
  // So do events and waits for them, which take room in the driver's ring.
  CUevent mine = calloc(1, sizeof(struct fake_event)), other = calloc(1, sizeof(struct fake_event));
  for (int waits = 0; waits < 2; waits++) {
    start(XSW_GATE_BATCH);
    launch_some(2, stream);
    CHECK(cuEventRecord(mine, stream) == 0);
    unsigned i = 0;
    for (; i < 1200 && fake_is_held(stream); i++)
      CHECK((waits ? cuStreamWaitEvent(stream, mine, 0) : cuEventRecord(mine, stream)) == 0);
    CHECK(i > 200 && i <= 256 && fake_late == 0);
    cuStreamSynchronize(stream);
  }
  // A driver may wait in the call for an event of another context, and nothing is known of this one.
  start(XSW_GATE_BATCH);
  launch_some(2, stream);
  CHECK(fake_is_held(stream));
  CHECK(cuStreamWaitEvent(stream, other, 0) == 0);
  CHECK(!fake_is_held(stream) && fake_late == 0);
  cuStreamSynchronize(stream);
}

// ---- calls that are not hooked ----------------------------------------------------------------------

static uintptr_t passed[8];
static double passed_number;
static unsigned passing;

// What a driver's function sees: registers and stack as the program left them, and no closed batch.
static CUresult fake_passing(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e,
                             uintptr_t f, uintptr_t g, uintptr_t h, double number) {
  const uintptr_t all[] = {a, b, c, d, e, f, g, h};
  memcpy(passed, all, sizeof passed);
  passed_number = number;
  passing++;
  if (fake_is_held(stream)) __atomic_fetch_add(&fake_late, 1, __ATOMIC_SEQ_CST);
  return 4711;
}

static bool passes(void *function) {
  CUresult (*call)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                   uintptr_t, double) = (__typeof__(&fake_passing))function;
  unsigned before = passing;
  CUresult result = call(11, 12, 13, 14, 15, 16, 17, 18, 2.5);
  for (uintptr_t i = 0; i < 8; i++)
    if (passed[i] != 11 + i) return false;
  return passing == before + 1 && result == 4711 && passed_number == 2.5;
}

// Every entry point that is neither hooked nor known to return at once.
static void test_stubs(void) {
  unsigned count = 0;
  start(XSW_GATE_BATCH);
  for (unsigned i = 0; i < XSI_CU_HOOKS; i++) {
    if (xsi_cu_stub_kinds[i] == XSI_CU_NO_STUB) continue;
    const struct xsi_symbol *symbol = &xsi_cu_symbols[i];
    count++;
    CHECK(((CUresult(*)(void))symbol->hook)() == XSI_CU_NOT_FOUND); // a driver that lacks it
    xsi_cu_real[i] = (void *)fake_passing;
    xsi_work_batch_never = false;
    for (int closed = 0; closed < 3; closed++) { // not, the first time, again
      if (closed) launch_some(4, stream);
      CHECK(fake_is_held(stream) == (closed && !xsi_work_batch_never));
      bool passed_on = passes(symbol->hook);
      if (!passed_on || fake_late != 0 || fake_is_held(stream))
        printf("FAIL %s did not release the batch\n", symbol->name), failures++;
      fake_late = 0;
      cuStreamSynchronize(stream);
      bool forgotten = !xsi_work_has_launched((uintptr_t)xsi_cu_current(), 0x1000);
      if (forgotten != (xsi_cu_stub_kinds[i] == XSI_CU_UNLOADS))
        printf("FAIL %s: kernels afterwards\n", symbol->name), failures++;
      if (forgotten) start(XSW_GATE_BATCH);
    }
    if (xsi_work_batch_never != (xsi_cu_stub_kinds[i] == XSI_CU_SHARES))
      printf("FAIL %s: batches afterwards\n", symbol->name), failures++;
    xsi_work_batch_never = false;
  }
  CHECK(count > 200);
}

// What the driver hands out without a name gets a stub, too, unless it is known to return at once.
static void test_unnamed(void) {
  start(XSW_GATE_BATCH);
  void *found = xsi_cu_match("cuNothingThatWeKnow", 99000, 0, (void *)fake_passing);
  CHECK(found != (void *)fake_passing);
  CHECK(found == xsi_cu_stub_for("cuNothingThatWeKnow_v3", (void *)fake_passing));
  for (int closed = 0; closed < 3; closed++) {
    if (closed) launch_some(4, stream);
    CHECK(fake_is_held(stream) == (closed != 0));
    CHECK(passes(found) && fake_late == 0 && !fake_is_held(stream));
    cuStreamSynchronize(stream);
  }
  CHECK(xsi_cu_match("cuMemGetInfo", 3020, 0, (void *)fake_passing) == (void *)fake_passing);
  // One address more for each name; when there are no more stubs, there are no more batches.
  static char addresses[2000];
  unsigned stubs = 0;
  for (unsigned i = 0; i < sizeof addresses; i++)
    stubs += xsi_cu_stub_for("cuMemFree", &addresses[i]) != &addresses[i];
  CHECK(stubs == XSI_CU_UNNAMED - 1 && xsi_work_batch_never);
  xsi_work_batch_never = false;
}

// A kernel that was launched is loaded: asking about it waits for nothing.
static void test_code(void) {
  int found = xsi_runtime_find(&xsi_cu_runtime, "cuFuncSetAttribute");
  CHECK(found >= 0 && xsi_cu_stub_kinds[found] == XSI_CU_CODE);
  xsi_cu_real[found] = (void *)fake_passing;
  CUresult (*set)(CUfunction, int, int) =
      (CUresult(*)(CUfunction, int, int))xsi_cu_symbols[found].hook;
  start(XSW_GATE_BATCH);
  launch_some(4, stream);
  set((CUfunction)(0x1000 + 2 * 16), 8, 1);
  CHECK(fake_is_held(stream));
  set((CUfunction)(0x1000 + 5000 * 16), 8, 1);
  CHECK(!fake_is_held(stream));
  cuStreamSynchronize(stream);
}

// ---- who never has batches ----------------------------------------------------------------------------

static const struct {
  const char *name;
  void (*call)(void);
} signals[] = {
    {"cuStreamWriteValue32", by_write},
    {"cuStreamWaitValue32", by_await},
    {"cuStreamBatchMemOp", by_batch_of_waits},
    {"cuSignalExternalSemaphoresAsync", by_signal},
    {"cuWaitExternalSemaphoresAsync", by_wait_of_signal},
    {"cuMemHostRegister", by_register},
    {"cuGraphicsMapResources", by_map},
};

static void test_signals(void) {
  for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
    start(XSW_GATE_BATCH);
    launch_some(4, stream);
    CHECK(fake_is_held(stream));
    signals[i].call();
    bool late = fake_is_held(stream);
    launch_some(4, stream);
    if (late || fake_is_held(stream))
      printf("FAIL %s: the process still has batches\n", signals[i].name), failures++;
    cuStreamSynchronize(stream);
    xsi_work_batch_never = false;
  }
}

// A program that looks at memory instead of waiting has no batches. Once it waits, it has them again.
static void test_watched(void) {
  start(XSW_GATE_BATCH);
  launch_some(4, stream);
  xsi_work_release_batches(); // as the thread does
  fake_finish(stream);
  for (uint64_t i = 0, now = xsi_now_ns(); i < 100; i++)
    xsi_work_watch(now + i * MS);
  launch_some(4, stream);
  CHECK(!fake_is_held(stream));
  cuStreamSynchronize(stream);
  launch_some(4, stream);
  CHECK(fake_is_held(stream));
  cuStreamSynchronize(stream);
}

// A launch that waits at the program's own gate.
static void *launch_one(void *unused) {
  (void)unused;
  kernel(1, stream);
  return NULL;
}

static void test_held_by_program(void) {
  pthread_t thread;
  start(XSW_GATE_BATCH);
  launch_some(4, stream);
  CHECK(fake_is_held(stream));
  struct xsi_work_life life = xsi_work_life_of(xsi_cu_work(stream));
  CHECK(xsi_work_hold(life, true) == 0);
  CHECK(pthread_create(&thread, NULL, launch_one, NULL) == 0);
  for (int ms = 0; fake_is_held(stream) && ms < 500; ms++)
    pause_ms(1);
  CHECK(!fake_is_held(stream));
  CHECK(xsi_work_hold(life, false) == 0);
  pthread_join(thread, NULL);
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
  // The same handle in another context is another kernel, and has to be loaded there.
  struct fake_context *here = (struct fake_context *)((struct fake_stream *)stream)->context;
  CUcontext there;
  CHECK(cuCtxCreate_v2(&there, 0, 3) == 0);
  CUstream third = fake_stream();
  xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)here);
  launch_some(4, stream);
  CHECK(fake_is_held(stream));
  xsi_slot(1)->gate = XSW_GATE_BATCH;
  kernel(1, third);
  CHECK(!fake_is_held(stream) && !fake_is_held(third));
  kernel(1, third);
  CHECK(fake_is_held(third));
  xsi_slot(1)->gate = XSW_GATE_OPEN;
  cuStreamSynchronize(third);
  cuCtxDestroy_v2(there);
  xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)here);
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
  cuGraphLaunch(NULL, stream); // may wait, whatever the gate says
  CHECK(!fake_is_held(stream));
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
  test_burst();
  test_waits_release();
  test_stubs();
  test_unnamed();
  test_code();
  test_signals();
  test_watched();
  test_held_by_program();
  test_most();
  test_new_kernel();
  test_stall();
  test_threads();
  test_never();
  printf("%s\n", failures ? "FAILED" : "ok");
  return failures != 0;
}
