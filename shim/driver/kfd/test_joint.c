// SPDX-License-Identifier: Apache-2.0
//
// Pauses of several queues in one request: how often the driver remaps, and that nothing stays suspended
// when the driver refuses a session, the runtime ends, the application debugs itself, or a queue goes.

#include "table.h"
#include "test_driver.h"

enum { QUEUES = 5 };
static uint32_t ids[QUEUES];

static void runtime(bool on) {
  struct kfd_runtime_enable call = {.mode = on};
  errno = 55;
  CHECK(ioctl(kfd, AMDKFD_IOC_RUNTIME_ENABLE, &call) == 0 && errno == 55);
}

static void begin(void) {
  runtime(true);
  for (uint32_t i = 0; i < QUEUES; i++)
    ids[i] = create(GPU, 2, 0x1000 * (1 + (uint64_t)i));
}

static void end(void) {
  CHECK(xsi_kfd_recover(NULL) == 0);
  for (uint32_t i = 0; i < QUEUES; i++) {
    CHECK(active(ids[i]));
    destroy(ids[i]);
  }
  runtime(false);
  CHECK(!debugged && wrong == 0 && xsi_kfd_list(NULL, 0) == 0);
}

static unsigned running(void) {
  unsigned n = 0;
  for (uint32_t i = 0; i < QUEUES; i++)
    n += active(ids[i]);
  return n;
}

// One remap pauses all queues and one resumes them, however often.
static void test_one_remap(void) {
  begin();
  for (int i = 0; i < 3; i++) {
    unsigned before = remaps;
    CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && running() == 0);
    CHECK(remaps == before + 1 && debugged);
    CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && remaps == before + 1);
    CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == QUEUES && running() == QUEUES);
    CHECK(remaps == before + 2 && updates == 0);
  }
  end();
}

// A single queue needs no session.
static void test_single(void) {
  runtime(true);
  uint32_t id = create(GPU, 2, 0x1000);
  CHECK(xsi_kfd_pause(0, XSI_KFD_COMPUTE, 0) == 1 && !active(id) && !debugged);
  CHECK(xsi_kfd_resume(0, XSI_KFD_COMPUTE) == 1 && active(id));
  destroy(id);
  runtime(false);
}

// During a pause: a new queue never runs and resumes with the others, a change by the application is
// kept, and the end of a queue neither waits nor lets it run.
static void test_changes(void) {
  begin();
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES);
  uint32_t late = create(GPU, 0, 0x9000), gone = create(GPU, 0, 0xa000);
  CHECK(!active(late) && driver[late].suspended);
  struct kfd_update_queue own = {0x1000, ids[0], 4096, 100, 11};
  CHECK(ioctl(kfd, AMDKFD_IOC_UPDATE_QUEUE, &own) == 0);
  CHECK(!active(ids[0]) && driver[ids[0]].state.priority == 11);
  errno = 55;
  destroy(gone);
  CHECK(errno == 55 && running() == 0 && driver[gone].state.percentage == 0);
  struct xsi_kfd_queue list[8];
  CHECK(xsi_kfd_list(list, 8) == QUEUES + 1 && list[0].paused && list[QUEUES].paused);
  unsigned before = remaps;
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == QUEUES + 1);
  CHECK(remaps == before + 1 && active(late) && running() == QUEUES);
  destroy(late);
  end();
}

// The end of the runtime, and a debugger in the application, end the session before the driver sees
// them. The pause goes on by updates.
static void test_session_ends(void) {
  begin();
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && debugged);
  runtime(false);
  CHECK(!debugged && running() == 0);
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == QUEUES && running() == QUEUES);
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && running() == 0 && !debugged);
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == QUEUES);
  runtime(true);
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && debugged);
  struct kfd_runtime_info info;
  struct kfd_dbg_trap call = {.pid = (uint32_t)getpid(), .op = KFD_DBG_ENABLE};
  call.enable.info = (uint64_t)(uintptr_t)&info;
  call.enable.event_fd = (uint32_t)kfd;
  CHECK(ioctl(kfd, AMDKFD_IOC_DBG_TRAP, &call) == 0 && debugged && running() == 0);
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == QUEUES && running() == QUEUES);
  call.op = KFD_DBG_DISABLE;
  CHECK(ioctl(kfd, AMDKFD_IOC_DBG_TRAP, &call) == 0);
  end();
}

// The driver refuses a session, or a request in it: each queue is paused by an update.
static void test_refused(void) {
  begin();
  refuse_debug = EALREADY;
  unsigned before = updates;
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && running() == 0);
  CHECK(updates == before + QUEUES);
  refuse_debug = 0; // not tried again
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == QUEUES && running() == QUEUES && !debugged);
  end();

  begin(); // the runtime's state is not "enabled": another process has the debug VMID
  runtime_on = false;
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && running() == 0 && !debugged);
  runtime_on = true;
  end();

  begin();
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && debugged);
  refuse_debug = EPERM;
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == -EPERM && running() == 0);
  refuse_debug = 0;
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == QUEUES && running() == QUEUES);
  end();
}

// The hardware does not obey for one queue: the request is repeated for it.
static void test_hardware(void) {
  begin();
  unsigned before = remaps;
  bad_hardware = ids[2] + 1;
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && running() == 0);
  CHECK(remaps == before + 3); // all, the undo, and the queue again
  bad_hardware = ids[1] + 1;
  CHECK(xsi_kfd_resume(GPU, XSI_KFD_COMPUTE) == QUEUES && running() == QUEUES);
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES);
  bad_hardware = ids[1] + 1;
  refuse_next(ETIME);
  end(); // recovery succeeds whatever was refused
  refuse = 0;
}

static void test_off(void) {
  CHECK(unsetenv("XSCHED_AMD_SESSION") == 0);
  xsi_kfd_read_options();
  begin();
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && running() == 0 && !debugged);
  end();
  CHECK(setenv("XSCHED_AMD_SESSION", "1", 1) == 0);
  begin(); // which was said after the start does not count
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES && running() == 0 && !debugged);
  end();
  xsi_kfd_read_options();
}

// The child has no queues and no session; the parent's goes on.
static void test_child(void) {
  begin();
  CHECK(xsi_kfd_pause(GPU, XSI_KFD_COMPUTE, 0) == QUEUES);
  pid_t child = fork();
  if (child == 0)
    _exit(xsi_kfd_list(NULL, 0) == 0 && xsi_kfd_recover(NULL) == 0 && debugged ? 0 : 1);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0 && running() == 0);
  end();
}

// Queues come and go, the runtime ends and starts, and sessions with it, while one thread pauses.
static bool stop;
static void *churn(void *argument) {
  uint64_t ring = 0x10000 * (1 + (uint64_t)(uintptr_t)argument);
  for (int i = 0; i < 300; i++) {
    uint32_t id = create(GPU, 0, ring), second = create(GPU, 0, ring + 0x1000);
    struct kfd_update_queue own = {ring, id, 4096, 100, (uint32_t)i % 16};
    CHECK(ioctl(kfd, AMDKFD_IOC_UPDATE_QUEUE, &own) == 0);
    destroy(id), destroy(second);
  }
  return NULL;
}
static void *toggle(void *argument) {
  (void)argument;
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    CHECK(xsi_kfd_pause(0, XSI_KFD_ALL, 0) >= 0);
    CHECK(xsi_kfd_resume(0, XSI_KFD_ALL) >= 0);
  }
  return NULL;
}
static void *restart(void *argument) {
  (void)argument;
  while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
    runtime(false);
    runtime(true);
  }
  return NULL;
}
static void test_threads(void) {
  enum { THREADS = 3 };
  pthread_t threads[THREADS], others[2];
  CHECK(pthread_create(&others[0], NULL, toggle, NULL) == 0);
  CHECK(pthread_create(&others[1], NULL, restart, NULL) == 0);
  for (uintptr_t i = 0; i < THREADS; i++)
    CHECK(pthread_create(&threads[i], NULL, churn, (void *)i) == 0);
  for (int i = 0; i < THREADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
  for (int i = 0; i < 2; i++)
    CHECK(pthread_join(others[i], NULL) == 0);
  runtime(false);
  CHECK(wrong == 0 && xsi_kfd_list(NULL, 0) == 0 && !debugged);
}

int main(void) {
  CHECK(setenv("XSCHED_SOCKET", "/nonexistent/xsched.sock", 1) == 0); // no daemon
  CHECK(setenv("XSCHED_AMD_SESSION", "1", 1) == 0);
  xsi_options_init();
  xsi_kfd_read_options();
  alarm(60);
  test_driver_start();
  test_one_remap();
  test_single();
  test_changes();
  test_session_ends();
  test_refused();
  test_hardware();
  test_off();
  test_child();
  test_threads();
  close(kfd);
  printf("ok kfd-joint\n");
  return 0;
}
