// SPDX-License-Identifier: Apache-2.0
//
// Waits that are no synchronization by name, and copies that only look like one. No watcher, except by hand.

#include "core/teardown.h"
#include "test_fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MS 1000000u

static struct xsw_queue *slot;
static char pageable[65536 + 1];
static bool busy(void) { return noted[0].busy; }

static void later(unsigned ms) { test_now_ns += (uint64_t)ms * MS; }

static void in_the_copy(void) { later(3); }

// A copy into pageable memory waits in the call: the wait begins with it, and the stream is idle afterwards.
static void test_copies_back(void) {
  CUstream stream = fake_stream();
  CUDA_MEMCPY2D_v2 flat = {.to = {.type = XSI_CU_MEMORY_HOST, .host = pageable}};
  CUDA_MEMCPY2D_v2 unified = {
      .to = {.type = XSI_CU_MEMORY_UNIFIED, .host = FAKE_PINNED, .device = (uintptr_t)pageable}};
  for (int kind = 0; kind < 3; kind++) {
    uint64_t waits = slot->waits;
    launch(stream);
    later(1);
    uint64_t begun = test_now_ns;
    fake_in_sync = kind < 2 ? in_the_copy : NULL;
    CHECK((kind == 0   ? cuMemcpyDtoHAsync_v2(pageable, 0, 8, stream)
           : kind == 1 ? cuMemcpy2DAsync_v2(&flat, stream)
                       : cuMemcpy2DAsync_v2(&unified, stream)) == 0);
    CHECK(slot->fed_ns == begun && slot->waits == waits + 1);
    CHECK(busy() == (kind == 2)); // the last one went elsewhere in truth
    later(1);
    CHECK(cuStreamSynchronize(stream) == 0 && !busy());
    CHECK(slot->fed_ns == begun && slot->waits == waits + 1); // the first of two waits
  }
  // Into pinned memory it does not.
  uint64_t fed = slot->fed_ns;
  launch(stream);
  later(1);
  CHECK(cuMemcpyDtoHAsync_v2(FAKE_PINNED, 0, 8, stream) == 0 && busy() && slot->fed_ns == fed);
  CHECK(cuStreamSynchronize(stream) == 0 && !busy());
  // A driver may copy to pageable memory without waiting: nothing is over because the call returned.
  fake_eager = true;
  launch(stream);
  CHECK(cuMemcpyDtoHAsync_v2(pageable, 0, 8, stream) == 0 && busy());
  fake_finish(stream);
  CHECK(cuMemcpyDtoHAsync_v2(pageable, 0, 8, stream) == 0 && busy());
  fake_eager = false;
  CHECK(cuStreamSynchronize(stream) == 0 && !busy());
  // Work of another thread that came meanwhile is not over. Nor is anything asked in a capture.
  launch(stream);
  CUstream captured = fake_stream();
  CHECK(cuStreamBeginCapture_v2(captured, 0) == 0);
  uint64_t queries = fake_queries;
  CHECK(cuMemcpyDtoHAsync_v2(pageable, 0, 8, captured) == 0 && fake_queries == queries);
  CHECK(cuMemcpyDtoHAsync_v2(pageable, 0, 8, stream) == 0 && fake_queries == queries && busy());
  CUgraph graph;
  CHECK(cuStreamEndCapture(captured, &graph) == 0);
  CHECK(cuStreamSynchronize(stream) == 0 && !busy());
  cuStreamDestroy_v2(captured);
  cuStreamDestroy_v2(stream);
}

// Another thread begins a capture while the driver is asked what a copy waited for: it must wait for the answer.
static int capture_begun;
static void *capture(void *stream) {
  CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
  __atomic_store_n(&capture_begun, 1, __ATOMIC_SEQ_CST);
  return NULL;
}
static pthread_t capturer;
static CUstream to_capture;
static void begin_meanwhile(void) {
  CHECK(pthread_create(&capturer, NULL, capture, to_capture) == 0);
  nanosleep(&(struct timespec){.tv_nsec = 20 * MS}, NULL);
  CHECK(!__atomic_load_n(&capture_begun, __ATOMIC_SEQ_CST));
}
static void in_the_question(void) { fake_in_sync = begin_meanwhile; } // runs in the wait itself
static void test_capture_begins(void) {
  CUstream stream = fake_stream();
  to_capture = fake_stream();
  launch(stream);
  fake_in_sync = in_the_question;
  CHECK(cuMemcpyDtoHAsync_v2(pageable, 0, 8, stream) == 0 && !busy());
  CHECK(!fake_in_sync && pthread_join(capturer, NULL) == 0 && capture_begun);
  CUgraph graph;
  CHECK(cuStreamEndCapture(to_capture, &graph) == 0);
  cuStreamDestroy_v2(to_capture);
  cuStreamDestroy_v2(stream);
}

// While the driver takes the memory of the process away, the question may read it.
static void test_teardown(void) {
  CUstream stream = fake_stream();
  launch(stream);
  xsi_teardown_set(UINT64_MAX);
  uint64_t queries = fake_queries;
  CHECK(cuMemcpyDtoHAsync_v2(pageable, 0, 8, stream) == 0 && fake_queries == queries && busy());
  xsi_teardown_set(0);
  CHECK(cuMemcpyDtoHAsync_v2(pageable, 0, 8, stream) == 0 && fake_queries > queries && !busy());
  cuStreamDestroy_v2(stream);
}

// Up to 64 KB the driver takes the bytes along and returns: what was in the stream is still there.
static void test_copies_there(void) {
  for (size_t bytes = 1; bytes <= 65537; bytes = bytes == 1 ? 65536 : bytes + 1) {
    uint64_t fed = slot->fed_ns;
    launch(NULL);
    later(1);
    CHECK(cuMemcpyHtoD_v2(0, pageable, bytes) == 0);
    bool waited = bytes > 65536;
    CHECK(busy() == !waited && slot->fed_ns == (waited ? test_now_ns : fed));
    CHECK(cuStreamSynchronize(NULL) == 0 && !busy());
  }
}

// A program that polls waits since its first answer "not ready". One answer is no poll.
static void test_polls(void) {
  CUstream stream = fake_stream(), second = fake_stream();
  CUevent event = calloc(1, sizeof(struct fake_event)), old = calloc(1, sizeof(struct fake_event));
  __atomic_store_n(&fake_stuck, 1, __ATOMIC_SEQ_CST);
  for (int kind = 0; kind < 2; kind++) {
    later(1);
    uint64_t fed = slot->fed_ns, waits = slot->waits;
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
      CHECK(slot->fed_ns == (i == 0 ? fed : begun) && slot->waits == waits + (i != 0));
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

int main(void) {
  xsi_work_watch_by_thread = false;
  test_now_ns = MS;
  fake_install();
  fake_context();
  slot = xsi_slot(0);
  test_copies_back();
  test_capture_begins();
  test_teardown();
  test_copies_there();
  test_polls();
  test_signals();
  test_signal_while_waiting();
  test_signals_when_idle();
  test_destroyed_before_signal();
  test_signal_and_limit();
  test_context_event();
  if (failures) return 1;
  printf("ok waits\n");
  return 0;
}
