// SPDX-License-Identifier: Apache-2.0
//
// Every line of hooks.table, called through its hook on the null runtime: what it counts as, what
// it leaves busy, and that a refusal comes back as it is and counts as nothing.

#include "runtime/cuda/test_fake.h"
#include "runtime/hip/account.h"
#include "test_invoke.h"

#include "null/null_hip.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <string.h>

#define REFUSED 719

static struct invocation_arguments with;

static bool kind_is(const struct invocation *call, const char *kind) {
  return strcmp(call->kind, kind) == 0;
}

static bool any_busy(void) {
  for (int i = 0; i < NOTED_QUEUES; i++)
    if (noted[i].busy) return true;
  return false;
}

static void use_stream(hipStream_t stream) {
  with.stream = with.config.stream = with.list.stream = with.functions.hStream = stream;
}

static hipError_t invoke(const struct invocation *call) {
  int slot = xsi_runtime_find(&xsi_hip_runtime, call->symbol);
  CHECK(slot >= 0 && xsi_hip_symbols[slot].hook);
  return call->call(xsi_hip_symbols[slot].hook, &with);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static void test_walks(void) {} // their runtimes replace the function, too
#else
// What the loader is asked, counted by the objects that it reports.
static unsigned objects;
struct asked {
  int (*callback)(struct dl_phdr_info *, size_t, void *);
  void *argument;
};
static int count_object(struct dl_phdr_info *object, size_t size, void *argument) {
  const struct asked *asked = argument;
  objects++;
  return asked->callback(object, size, asked->argument);
}
int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *argument) {
  static int (*real)(int (*)(struct dl_phdr_info *, size_t, void *), void *);
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "dl_iterate_phdr");
  struct asked asked = {callback, argument};
  return real(count_object, &asked);
}

// Programs change the device before each launch. The loaded libraries are walked once, and again only when the
// loader has loaded another one: until then it reports its count with the first object.
static void test_walks(void) {
  enum { CALLS = 100 };
  CHECK(hipSetDevice(0) == 0);
  objects = 0;
  for (int i = 0; i < CALLS; i++)
    CHECK(hipSetDevice(0) == 0);
  CHECK(objects <= CALLS);
}
#endif

static hipError_t launch_into(hipStream_t stream) {
  return hipModuleLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void finish(const struct invocation *call, hipStream_t stream) {
  CHECK((call->per_thread ? hipStreamSynchronize_spt : hipStreamSynchronize)(stream) == 0);
}

struct counts {
  uint64_t hooked, launches, copies, syncs, real;
};
static struct counts counts_of(const struct invocation *call) {
  return (struct counts){COUNTED(hooked_calls), COUNTED(launches), COUNTED(copies), COUNTED(syncs),
                         xsn_calls(call->symbol)};
}

// Did it count as this much, and reach the runtime once?
static void expect(const struct invocation *call, struct counts before, unsigned launches,
                   unsigned copies, bool busy) {
  struct counts now = counts_of(call);
  bool right = now.hooked == before.hooked + 1 && now.real == before.real + 1 &&
               now.launches == before.launches + launches && now.copies == before.copies + copies &&
               any_busy() == busy;
  if (!right) printf("%s %s %s: ", call->symbol, call->kind, call->detail);
  CHECK(right);
}

// ---- what is work --------------------------------------------------------------------------------

static void test_work(const struct invocation *call) {
  unsigned launches = kind_is(call, "launch") || kind_is(call, "ext");
  unsigned copies = kind_is(call, "copy");
  const char *part = strchr(call->detail, '/');
  bool asks_kind = copies && part && strcmp(part, "/wait") != 0;
  bool waits = copies && part && !asks_kind;
  hipStream_t streams[2];
  CHECK(hipStreamCreate(&streams[0]) == 0);
  streams[1] = NULL; // the default one
  for (int i = 0; i < 2; i++) {
    bool always_default = strncmp(call->detail, "default", 7) == 0;
    hipStream_t stream = always_default ? NULL : streams[i];
    use_stream(streams[i]);
    with.kind = 3; // inside the device
    struct counts before = counts_of(call);
    CHECK(invoke(call) == 0);
    expect(call, before, launches, copies, !waits);
    finish(call, stream);
    CHECK(!any_busy());

    // A copy to the host ends what was before it in its stream.
    if (waits || asks_kind) {
      with.kind = 2;
      CHECK((call->per_thread ? hipMemcpyAsync_spt : hipMemcpyAsync)(NULL, NULL, 0, 3, stream) ==
            0);
      CHECK(any_busy());
      before = counts_of(call);
      CHECK(invoke(call) == 0);
      expect(call, before, launches, copies, false);
    }

    // What the runtime refuses is refused to the caller, and was no work.
    xsn_answer(REFUSED);
    before = counts_of(call);
    CHECK(invoke(call) == REFUSED);
    expect(call, before, 0, 0, false);
    xsn_answer(0);
  }
  CHECK(hipStreamDestroy(streams[0]) == 0);
}

static void test_sync(const struct invocation *call) {
  CHECK(hipStreamCreate(&with.stream) == 0);
  hipStream_t made = with.stream;
  for (int i = 0; i < 2; i++, with.stream = NULL) {
    CHECK((call->per_thread ? hipMemcpyAsync_spt : hipMemcpyAsync)(NULL, NULL, 0, 3, with.stream) ==
          0);
    xsn_answer(REFUSED); // a wait that failed says nothing
    CHECK(any_busy() && invoke(call) == REFUSED && any_busy());
    xsn_answer(0);
    struct counts before = counts_of(call);
    CHECK(invoke(call) == 0 && !any_busy());
    CHECK(counts_of(call).syncs == before.syncs + 1);
  }
  CHECK(hipStreamDestroy(made) == 0);
}

static void test_record(const struct invocation *call) {
  with.event = (hipEvent_t)0x77000;
  CHECK(hipStreamCreate(&with.stream) == 0);
  hipStream_t made = with.stream;
  CHECK(launch_into(made) == 0 && any_busy());
  CHECK(invoke(call) == 0 && any_busy());
  xsn_busy(true);
  CHECK(hipEventQuery(with.event) == XSI_HIP_NOT_READY && any_busy());
  xsn_busy(false);
  CHECK(launch_into(made) == 0); // behind the record
  CHECK(hipEventSynchronize(with.event) == 0 && any_busy());
  CHECK(invoke(call) == 0 && hipEventQuery(with.event) == 0 && !any_busy());
  CHECK(hipEventDestroy(with.event) == 0 && hipStreamDestroy(made) == 0);
  with.event = NULL;
}

static void test_create(const struct invocation *call) {
  with.created = NULL;
  CHECK(invoke(call) == 0 && with.created != NULL);
  CHECK(launch_into(with.created) == 0 && any_busy());
  CHECK(hipStreamSynchronize(with.created) == 0 && !any_busy());
  CHECK(hipStreamDestroy(with.created) == 0);
}

static void test_capture(const struct invocation *call) {
  CHECK(hipStreamCreate(&with.stream) == 0);
  hipStream_t made = with.stream;
  if (strcmp(call->detail, "begin") == 0) {
    CHECK(invoke(call) == 0 && xsi_work_hot.captures == 1);
    CHECK(hipStreamEndCapture(made, NULL) == 0 && xsi_work_hot.captures == 0);
    xsn_answer(REFUSED);
    CHECK(invoke(call) == REFUSED && xsi_work_hot.captures == 0);
    xsn_answer(0);
  } else if (strcmp(call->detail, "end") == 0) {
    CHECK(hipStreamBeginCapture(made, 0) == 0 && xsi_work_hot.captures == 1);
    CHECK(invoke(call) == 0 && xsi_work_hot.captures == 0);
  } else {
    struct counts before = counts_of(call);
    CHECK(invoke(call) == 0);
    expect(call, before, 0, 0, false);
  }
  CHECK(hipStreamDestroy(made) == 0);
}

// The end of a capture fails: what we ask then is no business of the program's last error, which the
// runtime keeps by thread.
static _Thread_local hipError_t last_error;
static bool still_capturing;
static hipError_t end_fails(hipStream_t stream, hipGraph_t *graph) {
  (void)stream, (void)graph;
  return last_error = REFUSED;
}
static hipError_t is_capturing(hipStream_t stream, hipStreamCaptureStatus *status) {
  (void)stream;
  *status = still_capturing;
  return last_error = 0;
}
static bool came_back;
static void *end_cancelled(void *stream) {
  CHECK(pthread_cancel(pthread_self()) == 0);
  CHECK(hipStreamEndCapture(stream, NULL) == REFUSED);
  came_back = true;
  pthread_testcancel();
  return NULL;
}
static void test_capture_end_fails(void) {
  void *end = xsi_hip_real[XSI_HIP_hipStreamEndCapture];
  void *ask = xsi_hip_real[XSI_HIP_hipStreamIsCapturing];
  hipStream_t made;
  CHECK(hipStreamCreate(&made) == 0 && hipStreamBeginCapture(made, 0) == 0);
  xsi_hip_real[XSI_HIP_hipStreamEndCapture] = (void *)end_fails;
  xsi_hip_real[XSI_HIP_hipStreamIsCapturing] = (void *)is_capturing;
  for (int i = 1; i >= 0; i--) {
    still_capturing = i;
    last_error = 0;
    CHECK(hipStreamEndCapture(made, NULL) == REFUSED && last_error == REFUSED);
    CHECK(xsi_work_hot.captures == (uint32_t)i);
  }
  // It is not where a thread is cancelled, with our locks held.
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, end_cancelled, made) == 0);
  CHECK(pthread_join(thread, NULL) == 0 && came_back);
  xsi_hip_real[XSI_HIP_hipStreamEndCapture] = end;
  xsi_hip_real[XSI_HIP_hipStreamIsCapturing] = ask;
  CHECK(hipStreamDestroy(made) == 0);
}

static void test_pass(const struct invocation *call) {
  use_stream(NULL);
  struct counts before = counts_of(call);
  CHECK(invoke(call) == 0);
  expect(call, before, 0, 0, false);
  xsn_answer(REFUSED);
  CHECK(invoke(call) == REFUSED);
  xsn_answer(0);
}

// ---- signals -----------------------------------------------------------------------------------

// Neither work nor held at a gate: what waits for the signal may be what the gate is closed for.
static void test_order(const struct invocation *call) {
  static hipStreamBatchMemOpParams wait = {.operation = XSI_HIP_OP_WAIT_32};
  CHECK(hipStreamCreate(&with.stream) == 0);
  hipStream_t made = with.stream;
  with.operations = &wait;
  CHECK(launch_into(made) == 0 && any_busy());
  uint32_t gates = noted_gates;
  for (uint32_t i = 0; i < 8; i++)
    xsi_slot(i)->gate = XSW_GATE_HELD;
  struct counts before = counts_of(call);
  CHECK(invoke(call) == 0);
  expect(call, before, 0, 0, true);
  if (noted_gates != gates) printf("%s: ", call->symbol);
  CHECK(noted_gates == gates);
  for (uint32_t i = 0; i < 8; i++)
    xsi_slot(i)->gate = XSW_GATE_OPEN;
  CHECK(hipStreamSynchronize(made) == 0 && !any_busy());
  before = counts_of(call); // of an idle stream, too
  CHECK(invoke(call) == 0);
  expect(call, before, 0, 0, false);
  CHECK(hipStreamDestroy(made) == 0);
}

// By name: another kind in the table must not end this test.
static void test_signals(void) {
  static const char *const names[] = {"hipStreamWaitValue32",
                                      "hipStreamWaitValue64",
                                      "hipStreamWriteValue32",
                                      "hipStreamWriteValue64",
                                      "hipStreamBatchMemOp",
                                      "hipSignalExternalSemaphoresAsync",
                                      "hipWaitExternalSemaphoresAsync",
                                      "hipMallocAsync",
                                      "hipMallocFromPoolAsync",
                                      "hipFreeAsync",
                                      "hipStreamAttachMemAsync"};
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
    int slot = xsi_runtime_find(&xsi_hip_runtime, names[i]);
    CHECK(slot >= 0);
    if (slot >= 0) test_order(&invocations[slot]);
  }
}

// A stream that waits for a value is not ready, maybe for ever. What came before is over when it is.
static hipError_t over(hipEvent_t event) {
  (void)event;
  return XSI_HIP_SUCCESS;
}
static void test_signal_and_watcher(void) {
  hipStreamBatchMemOpParams operations[2] = {{.operation = 2}, {.operation = XSI_HIP_OP_WAIT_64}};
  void **slot = &xsi_hip_real[XSI_HIP_hipEventQuery], *real = *slot;
  test_now_ns = 1000000000;
  for (int batch = 0; batch < 2; batch++) {
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream) == 0 && launch_into(stream) == 0);
    CHECK((batch ? hipStreamBatchMemOp(stream, 2, operations, 0)
                 : hipStreamWaitValue32(stream, NULL, 1, 0, UINT32_MAX)) == 0);
    xsn_busy(true);
    for (int i = 0; i < 4; i++)
      xsi_work_watch(test_now_ns += 20000000);
    CHECK(any_busy()); // the kernel runs
    *slot = (void *)over;
    for (int i = 0; i < 4; i++)
      xsi_work_watch(test_now_ns += 20000000);
    CHECK(!any_busy());
    xsn_busy(false);
    *slot = real;
    CHECK(hipStreamDestroy(stream) == 0);
  }
  test_now_ns = 0;
}

// ---- by hand -----------------------------------------------------------------------------------

static void test_hand(const struct invocation *call) {
  bool launches = strstr(call->symbol, "MultiDevice") != NULL;
  with.symbol = "hipStreamQuery";
  use_stream(NULL);
  struct counts before = counts_of(call);
  if (launches || strcmp(call->symbol, "hipLaunchByPtr") == 0) {
    CHECK(invoke(call) == 0);
    expect(call, before, 1, 0, true);
    CHECK(hipDeviceSynchronize() == 0 && !any_busy());
  } else if (strstr(call->symbol, "Synchronize") || strstr(call->symbol, "Reset")) {
    if (!strstr(call->symbol, "Event")) CHECK(launch_into(NULL) == 0 && any_busy());
    before = counts_of(call);
    CHECK(invoke(call) == 0);
    expect(call, before, 0, 0, false);
  } else {
    CHECK(invoke(call) == 0);
    expect(call, before, 0, 0, false);
  }
  if (strncmp(call->symbol, "hipGetProc", 10) == 0 ||
      strncmp(call->symbol, "hipGetDriver", 12) == 0) {
    bool spt = strstr(call->symbol, "_spt") != NULL;
    CHECK(with.pointers[0] ==
          xsi_hip_symbols[spt ? XSI_HIP_hipStreamQuery_spt : XSI_HIP_hipStreamQuery].hook);
    with.symbol = "xsn_unknown"; // is answered as the runtime answers it
    CHECK(invoke(call) == XSI_HIP_NOT_FOUND && with.pointers[0] == NULL);
  }
  xsn_answer(REFUSED);
  with.symbol = "hipStreamQuery";
  before = counts_of(call);
  CHECK(invoke(call) == REFUSED);
  expect(call, before, 0, 0, false);
  xsn_answer(0);
}

static void test_configured(void) {
  hipStream_t stream;
  const dim3 one = {1, 1, 1};
  CHECK(hipStreamCreate(&stream) == 0);
  CHECK(hipConfigureCall(one, one, 0, stream) == 0 && !any_busy());
  CHECK(hipLaunchByPtr(NULL) == 0 && any_busy());
  CHECK(hipStreamSynchronize(stream) == 0 && !any_busy()); // it was that stream
  CHECK(hipStreamDestroy(stream) == 0);
}

static void test_ext_events(void) {
  hipStream_t stream;
  hipEvent_t start = (hipEvent_t)0x78000, stop = (hipEvent_t)0x79000;
  const dim3 one = {1, 1, 1};
  CHECK(hipStreamCreate(&stream) == 0);
  CHECK(hipExtLaunchKernel(NULL, one, one, NULL, 0, stream, start, stop, 0) == 0 && any_busy());
  CHECK(hipEventSynchronize(start) == 0 && any_busy()); // before the kernel
  CHECK(hipEventSynchronize(stop) == 0 && !any_busy());
  float time;
  CHECK(launch_into(stream) == 0 && hipEventRecord(stop, stream) == 0);
  CHECK(hipEventElapsedTime(&time, start, stop) == 0 && !any_busy());
  CHECK(hipStreamDestroy(stream) == 0);
}

// Another thread's kernel that goes in behind this one, before this one's launch has returned.
static hipStream_t overtaken;
static hipError_t overtake(const void *function, dim3 grid, dim3 block, void **arguments,
                           size_t shared, hipStream_t stream, hipEvent_t start, hipEvent_t stop,
                           int flags) {
  (void)function, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  (void)start, (void)stop, (void)flags;
  return launch_into(overtaken);
}

static void test_ext_overtaken(void) {
  const dim3 one = {1, 1, 1};
  hipEvent_t stop = (hipEvent_t)0x7a000;
  void **slot = &xsi_hip_real[XSI_HIP_hipExtLaunchKernel], *real = *slot;
  CHECK(hipStreamCreate(&overtaken) == 0);
  *slot = (void *)overtake;
  CHECK(hipExtLaunchKernel(NULL, one, one, NULL, 0, overtaken, NULL, stop, 0) == 0);
  *slot = real;
  CHECK(hipEventSynchronize(stop) == 0 && any_busy());
  CHECK(hipStreamSynchronize(overtaken) == 0 && !any_busy());
  CHECK(hipStreamDestroy(overtaken) == 0);
}

// ---- events that graphs record ------------------------------------------------------------------

static void by_nothing(hipEvent_t event) { (void)event; }
static void by_node(hipEvent_t event) { hipGraphAddEventRecordNode(NULL, NULL, NULL, 0, event); }
static void by_any_node(hipEvent_t event) {
  (void)event; // among the parameters
  hipGraphAddNode(NULL, NULL, NULL, 0, NULL);
}
static void by_another_event(hipEvent_t event) { hipGraphEventRecordNodeSetEvent(NULL, event); }
static void by_instance(hipEvent_t event) {
  hipGraphExecEventRecordNodeSetEvent(NULL, NULL, event);
}
static void by_external(hipEvent_t event) {
  (void)event; // recorded in a stream after a capture that recorded it, too
  hipEventRecordWithFlags((hipEvent_t)0x78000, NULL, XSI_HIP_RECORD_EXTERNAL);
}

// The event's last record is the graph's: its end says nothing of the stream in which it was recorded before.
static void test_graph_events(void) {
  static void (*const ways[])(hipEvent_t) = {by_node,     by_any_node, by_another_event,
                                             by_instance, by_external, by_nothing};
  hipEvent_t event = (hipEvent_t)0x77000;
  for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
    hipStream_t stream, of_graph;
    __atomic_store_n(&xsi_hip_graph_events, false, __ATOMIC_RELAXED);
    CHECK(hipStreamCreate(&stream) == 0 && hipStreamCreate(&of_graph) == 0);
    CHECK(launch_into(stream) == 0 && hipEventRecord(event, stream) == 0);
    ways[i](event);
    CHECK(hipGraphLaunch(NULL, of_graph) == 0 && hipStreamSynchronize(of_graph) == 0);
    CHECK(hipEventQuery(event) == 0);
    if (any_busy() != (ways[i] != by_nothing)) printf("FAIL graph event %u\n", i), failures++;
    CHECK(hipStreamSynchronize(stream) == 0 && !any_busy());
    CHECK(hipStreamDestroy(stream) == 0 && hipStreamDestroy(of_graph) == 0);
  }
  __atomic_store_n(&xsi_hip_graph_events, false, __ATOMIC_RELAXED);
}

// ---- devices, strangers, forks -------------------------------------------------------------------

static int busy_function(void) {
  for (int i = 0; i < NOTED_QUEUES; i++)
    if (noted[i].busy) return noted[i].function;
  return -1;
}

static void test_devices(void) {
  hipStream_t first = NULL, second = NULL;
  CHECK(hipSetDevice(0) == 0 && hipStreamCreate(&first) == 0);
  CHECK(hipSetDevice(1) == 0 && hipStreamCreate(&second) == 0);
  // The stream's device, not the thread's.
  CHECK(launch_into(first) == 0 && busy_function() == 2);
  CHECK(hipDeviceSynchronize() == 0 && busy_function() == 2); // of the other one
  CHECK(hipStreamSynchronize(first) == 0 && !any_busy());
  CHECK(launch_into(second) == 0 && busy_function() == 3);
  CHECK(hipDeviceSynchronize() == 0 && !any_busy());
  // The default stream is the thread's device's.
  CHECK(launch_into(NULL) == 0 && busy_function() == 3 && hipStreamSynchronize(NULL) == 0);
  CHECK(hipSetDevice(0) == 0 && launch_into(NULL) == 0 && busy_function() == 2);
  CHECK(hipStreamSynchronize(NULL) == 0 && !any_busy());
  // All spellings of it are one: a wait for one ends what went in by another.
  CHECK(launch_into(XSI_HIP_LEGACY) == 0 && hipStreamSynchronize(NULL) == 0 && !any_busy());
  CHECK(launch_into(XSI_HIP_THREAD) == 0 && any_busy());
  CHECK(hipStreamSynchronize(NULL) == 0 && any_busy()); // another stream
  CHECK(hipStreamSynchronize_spt(NULL) == 0 && !any_busy());
  CHECK(hipStreamDestroy(first) == 0 && hipStreamDestroy(second) == 0);
}

// A handle that is no stream of ours goes to the runtime and nowhere else: the old ones crash when
// asked about garbage.
static void test_stranger(void) {
  uint64_t before = xsn_calls("hipModuleLaunchKernel");
  CHECK(launch_into((hipStream_t)0x1234) == 0 && !any_busy());
  CHECK(hipStreamSynchronize((hipStream_t)0x1234) == 0);
  CHECK(xsn_calls("hipModuleLaunchKernel") == before + 1);
}

// While nothing has ever succeeded there may be no device: nothing of ours asks for one.
static void test_no_device(void) {
  hipStream_t stream;
  xsn_answer(101);
  CHECK(hipSetDevice(0) == 101 && hipStreamCreate(&stream) == 101 && launch_into(NULL) == 101);
  CHECK(hipMemcpy(NULL, NULL, 0, 1) == 101 && hipDeviceSynchronize() == 101);
  CHECK(xsn_calls("hipGetStreamDeviceId") == 0 && xsn_calls("hipDeviceGetPCIBusId") == 0);
  CHECK(!noted[0].open);
  xsn_answer(0);
  // A wait is no work, even if it is the first call of all; a launch is.
  CHECK(hipStreamSynchronize(NULL) == 0 && !any_busy());
  noted_fork(); // once more from the beginning
  CHECK(launch_into(NULL) == 0 && any_busy() && COUNTED(launches) == 1);
  CHECK(hipStreamSynchronize(NULL) == 0 && !any_busy());
}

static void test_watcher(void) {
  hipStream_t stream;
  test_now_ns = 1000000000;
  CHECK(hipStreamCreate(&stream) == 0);
  xsn_busy(true);
  CHECK(launch_into(stream) == 0 && launch_into(NULL) == 0);
  // Beside other work nothing asks about the default stream: that would make it wait for them all.
  uint64_t asked = xsn_calls("hipStreamQuery");
  for (int i = 0; i < 4; i++)
    xsi_work_watch(test_now_ns += 20000000);
  asked = xsn_calls("hipStreamQuery") - asked;
  CHECK(any_busy() && asked > 0 && asked < 4);
  xsn_busy(false);
  for (int i = 0; i < 4; i++)
    xsi_work_watch(test_now_ns += 20000000);
  CHECK(!any_busy());
  CHECK(hipStreamDestroy(stream) == 0);
  test_now_ns = 0;
}

static void test_fork(void) {
  hipStream_t stream;
  CHECK(hipStreamCreate(&stream) == 0 && launch_into(stream) == 0);
  memset(noted, 0, sizeof noted); // as the core does in the child
  noted_fork();
  uint64_t asked = xsn_calls("hipGetStreamDeviceId");
  CHECK(launch_into(stream) == 0 && !any_busy()); // the parent's stream is none of ours
  CHECK(xsn_calls("hipGetStreamDeviceId") == asked);
  CHECK(hipSetDevice(0) == 0 && launch_into(NULL) == 0 && any_busy());
  CHECK(hipDeviceSynchronize() == 0 && !any_busy());
}

int main(void) {
  xsi_work_watch_by_thread = false;
  for (int i = 0; i < XSI_HIP_SLOTS; i++) {
    xsi_hip_real[i] = xsn_plain(xsi_hip_symbols[i].name);
    CHECK(xsi_hip_real[i] != NULL);
  }
  test_no_device();
  for (int i = 0; i < XSI_HIP_HOOKS; i++) {
    const struct invocation *call = &invocations[i];
    if (kind_is(call, "sync") || kind_is(call, "query"))
      test_sync(call);
    else if (kind_is(call, "event"))
      test_record(call);
    else if (kind_is(call, "stream")) {
      if (strcmp(call->detail, "create") == 0) test_create(call);
    } else if (kind_is(call, "capture"))
      test_capture(call);
    else if (kind_is(call, "pass") || kind_is(call, "await") || kind_is(call, "about"))
      test_pass(call);
    else if (kind_is(call, "hand"))
      test_hand(call);
    else
      test_work(call);
  }
  test_walks();
  test_signals();
  test_signal_and_watcher();
  test_configured();
  test_capture_end_fails();
  test_ext_events();
  test_ext_overtaken();
  test_graph_events();
  test_devices();
  test_stranger();
  test_watcher();
  test_fork();
  if (failures == 0) printf("ok hip calls: %d entry points\n", XSI_HIP_HOOKS);
  return failures != 0;
}
