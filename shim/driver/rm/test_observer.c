// SPDX-License-Identifier: Apache-2.0
//
// The RM observer over a stand-in driver: what it notes, what it tells the daemon, what it undoes.

#include <sys/prctl.h>
#include <sys/syscall.h>

#include "core/clock.h"
#include "core/counters.h"
#include "core/teardown.h"
#include "test_driver.h"

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;
static int device;
static struct xsw_rm_event events[XSW_MAX_RM_OBJECTS + 1024];

static struct rm_object *find(uint32_t client, uint32_t object) {
  xsi_rm_lock();
  struct rm_object *found = xsi_rm_find_object(client, object);
  xsi_rm_unlock();
  return found;
}

static void passes_through(void) {
  CHECK(ioctl(device, 0x5401, (void *)7) == 7);
  CHECK(ioctl(device, 0x4600, (void *)8) == 8); // 'F' of another driver
  extern const struct xsi_driver xsi_rm_driver;
  CHECK(!xsi_rm_driver.claims(device, 0x4600)); // FBIOGET_VSCREENINFO
  CHECK(!xsi_rm_driver.claims(device, _IOWR('F', NV_ESC_RM_FREE & 0xff, char[77])));
  CHECK(xsi_rm_driver.claims(device, NV_ESC_RM_FREE));
  errno = 55;
  test_turn(error, EIO);
  struct rm_alloc_48 root = {0};
  CHECK(ioctl(device, NV_ESC_RM_ALLOC_48, &root) == -1 && errno == EIO);
  struct rm_free lost = {.object = 1};
  CHECK(ioctl(device, NV_ESC_RM_FREE, &lost) == -1 && errno == EIO);
  test_turn(error, 0);
  errno = 55;
  unsigned fds = test_count_fds();
  test_turn(status, 0x1f); // granted by nobody
  test_alloc(device, 0, 0, 0, 0x41);
  CHECK(test_count_fds() == fds);
  test_turn(status, 0);
  // A sign-extended request, as a caller with an int has it.
  struct rm_alloc_32 short_form = {.common = {.object_class = 0x41}};
  CHECK(ioctl(device, (unsigned long)(int)NV_ESC_RM_ALLOC_32, &short_form) == 0);
  CHECK(test_count_fds() == fds + 1 && errno == 55);
  test_free(device, short_form.common.object, short_form.common.object);
  CHECK(test_count_fds() == fds && errno == 55);
}

// A context on one GPU as CUDA builds it: two compute channels in the first group, one copy channel
// in the other.
static uint32_t make_context(uint32_t base) {
  uint32_t client = test_alloc(device, 0, 0, 0, 0x41);
  test_alloc(device, client, client, base + 1, NV01_DEVICE_0);
  test_alloc(device, client, base + 1, base + 2, NV20_SUBDEVICE_0);
  test_alloc(device, client, base + 1, base + 3, 0x90F1); // memory: not ours to know
  test_alloc(device, client, base + 1, base + 4, KEPLER_CHANNEL_GROUP_A);
  test_alloc(device, client, base + 4, base + 5, 0xC86F);
  test_alloc(device, client, base + 5, base + 6, 0xCBC0);
  test_alloc(device, client, base + 4, base + 7, 0xC86F);
  test_alloc(device, client, base + 1, base + 8, KEPLER_CHANNEL_GROUP_A);
  test_alloc(device, client, base + 8, base + 9, 0xC86F);
  test_alloc(device, client, base + 9, base + 10, 0xC8B5);
  uint8_t schedule[3] = {1, 0, 0};
  test_control(device, client, base + 4, NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, schedule,
               sizeof schedule);
  test_set_timeslice(device, client, base + 4, 2048);
  return client;
}

static void removes_what_is_below(void) {
  uint32_t client = make_context(0x5c000000);
  CHECK(find(client, 0x5c000003) == NULL);
  CHECK(find(client, 0x5c000006)->parent == 0x5c000005);
  CHECK(find(client, 0x5c000004)->slice_own && find(client, 0x5c000004)->timeslice_us == 2048);
  CHECK(!find(client, 0x5c000008)->slice_known);
  test_free(device, client, 0x5c000004); // a group with its channels and their objects
  for (uint32_t gone = 4; gone <= 7; gone++)
    CHECK(find(client, 0x5c000000 + gone) == NULL);
  CHECK(find(client, 0x5c00000a) != NULL);
  test_free(device, client, 0x5c000001); // the device: everything but the client
  CHECK(xsi_rm_table.oldest == RM_NONE);
  test_free(device, client, 0x5c0000ff); // never seen
  unsigned fds = test_count_fds();
  test_free(device, client, client);
  CHECK(test_count_fds() == fds - 1);
}

static uint32_t racing_client;
static void take_handle_again(void) {
  test_driver.during_free = NULL;
  test_alloc(device, racing_client, 2, 5, 0xC86F);
}
// A handle freed by one thread is given to another before the first has come back from the driver.
static void handle_used_anew(void) {
  racing_client = test_alloc(device, 0, 0, 0, 0x41);
  test_alloc(device, racing_client, 1, 2, KEPLER_CHANNEL_GROUP_A);
  test_alloc(device, racing_client, 2, 5, 0xC86F);
  test_driver.during_free = take_handle_again;
  test_free(device, racing_client, 5);
  CHECK(find(racing_client, 5) != NULL);
  test_free(device, racing_client, racing_client);
}

static void limits_never_fail_the_call(void) {
  unsigned fds = test_count_fds();
  uint32_t clients[XSW_MAX_RM_CLIENTS + 3];
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS + 3; i++)
    clients[i] = test_alloc(device, 0, 0, 0, 0x41);
  CHECK(test_count_fds() == fds + XSW_MAX_RM_CLIENTS);
  for (uint32_t i = 1; i <= XSW_MAX_RM_OBJECTS + 50; i++)
    test_alloc(device, clients[0], 1, i, i == 1 ? NV01_DEVICE_0 : 0xC86F);
  CHECK(find(clients[0], XSW_MAX_RM_OBJECTS) != NULL);
  CHECK(find(clients[0], XSW_MAX_RM_OBJECTS + 1) == NULL);
  test_alloc(device, clients[XSW_MAX_RM_CLIENTS], 1, 7, NV01_DEVICE_0); // a client that was dropped
  test_free(device, clients[0], 1);
  CHECK(find(clients[0], 2) == NULL);
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS + 3; i++)
    test_free(device, clients[i], clients[i]);
  CHECK(test_count_fds() == fds && xsi_rm_table.oldest == RM_NONE);
}

// ---- what the daemon hears ------------------------------------------------------

static bool is(const struct xsw_rm_event *event, uint32_t kind, uint32_t client, uint32_t object) {
  return event->kind == kind && event->client == client && event->object == object;
}

static void tells_the_daemon(void) {
  uint32_t client = make_context(0x5c000000);
  CHECK(xsi_queue_open(0, 0x0100, 0) == 0);
  test_session_start(d, 1);
  test_heart_start(d);
  unsigned fds = 0, count = test_read_events(d, events, 64, &fds);
  CHECK(fds == 1 && count == 1 + 9 + 1); // client, objects, the one timeslice the application set
  CHECK(is(&events[0], XSW_RM_CLIENT, client, client));
  CHECK(is(&events[1], XSW_RM_ALLOC, client, 0x5c000001) && events[1].object_class == 0x80);
  CHECK(is(&events[3], XSW_RM_ALLOC, client, 0x5c000004));
  CHECK(is(&events[4], XSW_RM_TIMESLICE, client, 0x5c000004) && events[4].value == 2048);
  CHECK(is(&events[5], XSW_RM_ALLOC, client, 0x5c000005) && events[5].parent == 0x5c000004);
  CHECK(is(&events[10], XSW_RM_ALLOC, client, 0x5c00000a) && events[10].object_class == 0xC8B5);
  CHECK(find(client, 0x5c000008)->slice_known && find(client, 0x5c000008)->timeslice_us == 2048);

  test_set_timeslice(device, client, 0x5c000008, 1024);
  CHECK(test_read_events(d, events, 64, NULL) == 1);
  CHECK(is(&events[0], XSW_RM_TIMESLICE, client, 0x5c000008) && events[0].value == 1024);

  // Freed and used anew between two looks: first the end of the old one.
  test_free(device, client, 0x5c000009);
  test_alloc(device, client, 0x5c000008, 0x5c000009, 0xC86F);
  unsigned again = test_read_events(d, events, 64, NULL);
  CHECK(again == 2 && is(&events[0], XSW_RM_FREE, client, 0x5c000009));
  CHECK(is(&events[1], XSW_RM_ALLOC, client, 0x5c000009));

  uint32_t other = test_alloc(device, 0, 0, 0, 0x41);
  CHECK(test_read_events(d, events, 64, NULL) == 1 && events[0].kind == XSW_RM_CLIENT);
  test_free(device, other, other);
  CHECK(test_read_events(d, events, 64, NULL) == 1 && is(&events[0], XSW_RM_FREE, other, other));
  other = test_alloc(device, 0, 0, 0, 0x41);
  test_free(device, other, other); // came and went: not a word, or both
  CHECK(test_read_events(d, events, 64, NULL) % 2 == 0);

  // A new daemon hears all of it again.
  test_heart_stop(d);
  test_session_end(d);
  test_session_start(d, 2);
  fds = 0;
  count = test_read_events(d, events, 64, &fds);
  CHECK(fds == 1 && count == 1 + 8 + 2);
  test_session_end(d);
  test_free(device, client, client);
}

// A daemon that does not read: the application never waits, and after all it knows the truth.
static void unread_socket(void) {
  uint32_t client = test_alloc(device, 0, 0, 0, 0x41);
  test_alloc(device, client, client, 1, NV01_DEVICE_0);
  test_session_start(d, 3);
  test_heart_start(d);
  for (uint32_t round = 0; round < 12; round++) {
    for (uint32_t i = 2; i < 3000; i++)
      test_alloc(device, client, 1, i, 0xC86F);
    test_sleep_ms(6);
    for (uint32_t i = 2; i < 3000; i++)
      test_free(device, client, i);
  }
  test_alloc(device, client, 1, 7777, 0xC86F);
  test_heart_stop(d);
  test_daemon_hang_up(d);
  EVENTUALLY(!xsi_page_joined());
  test_daemon_drop_page(d);
  test_session_start(d, 4);
  CHECK(test_read_events(d, events, 64, NULL) == 3 && events[2].object == 7777);
  test_session_end(d);
  test_free(device, client, client);
}

// ---- many threads ---------------------------------------------------------------

static void *churn(void *argument) {
  int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK(fd >= 0);
  for (int i = 0; i < 60; i++) {
    uint32_t client = test_alloc(fd, 0, 0, 0, 0x41);
    test_alloc(fd, client, client, 1, NV01_DEVICE_0);
    test_alloc(fd, client, 1, 2, NV20_SUBDEVICE_0);
    test_alloc(fd, client, 1, 3, KEPLER_CHANNEL_GROUP_A);
    test_set_timeslice(fd, client, 3, 500);
    for (uint32_t c = 10; c < 20; c++)
      test_alloc(fd, client, 3, c, 0xC86F);
    if (argument != NULL) test_free(fd, client, 3);
    xsi_rm_recover(NULL);
    test_free(fd, client, client);
  }
  close(fd);
  return NULL;
}

static void threads_at_once(void) {
  pthread_t threads[6];
  unsigned fds = test_count_fds();
  test_session_start(d, 5);
  test_heart_start(d);
  for (uintptr_t i = 0; i < 6; i++)
    CHECK(pthread_create(&threads[i], NULL, churn, i % 2 == 0 ? NULL : (void *)1) == 0);
  test_sleep_ms(20);
  test_heart_stop(d);
  test_session_end(d);
  for (int i = 0; i < 6; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(xsi_rm_table.oldest == RM_NONE);
  EVENTUALLY(test_count_fds() <= fds + 1); // the next attempt's socket may be there already
}

// ---- a thread that is cancelled ---------------------------------------------------

// The hook takes locks, closes descriptors and wakes the helper: a pending cancellation must wait.
static uint32_t through;
static void *cancelled(void *argument) {
  (void)argument;
  CHECK(pthread_cancel(pthread_self()) == 0);
  uint32_t client = test_alloc(device, 0, 0, 0, 0x41);
  test_alloc(device, client, client, 1, NV01_DEVICE_0);
  test_free(device, client, client);
  __atomic_store_n(&through, 1, __ATOMIC_RELEASE);
  pthread_testcancel();
  return NULL;
}

static void cancelled_thread(void) {
  test_session_start(d, 6);
  pthread_t thread;
  void *result;
  CHECK(pthread_create(&thread, NULL, cancelled, NULL) == 0);
  CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
  CHECK(__atomic_load_n(&through, __ATOMIC_ACQUIRE) == 1);
  xsi_rm_lock();
  xsi_rm_unlock();
  test_session_end(d);
}

static void *stop_asking(void *unused) {
  test_sleep_ms(1);
  xsi_teardown_asked();
  return unused;
}

static void name_thread(const char *name) { CHECK(prctl(PR_SET_NAME, name, 0, 0, 0) == 0); }

// A thread of the program makes no hooked call and is not the driver's all the same: an allocator's that
// gives memory back, or one that polls the device through a library with a client of its own.
static void threads_of_the_program(void) {
  const char *const names[] = {"python3",        "pt_main_thread", "cuda",
                               "cuda_app",       "cuda-EvtHandlr", "cuda000014000x6",
                               "cuda0000140000", "cudaAllocator"};
  xsi_teardown_reset();
  uint32_t client = make_context(0x5c000000);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    name_thread(names[i]);
    test_free(device, client, 0x5c000003);
    uint32_t monitor = test_alloc(device, 0, 0, 0, 0x41);
    test_free(device, monitor, monitor);
    CHECK(xsi_teardown_until() == 0 && xsi_teardown_ask());
    xsi_teardown_asked();
  }
  name_thread("cuda00001400006"); // where the driver says which thread it is, names don't count
  xsi_teardown_set_thread(1);
  test_free(device, client, 0x5c000003);
  CHECK(xsi_teardown_until() == 0);
  name_thread("python3");
  xsi_teardown_set_thread((int)syscall(SYS_gettid));
  test_free(device, client, 0x5c000003);
  CHECK(xsi_teardown_until() != 0);
  xsi_teardown_reset();
  test_free(device, client, client);
  xsi_teardown_reset();
}

// The driver's thread waits for the question of another thread, but not for ever.
static void question_under_way(void) {
  xsi_teardown_reset();
  uint32_t client = make_context(0x5c000000);
  pthread_t thread;
  CHECK(xsi_teardown_ask());
  uint64_t start = xsi_now_ns();
  pthread_create(&thread, NULL, stop_asking, NULL);
  errno = 55;
  test_free(device, client, 0x5c000003);
  CHECK(xsi_now_ns() - start >= 1000000 && errno == 55);
  pthread_join(thread, NULL);
  CHECK(!xsi_teardown_ask());
  xsi_teardown_set(0);
  CHECK(xsi_teardown_ask());
  start = xsi_now_ns();
  test_free(device, client, 0x5c000003); // by a thread that was cancelled in its question
  CHECK(xsi_teardown_until() - start >= 102000000); // the wait for it takes nothing from the time
  CHECK(!xsi_teardown_ask());
  xsi_teardown_reset();
  test_free(device, client, client);
  xsi_teardown_reset();
}

// A thread of the driver's takes everything away and brings it back, as for a checkpoint.
static void checkpoint(void) {
  xsi_teardown_set(0);
  uint32_t probe = test_alloc(device, 0, 0, 0, 0x41); // as cuInit does, before there are channels
  test_free(device, probe, probe);
  CHECK(xsi_teardown_until() == 0);
  uint32_t client = make_context(0x5c000000);
  CHECK(xsi_teardown_until() == 0);
  xsi_thread.counters.hooked_calls = 1; // an application's thread frees what it likes
  test_free(device, client, 0x5c000003);
  CHECK(xsi_teardown_until() == 0);
  xsi_thread.counters.hooked_calls = 0;
  uint64_t now = xsi_now_ns();
  test_free(device, client, 0x5c000003);
  CHECK(xsi_teardown_until() > now && xsi_teardown_until() != UINT64_MAX);
  uint32_t monitor = test_alloc(device, 0, 0, 0, 0x41); // of a library that only watches the device
  uint32_t other = make_context(0x5d000000);
  test_free(device, client, client);
  CHECK(xsi_teardown_until() != UINT64_MAX); // some memory may still be there
  test_free(device, other, 0x5d000004);
  test_free(device, other, 0x5d000008);
  uint64_t until = xsi_teardown_until();
  test_free(device, other, 0x5d000003);
  CHECK(xsi_teardown_until() >= until); // not shorter than a restore needs
  bool longer = false;
  for (int i = 0; i < 20 && !longer; i++) { // memory after the last channel
    until = xsi_now_ns() + 50000000;
    xsi_teardown_set(until);
    test_free(device, other, 0x5d000003);
    longer = xsi_teardown_until() > until && xsi_teardown_until() != UINT64_MAX;
  }
  CHECK(longer);
  test_free(device, other, other);
  CHECK(xsi_teardown_until() == UINT64_MAX);
  test_free(device, monitor, monitor);
  monitor = test_alloc(device, 0, 0, 0, 0x41);
  CHECK(xsi_teardown_until() == UINT64_MAX); // and it may come and go meanwhile
  test_free(device, monitor, monitor);
  now = xsi_now_ns();
  client = make_context(0x5c000000);
  CHECK(xsi_teardown_until() > now && xsi_teardown_until() != UINT64_MAX);
  xsi_teardown_set(UINT64_MAX); // the program's own thread begins anew
  xsi_thread.counters.hooked_calls = 1;
  other = make_context(0x5d000000);
  CHECK(xsi_teardown_until() > now && xsi_teardown_until() != UINT64_MAX);
  test_free(device, other, other);
  until = xsi_teardown_until();
  test_free(device, client, client);
  CHECK(xsi_teardown_until() == until);
  xsi_thread.counters.hooked_calls = 0;
  xsi_teardown_set(0);
}

int main(void) {
  test_daemon_place(d);
  xsi_options_init(); // the constructor ran before the socket was named
  alarm(60);
  xsi_session_retry.first_ms = xsi_session_retry.last_ms = 10;
  test_driver_install();
  device = open("/dev/null", O_RDWR | O_CLOEXEC);
  test_daemon_listen(d);
  passes_through();
  removes_what_is_below();
  handle_used_anew();
  limits_never_fail_the_call();
  tells_the_daemon();
  unread_socket();
  threads_at_once();
  cancelled_thread();
  threads_of_the_program();
  name_thread("cuda00001400006");
  question_under_way();
  checkpoint();
  test_daemon_remove(d);
  puts("ok observer");
  return 0;
}
