// SPDX-License-Identifier: Apache-2.0
//
// Busy and idle, step by step: one thread, time by hand.

#include "core/teardown.h"
#include "test_fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static bool busy(int queue) { return noted[queue].busy; }

// The watcher by hand, until nothing is due at that time. It leaves many streams for the next round.
static void watch_at(uint64_t now) {
  for (int i = 0; i < 100 && xsi_work_watch(now) <= now + MS / 4; i++) {
  }
}

static CUstream other;
static void launch_other(void) { CHECK(launch(other) == 0); }

static void test_sync(void) {
  CUstream stream = fake_stream();
  CHECK(!busy(0));
  CHECK(launch(stream) == 0 && busy(0));
  CHECK(launch(stream) == 0 && busy(0) && noted[0].changes == 1);
  CHECK(noted[0].function == 2);
  // What is submitted while somebody waits is not over when the wait is.
  other = stream;
  fake_in_sync = launch_other;
  CHECK(cuStreamSynchronize(stream) == 0 && busy(0));
  CHECK(cuStreamQuery(stream) == XSI_CU_NOT_READY && busy(0));
  CHECK(cuStreamSynchronize(stream) == 0 && !busy(0) && noted[0].changes == 2);
  CHECK(launch(stream) == 0 && busy(0));
  fake_finish(stream);
  CHECK(busy(0)); // nobody has looked yet
  CHECK(cuStreamQuery(stream) == 0 && !busy(0));
  CHECK(cuStreamDestroy_v2(stream) == 0);
}

// When the program began to wait is told, by every kind of wait, unless nobody listens.
static void test_fed(void) {
  struct xsw_queue *slot = xsi_slot(0);
  CUstream stream = fake_stream();
  CUevent event = calloc(1, sizeof(struct fake_event));
  for (int kind = 0; kind < 5; kind++) {
    slot->fed_ns = 0;
    slot->quiet = kind == 4;
    test_now_ns = 10 * MS;
    launch(stream);
    test_now_ns = 12 * MS;
    cuEventRecord(event, stream);
    CHECK(slot->fed_ns == 0);
    test_now_ns = (14 + (uint64_t)kind) * MS;
    CHECK((kind == 0   ? cuCtxSynchronize()
           : kind == 1 ? cuEventSynchronize(event)
           : kind == 2 ? cuMemcpyDtoH_v2(NULL, 0, 4)
                       : cuStreamSynchronize(stream)) == 0);
    if (kind == 2) cuStreamSynchronize(stream);
    CHECK(slot->fed_ns == (kind == 4 ? 0 : test_now_ns));
    CHECK(!busy(0));
  }
  slot->quiet = 0;
  test_now_ns = 1;
  free(event);
  cuStreamDestroy_v2(stream);
}

static void *wait_elsewhere(void *event) {
  CHECK(cuEventSynchronize(event) == 0);
  return NULL;
}

// All was submitted before the first of several waits, and who only waits knows nothing of what is
// to come: a request whose end is waited for bit by bit is not one that is fed to its end.
static void test_fed_once(void) {
  struct xsw_queue *slot = xsi_slot(0);
  CUstream a = fake_stream(), b = fake_stream();
  CUevent event = calloc(1, sizeof(struct fake_event));
  slot->fed_ns = 0;
  test_now_ns = 10 * MS;
  launch(a);
  launch(b);
  cuEventRecord(event, b);
  test_now_ns = 11 * MS;
  CHECK(cuStreamSynchronize(a) == 0 && slot->fed_ns == 11 * MS && busy(0));
  test_now_ns = 12 * MS;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, wait_elsewhere, event) == 0);
  CHECK(pthread_join(thread, NULL) == 0 && slot->fed_ns == 11 * MS && !busy(0));
  launch(b);
  launch(a);
  cuEventRecord(event, b);
  test_now_ns = 13 * MS;
  CHECK(cuEventSynchronize(event) == 0 && slot->fed_ns == 13 * MS && busy(0));
  test_now_ns = 14 * MS;
  CHECK(cuCtxSynchronize() == 0 && slot->fed_ns == 13 * MS && !busy(0));
  CHECK(cuStreamSynchronize(a) == 0 && slot->fed_ns == 13 * MS); // nothing there to wait for
  test_now_ns = 15 * MS;
  CHECK(cuMemcpyDtoH_v2(NULL, 0, 4) == 0 && slot->fed_ns == 15 * MS); // which is work, too
  test_now_ns = 16 * MS;
  CHECK(cuMemcpyDtoH_v2(NULL, 0, 4) == 0 && slot->fed_ns == 16 * MS);
  test_now_ns = 1;
  slot->fed_ns = 0;
  free(event);
  cuStreamDestroy_v2(a);
  cuStreamDestroy_v2(b);
}

// Launches and copies are counted apart, each launch is told if the daemon asks for it, and so is each
// wait that follows work.
static void test_tell(void) {
  struct xsw_queue *slot = xsi_slot(0);
  struct xsw_progress *progress = xsi_progress(0);
  CUstream a = fake_stream(), b = fake_stream();
  struct xsi_tally before = noted[0].tally;
  progress->launches = 100;
  uint64_t waits = progress->waits;
  uint32_t rings = noted_rings;
  launch(a);
  CHECK(progress->launches == 100);
  slot->tell = XSW_TELL_PROGRESS;
  launch(a);
  launch(b);
  CHECK(progress->launches == 102);
  fake_launch_result = 1;
  CHECK(launch(a) == 1);
  fake_launch_result = 0;
  CHECK(cuMemcpyHtoDAsync_v2(0, NULL, 1, a) == 0);
  CHECK(cuLaunchHostFunc(a, NULL, NULL) == 0);
  CHECK(progress->launches == 102);
  test_now_ns += MS;
  CHECK(cuStreamSynchronize(a) == 0 && progress->waits == waits + 1 && noted_rings == rings);
  slot->tell = XSW_TELL_PROGRESS | XSW_TELL_LAUNCH; // copies ring no doorbell
  launch(a);
  CHECK(progress->launches == 103 && noted_rings == rings + 1);
  CHECK(cuMemcpyHtoDAsync_v2(0, NULL, 1, a) == 0 && noted_rings == rings + 1);
  rings = noted_rings;
  test_now_ns += MS;
  CHECK(cuStreamSynchronize(a) == 0 && progress->waits == waits + 2 && noted_rings == rings);
  waits++;
  slot->tell = XSW_TELL_PROGRESS | XSW_TELL_WAIT;
  test_now_ns += MS;
  CHECK(cuStreamSynchronize(b) == 0); // nothing was submitted since the last wait
  CHECK(!busy(0) && progress->waits == waits + 1 && noted_rings == rings);
  launch(b);
  CHECK(progress->launches == 104 && cuStreamSynchronize(b) == 0);
  CHECK(progress->waits == waits + 2 && noted_rings == rings + 1);
  CHECK(cuMemcpyDtoH_v2(NULL, 0, 4) == 0); // never lands, but is a copy
  const struct xsi_tally *now = &noted[0].tally;
  CHECK(now->submitted - before.submitted == 8 && now->launches - before.launches == 5);
  CHECK(now->copies - before.copies == 3);
  slot->tell = 0;
  test_now_ns = 1;
  slot->fed_ns = 0;
  cuStreamDestroy_v2(a);
  cuStreamDestroy_v2(b);
}

static void test_two_streams(void) {
  CUstream a = fake_stream(), b = fake_stream();
  launch(a);
  launch(b);
  CHECK(cuStreamSynchronize(a) == 0 && busy(0));
  CHECK(cuStreamSynchronize(b) == 0 && !busy(0));
  launch(a);
  launch(b);
  other = b;
  fake_in_sync = launch_other; // after the context's wait began
  CHECK(cuCtxSynchronize() == 0 && busy(0));
  CHECK(cuCtxSynchronize() == 0 && !busy(0));
  fake_finish(a);
  fake_finish(b);
  cuStreamDestroy_v2(a);
  cuStreamDestroy_v2(b);
}

static void test_failures(void) {
  CUstream stream = fake_stream();
  uint64_t launches = COUNTED(launches);
  fake_launch_result = 700;
  CHECK(launch(stream) == 700 && !busy(0) && COUNTED(launches) == launches);
  fake_launch_result = 0;
  launch(stream);
  fake_launch_result = 719;
  CHECK(launch(stream) == 719 && busy(0));
  fake_launch_result = 0;
  CHECK(cuStreamSynchronize(stream) == 0 && !busy(0) && COUNTED(launches) == launches + 1);
  cuStreamDestroy_v2(stream);
  CHECK(cuLaunch(NULL) == XSI_CU_NOT_FOUND); // not in this driver
}

static void test_copies(void) {
  uint64_t copies = COUNTED(copies), changes = noted[0].changes;
  launch(NULL);
  CHECK(cuMemcpyDtoH_v2(NULL, 0, 1) == 0 && !busy(0)); // waits for what was before it
  CHECK(cuMemcpyDtoD_v2(0, 0, 1) == 0 && busy(0));     // does not
  other = NULL;
  fake_in_sync = launch_other;
  CHECK(cuMemcpyDtoH_v2(NULL, 0, 1) == 0 && busy(0));
  CHECK(cuStreamSynchronize(NULL) == 0 && !busy(0));
  CHECK(COUNTED(copies) == copies + 3 && noted[0].changes == changes + 4);
  CUstream stream = fake_stream();
  CHECK(cuMemcpyHtoDAsync_v2(0, NULL, 1, stream) == 0 && busy(0));
  CHECK(cuStreamSynchronize(stream) == 0 && !busy(0));
  cuStreamDestroy_v2(stream);
}

static void test_events(void) {
  CUstream a = fake_stream(), b = fake_stream();
  CUevent event = calloc(1, sizeof(struct fake_event));
  CUevent second = calloc(1, sizeof(struct fake_event));
  launch(a);
  CHECK(cuEventRecord(event, a) == 0);
  CHECK(cuEventQuery(event) == XSI_CU_NOT_READY && busy(0));
  launch(a); // behind the event
  ((struct fake_stream *)a)->done = 1;
  CHECK(cuEventQuery(event) == 0 && busy(0));
  CHECK(cuEventRecord(second, a) == 0);
  fake_finish(a);
  CHECK(cuEventQuery(event) == 0 && busy(0)); // the older one says nothing of the newer work
  CHECK(cuEventSynchronize(second) == 0 && !busy(0));
  // Recorded anew elsewhere, it no longer stands for the first stream.
  launch(a);
  CHECK(cuEventRecord(event, a) == 0 && cuEventRecord(event, b) == 0);
  CHECK(cuEventQuery(event) == 0 && busy(0));
  CHECK(cuEventDestroy_v2(event) == 0);
  CHECK(cuEventQuery(event) == 0 && busy(0)); // stands for nothing
  CHECK(cuStreamSynchronize(a) == 0 && !busy(0));
  // The end of a stream and the reuse of its record take old events out of force.
  launch(b);
  CHECK(cuEventRecord(second, b) == 0);
  cuStreamSynchronize(b);
  cuStreamDestroy_v2(b);
  CUstream c = fake_stream();
  launch(c);
  CHECK(cuEventQuery(second) == 0 && busy(0));
  CHECK(cuStreamSynchronize(c) == 0 && !busy(0));
  cuStreamDestroy_v2(a);
  cuStreamDestroy_v2(c);
}

static void test_watcher(void) {
  CUstream stream = fake_stream();
  uint64_t now = 1000 * (uint64_t)MS;
  launch(stream);
  launch(NULL);
  watch_at(now);
  watch_at(now + 1 * MS);
  CHECK(busy(0));
  fake_finish(stream);
  watch_at(now + 30 * MS);
  CHECK(busy(0)); // the default stream still is
  fake_finish(NULL);
  CHECK(xsi_work_watch(now + 30 * MS + MS / 10) > now + 30 * MS + MS / 10);
  CHECK(busy(0)); // not due yet
  watch_at(now + 60 * MS);
  CHECK(!busy(0));
  uint64_t next = xsi_work_watch(now + 61 * MS);
  CHECK(next == now + 71 * MS);
  CHECK(xsi_work_watch(now + 2000 * (uint64_t)MS) == UINT64_MAX); // sleeps until woken
  CHECK(fake_events_made == 0); // and nothing was recorded into the application's streams
  cuStreamDestroy_v2(stream);
}

// While the driver takes the memory of the process away, a question may read it.
static void test_teardown(void) {
  CUstream stream = fake_stream();
  uint64_t now = 5000 * (uint64_t)MS;
  launch(stream);
  watch_at(now);
  fake_finish(stream);
  xsi_teardown_set(UINT64_MAX);
  watch_at(now + 30 * MS);
  CHECK(busy(0));
  CHECK(xsi_work_watch(now + 60 * MS) == now + 70 * MS); // no spinning
  xsi_teardown_set(0);
  watch_at(now + 100 * MS);
  CHECK(!busy(0));
  cuStreamDestroy_v2(stream);
}

// Thousands of busy streams: the watcher asks a bounded number of questions in a time, and about each stream.
static void test_crowd(void) {
  enum { STREAMS = 3000 };
  static CUstream streams[STREAMS];
  uint64_t now = 6000 * (uint64_t)MS, end = now + 1000 * (uint64_t)MS;
  for (int i = 0; i < STREAMS; i++) {
    streams[i] = fake_stream();
    launch(streams[i]);
  }
  uint64_t before = fake_queries;
  uint64_t rounds = 0;
  while (now < end) {
    uint64_t next = xsi_work_watch(now);
    CHECK(next >= now + MS / 4);
    now = next;
    rounds++;
  }
  uint64_t asked = fake_queries - before;
  CHECK(asked >= 5 * STREAMS && asked <= 64 * 4000 + 64);
  CHECK(rounds <= 4001);
  for (int i = 0; i < STREAMS; i++)
    fake_finish(streams[i]);
  for (end = now + 100 * (uint64_t)MS; now < end;)
    now = xsi_work_watch(now);
  CHECK(!busy(0)); // within 100 ms
  for (int i = 0; i < STREAMS; i++)
    cuStreamDestroy_v2(streams[i]);
}

// A thread that is cancelled in the driver does not come back to say that it waits no more.
static void test_forgotten_wait(void) {
  CUstream stream = fake_stream();
  uint64_t now = 8000 * (uint64_t)MS;
  launch(stream);
  struct xsi_work_stream *work = xsi_work_find(&xsi_cu_platform, 0, (uintptr_t)stream);
  work->owner_syncs = true;
  work->syncing++;
  watch_at(now);
  fake_finish(stream);
  watch_at(now + 50 * MS);
  CHECK(busy(0)); // the waiting thread will tell
  for (int i = 1; i < 20; i++)
    watch_at(now + (50 + 10 * (uint64_t)i) * MS);
  CHECK(!busy(0));
  work->owner_syncs = false;
  work->syncing--;
  cuStreamDestroy_v2(stream);
}

static void *launch_and_leave(void *context) {
  void *pushed = context;
  CUresult (*push)(CUcontext) = (CUresult(*)(CUcontext))xsi_cu_real[XSI_CU_cuCtxPushCurrent_v2];
  push((CUcontext)pushed);
  CHECK(cuLaunchKernel_ptsz(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == 0);
  CHECK(launch((CUstream)2) == 0);
  CHECK(busy(0));
  CHECK(cuStreamSynchronize_ptsz(NULL) == 0 && !busy(0));
  CHECK(cuLaunchKernel_ptsz(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == 0);
  return NULL; // with work in its default stream
}

static void test_thread_streams(struct fake_context *context) {
  uint64_t now = 5000 * (uint64_t)MS;
  pthread_t thread;
  pthread_create(&thread, NULL, launch_and_leave, context);
  pthread_join(thread, NULL);
  CHECK(busy(0));
  CHECK(cuStreamSynchronize((CUstream)2) == 0 && busy(0)); // this thread's own is another stream
  context->legacy.submitted++; // stands for the threads' streams, as in the real driver
  watch_at(now);
  watch_at(now + 1 * MS);
  CHECK(busy(0));
  fake_finish(NULL);
  watch_at(now + 50 * MS);
  CHECK(!busy(0));
}

static void test_destroyed_streams(void) {
  uint64_t now = 9000 * (uint64_t)MS;
  CUstream stream = fake_stream();
  launch(stream);
  struct fake_stream *inside = (struct fake_stream *)stream;
  CHECK(cuStreamDestroy_v2(stream) == 0 && busy(0)); // its work runs on
  watch_at(now);
  watch_at(now + 20 * MS);
  CHECK(busy(0));
  inside->done = inside->submitted;
  watch_at(now + 40 * MS);
  CHECK(!busy(0) && fake_events_made == 1);
  // A new stream under the same handle starts afresh; the event is used again.
  inside->destroyed = 0;
  CHECK(launch(stream) == 0 && busy(0));
  CHECK(cuStreamSynchronize(stream) == 0 && !busy(0));
  launch(stream);
  CHECK(cuStreamDestroy_v2(stream) == 0 && busy(0) && fake_events_made == 1);
  CHECK(cuCtxSynchronize() == 0 && !busy(0)); // covers what was destroyed before it
}

static void test_many_streams(void) {
  enum { MANY = 1000 };
  static CUstream streams[MANY];
  uint64_t now = 20000 * (uint64_t)MS, changes = noted[0].changes;
  for (int i = 0; i < MANY; i++)
    streams[i] = fake_stream();
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < MANY; i++)
      launch(streams[i]);
  for (int i = 0; i < MANY - 1; i++)
    cuStreamSynchronize(streams[i]);
  CHECK(busy(0));
  cuStreamSynchronize(streams[MANY - 1]);
  CHECK(!busy(0) && noted[0].changes == changes + 2);
  for (int i = 0; i < MANY; i++)
    launch(streams[i]);
  CHECK(cuCtxSynchronize() == 0 && !busy(0));
  for (int i = 0; i < MANY; i++)
    fake_finish(streams[i]);
  for (int i = 0; i < MANY; i++)
    launch(streams[i]);
  for (int i = 0; i < MANY; i++)
    fake_finish(streams[i]);
  watch_at(now);
  watch_at(now + 100 * MS);
  CHECK(!busy(0));
  for (int i = 0; i < MANY; i++)
    cuStreamDestroy_v2(streams[i]);
}

static void test_captures(void) {
  CUstream stream = fake_stream();
  uint64_t captured = COUNTED(captured), launches = COUNTED(launches);
  CHECK(cuStreamBeginCapture_v2(stream, 0) == 0 && xsi_work_hot.captures == 1);
  CHECK(launch(stream) == 0 && !busy(0));
  CHECK(COUNTED(captured) == captured + 1 && COUNTED(launches) == launches);
  launch(NULL);
  watch_at(30000 * (uint64_t)MS);
  watch_at(30050 * (uint64_t)MS); // must not ask about the default stream now: the driver checks
  CHECK(busy(0));
  CHECK(cuStreamBeginCapture_v2(stream, 0) == 401 && xsi_work_hot.captures == 1);
  CHECK(cuStreamEndCapture(stream, NULL) == 0 && xsi_work_hot.captures == 0);
  CHECK(cuStreamEndCapture(stream, NULL) == 401 && xsi_work_hot.captures == 0);
  fake_finish(NULL);
  watch_at(30100 * (uint64_t)MS);
  CHECK(!busy(0));
  CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
  CHECK(cuStreamDestroy_v2(stream) == 0 && xsi_work_hot.captures == 0); // goes with the stream
}

// Each way to begin a capture: what goes in is no work, and the end is seen.
static void test_ways_to_capture(void) {
  CUstream stream = fake_stream();
  for (int way = 0; way < 2; way++) {
    uint64_t captured = COUNTED(captured), launches = COUNTED(launches);
    CHECK((way ? cuStreamBeginCaptureToCig(stream, NULL)
               : cuStreamBeginRecaptureToGraph(stream, 0, NULL, NULL, NULL)) == 0);
    CHECK(xsi_work_hot.captures == 1 && launch(stream) == 0 && !busy(0));
    CHECK(COUNTED(captured) == captured + 1 && COUNTED(launches) == launches);
    CHECK((way ? cuStreamEndCaptureToCig(stream) : cuStreamEndCapture(stream, NULL)) == 0);
    CHECK(xsi_work_hot.captures == 0);
  }
  CHECK(launch(stream) == 0 && busy(0) && cuStreamSynchronize(stream) == 0 && !busy(0));
  CHECK(cuStreamDestroy_v2(stream) == 0);
}

static void test_limit(void) {
  CUstream stream = fake_stream();
  struct xsw_queue *slot = xsi_slot(0);
  slot->in_flight = 4;
  slot->batch = 2;
  fake_most_in_flight = 0;
  for (int i = 0; i < 1000; i++)
    CHECK(launch(stream) == 0);
  CHECK(fake_most_in_flight >= 2 && fake_most_in_flight <= 4);
  CHECK(fake_events_made < 16); // used again
  slot->in_flight = 0;
  for (int i = 0; i < 20; i++)
    launch(stream);
  CHECK(fake_most_in_flight > 4);
  slot->in_flight = 1; // comes into force with much in flight
  slot->batch = 8;
  launch(stream);
  CHECK(((struct fake_stream *)stream)->submitted - ((struct fake_stream *)stream)->done == 1);
  xsi_native = 1; // a daemon that fell silent limits nobody, whatever it left in the page
  for (int i = 0; i < 20; i++)
    launch(stream);
  CHECK(((struct fake_stream *)stream)->submitted - ((struct fake_stream *)stream)->done == 21);
  xsi_native = 0;
  slot->in_flight = 0;
  CHECK(cuStreamSynchronize(stream) == 0 && !busy(0));
  slot->gate = XSW_GATE_HELD;
  CHECK(launch(stream) == 0 && noted_gates == 1);
  cuStreamSynchronize(stream);
  cuStreamDestroy_v2(stream);
}

// Work that ends only when the same thread submits more, as between the streams of a collective: the limit
// lets the launch pass after a while, and the next ones at once.
static void test_limit_without_end(void) {
  CUstream stream = fake_stream();
  struct xsw_queue *slot = xsi_slot(0);
  slot->gate = XSW_GATE_OPEN;
  slot->in_flight = 2;
  slot->batch = 1;
  __atomic_store_n(&fake_stuck, 1, __ATOMIC_SEQ_CST);
  test_now_ns = 0;
  uint64_t start = xsi_now_ns();
  for (int i = 0; i < 50; i++)
    CHECK(launch(stream) == 0);
  uint64_t took = xsi_now_ns() - start;
  CHECK(took > 500 * (uint64_t)MS && took < 3000 * (uint64_t)MS);
  __atomic_store_n(&fake_stuck, 0, __ATOMIC_SEQ_CST);
  fake_finish(stream);
  fake_most_in_flight = 0;
  for (int i = 0; i < 200; i++)
    CHECK(launch(stream) == 0);
  CHECK(fake_most_in_flight <= 3); // in force again
  slot->in_flight = 0;
  CHECK(cuStreamSynchronize(stream) == 0 && !busy(0));
  cuStreamDestroy_v2(stream);
}

static void test_contexts(void) {
  struct fake_context *second = fake_context();
  CHECK(noted[1].open && !busy(1));
  CUstream stream = fake_stream();
  launch(stream);
  launch(NULL);
  CHECK(busy(1) && !busy(0));
  CHECK(cuCtxDestroy_v2((CUcontext)second) == 0);
  CHECK(!noted[1].open && !busy(1));
  watch_at(40000 * (uint64_t)MS);
  watch_at(40100 * (uint64_t)MS); // must not touch it any more: the driver checks
  noted_room = 1;                 // no slot left: runs unscheduled
  second = fake_context();
  CHECK(launch(NULL) == 0 && !noted[1].open && cuStreamSynchronize(NULL) == 0);
  CHECK(cuCtxDestroy_v2((CUcontext)second) == 0);
  noted_room = NOTED_QUEUES;
}

static void test_fork(void) {
  struct fake_context *context = fake_context();
  launch(NULL);
  noted_fork(); // in the child nothing of the parent's is left
  CHECK(!noted[0].open && !noted[1].open);
  CHECK(launch(NULL) == 0 && noted[0].open && busy(0));
  CHECK(cuStreamSynchronize(NULL) == 0 && !busy(0));
  CHECK(cuCtxDestroy_v2((CUcontext)context) == 0 && !noted[0].open);
}

// Each created stream a queue of its own: its busy times, its priority, its gate.
static void test_stream_queues(void) {
  xsi_options.per_stream = true;
  CUstream low = fake_stream(), high = fake_stream();
  ((struct fake_stream *)high)->priority = -3;
  CHECK(launch(low) == 0 && launch(high) == 0 && launch(NULL) == 0);
  CHECK(noted[0].busy && noted[1].busy && noted[2].busy && noted[2].priority == 3);
  CHECK(cuStreamSynchronize(high) == 0);
  CHECK(noted[0].busy && noted[1].busy && !noted[2].busy);
  CHECK(cuStreamSynchronize(NULL) == 0 && !noted[0].busy && noted[1].busy);
  uint32_t gates = noted_gates;
  xsi_slot(2)->gate = XSW_GATE_HELD;
  CHECK(launch(low) == 0 && noted_gates == gates);
  CHECK(launch(high) == 0 && noted_gates == gates + 1);
  CHECK(cuStreamSynchronize(high) == 0);
  CHECK(cuStreamDestroy_v2(high) == 0 && !noted[2].open);
  CHECK(cuStreamDestroy_v2(low) == 0 && noted[1].busy); // its work is not over
  struct fake_stream *inside = (struct fake_stream *)low;
  inside->done = inside->submitted;
  for (int i = 0; i < 3; i++)
    watch_at((90000 + 20 * i) * (uint64_t)MS);
  CHECK(!noted[1].open && noted[0].open);

  // A queue by hand, in the middle of work, and back.
  xsi_options.per_stream = false;
  CUstream stream = fake_stream();
  CHECK(launch(stream) == 0 && noted[0].busy && !noted[1].open);
  struct xsi_work_life life =
      xsi_work_life_of(xsi_work_find(&xsi_cu_platform, 0, (uintptr_t)stream));
  CHECK(xsi_work_own(life, 2) == 1 && noted[1].busy && !noted[0].busy && noted[1].priority == 2);
  CHECK(xsi_work_own(life, 2) == 1); // is one
  xsi_work_disown(life);
  CHECK(noted[0].busy && !noted[1].open);
  CHECK(cuStreamSynchronize(stream) == 0 && !noted[0].busy);
  CHECK(cuStreamDestroy_v2(stream) == 0);
  CHECK(!xsi_work_lives(life) && xsi_work_own(life, 0) < 0 && xsi_work_hold(life, true) < 0);
  xsi_work_disown(life);
}

int main(void) {
  xsi_work_watch_by_thread = false;
  test_now_ns = 1;
  fake_install();
  struct fake_context *context = fake_context();
  CHECK(noted[0].open && COUNTED(hooked_calls) == 1);
  test_sync();
  test_fed();
  test_fed_once();
  test_tell();
  test_two_streams();
  test_failures();
  test_copies();
  test_watcher();
  test_teardown();
  test_crowd();
  test_forgotten_wait();
  test_thread_streams(context);
  test_destroyed_streams();
  fake_events_made = 0;
  test_events();
  test_many_streams();
  test_captures();
  test_ways_to_capture();
  test_limit();
  test_limit_without_end();
  test_stream_queues();
  test_contexts();
  test_fork();
  if (failures) return 1;
  printf("ok busy\n");
  return 0;
}
