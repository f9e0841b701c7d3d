// SPDX-License-Identifier: Apache-2.0
//
// The public interface on the real core and hooks, with a scripted driver below and a stand-in for
// the daemon: alone first, then joined.

#include "core/test_support.h"

#include "core/work_internal.h"
#include "runtime/cuda/abi.h"
#include "xsched/xsched.h"

// Of the scripted driver; its own header has checks that do not stop.
int failures;
struct fake_context *fake_context(void);
void fake_install(void);
void fake_finish(CUstream stream);
extern uint64_t fake_launches, fake_late;
bool fake_is_held(CUstream stream);
extern _Thread_local void (*fake_in_sync)(void);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamDestroy_v2(CUstream);
CUresult cuStreamSynchronize(CUstream);
CUresult cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
CUresult cuStreamEndCapture(CUstream, CUgraph *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void **, void **);

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;

static XResult launch(HwQueueHandle hwq, void *stream) {
  CHECK(hwq != 0);
  return cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == 0 ? kXSchedSuccess
                                                                            : kXSchedErrorHardware;
}

static uint64_t launched(void) { return __atomic_load_n(&fake_launches, __ATOMIC_SEQ_CST); }

static struct queue {
  CUstream stream;
  HwQueueHandle hwq;
  XQueueHandle xq;
  HwCommandHandle command;
} one, two;

static void make(struct queue *queue) {
  CHECK(cuStreamCreate(&queue->stream, 0) == 0);
  CHECK(CudaQueueCreate(&queue->hwq, queue->stream) == kXSchedSuccess);
  CHECK(XQueueCreate(&queue->xq, queue->hwq, kPreemptLevelBlock, kQueueCreateFlagNone) ==
        kXSchedSuccess);
  CHECK(HwCommandCreateCallback(&queue->command, launch, queue->stream) == kXSchedSuccess);
}

static void end(struct queue *queue) {
  CHECK(HwCommandDestroy(queue->command) == kXSchedSuccess);
  CHECK(HwQueueDestroy(queue->hwq) == kXSchedErrorNotAllowed);
  CHECK(XQueueDestroy(queue->xq) == kXSchedSuccess);
  CHECK(XQueueDestroy(queue->xq) == kXSchedErrorNotFound);
  CHECK(HwQueueDestroy(queue->hwq) == kXSchedSuccess);
  CHECK(HwQueueDestroy(queue->hwq) == kXSchedErrorNotFound);
  CHECK(cuStreamDestroy_v2(queue->stream) == 0);
}

// ---- without a daemon -------------------------------------------------------------------

// A question during another stream's capture would break that, as the driver checks: none is asked.
static void asks_nothing_in_captures(void) {
  XQueueState state;
  struct queue asked, captured;
  make(&asked);
  make(&captured);
  CHECK(XQueueSubmit(asked.xq, asked.command) == kXSchedSuccess);
  fake_finish(asked.stream);
  CHECK(cuStreamBeginCapture_v2(captured.stream, 0) == 0);
  CHECK(XQueueQuery(asked.xq, &state) == kXSchedSuccess);
  CHECK(cuStreamEndCapture(captured.stream, NULL) == 0);
  CHECK(XQueueQuery(asked.xq, &state) == kXSchedSuccess && state == kQueueStateIdle);
  end(&asked);
  end(&captured);
  CHECK(failures == 0);
}

static void works_alone(void) {
  XQueueHandle xq;
  HwQueueHandle hwq;
  XQueueState state;
  int64_t count = -1;
  make(&one);
  CHECK(CudaQueueGet(&hwq, one.stream) == kXSchedSuccess && hwq == one.hwq);
  CHECK(XQueueGet(&xq, hwq) == kXSchedSuccess && xq == one.xq);
  CHECK(xs_available() == 0 && xs_scheduler() == kSchedulerGlobal);
  CHECK(XQueueQuery(one.xq, &state) == kXSchedSuccess && state == kQueueStateIdle);
  CHECK(XQueueSubmit(one.xq, one.command) == kXSchedSuccess);
  CHECK(XQueueQuery(one.xq, &state) == kXSchedSuccess && state == kQueueStateReady);
  CHECK(XQueueWait(one.xq, one.command) == kXSchedSuccess);
  CHECK(XQueueQuery(one.xq, &state) == kXSchedSuccess && state == kQueueStateIdle);
  CHECK(HwQueueLaunch(one.hwq, one.command) == kXSchedSuccess);
  CHECK(XQueueWaitAll(one.xq) == kXSchedSuccess);
  CHECK(HwQueueSynchronize(one.hwq) == kXSchedSuccess);
  CHECK(XQueueProfileHwCommandCount(one.xq, &count) == kXSchedSuccess && count == 1);
  CHECK(launched() == 2);
  CHECK(XQueueSetLaunchConfig(one.xq, 8, 4) == kXSchedSuccess);
  CHECK(XHintPriority(one.xq, 7) == kXSchedSuccess);
  CHECK(XHintUtilization(one.xq, 50) == kXSchedSuccess);
  CHECK(XHintDeadline(one.xq, 1000) == kXSchedSuccess);
  CHECK(XHintDeadline(one.xq, NO_DEADLINE) == kXSchedSuccess);
  CHECK(XHintLaxity(one.xq, 5000, -10, 10) == kXSchedSuccess);

  xs_queue_info info[4];
  uint32_t queues = xs_queues(info, 4);
  CHECK(queues == 2 && info[0].kind == kQueueKindContext && info[1].kind == kQueueKindStream);
  CHECK(info[1].pci_bus_slot == (0x3b << 8 | 1 << 3 | 2) && info[1].submitted == 2);
  CHECK(xs_queues(NULL, 0) == 2);
}

static struct xsi_work_stream *looked_at;
static pthread_t looking;
static uint32_t between;

// As who finds the end of a stream does, and is held up before it has looked whether that is true.
static void *look_again(void *unused) {
  uint64_t busy = xsi_work_freeze(looked_at);
  __atomic_store_n(&between, 1, __ATOMIC_SEQ_CST);
  test_sleep_ms(20);
  xsi_work_thaw(looked_at, busy);
  return unused;
}

static void begin_to_look(void) {
  CHECK(pthread_create(&looking, NULL, look_again, NULL) == 0);
  EVENTUALLY(__atomic_load_n(&between, __ATOMIC_SEQ_CST) == 1);
}

static void is_not_idle_in_between(void) {
  XQueueState state;
  CHECK(XQueueSubmit(one.xq, one.command) == kXSchedSuccess);
  looked_at = xsi_thread.work.last.stream;
  CHECK(looked_at != NULL && looked_at->handle == (uintptr_t)one.stream && looked_at->busy != 0);
  fake_in_sync = begin_to_look;
  CHECK(XQueueQuery(one.xq, &state) == kXSchedSuccess && state == kQueueStateReady);
  CHECK(pthread_join(looking, NULL) == 0);
  CHECK(XQueueWaitAll(one.xq) == kXSchedSuccess);
}

static void refuses_nonsense(void) {
  XQueueHandle xq;
  HwCommandHandle command;
  XQueueState state;
  uint64_t bad[] = {0, 1, 99, one.hwq, one.command, UINT64_MAX, one.xq + (1ull << 32)};
  for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
    CHECK(XQueueDestroy(bad[i]) == kXSchedErrorNotFound);
    CHECK(XQueueSubmit(bad[i], one.command) == kXSchedErrorNotFound);
    CHECK(XQueueSuspend(bad[i], 0) == kXSchedErrorNotFound);
    CHECK(XQueueQuery(bad[i], &state) == kXSchedErrorNotFound);
    if (bad[i] != 0) CHECK(XHintPriority(bad[i], 1) == kXSchedErrorNotFound);
  }
  CHECK(XQueueSubmit(one.xq, one.hwq) == kXSchedErrorNotFound);
  CHECK(XQueueCreate(NULL, one.hwq, 1, 0) == kXSchedErrorInvalidValue);
  CHECK(XQueueCreate(&xq, one.hwq, 0, 0) == kXSchedErrorInvalidValue);
  CHECK(XQueueCreate(&xq, one.hwq, 4, 0) == kXSchedErrorInvalidValue);
  CHECK(XQueueCreate(&xq, one.hwq, 1, 2) == kXSchedErrorInvalidValue);
  CHECK(XQueueCreate(&xq, one.hwq, 2, 0) == kXSchedErrorNotSupported);
  CHECK(XQueueCreate(&xq, one.hwq, 3, 0) == kXSchedErrorNotSupported);
  CHECK(XQueueCreate(&xq, one.hwq, 1, 0) == kXSchedErrorNotAllowed);
  CHECK(XQueueCreate(&xq, one.xq, 1, 0) == kXSchedErrorNotFound);
  CHECK(XQueueSetPreemptLevel(one.xq, kPreemptLevelBlock) == kXSchedSuccess);
  CHECK(XQueueSetPreemptLevel(one.xq, kPreemptLevelInterrupt) == kXSchedErrorNotSupported);
  CHECK(XQueueSetPreemptLevel(one.xq, kPreemptLevelUnknown) == kXSchedErrorInvalidValue);
  CHECK(XQueueSetLaunchConfig(one.xq, 4, 8) == kXSchedErrorInvalidValue);
  CHECK(XQueueSetLaunchConfig(one.xq, 0, 0) == kXSchedErrorInvalidValue);
  CHECK(XQueueResume(one.xq, kQueueResumeFlagDropCommands) == kXSchedErrorNotSupported);
  CHECK(XQueueResume(one.xq, 2) == kXSchedErrorInvalidValue);
  CHECK(XQueueSuspend(one.xq, 8) == kXSchedErrorInvalidValue);
  CHECK(XHintPriority(one.xq, -257) == kXSchedErrorInvalidValue);
  CHECK(XHintPriority(one.xq, 256) == kXSchedErrorInvalidValue);
  CHECK(XHintUtilization(one.xq, 101) == kXSchedErrorInvalidValue);
  CHECK(XHintTimeslice(99) == kXSchedErrorInvalidValue);
  CHECK(XHintTimeslice(10000001) == kXSchedErrorInvalidValue);
  CHECK(XHintDeadline(one.xq, -2) == kXSchedErrorInvalidValue);
  CHECK(XHintKDeadline((size_t)1 << 40) == kXSchedErrorInvalidValue);
  CHECK(XHintSetScheduler(kSchedulerUnknown, 0) == kXSchedErrorInvalidValue);
  CHECK(XHintSetScheduler(kSchedulerGlobal, 77) == kXSchedErrorInvalidValue);
  CHECK(XHintSetScheduler(kSchedulerLocal, 1) == kXSchedErrorNotSupported);
  CHECK(HwCommandCreateCallback(&command, NULL, NULL) == kXSchedErrorInvalidValue);
  CHECK(HwCommandDestroy(one.xq) == kXSchedErrorNotFound);
  CHECK(CudaQueueCreate(NULL, one.stream) == kXSchedErrorInvalidValue);
  CHECK(CudaQueueCreate(&xq, one.stream) == kXSchedErrorNotAllowed);
  xs_hint hint = {.bytes = sizeof hint - 8};
  CHECK(xs_hint_set(0, &hint) == kXSchedErrorInvalidValue && xs_hint_set(0, NULL) == 2);
  hint = (xs_hint){.bytes = sizeof hint, .said = 1u << 31};
  CHECK(xs_hint_set(0, &hint) == kXSchedErrorInvalidValue);
  hint = (xs_hint){.bytes = sizeof hint, .said = kHintPolicy, .policy = "UP"};
  CHECK(xs_hint_set(0, &hint) == kXSchedErrorNotSupported);
  xs_request_end(12345);
  CHECK(xs_request_begin(NULL) == 0);
}

// ---- the program's own gate --------------------------------------------------------------

static uint32_t passed;

static void *submit_thread(void *queue) {
  struct queue *mine = queue;
  CHECK(XQueueSubmit(mine->xq, mine->command) == kXSchedSuccess);
  __atomic_store_n(&passed, 1, __ATOMIC_SEQ_CST);
  return NULL;
}
static void *launch_thread(void *queue) {
  struct queue *mine = queue;
  CHECK(launch(1, mine->stream) == kXSchedSuccess);
  __atomic_store_n(&passed, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static pthread_t blocked(void *(*body)(void *), struct queue *queue) {
  pthread_t thread;
  __atomic_store_n(&passed, 0, __ATOMIC_SEQ_CST);
  CHECK(pthread_create(&thread, NULL, body, queue) == 0);
  test_sleep_ms(30);
  CHECK(__atomic_load_n(&passed, __ATOMIC_SEQ_CST) == 0);
  return thread;
}

static void program_suspends(void) {
  XQueueState state;
  for (int i = 0; i < 2; i++) {
    CHECK(XQueueSubmit(one.xq, one.command) == kXSchedSuccess);
    CHECK(XQueueSuspend(one.xq, i == 0 ? 0 : kQueueSuspendFlagSyncHwQueue) == kXSchedSuccess);
    CHECK(XQueueSuspend(one.xq, 0) == kXSchedSuccess); // twice is once
    if (i == 0) CHECK(XQueueWaitAll(one.xq) == kXSchedSuccess);
    pthread_t thread = blocked(i == 0 ? submit_thread : launch_thread, &one);
    // What is held here waits for nobody's GPU.
    CHECK(XQueueQuery(one.xq, &state) == kXSchedSuccess && state == kQueueStateIdle);
    CHECK(XQueueSubmit(two.xq, two.command) == kXSchedSuccess); // the other one runs
    CHECK(XQueueResume(one.xq, 0) == kXSchedSuccess);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(XQueueWaitAll(one.xq) == kXSchedSuccess && XQueueWaitAll(two.xq) == kXSchedSuccess);
  }
  // A queue that goes lets go.
  CHECK(XQueueSuspend(two.xq, 0) == kXSchedSuccess);
  pthread_t thread = blocked(launch_thread, &two);
  CHECK(XQueueDestroy(two.xq) == kXSchedSuccess);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(XQueueCreate(&two.xq, two.hwq, 1, 0) == kXSchedSuccess);
  fake_finish(two.stream);
  CHECK(XQueueWaitAll(two.xq) == kXSchedSuccess);
}

// ---- joined --------------------------------------------------------------------------------

// The next hint that the session sends.
static struct xsw_hint_frame next_hint(void) {
  struct xsw_hint_frame frame;
  CHECK(test_readable(d->socket, 5000));
  CHECK(recv(d->socket, &frame, sizeof frame, 0) == sizeof frame);
  CHECK(frame.frame.type == XSW_FRAME_HINT && frame.frame.bytes == sizeof frame);
  return frame;
}

static unsigned slot_of(struct queue *queue) {
  xs_queue_info info[8];
  uint32_t count = xs_queues(info, 8);
  CHECK(count == 3);
  // In the order they were made.
  return info[queue == &one ? 1 : 2].index;
}

static void joins_with_hints(void) {
  xs_hint said = {.bytes = sizeof said,
                  .said = kHintPriority | kHintGang | kHintSLO,
                  .priority = 3,
                  .gang = "ranks",
                  .slo_us = 20000};
  CHECK(xs_hint_set(0, &said) == kXSchedSuccess); // before anybody listens
  test_daemon_listen(d);
  CHECK(XHintTimeslice(TIMESLICE_UNLIMITED) == kXSchedSuccess);
  test_session_start(d, 1);
  test_heart_start(d);
  const struct xsw_hint *hint = &d->hello.hint;
  CHECK(hint->said == (XSW_HINT_PRIORITY | XSW_HINT_GANG | XSW_HINT_SLO | XSW_HINT_UTILIZATION |
                       XSW_HINT_TIMESLICE));
  CHECK(hint->priority == 3 && strcmp(hint->gang, "ranks") == 0 && hint->slo_us == 20000);
  CHECK(hint->utilization == 40 &&
        hint->timeslice_us == TIMESLICE_MAX); // of the environment, and ours
  EVENTUALLY(xs_available() == 1);
  // What was said about the queue is told after it is published.
  struct xsw_hint_frame frame = next_hint();
  CHECK(frame.queue == slot_of(&one) && frame.generation == test_slot(d, frame.queue)->generation);
  CHECK(test_slot(d, frame.queue)->kind == XSW_QUEUE_STREAM);
  CHECK(frame.hint.priority == 7 && frame.hint.utilization == 50 && frame.hint.in_flight == 8);
  CHECK(frame.hint.deadline_us == 0 && (frame.hint.said & XSW_HINT_DEADLINE) != 0);
  CHECK(frame.hint.laxity_us == 5000 && frame.hint.critical_priority == 10);

  CHECK(XHintPriority(two.xq, -4) == kXSchedSuccess);
  frame = next_hint();
  CHECK(frame.queue == slot_of(&two) && frame.hint.said == XSW_HINT_PRIORITY);
  CHECK(XHintTimeslice(2000) == kXSchedSuccess);
  frame = next_hint();
  CHECK(frame.queue == XSW_QUEUE_ALL && frame.hint.said == XSW_HINT_TIMESLICE);
  CHECK(frame.hint.timeslice_us == 2000);
  CHECK(XHintKDeadline(2) == kXSchedSuccess);
  CHECK(next_hint().hint.k == 2);

  // By its number, as xs_queues shows it.
  xs_hint more = {
      .bytes = sizeof more, .said = kHintDeadline | kHintSLO, .deadline_us = 900, .slo_us = 5};
  CHECK(xs_queue_hint(slot_of(&two), &more) == kXSchedSuccess);
  frame = next_hint();
  CHECK(frame.queue == slot_of(&two) && frame.hint.deadline_us == 900 && frame.hint.slo_us == 5);
  CHECK(frame.hint.priority == -4); // what was said before stays
  CHECK(xs_queue_hint(77, &more) == kXSchedErrorNotFound);
  CHECK(xs_queue_hint(UINT32_MAX, &more) == kXSchedErrorNotFound);
  more.deadline_us = UINT64_MAX;
  CHECK(xs_queue_hint(slot_of(&two), &more) == kXSchedErrorInvalidValue);
  more = (xs_hint){.bytes = sizeof more, .said = kHintPerQueue, .per_queue = 1};
  CHECK(xs_queue_hint(slot_of(&two), &more) == kXSchedErrorNotSupported);
  more = (xs_hint){.bytes = sizeof more, .said = kHintGang, .gang = "a\nb"};
  CHECK(xs_hint_set(0, &more) == kXSchedErrorInvalidValue);
}

static void gates_are_per_queue(void) {
  struct xsw_queue *gate = test_slot(d, slot_of(&one));
  void *(*bodies[])(void *) = {submit_thread, launch_thread};
  for (int i = 0; i < 2; i++) {
    __atomic_store_n(&gate->gate, XSW_GATE_HELD, __ATOMIC_SEQ_CST);
    pthread_t thread = blocked(bodies[i], &one);
    EVENTUALLY((__atomic_load_n(&gate->transitions, __ATOMIC_SEQ_CST) & 1) == 1); // it wants to run
    CHECK(XQueueSubmit(two.xq, two.command) == kXSchedSuccess);
    __atomic_store_n(&gate->gate, XSW_GATE_OPEN, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(XQueueWaitAll(one.xq) == kXSchedSuccess && XQueueWaitAll(two.xq) == kXSchedSuccess);
    CHECK((__atomic_load_n(&gate->transitions, __ATOMIC_SEQ_CST) & 1) == 0);
  }
}

static void launch_known(unsigned count) {
  for (unsigned i = 0; i < count; i++)
    CHECK(cuLaunchKernel((CUfunction)0x1000, 1, 1, 1, 1, 1, 1, 0, one.stream, NULL, NULL) == 0);
}

// A closed batch is released before any of our own waits and questions.
static void waits_release_batches(void) {
  struct xsw_queue *slot = test_slot(d, slot_of(&one));
  XQueueState state;
  __atomic_store_n(&xsi_work_batch_by_thread, false, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->gate, XSW_GATE_BATCH, __ATOMIC_SEQ_CST);
  for (int way = 0; way < 4; way++) {
    launch_known(1); // new to the batches
    CHECK(cuStreamSynchronize(one.stream) == 0);
    launch_known(4);
    CHECK(fake_is_held(one.stream));
    if (way == 0) CHECK(XQueueWaitAll(one.xq) == kXSchedSuccess);
    if (way == 1) CHECK(HwQueueSynchronize(one.hwq) == kXSchedSuccess);
    if (way == 2) CHECK(XQueueQuery(one.xq, &state) == kXSchedSuccess);
    if (way == 3) CHECK(XQueueSuspend(one.xq, kQueueSuspendFlagSyncHwQueue) == kXSchedSuccess);
    CHECK(!fake_is_held(one.stream) && fake_late == 0);
    CHECK(XQueueResume(one.xq, 0) == kXSchedSuccess);
    CHECK(cuStreamSynchronize(one.stream) == 0);
  }
  __atomic_store_n(&slot->gate, XSW_GATE_OPEN, __ATOMIC_SEQ_CST);
  __atomic_store_n(&xsi_work_batch_by_thread, true, __ATOMIC_RELAXED);
}

// Two threads that wait for each other's launches while their gates open and close in turn.
enum { TURNS = 200 };
static uint32_t turn;

static void *take_turns(void *argument) {
  struct queue *mine = argument;
  uint32_t parity = mine == &one ? 0 : 1;
  for (uint32_t i = 0; i < TURNS; i++) {
    while (__atomic_load_n(&turn, __ATOMIC_SEQ_CST) != 2 * i + parity)
      sched_yield();
    CHECK(XQueueSubmit(mine->xq, mine->command) == kXSchedSuccess);
    if (i % 16 == 0) CHECK(XQueueWait(mine->xq, mine->command) == kXSchedSuccess);
    __atomic_fetch_add(&turn, 1, __ATOMIC_SEQ_CST);
  }
  return NULL;
}

static void turns_do_not_deadlock(void) {
  unsigned slots[] = {slot_of(&one), slot_of(&two)};
  pthread_t a, b;
  uint64_t before = launched();
  CHECK(pthread_create(&a, NULL, take_turns, &one) == 0);
  CHECK(pthread_create(&b, NULL, take_turns, &two) == 0);
  for (unsigned i = 0; __atomic_load_n(&turn, __ATOMIC_SEQ_CST) < 2 * TURNS; i++) {
    __atomic_store_n(&test_slot(d, slots[i % 2])->gate, XSW_GATE_HELD, __ATOMIC_SEQ_CST);
    __atomic_store_n(&test_slot(d, slots[1 - i % 2])->gate, XSW_GATE_OPEN, __ATOMIC_SEQ_CST);
    sched_yield();
  }
  for (int i = 0; i < 2; i++)
    __atomic_store_n(&test_slot(d, slots[i])->gate, XSW_GATE_OPEN, __ATOMIC_SEQ_CST);
  CHECK(pthread_join(a, NULL) == 0 && pthread_join(b, NULL) == 0);
  CHECK(launched() - before == 2 * TURNS);
  CHECK(XQueueWaitAll(one.xq) == kXSchedSuccess && XQueueWaitAll(two.xq) == kXSchedSuccess);
}

// ---- requests ------------------------------------------------------------------------------

static void requests_are_marked(void) {
  struct xsw_requests *requests = (struct xsw_requests *)(void *)(d->page + XSW_REQUESTS_OFFSET);
  uint64_t a = xs_request_begin("infer"), b = xs_request_begin("train");
  CHECK(a != 0 && b != 0 && a != b);
  test_sleep_ms(2);
  xs_request_end(b);
  xs_request_end(b); // twice is once
  xs_request_end(a);
  CHECK(requests->begun == 2 && requests->finished == 2);
  CHECK(strcmp(requests->names, "infer") == 0);
  CHECK(strcmp(requests->names + XSW_REQUEST_NAME_BYTES, "train") == 0);
  CHECK(requests->ring[0].name == 1 && requests->ring[1].name == 0);
  CHECK(requests->ring[1].sequence == 2);
  CHECK(requests->ring[1].end_ns - requests->ring[1].begin_ns >= 2000000);
  while (test_rung(d))
    continue;
  for (int i = 0; i < 30; i++)
    xs_request_end(xs_request_begin("infer"));
  CHECK(test_rung(d)); // half a ring is full

  uint64_t open[1100];
  unsigned marked = 0;
  for (int i = 0; i < 1100; i++)
    marked += (open[i] = xs_request_begin("infer")) != 0;
  CHECK(marked == 1024 && requests->untold == 76);
  for (int i = 0; i < 1100; i++)
    xs_request_end(open[i]);
  char name[16];
  for (int i = 0; i < 20; i++) {
    snprintf(name, sizeof name, "n%d", i);
    uint64_t request = xs_request_begin(name);
    CHECK((request != 0) == (i < XSW_REQUEST_NAMES - 2));
    xs_request_end(request);
  }
}

// ---- who schedules ---------------------------------------------------------------------------

static void program_takes_over(void) {
  CHECK(XHintSetScheduler(kSchedulerAppManaged, kPolicyUnknown) == kXSchedSuccess);
  EVENTUALLY(xs_available() == 0);
  EVENTUALLY(!xsi_page_joined());
  test_heart_stop(d);
  test_daemon_hang_up(d);
  test_daemon_drop_page(d);
  CHECK(!test_readable(d->listener, 300)); // it does not come back by itself
  CHECK(xs_scheduler() == kSchedulerAppManaged);
  CHECK(XQueueSubmit(one.xq, one.command) == kXSchedSuccess);
  CHECK(XQueueSuspend(one.xq, 7) == kXSchedSuccess);
  pthread_t thread = blocked(submit_thread, &one);
  CHECK(XQueueResume(one.xq, 0) == kXSchedSuccess && pthread_join(thread, NULL) == 0);
  CHECK(XQueueWaitAll(one.xq) == kXSchedSuccess);

  CHECK(XHintSetScheduler(kSchedulerGlobal, kPolicyUnknown) == kXSchedSuccess);
  test_session_start(d, 2);
  test_heart_start(d);
  CHECK((d->hello.hint.said & XSW_HINT_K) != 0 && d->hello.hint.timeslice_us == 2000);
  struct xsw_hint_frame frame = next_hint(); // both queues' again
  CHECK(frame.queue == slot_of(&one) && frame.hint.priority == 7);
  CHECK(next_hint().queue == slot_of(&two));
}

static void waits_are_told(void) {
  const struct xsw_queue *slot = test_slot(d, slot_of(&one));
  CHECK(XQueueSubmit(one.xq, one.command) == kXSchedSuccess);
  uint64_t before = xsi_now_ns();
  CHECK(slot->quiet == 0 && slot->fed_ns < before);
  CHECK(XQueueWaitAll(one.xq) == kXSchedSuccess && slot->fed_ns >= before);
}

static void *launch_cancelled(void *queue) {
  CHECK(pthread_cancel(pthread_self()) == 0);
  launch_thread(queue);
  pthread_testcancel();
  return NULL;
}

// A launch is no place to be cancelled at, least of all with our lock held.
static void launches_are_not_cancelled(void) {
  pthread_t thread;
  __atomic_store_n(&passed, 0, __ATOMIC_SEQ_CST);
  CHECK(pthread_create(&thread, NULL, launch_cancelled, &one) == 0);
  CHECK(pthread_join(thread, NULL) == 0 && __atomic_load_n(&passed, __ATOMIC_SEQ_CST) == 1);
  CHECK(XQueueWaitAll(one.xq) == kXSchedSuccess);
}

static void child_starts_afresh(void) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    XQueueState state;
    bool fresh = XQueueQuery(one.xq, &state) == kXSchedErrorNotFound && xs_queues(NULL, 0) == 0 &&
                 xs_request_begin("child") == 0 /* names are used up */ &&
                 xs_available() == 1 /* the daemon answers */;
    _exit(fresh ? 0 : 1);
  }
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv) {
  alarm(100);
  if (getenv("XSCHED_BINARY") == NULL) { // there is no private scheduler here, whatever PATH says
    CHECK(argc == 1 && setenv("XSCHED_BINARY", "/nowhere", 1) == 0);
    execv("/proc/self/exe", argv);
  }
  test_daemon_place(d);
  setenv("XSCHED_AUTO_XQUEUE_UTILIZATION", "40", 1);
  xsi_options_init(); // the constructor ran before this was set
  xsi_hint_init();
  fake_install();
  fake_context();
  CHECK(xs_available() == 0); // nobody listens yet
  works_alone();
  asks_nothing_in_captures();
  is_not_idle_in_between();
  refuses_nonsense();
  make(&two);
  program_suspends();
  joins_with_hints();
  gates_are_per_queue();
  waits_release_batches();
  turns_do_not_deadlock();
  requests_are_marked();
  waits_are_told();
  launches_are_not_cancelled();
  program_takes_over();
  child_starts_afresh();
  end(&one);
  end(&two);
  CHECK(xs_queues(NULL, 0) == 1); // the context's
  test_heart_stop(d);
  test_session_end(d);
  test_daemon_remove(d);
  CHECK(__atomic_load_n(&failures, __ATOMIC_SEQ_CST) == 0);
  puts("ok api");
  return 0;
}
