// SPDX-License-Identifier: Apache-2.0
//
// The events of OpenCL queues, on a library of our own: which are kept, what is answered, and that no
// function of the library is called with a lock of ours held.

#include "core/test_support.h"
#include "library.h"

struct fake_event {
  int references; /* atomic */
  int status;     /* atomic */
};

static const cl_command_queue queue = (cl_command_queue)0x1000, other = (cl_command_queue)0x2000;
static cl_command_queue_properties properties;
static int live, markers; /* atomic */
static int reenter = 1;

// Mutexes of this thread: how many it has taken, and holds.
static _Thread_local unsigned taken, holds;
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
  taken++, holds++;
  return __real_pthread_mutex_lock(mutex);
}
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex) {
  holds--;
  return __real_pthread_mutex_unlock(mutex);
}

// A lock of ours that is held would never be given: the alarm ends the test. The first call takes the table's
// lock, which is a mutex, the second one the queue's.
static void call_back(void) {
  static _Thread_local bool inside;
  CHECK(holds == 0);
  if (!reenter || inside) return;
  inside = true;
  xsi_cl_queue_retained(other);
  (void)xsi_cl_queue_query(queue);
  inside = false;
}

static cl_int fake_info(cl_event event, cl_event_info name, size_t bytes, void *value,
                        size_t *returned) {
  (void)name, (void)bytes, (void)returned;
  call_back();
  CHECK(__atomic_load_n(&((struct fake_event *)event)->references, __ATOMIC_SEQ_CST) > 0);
  *(cl_int *)value = __atomic_load_n(&((struct fake_event *)event)->status, __ATOMIC_SEQ_CST);
  return CL_SUCCESS;
}
static cl_int fake_retain(cl_event event) {
  call_back();
  CHECK(__atomic_fetch_add(&((struct fake_event *)event)->references, 1, __ATOMIC_SEQ_CST) > 0);
  return CL_SUCCESS;
}
static cl_int fake_release(cl_event event) {
  struct fake_event *fake = (struct fake_event *)event;
  call_back();
  if (__atomic_sub_fetch(&fake->references, 1, __ATOMIC_SEQ_CST) > 0) return CL_SUCCESS;
  __atomic_fetch_sub(&live, 1, __ATOMIC_SEQ_CST);
  free(fake);
  return CL_SUCCESS;
}
static cl_int fake_queue_info(cl_command_queue handle, cl_command_queue_info name, size_t bytes,
                              void *value, size_t *returned) {
  (void)handle, (void)name, (void)bytes, (void)returned;
  *(cl_command_queue_properties *)value = properties;
  return CL_SUCCESS;
}
static cl_int fake_marker(cl_command_queue handle, cl_uint waits, const cl_event *list,
                          cl_event *event) {
  (void)handle, (void)waits, (void)list;
  *event = NULL;
  __atomic_fetch_add(&markers, 1, __ATOMIC_SEQ_CST);
  return CL_SUCCESS;
}

void *xsi_cl_slot(unsigned slot) {
  switch (slot) {
  case XSI_CL_clGetEventInfo: return (void *)fake_info;
  case XSI_CL_clRetainEvent: return (void *)fake_retain;
  case XSI_CL_clReleaseEvent: return (void *)fake_release;
  case XSI_CL_clGetCommandQueueInfo: return (void *)fake_queue_info;
  case XSI_CL_clEnqueueMarkerWithWaitList: return (void *)fake_marker;
  }
  return NULL;
}

static struct fake_event *command(int status) {
  struct fake_event *event = calloc(1, sizeof *event);
  event->references = 1;
  event->status = status;
  __atomic_fetch_add(&live, 1, __ATOMIC_SEQ_CST);
  struct xsi_cl_queue *record = xsi_cl_queue_find(queue);
  uint32_t ticket = xsi_cl_queue_enter(record);
  xsi_cl_queue_leave(record, ticket, (cl_event)event);
  return event;
}

static void begin(cl_command_queue_properties order) {
  properties = order;
  xsi_cl_queue_created(queue);
  CHECK(xsi_cl_queue_ordered(xsi_cl_queue_find(queue)) == (order == 0));
}

static void end(void) {
  CHECK(xsi_cl_queue_released(queue));
  CHECK(live == 0);
}

// Any order: completed events go while the program only submits.
static void test_completed_go(void) {
  begin(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
  int most = 0;
  for (int i = 0; i < 10000; i++) {
    command(CL_COMPLETE);
    if (live > most) most = live;
  }
  printf("events kept of 10000 completed commands: %d\n", most);
  CHECK(most <= 32 && xsi_cl_queue_query(queue) == XSI_WORK_DONE);
  end();
}

// However many commands there are, none is taken for complete that is not.
static void test_pending_stays(void) {
  begin(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
  struct fake_event *first = command(3);
  for (int i = 0; i < 3000; i++)
    command(CL_COMPLETE);
  CHECK(xsi_cl_queue_query(queue) == XSI_WORK_PENDING && live <= 40);
  struct fake_event *all[3000];
  for (int i = 0; i < 3000; i++)
    all[i] = command(3);
  first->status = CL_COMPLETE;
  CHECK(xsi_cl_queue_query(queue) == XSI_WORK_PENDING);
  for (int i = 1; i < 3000; i++)
    all[i]->status = CL_COMPLETE;
  CHECK(xsi_cl_queue_query(queue) == XSI_WORK_PENDING); // the oldest is not
  all[0]->status = CL_COMPLETE;
  CHECK(xsi_cl_queue_query(queue) == XSI_WORK_DONE);
  end();
}

static void test_ordered(void) {
  begin(0);
  struct fake_event *last = NULL;
  for (int i = 0; i < 100; i++)
    last = command(3);
  CHECK(live == 1 && xsi_cl_queue_query(queue) == XSI_WORK_PENDING);
  CHECK(xsi_cl_queue_last(queue) == (cl_event)last && last->references == 2 && markers == 0);
  fake_release((cl_event)last);
  last->status = CL_COMPLETE;
  CHECK(xsi_cl_queue_query(queue) == XSI_WORK_DONE);
  end();
}

// Commands into a queue that is known take no lock that other queues take, too.
static void test_no_mutex(void) {
  begin(0);
  reenter = 0;
  command(CL_COMPLETE);
  unsigned before = taken;
  for (int i = 0; i < 100; i++)
    command(CL_COMPLETE);
  CHECK(taken == before);
  reenter = 1;
  end();
}

// ---- a watcher and two threads of the program --------------------------------------------------

static int stop;
static struct fake_event *held; /* never complete */

static void *watch(void *argument) {
  (void)argument;
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST))
    CHECK(xsi_cl_queue_query(queue) != XSI_WORK_DONE);
  return NULL;
}
static void *submit(void *argument) {
  (void)argument;
  for (int i = 0; i < 5000; i++)
    command(CL_COMPLETE);
  return NULL;
}

static void test_threads(void) {
  pthread_t watcher, programs[2];
  begin(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
  held = command(3);
  CHECK(pthread_create(&watcher, NULL, watch, NULL) == 0);
  for (int i = 0; i < 2; i++)
    CHECK(pthread_create(&programs[i], NULL, submit, NULL) == 0);
  for (int i = 0; i < 2; i++)
    CHECK(pthread_join(programs[i], NULL) == 0);
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  CHECK(pthread_join(watcher, NULL) == 0);
  __atomic_store_n(&held->status, CL_COMPLETE, __ATOMIC_SEQ_CST);
  CHECK(xsi_cl_queue_query(queue) == XSI_WORK_DONE);
  end();
}

// ---- an ordered queue of several threads ---------------------------------------------------

enum { ROUNDS = 3000, COMMANDS = 4, FEW = 16 };
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static struct fake_event *newest;
static pthread_barrier_t barrier;

// Only the newest command is not complete.
static void enqueue(void) {
  struct xsi_cl_queue *record = xsi_cl_queue_find(queue);
  struct fake_event *event = calloc(1, sizeof *event);
  event->references = 2; // one is the test's
  event->status = 3;
  __atomic_fetch_add(&live, 1, __ATOMIC_SEQ_CST);
  uint32_t ticket = xsi_cl_queue_enter(record);
  pthread_mutex_lock(&order);
  struct fake_event *before = newest;
  newest = event;
  pthread_mutex_unlock(&order);
  if (before) {
    __atomic_store_n(&before->status, CL_COMPLETE, __ATOMIC_SEQ_CST);
    fake_release((cl_event)before);
  }
  xsi_cl_queue_leave(record, ticket, (cl_event)event);
}

static void *enqueue_rounds(void *argument) {
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < COMMANDS; i++)
      enqueue();
    pthread_barrier_wait(&barrier);
    // Nobody is in a call: the newest event must be there.
    if (argument) CHECK(xsi_cl_queue_query(queue) == XSI_WORK_PENDING);
  }
  return NULL;
}

static void test_ordered_threads(void) {
  pthread_t threads[2];
  begin(0);
  pthread_barrier_init(&barrier, NULL, 3);
  for (int i = 0; i < 2; i++)
    CHECK(pthread_create(&threads[i], NULL, enqueue_rounds, NULL) == 0);
  enqueue_rounds(&barrier);
  for (int i = 0; i < 2; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(live <= 2 * FEW);
  fake_release((cl_event)newest);
  newest = NULL;
  end();
}

int main(void) {
  alarm(60);
  test_completed_go();
  test_pending_stays();
  test_ordered();
  test_no_mutex();
  test_threads();
  test_ordered_threads();
  printf("ok opencl queues\n");
  return 0;
}
