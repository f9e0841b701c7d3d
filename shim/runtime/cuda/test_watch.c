// SPDX-License-Identifier: Apache-2.0
//
// The real watcher thread and a driver that does not answer: a launch waits for room in the stopped
// channels of one context. Nothing of another context may wait for that.

#include "test_fake.h"

#include <pthread.h>
#include <time.h>

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

int main(void) {
  fake_install();
  stuck = fake_context();
  stuck_stream = fake_stream();
  struct fake_context *other = fake_context();
  test_blocked(other, destroys_stream);
  test_blocked(other, captures);
  test_blocked(other, destroys_context);
  test_lease();
  if (failures) return 1;
  printf("ok watch\n");
  return 0;
}
