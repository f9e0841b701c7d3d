// SPDX-License-Identifier: Apache-2.0
//
// Copies that wait, and copies that only look like it. No watcher.

#include "core/teardown.h"
#include "test_fake.h"

#include <pthread.h>
#include <time.h>

static struct xsw_queue *slot;
static struct xsw_progress *progress;
static char pageable[65536 + 1];
static bool busy(void) { return noted[0].busy; }

static void in_the_copy(void) { later(3); }

// A copy into pageable memory waits in the call: the wait begins with it, and the stream is idle afterwards.
static void test_copies_back(void) {
  CUstream stream = fake_stream();
  CUDA_MEMCPY2D_v2 flat = {.to = {.type = XSI_CU_MEMORY_HOST, .host = pageable}};
  CUDA_MEMCPY2D_v2 unified = {
      .to = {.type = XSI_CU_MEMORY_UNIFIED, .host = FAKE_PINNED, .device = (uintptr_t)pageable}};
  for (int kind = 0; kind < 3; kind++) {
    uint64_t waits = progress->waits;
    launch(stream);
    later(1);
    uint64_t begun = test_now_ns;
    fake_in_sync = kind < 2 ? in_the_copy : NULL;
    CHECK((kind == 0   ? cuMemcpyDtoHAsync_v2(pageable, 0, 8, stream)
           : kind == 1 ? cuMemcpy2DAsync_v2(&flat, stream)
                       : cuMemcpy2DAsync_v2(&unified, stream)) == 0);
    CHECK(slot->fed_ns == begun && progress->waits == waits + 1);
    CHECK(busy() == (kind == 2)); // the last one went elsewhere in truth
    later(1);
    CHECK(cuStreamSynchronize(stream) == 0 && !busy());
    CHECK(slot->fed_ns == begun && progress->waits == waits + 1); // the first of two waits
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

static CUresult launch_thread(void) {
  return cuLaunchKernel_ptsz(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

// Copies into the default streams, of the context and of the thread, wait the same.
static void test_default_streams(void) {
  CUDA_MEMCPY3D_BATCH_OP_v1 there = {.to = {.type = 1}};
  CUDA_MEMCPY3D_BATCH_OP_v1 both[2] = {
      there, {.to = {.type = XSI_CU_OPERAND_POINTER, .pointer = (uintptr_t)pageable}}};
  for (int kind = 0; kind < 6; kind++) {
    uint64_t waits = progress->waits, copies = COUNTED(copies);
    CHECK((kind % 2 ? launch_thread() : launch(NULL)) == 0);
    later(1);
    uint64_t begun = test_now_ns;
    fake_in_sync = in_the_copy;
    CHECK((kind == 0   ? cuMemcpyDtoH_v2(pageable, 0, 8)
           : kind == 1 ? cuMemcpyDtoH_v2_ptds(pageable, 0, 8)
           : kind == 2 ? cuMemcpy3DBatchAsync(2, both, NULL, 0, NULL)
           : kind == 3 ? cuMemcpyDtoHAsync_v2_ptsz(pageable, 0, 8, NULL)
           : kind == 4 ? cuMemcpy3DBatchAsync_v2(2, both, 0, NULL)
                       : cuMemcpyHtoD_v2_ptds(0, pageable, 65537)) == 0);
    CHECK(slot->fed_ns == begun && progress->waits == waits + 1 && !busy());
    CHECK(COUNTED(copies) == copies + 1);
  }
  uint64_t fed = slot->fed_ns, queries = fake_queries;
  later(1);
  launch(NULL);
  fake_eager = true; // inside the device
  CHECK(cuMemcpy3DBatchAsync_v2(1, &there, 0, NULL) == 0);
  CHECK(busy() && slot->fed_ns == fed && fake_queries == queries);
  fake_eager = false;
  CHECK(cuStreamSynchronize(NULL) == 0 && !busy());
}

// What the daemon knew while a copy took its time.
static uint64_t fed_in_call;
static void in_a_copy_there(void) {
  fed_in_call = slot->fed_ns;
  later(3);
}
static void at_once(void) { fed_in_call = slot->fed_ns; }

// A copy from the host behind a kernel. knows: it was a wait when it began. found: when it ended.
static void copy_there(size_t bytes, void (*during)(void), bool knows, bool found) {
  later(1);
  CHECK(launch(NULL) == 0);
  later(1);
  uint64_t begun = test_now_ns, waits = progress->waits, fed = slot->fed_ns;
  fake_in_sync = during;
  CHECK(cuMemcpyHtoD_v2(0, pageable, bytes) == 0 && !fake_in_sync);
  CHECK(fed_in_call == (knows ? begun : fed) && busy() == !found);
  CHECK(slot->fed_ns == (knows || found ? begun : fed) &&
        progress->waits == waits + (knows || found));
  CHECK(cuStreamSynchronize(NULL) == 0 && !busy());
}

// Up to 64 KB, documentation and driver differ: the shim expects what the last such copy did, and never takes a
// stream for idle without asking.
static void test_copies_there(void) {
  for (size_t bytes = 1; bytes <= 65537; bytes = bytes == 1 ? 65536 : bytes + 1)
    copy_there(bytes, in_a_copy_there, true, true);
  fake_eager = true;
  copy_there(65536, at_once, true, false); // the first shows it
  uint64_t queries = fake_queries;
  copy_there(65536, at_once, false, false);
  copy_there(1, at_once, false, false);
  CHECK(fake_queries == queries); // nothing is asked
  copy_there(65537, in_a_copy_there, true, true);
  copy_there(1, in_a_copy_there, false, false); // slow for another reason
  fake_eager = false;
  queries = fake_queries;
  copy_there(1, at_once, false, false); // too short to be noticed
  CHECK(fake_queries == queries);
  copy_there(1, in_a_copy_there, false, true);
  copy_there(1, in_a_copy_there, true, true);
  // Nothing in front of it, or only such copies: neither a wait nor a question.
  uint64_t fed = slot->fed_ns;
  queries = fake_queries;
  later(1);
  for (int i = 0; i < 5; i++)
    CHECK(cuMemcpyHtoD_v2(0, pageable, 1) == 0 && busy());
  CHECK(slot->fed_ns == fed && fake_queries == queries);
  copy_there(1, in_a_copy_there, true, true);
  // One that failed is not in front of the next one.
  fake_refuses = true;
  CHECK(cuMemcpyHtoD_v2(0, pageable, 1) == XSI_CU_INVALID_VALUE && !busy());
  fake_refuses = false;
  copy_there(1, in_a_copy_there, true, true);
}

static void launch_meanwhile(void) {
  at_once();
  launch(NULL);
}

// What came meanwhile is not over, and says nothing about the copy.
static void test_copies_there_meanwhile(void) {
  launch(NULL);
  later(1);
  fake_in_sync = launch_meanwhile;
  CHECK(cuMemcpyHtoD_v2(0, pageable, 1) == 0 && busy());
  CHECK(cuStreamSynchronize(NULL) == 0 && !busy());
  copy_there(1, in_a_copy_there, true, true);
}

// The default stream also waits for other streams, which only time tells. So does the copy that does not tell its
// direction by its name.
static void test_copies_by_time(void) {
  CUstream stream = fake_stream();
  for (int kind = 0; kind < 2; kind++) {
    later(1);
    launch(stream);
    later(1);
    uint64_t begun = test_now_ns, waits = progress->waits;
    fake_in_sync = in_the_copy;
    CHECK((kind ? cuMemcpy(0, (uintptr_t)pageable, 8) : cuMemcpyHtoD_v2(0, pageable, 8)) == 0);
    CHECK(slot->fed_ns == begun && progress->waits == waits + 1 && busy());
    CHECK(cuStreamSynchronize(stream) == 0 && !busy());
  }
  // Not in a capture: the driver is not asked.
  CUstream captured = fake_stream();
  launch(NULL);
  CHECK(cuStreamBeginCapture_v2(captured, 0) == 0);
  uint64_t queries = fake_queries;
  fake_in_sync = in_the_copy;
  CHECK(cuMemcpyHtoD_v2(0, pageable, 8) == 0 && fake_queries == queries && busy());
  CUgraph graph;
  CHECK(cuStreamEndCapture(captured, &graph) == 0);
  CHECK(cuStreamSynchronize(NULL) == 0 && !busy());
  cuStreamDestroy_v2(captured);
  cuStreamDestroy_v2(stream);
}

int main(void) {
  xsi_work_watch_by_thread = false;
  test_now_ns = MS;
  fake_install();
  fake_context();
  slot = xsi_slot(0);
  progress = xsi_progress(0);
  test_copies_back();
  test_capture_begins();
  test_teardown();
  test_default_streams();
  test_copies_there();
  test_copies_there_meanwhile();
  test_copies_by_time();
  if (failures) return 1;
  printf("ok copies\n");
  return 0;
}
