// SPDX-License-Identifier: Apache-2.0
//
// Busy and idle with real threads and the real watcher thread beside them. The driver fails the
// test when a stream in capture, or anything destroyed, is asked about.

#include "test_fake.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SCALE 4
#else
#define SCALE 1
#endif

static void pause_us(long us) {
  struct timespec time = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&time, NULL);
}

// Far beyond the watcher's longest interval; ends as soon as it is so.
static bool becomes_idle(int queue) {
  for (int i = 0; i < 5000; i++) {
    if (!__atomic_load_n(&noted[queue].busy, __ATOMIC_SEQ_CST)) return true;
    pause_us(2000);
  }
  return false;
}

static CUresult make_current(void *context) {
  CUresult (*push)(CUcontext) = (CUresult(*)(CUcontext))xsi_cu_real[XSI_CU_cuCtxPushCurrent_v2];
  return push((CUcontext)context);
}

static void test_never_waits(void) {
  CUstream stream = fake_stream();
  for (int i = 0; i < 20; i++) {
    CHECK(launch(stream) == 0);
    fake_finish(stream);
    CHECK(becomes_idle(0));
  }
  CHECK(cuStreamDestroy_v2(stream) == 0);
}

// ---- captures beside the watcher -----------------------------------------------------------------

static int stop;

static void *launch_beside(void *context) {
  make_current(context);
  CUstream stream = fake_stream();
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
    launch(stream);
    pause_us(300); // never waits: the watcher has to ask
    fake_finish(stream);
    pause_us(300);
  }
  CHECK(cuStreamSynchronize(stream) == 0);
  CHECK(cuStreamDestroy_v2(stream) == 0);
  return NULL;
}

static void *capture_and_launch(void *context) {
  make_current(context);
  CUstream stream = fake_stream();
  for (int i = 0; i < 10000 / SCALE; i++) {
    launch(stream); // busy when the capture begins, as in a warm-up
    CHECK(cuStreamBeginCapture_v2(stream, 0) == 0);
    for (int k = 0; k < 3; k++)
      CHECK(launch(stream) == 0);
    if (i % 97 == 0) pause_us(600); // time for the watcher to come by
    CHECK(cuStreamEndCapture(stream, NULL) == 0);
    if (i % 7 == 0) CHECK(cuStreamSynchronize(stream) == 0);
  }
  CHECK(cuStreamSynchronize(stream) == 0);
  CHECK(cuStreamDestroy_v2(stream) == 0);
  return NULL;
}

static void test_captures(struct fake_context *context) {
  pthread_t beside, captures[2];
  stop = 0;
  pthread_create(&beside, NULL, launch_beside, context);
  for (int i = 0; i < 2; i++)
    pthread_create(&captures[i], NULL, capture_and_launch, context);
  for (int i = 0; i < 2; i++)
    pthread_join(captures[i], NULL);
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  pthread_join(beside, NULL);
  CHECK(__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) == 0);
  CHECK(becomes_idle(0));
}

// ---- many threads --------------------------------------------------------------------------------

#define HAMMERS 8
static CUstream shared[2];
static uint64_t launched;

static void *hammer(void *context) {
  make_current(context);
  CUstream own = fake_stream();
  CUevent event = calloc(1, sizeof(struct fake_event));
  uint64_t count = 0;
  for (int i = 0; i < 20000 / SCALE; i++) {
    CUstream stream = i % 3 == 0 ? shared[i % 2] : i % 11 == 0 ? NULL : own;
    CHECK(launch(stream) == 0);
    count++;
    switch (i % 17) {
    case 3: CHECK(cuStreamSynchronize(stream) == 0); break;
    case 5:
      cuEventRecord(event, stream);
      CHECK(cuEventSynchronize(event) == 0);
      break;
    case 7: cuStreamQuery(stream); break;
    case 11:
      cuEventRecord(event, stream);
      cuEventQuery(event);
      break;
    case 13: CHECK(cuMemcpyHtoD_v2(0, NULL, 1) == 0); break;
    }
    if (i % 1000 == 999) { // with work in it
      CHECK(cuStreamDestroy_v2(own) == 0);
      own = fake_stream();
    }
  }
  CHECK(cuStreamSynchronize(own) == 0 && cuStreamSynchronize(NULL) == 0);
  CHECK(cuStreamDestroy_v2(own) == 0);
  __atomic_fetch_add(&launched, count, __ATOMIC_SEQ_CST);
  return NULL;
}

// Work of destroyed streams is never finished by this driver: a wait for the whole context covers
// it.
static void test_hammer(struct fake_context *context) {
  pthread_t threads[HAMMERS];
  uint64_t before = fake_launches;
  launched = 0;
  for (int i = 0; i < 2; i++)
    shared[i] = fake_stream();
  for (int i = 0; i < HAMMERS; i++)
    pthread_create(&threads[i], NULL, hammer, context);
  for (int i = 0; i < HAMMERS; i++)
    pthread_join(threads[i], NULL);
  CHECK(fake_launches - before == launched);
  for (int i = 0; i < 2; i++)
    CHECK(cuStreamSynchronize(shared[i]) == 0);
  CHECK(cuCtxSynchronize() == 0);
  CHECK(becomes_idle(0));
  for (int i = 0; i < 2; i++)
    cuStreamDestroy_v2(shared[i]);
}

// The end of every burst must be found, whoever finds it: no wake-up may be lost between a thread
// that submits and one that marks idle.
static void *sync_beside(void *context) {
  make_current(context);
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
    CHECK(cuStreamSynchronize(shared[0]) == 0);
    for (volatile int i = 0; i < 500; i++) {
    } // a wrong state lasts until the next wait
  }
  return NULL;
}

static bool idle_with_work(const struct xsi_work_stream *work) {
  return !__atomic_load_n(&work->busy, __ATOMIC_SEQ_CST) &&
         __atomic_load_n(&work->completed, __ATOMIC_SEQ_CST) < xsi_work_submitted(work);
}

static void test_handshake(struct fake_context *context) {
  shared[0] = fake_stream();
  pthread_t thread;
  stop = 0;
  pthread_create(&thread, NULL, sync_beside, context);
  struct xsi_work_stream *work = xsi_work_find(&xsi_cu_platform, 0, (uintptr_t)shared[0]);
  int wrong = 0;
  for (int i = 0; i < 300000 / SCALE; i++) {
    CHECK(launch(shared[0]) == 0);
    for (int k = 0; k < 50; k++) // never idle with more submitted than completed
      wrong += idle_with_work(work);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  pthread_join(thread, NULL);
  CHECK(wrong == 0);
  CHECK(cuStreamSynchronize(shared[0]) == 0 && becomes_idle(0));
  cuStreamDestroy_v2(shared[0]);
}

// ---- one thread's work ends while another's is refused -------------------------------------------

enum { ROUNDS = 400000 / SCALE };
static struct xsi_work_stream *refused;
static int round_begun, round_ended;

static void await(const int *value, int wanted) {
  for (int i = 0; __atomic_load_n(value, __ATOMIC_ACQUIRE) != wanted; i++)
    if (i > 10000) sched_yield();
}

static void dally(volatile int loops) {
  while (loops > 0)
    loops = loops - 1;
}

static void *refuse(void *unused) {
  for (int i = 1; i <= ROUNDS; i++) {
    await(&round_begun, i);
    xsi_work_withdraw(refused);
    __atomic_store_n(&round_ended, i, __ATOMIC_RELEASE);
  }
  return unused;
}

// Whichever comes last marks the stream idle, without the watcher's help.
static void test_refused(void) {
  CUstream stream = fake_stream();
  refused = xsi_work_find(&xsi_cu_platform, 0, (uintptr_t)stream);
  pthread_t thread;
  pthread_create(&thread, NULL, refuse, NULL);
  int left_busy = 0;
  for (int i = 1; i <= ROUNDS; i++) {
    xsi_work_submit(refused, XSI_WORK_OTHER);
    xsi_work_landed(refused);
    uint64_t mark = xsi_work_mark(refused);
    xsi_work_submit(refused, XSI_WORK_OTHER);
    __atomic_store_n(&round_begun, i, __ATOMIC_RELEASE);
    dally(i % 128); // the other has to see the new round first
    xsi_work_complete(refused, mark, false);
    await(&round_ended, i);
    left_busy += __atomic_load_n(&refused->busy, __ATOMIC_SEQ_CST) != 0;
    xsi_work_try_idle(refused, false);
  }
  pthread_join(thread, NULL);
  CHECK(left_busy == 0);
  CHECK(cuStreamDestroy_v2(stream) == 0);
}

// ---- the lock of the tables -----------------------------------------------------------------------

static int reached; // steps of the thread that uses its streams

static void *use_streams(void *context) {
  enum { MANY = 32 };
  CUstream own[MANY];
  make_current(context);
  for (int i = 0; i < MANY; i++) {
    own[i] = fake_stream();
    CHECK(launch(own[i]) == 0 && cuStreamSynchronize(own[i]) == 0);
  }
  __atomic_store_n(&reached, 1, __ATOMIC_SEQ_CST);
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST))
    pause_us(100);
  for (int i = 0; i < MANY; i++) // the one that it used last becomes busy and idle
    CHECK(launch(own[MANY - 1]) == 0 && cuStreamSynchronize(own[MANY - 1]) == 0);
  __atomic_store_n(&reached, 2, __ATOMIC_SEQ_CST);
  for (int i = 0; i < 3 * MANY; i++) // each launch is into another one
    CHECK(launch(own[i % MANY]) == 0);
  __atomic_store_n(&reached, 3, __ATOMIC_SEQ_CST);
  for (int i = 0; i < MANY; i++)
    CHECK(cuStreamSynchronize(own[i]) == 0 && cuStreamDestroy_v2(own[i]) == 0);
  return NULL;
}

static bool reaches(int step) {
  for (int i = 0; i < 5000 && __atomic_load_n(&reached, __ATOMIC_SEQ_CST) < step; i++)
    pause_us(1000);
  return __atomic_load_n(&reached, __ATOMIC_SEQ_CST) >= step;
}

// Launches and waits of known streams go on while another thread has it.
static void test_no_work_lock(struct fake_context *context) {
  pthread_t thread;
  stop = 0;
  CHECK(pthread_create(&thread, NULL, use_streams, context) == 0);
  CHECK(reaches(1));
  xsi_work_lock();
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  bool waits = reaches(2), switches = waits && reaches(3);
  xsi_work_unlock();
  pthread_join(thread, NULL);
  CHECK(waits);
  CHECK(!waits || switches);
  CHECK(becomes_idle(0));
}

// ---- contexts that go while the watcher is at it -------------------------------------------------

static void *make_and_destroy(void *unused) {
  (void)unused;
  for (int i = 0; i < 300 / SCALE; i++) {
    struct fake_context *context = fake_context();
    CUstream stream = fake_stream();
    launch(stream);
    launch(NULL);
    pause_us(i % 5 * 150);
    CHECK(cuCtxDestroy_v2((CUcontext)context) == 0);
  }
  return NULL;
}

static void test_contexts(void) {
  pthread_t threads[3];
  for (int i = 0; i < 3; i++)
    pthread_create(&threads[i], NULL, make_and_destroy, NULL);
  for (int i = 0; i < 3; i++)
    pthread_join(threads[i], NULL);
  for (int i = 1; i < NOTED_QUEUES; i++)
    CHECK(!noted[i].open && !noted[i].busy);
}

int main(void) {
  fake_install();
  struct fake_context *context = fake_context();
  test_refused();
  test_never_waits();
  test_no_work_lock(context);
  test_captures(context);
  test_hammer(context);
  xsi_slot(0)->in_flight = 8;
  xsi_slot(0)->batch = 3;
  test_hammer(context);
  xsi_slot(0)->in_flight = 0;
  test_handshake(context);
  test_contexts();
  CHECK(noted[0].open && becomes_idle(0));
  if (failures) return 1;
  printf("ok threads\n");
  return 0;
}
