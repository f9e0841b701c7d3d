// SPDX-License-Identifier: Apache-2.0
//
// The real watcher thread and a driver that does not answer: a launch waits for room in the stopped
// channels of one context. Nothing of another context may wait for that.

#include "test_fake.h"

#include "core/thread.h"
#include "core/wake.h"

#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)

static void pause_us(long us) {
  struct timespec time = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&time, NULL);
}

#define SOON(condition)                                                                            \
  ({                                                                                               \
    for (int i_ = 0; i_ < 5000 && !(condition); i_++)                                              \
      pause_us(1000);                                                                              \
    (condition);                                                                                   \
  })

static void make_current(struct fake_context *context) {
  CUresult (*push)(CUcontext) = (CUresult(*)(CUcontext))xsi_cu_real[XSI_CU_cuCtxPushCurrent_v2];
  CHECK(push((CUcontext)context) == 0);
}

// ---- a question that does not return ---------------------------------------------------------------

static struct fake_context *stuck;
static CUstream stuck_stream;
static int over; // atomic; the test of a call is over

// Ends the stop for a call that waits for it, so that the test fails instead of hanging.
static void *rescue(void *unused) {
  for (int i = 0; i < 1000 && !LOAD(over); i++)
    pause_us(1000);
  STORE(stuck->stopped, 0);
  return unused;
}

static void destroys_stream(void) {
  CUstream stream = fake_stream();
  CHECK(launch(stream) == 0);
  CHECK(cuStreamDestroy_v2(stream) == 0);
}

static void captures(void) {
  CUstream stream = fake_stream();
  CHECK(launch(stream) == 0);
  CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
  CHECK(cuStreamEndCapture(stream, NULL) == 0);
  CHECK(cuStreamSynchronize(stream) == 0 && cuStreamDestroy_v2(stream) == 0);
}

static void destroys_context(void) {
  struct fake_context *context = fake_context();
  CHECK(launch(NULL) == 0);
  CHECK(cuCtxDestroy_v2((CUcontext)context) == 0);
}

// The call comes back while the watcher's question about the other context still has no answer.
static void test_blocked(struct fake_context *other, void (*call)(void)) {
  make_current(stuck);
  CHECK(launch(stuck_stream) == 0);
  STORE(stuck->stopped, 1);
  CHECK(SOON(LOAD(fake_blocked) == 1));
  pthread_t thread;
  STORE(over, 0);
  CHECK(pthread_create(&thread, NULL, rescue, NULL) == 0);
  make_current(other);
  call();
  CHECK(LOAD(fake_blocked) == 1);
  STORE(over, 1);
  pthread_join(thread, NULL);
  make_current(stuck);
  CHECK(cuStreamSynchronize(stuck_stream) == 0);
}

// ---- a device under a lease ------------------------------------------------------------------------

// No question is asked about it, and the first one follows its end.
static void test_lease(void) {
  struct xsw_lease *lease = &xsi_page_leases()->entries[1];
  lease->pci_bus_slot = 0x3bu << 8 | 1u << 3 | 2; // the fake driver's one device
  STORE(lease->deadline_ns, xsi_now_ns() + 3600000000000ull);
  STORE(lease->epoch, 1);
  uint64_t before = LOAD(fake_queries);
  CHECK(launch(stuck_stream) == 0);
  fake_finish(stuck_stream);
  pause_us(30000); // three times the watcher's longest interval
  CHECK(LOAD(fake_queries) == before && LOAD(noted[0].busy));
  STORE(lease->deadline_ns, 0);
  CHECK(SOON(!LOAD(noted[0].busy)));
  CHECK(LOAD(fake_queries) > before);
}

// ---- threads that are cancelled in the middle of a call -----------------------------------------------

static int in_call; // atomic
static void stay(void) {
  const struct timespec pause = {0, 1000000};
  STORE(in_call, 1);
  for (;;) {
    // Past the sanitizer, which takes a thread that is cancelled in nanosleep for one that still sleeps.
    syscall(SYS_nanosleep, &pause, NULL);
    pthread_testcancel(); // as in the driver
  }
}

struct victim {
  CUstream stream;
  bool copies;
};
static void *calls(void *argument) {
  const struct victim *victim = argument;
  make_current(stuck);
  if (victim->copies)
    cuMemcpyHtoD_v2(0, NULL, 1 << 20);
  else
    launch(victim->stream);
  return NULL;
}

// The queue becomes idle within the time that operations.md promises, and counts on.
static void test_cancelled(struct victim victim) {
  pthread_t thread;
  CHECK(SOON(!LOAD(noted[0].busy)));
  STORE(in_call, 0);
  fake_at_launch(stay);
  CHECK(pthread_create(&thread, NULL, calls, &victim) == 0);
  CHECK(SOON(LOAD(in_call)) && LOAD(noted[0].busy));
  CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
  fake_at_launch(NULL);
  uint64_t begun = xsi_now_ns();
  CHECK(SOON(!LOAD(noted[0].busy)));
  CHECK(xsi_now_ns() - begun < 1000000000u); // 100 ms, on a machine that does other things, too
  make_current(stuck);
  CHECK(launch(victim.stream) == 0 && LOAD(noted[0].busy));
  CHECK(cuStreamSynchronize(victim.stream) == 0 && !LOAD(noted[0].busy));
}

static void test_cancellations(void) {
  make_current(stuck);
  CUstream fresh = fake_stream();
  test_cancelled((struct victim){fresh, false});        // the thread is the stream's owner
  test_cancelled((struct victim){stuck_stream, false}); // it is not
  test_cancelled((struct victim){NULL, false});
  test_cancelled((struct victim){XSI_CU_THREAD, false});
  test_cancelled((struct victim){NULL, true});
  CHECK(cuStreamDestroy_v2(fresh) == 0);
}

// ---- a watcher that can't be started at first ---------------------------------------------------------

static int refusals; // atomic; how often there is no thread
static int started;

// A double: in place of the one in core/thread.c.
int xsi_thread_start(size_t stack, void *(*run)(void *)) {
  pthread_t thread;
  CHECK(stack >= 512 * 1024 && stack <= 16 << 20);
  if (LOAD(refusals) > 0) {
    __atomic_fetch_sub(&refusals, 1, __ATOMIC_SEQ_CST);
    return -EAGAIN;
  }
  __atomic_fetch_add(&started, 1, __ATOMIC_SEQ_CST);
  int error = pthread_create(&thread, NULL, run, NULL);
  if (error == 0) pthread_detach(thread);
  return -error;
}

// Tried again, but not with every launch; and by the helper thread where nothing changes.
static void test_refused_thread(void) {
  STORE(refusals, 2);
  CUstream stream = fake_stream();
  test_now_ns = xsi_now_ns() - 60000ull * MS; // so that the real clock is ahead afterwards
  for (int i = 0; i < 100; i++) {
    CHECK(launch(stream) == 0);
    CHECK(cuStreamSynchronize(stream) == 0);
  }
  CHECK(LOAD(refusals) == 1 && LOAD(started) == 0);
  later(1001);
  CHECK(launch(stream) == 0);
  CHECK(LOAD(refusals) == 0 && LOAD(started) == 0);
  xsi_wake_duty();
  CHECK(LOAD(started) == 0);
  test_now_ns = 0;
  xsi_wake_duty();
  CHECK(LOAD(started) == 1);
  fake_finish(stream);
  CHECK(SOON(!LOAD(noted[0].busy)));
  CHECK(cuStreamDestroy_v2(stream) == 0);
}

// ---- platforms ------------------------------------------------------------------------------------------

// One too many is refused, and the others stay.
static void test_platforms(void) {
  static struct xsi_work_platform more[XSI_WORK_PLATFORMS];
  for (int i = 0; i < XSI_WORK_PLATFORMS; i++)
    more[i] = xsi_cu_platform;
  for (int i = 0; i < XSI_WORK_PLATFORMS - 1; i++)
    CHECK(xsi_work_start(&more[i]));
  CHECK(!xsi_work_start(&more[XSI_WORK_PLATFORMS - 1]));
  CHECK(xsi_work_start(&xsi_cu_platform) && xsi_work_start(&more[XSI_WORK_PLATFORMS - 2]));
  CHECK(xsi_work_platforms[0] == &xsi_cu_platform);
}

int main(void) {
  fake_install();
  stuck = fake_context();
  stuck_stream = fake_stream();
  test_refused_thread();
  struct fake_context *other = fake_context();
  test_blocked(other, destroys_stream);
  test_blocked(other, captures);
  test_blocked(other, destroys_context);
  test_lease();
  test_cancellations();
  test_platforms();
  if (failures) return 1;
  printf("ok watch\n");
  return 0;
}
