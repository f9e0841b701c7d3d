// SPDX-License-Identifier: Apache-2.0
//
// Waits that are no synchronization by name. No watcher, except by hand.

#include "test_fake.h"

#include <stdlib.h>

static struct xsw_queue *slot;
static struct xsw_progress *progress;
static bool busy(void) { return noted[0].busy; }

// A program that polls waits since its first answer "not ready". One answer is no poll.
static void test_polls(void) {
  CUstream stream = fake_stream(), second = fake_stream();
  CUevent event = calloc(1, sizeof(struct fake_event)), old = calloc(1, sizeof(struct fake_event));
  __atomic_store_n(&fake_stuck, 1, __ATOMIC_SEQ_CST);
  for (int kind = 0; kind < 2; kind++) {
    later(1);
    uint64_t fed = slot->fed_ns, waits = progress->waits;
    launch(stream);
    cuEventRecord(old, stream);
    CHECK(cuEventQuery(old) == XSI_CU_NOT_READY); // an allocator's look
    launch(stream);
    launch(second);
    cuEventRecord(event, stream);
    CHECK(cuEventQuery(old) == XSI_CU_NOT_READY && slot->fed_ns == fed);
    launch(stream);
    cuEventRecord(event, stream);
    later(1);
    uint64_t begun = test_now_ns;
    for (int i = 0; i < 5; i++) {
      CHECK((kind ? cuEventQuery(event) : cuStreamQuery(stream)) == XSI_CU_NOT_READY);
      CHECK(slot->fed_ns == (i == 0 ? fed : begun) && progress->waits == waits + (i != 0));
      later(1);
    }
    fake_finish(stream);
    fake_finish(second);
    CHECK((kind ? cuEventQuery(event) : cuStreamQuery(stream)) == 0 && busy());
    CHECK(cuStreamQuery(second) == 0 && !busy() && slot->fed_ns == begun);
  }
  // Several things in turn are polled, too.
  later(1);
  launch(stream);
  launch(second);
  later(1);
  uint64_t begun = test_now_ns;
  for (int i = 0; i < 2; i++) {
    cuStreamQuery(stream);
    cuStreamQuery(second);
    later(1);
  }
  CHECK(slot->fed_ns == begun);
  __atomic_store_n(&fake_stuck, 0, __ATOMIC_SEQ_CST);
  cuStreamSynchronize(stream);
  cuStreamSynchronize(second);
  cuStreamDestroy_v2(stream);
  cuStreamDestroy_v2(second);
}

static void watch(unsigned ms) {
  later(ms);
  xsi_work_watch(test_now_ns);
}

// A stream that waits for a signal has no work: what was before is over when it is. And a signal passes a closed
// gate, because the program that the gate is closed for may wait for it.
static void test_signals(void) {
  CUstream stream = fake_stream();
  CUstreamBatchMemOpParams_v1 operations[2] = {{.operation = 2}, {.operation = XSI_CU_OP_WAIT_32}};
  for (int batch = 0; batch < 2; batch++) {
    launch(stream);
    CHECK((batch ? cuStreamBatchMemOp_v2(stream, 2, operations, 0)
                 : cuStreamWaitValue32_v2(stream, 0, 1, 0)) == 0);
    CHECK(busy());
    watch(1);
    watch(1);
    CHECK(busy()); // the kernel runs
    fake_finish(stream);
    watch(20);
    watch(20);
    CHECK(!busy()); // though the stream is not ready, and may never be
    CHECK(cuStreamQuery(stream) == XSI_CU_NOT_READY && !busy());
    // Work behind the wait is work again.
    launch(stream);
    CHECK(busy());
    fake_finish(stream);
    watch(20);
    watch(20);
    CHECK(busy());
    uint32_t gates = noted_gates;
    slot->gate = XSW_GATE_HELD;
    CHECK(cuStreamWriteValue32_v2(stream, 0, 1, 0) == 0 && noted_gates == gates);
    slot->gate = XSW_GATE_OPEN;
    watch(20);
    CHECK(!busy());
  }
  cuStreamDestroy_v2(stream);
}

// A thread that waits in the driver for such a stream does not keep the watcher away.
static void while_it_waits(void) {
  watch(1);
  watch(20);
  watch(20);
  CHECK(!busy());
}
static void test_signal_while_waiting(void) {
  CUstream stream = fake_stream();
  launch(stream);
  CHECK(cuStreamWaitValue32_v2(stream, 0, 1, 0) == 0);
  fake_finish(stream);
  fake_in_sync = while_it_waits;
  CHECK(cuStreamSynchronize(stream) == 0 && !busy());
  CHECK(cuStreamWriteValue32_v2(stream, 0, 1, 0) == 0);
  cuStreamDestroy_v2(stream);
}

// Waits of an idle stream need no event, and lose none.
static void test_signals_when_idle(void) {
  CUstream stream = fake_stream();
  uint64_t made = 0;
  for (int i = 0; i < 10; i++) {
    launch(stream);
    CHECK(cuStreamWaitValue32_v2(stream, 0, 1, 0) == 0);
    CHECK(cuStreamWriteValue32_v2(stream, 0, 1, 0) == 0);
    CHECK(cuStreamSynchronize(stream) == 0 && !busy());
    CHECK(cuStreamWaitValue32_v2(stream, 0, 1, 0) == 0);
    CHECK(cuStreamWriteValue32_v2(stream, 0, 1, 0) == 0);
    if (i == 0) made = fake_events_made;
  }
  CHECK(fake_events_made == made);
  cuStreamDestroy_v2(stream);
}

// A stream destroyed in front of a signal that never comes: what came before is over all the same.
static void test_destroyed_before_signal(void) {
  CUstream stream = fake_stream();
  struct fake_stream *fake = (struct fake_stream *)stream;
  launch(stream);
  CHECK(cuStreamWaitValue32_v2(stream, 0, 1, 0) == 0);
  cuStreamDestroy_v2(stream);
  watch(20);
  watch(20);
  CHECK(busy()); // the kernel runs
  __atomic_store_n(&fake->done, fake->submitted, __ATOMIC_SEQ_CST);
  watch(20);
  watch(20);
  CHECK(!busy());
}

// Lv1: this thread has yet to submit the signal that its own stream waits for. The limit gives way soon.
static void test_signal_and_limit(void) {
  CUstream stream = fake_stream();
  __atomic_store_n(&fake_stuck, 1, __ATOMIC_SEQ_CST);
  CHECK(cuStreamWaitValue32_v2(stream, 0, 1, 0) == 0);
  slot->in_flight = 2;
  slot->batch = 1;
  uint64_t virtual = test_now_ns;
  test_now_ns = 0;
  uint64_t start = xsi_now_ns();
  for (int i = 0; i < 50; i++)
    CHECK(launch(stream) == 0);
  CHECK(xsi_now_ns() - start < 500 * (uint64_t)MS);
  test_now_ns = virtual;
  slot->in_flight = 0;
  __atomic_store_n(&fake_stuck, 0, __ATOMIC_SEQ_CST);
  CHECK(cuStreamWriteValue32_v2(stream, 0, 1, 0) == 0);
  CHECK(cuStreamSynchronize(stream) == 0 && !busy());
  cuStreamDestroy_v2(stream);
}

// Recorded behind a whole context, an event no longer stands for the stream it was in.
static void test_context_event(void) {
  CUstream stream = fake_stream();
  CUevent event = calloc(1, sizeof(struct fake_event));
  launch(stream);
  CHECK(cuEventRecord(event, stream) == 0 && cuCtxRecordEvent(NULL, event) == 0);
  CHECK(cuEventQuery(event) == 0 && busy());
  CHECK(cuStreamSynchronize(stream) == 0 && !busy());
  cuStreamDestroy_v2(stream);
}

// ---- events that others than a stream record ---------------------------------------------------------

static CUresult fake_over(void) { return XSI_CU_SUCCESS; }

static void by_nothing(CUevent event) { (void)event; }
static void by_completion(CUevent event) {
  CUlaunchAttribute attribute = {.id = XSI_CU_ATTRIBUTE_COMPLETION_EVENT, .value.event = event};
  CUlaunchConfig config = {.hStream = fake_stream(), .attrs = &attribute, .numAttrs = 1};
  CHECK(cuLaunchKernelEx(&config, NULL, NULL, NULL) == 0);
  CHECK(cuStreamSynchronize(config.hStream) == 0);
}
static void by_programmatic(CUevent event) {
  CUlaunchAttribute attribute = {.id = XSI_CU_ATTRIBUTE_PROGRAMMATIC_EVENT, .value.event = event};
  CUlaunchConfig config = {.hStream = fake_stream(), .attrs = &attribute, .numAttrs = 1};
  CHECK(cuLaunchKernelEx(&config, NULL, NULL, NULL) == 0);
  CHECK(cuStreamSynchronize(config.hStream) == 0);
}
static void launch_graph(void) {
  CUstream stream = fake_stream();
  CHECK(cuGraphLaunch(NULL, stream) == 0 && cuStreamSynchronize(stream) == 0);
}
static void by_node(CUevent event) {
  int slot = xsi_runtime_find(&xsi_cu_runtime, "cuGraphAddEventRecordNode");
  CHECK(slot >= 0);
  if (slot < 0) return;
  xsi_cu_real[slot] = (void *)fake_over;
  CUresult (*add)(void *, CUgraph, void *, size_t, CUevent) =
      (CUresult(*)(void *, CUgraph, void *, size_t, CUevent))xsi_cu_symbols[slot].hook;
  CHECK(add(NULL, NULL, NULL, 0, event) == 0);
  launch_graph();
}
static void by_external(CUevent event) {
  CUstream stream = fake_stream();
  CUgraph graph;
  xsi_cu_real[XSI_CU_cuEventRecordWithFlags] = (void *)fake_over;
  CUevent other = calloc(1, sizeof(struct fake_event));
  CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
  CHECK(cuEventRecordWithFlags(other, stream, XSI_CU_RECORD_EXTERNAL) == 0);
  CHECK(cuStreamEndCapture(stream, &graph) == 0);
  (void)event; // recorded in a stream after the capture, and then by the graph
  launch_graph();
}

// The event's last record is over: that says nothing of the stream in which it was recorded before.
static void test_other_records(void) {
  static void (*const ways[])(CUevent) = {by_completion, by_programmatic, by_node, by_external,
                                          by_nothing};
  CUresult (*query)(CUevent) = xsi_cu_real[XSI_CU_cuEventQuery];
  for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
    CUstream stream = fake_stream();
    CUevent event = calloc(1, sizeof(struct fake_event));
    __atomic_store_n(&xsi_cu_graph_events, false, __ATOMIC_RELAXED);
    launch(stream);
    CHECK(cuEventRecord(event, stream) == 0);
    ways[i](event);
    xsi_cu_real[XSI_CU_cuEventQuery] = (void *)fake_over;
    CHECK(cuEventQuery(event) == 0);
    xsi_cu_real[XSI_CU_cuEventQuery] = (void *)query;
    if (busy() != (ways[i] != by_nothing)) printf("FAIL way %u\n", i), failures++;
    CHECK(cuStreamSynchronize(stream) == 0 && !busy());
    cuStreamDestroy_v2(stream);
  }
}

int main(void) {
  xsi_work_watch_by_thread = false;
  test_now_ns = MS;
  fake_install();
  fake_context();
  slot = xsi_slot(0);
  progress = xsi_progress(0);
  test_polls();
  test_signals();
  test_signal_while_waiting();
  test_signals_when_idle();
  test_destroyed_before_signal();
  test_signal_and_limit();
  test_context_event();
  test_other_records();
  if (failures) return 1;
  printf("ok waits\n");
  return 0;
}
