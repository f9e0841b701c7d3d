// SPDX-License-Identifier: Apache-2.0
//
// The session against a stand-in daemon: joining, publishing, the gate, silence, loss, refusal.

#include <sys/syscall.h>

#include "test_support.h"

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;

static uint64_t field(const uint64_t *where) { return __atomic_load_n(where, __ATOMIC_ACQUIRE); }

static int first_queue;

static void joins_and_publishes(void) {
  first_queue = xsi_queue_open(1, 0x0200, 0);
  int second = xsi_queue_open(0, 0x0308, -3);
  CHECK(first_queue == 0 && second == 1);
  test_set_busy(second, true); // before anybody listens
  xsi_queue_add(second, (struct xsi_tally){77, 60, 17});
  xsi_count(launches, 5);
  test_session_start(d, 42);
  CHECK(d->hello.pid == (uint32_t)getpid() && d->hello.hint.priority == 9);
  const struct xsw_hint *hint = &d->hello.hint;
  CHECK(hint->said == (XSW_HINT_PRIORITY | XSW_HINT_LEVEL | XSW_HINT_LIMITS));
  CHECK(hint->level == XSW_LEVEL_INTERRUPT && hint->in_flight == 4 && hint->batch == 2);
  CHECK(d->hello.scheduler == XSW_SCHEDULER_GLOBAL && d->hello.policy[0] == 0);
  CHECK(strstr(d->hello.command, "session") != NULL);
  test_heart_start(d);
  CHECK(test_header(d)->queue_count == 2);
  CHECK(test_slot(d, 0)->generation == 1 && test_slot(d, 0)->pci_domain == 1);
  CHECK(test_slot(d, 0)->transitions == 0 && test_slot(d, 0)->pci_bus_slot == 0x0200);
  CHECK(test_slot(d, 1)->generation == 1 && test_slot(d, 1)->transitions == 1);
  CHECK(test_slot(d, 1)->priority == -3 && test_slot(d, 1)->submitted == 77);
  CHECK(test_progress(d, 1)->launches == 60 && test_progress(d, 1)->copies == 17);
  EVENTUALLY(field(&test_header(d)->launches) == 5);

  while (test_rung(d))
    continue;
  test_set_busy(first_queue, true);
  CHECK(test_rung(d) && test_slot(d, 0)->transitions == 1);
  test_set_busy(first_queue, true); // no change: no ring
  CHECK(!test_rung(d) && test_slot(d, 0)->transitions == 1);
  test_set_busy(first_queue, false);
  CHECK(test_rung(d) && test_slot(d, 0)->transitions == 2);
  xsi_count(launches, 3); // the tick publishes it
  xsi_queue_add(first_queue, (struct xsi_tally){.submitted = 11});
  EVENTUALLY(field(&test_header(d)->launches) == 8);
  EVENTUALLY(field(&test_slot(d, 0)->submitted) == 11);

  xsi_queue_close(second); // while busy
  CHECK(test_rung(d) && test_slot(d, 1)->generation == 2 && test_slot(d, 1)->transitions == 2);
  CHECK(xsi_queue_open(7, 0x0100, 0) == second);
  CHECK(test_slot(d, 1)->generation == 3 && (test_slot(d, 1)->transitions & 1) == 0);
  xsi_queue_close(second);
}

// ---- gate -----------------------------------------------------------------------

static uint64_t passed_ns;
static uint32_t passed;

static void *pass(void *argument) {
  (void)argument;
  errno = 1234;
  xsi_gate_pass(first_queue);
  CHECK(errno == 1234);
  passed_ns = xsi_now_ns();
  __atomic_store_n(&passed, 1, __ATOMIC_RELEASE);
  return NULL;
}

static pthread_t launch_held(void) {
  pthread_t thread;
  passed = 0;
  __atomic_store_n(&test_slot(d, 0)->gate, XSW_GATE_HELD, __ATOMIC_RELEASE);
  CHECK(pthread_create(&thread, NULL, pass, NULL) == 0);
  test_sleep_ms(50);
  CHECK(__atomic_load_n(&passed, __ATOMIC_ACQUIRE) == 0);
  return thread;
}

static void gate_holds_and_opens(void) {
  pthread_t thread = launch_held();
  test_sleep_ms(200); // longer than the usual limit: it is the heartbeat that counts
  CHECK(__atomic_load_n(&passed, __ATOMIC_ACQUIRE) == 0);
  __atomic_store_n(&test_slot(d, 0)->gate, XSW_GATE_OPEN, __ATOMIC_RELEASE);
  CHECK(pthread_join(thread, NULL) == 0);
  struct xsi_counters total;
  xsi_counters_sum(&total);
  CHECK(total.gate_waits == 1 && total.gate_wait_ns > 200000000);
}

// ---- silence --------------------------------------------------------------------

static uint64_t beat(void) {
  uint64_t now = xsi_now_ns();
  __atomic_store_n(&test_header(d)->heartbeat_ns, now, __ATOMIC_RELEASE);
  return now;
}

static void beat_until_obeyed(void) {
  EVENTUALLY((beat(), __atomic_load_n(&xsi_native, __ATOMIC_ACQUIRE) == 0));
}

// One silence after a last heartbeat; true if all was undone in time. A loaded machine may be late,
// but never early.
static bool one_silence(uint64_t epoch) {
  struct xsw_header *header = test_header(d);
  pthread_t thread;
  beat_until_obeyed();
  __atomic_store_n(&test_slot(d, 0)->gate, XSW_GATE_HELD, __ATOMIC_RELEASE);
  __atomic_store_n(&header->lease_epoch, epoch, __ATOMIC_RELEASE);
  __atomic_store_n(&header->lease_deadline_ns, UINT64_MAX, __ATOMIC_RELEASE);
  uint64_t last = beat();
  CHECK(pthread_create(&thread, NULL, pass, NULL) == 0);
  EVENTUALLY(field(&header->recovered_epoch) == epoch);
  uint64_t recovered_ns = xsi_now_ns();
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(passed_ns - last >= XSW_HEARTBEAT_LIMIT_NS);
  CHECK(recovered_ns - last >= XSW_HEARTBEAT_LIMIT_NS);
  printf("gate opened %.1f ms, recovered %.1f ms after the last heartbeat\n",
         (double)(passed_ns - last) / 1e6, (double)(recovered_ns - last) / 1e6);
  return passed_ns - last < 130000000 && recovered_ns - last < 130000000;
}

static void silence_opens_gate_and_recovers(void) {
  d->limit_ns = XSW_HEARTBEAT_LIMIT_NS;
  test_session_start(d, 45);
  struct xsw_header *header = test_header(d);
  __atomic_store_n(&test_slot(d, 0)->in_flight, 6, __ATOMIC_RELEASE);
  uint64_t epoch = 1;
  while (!one_silence(epoch++))
    CHECK(epoch < 20);
  uint64_t before = field(&header->recoveries);
  CHECK(xsi_page_joined() && xsi_in_flight_limit(0) == 0); // the session stays
  xsi_gate_pass(0);                                        // ignored while silent
  // A lease made by a half-dead daemon is undone, too.
  __atomic_store_n(&header->lease_epoch, 30, __ATOMIC_RELEASE);
  EVENTUALLY(field(&header->recovered_epoch) == 30);
  CHECK(field(&header->recoveries) == before);
  __atomic_store_n(&header->lease_deadline_ns, 0, __ATOMIC_RELEASE);
  EVENTUALLY((beat(), xsi_in_flight_limit(0) == 6)); // obeys again
  test_session_end(d);
}

static void expired_lease_recovers(void) {
  struct xsw_header *header = test_header(d);
  uint64_t before = field(&header->recoveries);
  __atomic_store_n(&header->lease_epoch, 9, __ATOMIC_RELEASE);
  __atomic_store_n(&header->lease_deadline_ns, xsi_now_ns() + 30000000, __ATOMIC_RELEASE);
  EVENTUALLY(field(&header->recovered_epoch) == 9);
  CHECK(xsi_now_ns() > header->lease_deadline_ns);
  CHECK(field(&header->recoveries) == before + 1);
  __atomic_store_n(&header->lease_deadline_ns, 0, __ATOMIC_RELEASE);
  EVENTUALLY(__atomic_load_n(&xsi_native, __ATOMIC_ACQUIRE) == 0);
}

static void loss_recovers_and_rejoins(void) {
  struct xsw_header *header = test_header(d);
  uint64_t before = field(&header->recoveries);
  __atomic_store_n(&header->lease_epoch, 12, __ATOMIC_RELEASE);
  pthread_t thread = launch_held();
  uint64_t lost_ns = xsi_now_ns();
  test_daemon_hang_up(d);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(passed_ns - lost_ns < 2000000000); // not by the heartbeat, which lives
  EVENTUALLY(!xsi_page_joined());
  CHECK(field(&header->recovered_epoch) == 12 && field(&header->recoveries) == before + 1);
  printf("gate opened %.1f ms after the socket closed\n", (double)(passed_ns - lost_ns) / 1e6);
  EVENTUALLY(xsi_slot(0)->gate == XSW_GATE_OPEN && xsi_header()->magic == 0); // zeros again
  uint64_t old_transitions = test_slot(d, 0)->transitions;
  test_heart_stop(d);
  test_daemon_drop_page(d);
  test_set_busy(0, true); // nobody listens: no crash, not lost

  uint64_t ready_ns = xsi_now_ns();
  test_session_start(d, 43);
  CHECK(xsi_now_ns() - ready_ns < 1000000000);
  CHECK(test_slot(d, 0)->generation == 1 && test_slot(d, 0)->transitions == old_transitions + 1);
  CHECK(test_header(d)->launches == 8 && test_header(d)->recoveries == before + 1);
  CHECK(test_header(d)->recovered_epoch == 0);
  test_session_end(d);
}

static void send_refusal(uint32_t daemon_version, uint32_t client_version) {
  struct xsw_refused refused = {
      .frame = {XSW_FRAME_MAGIC, daemon_version, XSW_FRAME_REFUSED, sizeof refused},
      .daemon_version = daemon_version,
      .client_version = client_version};
  memset(refused.reason, 'r', sizeof refused.reason); // no end
  test_send(d->socket, &refused, sizeof refused, NULL, 0);
  test_daemon_hang_up(d);
}

static void refusal_is_accepted(void) {
  test_daemon_accept(d);
  CHECK(d->hello.frame.version == XSW_VERSION);
  send_refusal(XSW_VERSION + 1, XSW_VERSION);
  uint64_t refused_ns = xsi_now_ns();
  test_session_start(d, 44); // an upgraded one
  CHECK(xsi_now_ns() - refused_ns > 1500000000 && xsi_now_ns() - refused_ns < 4000000000u);
  test_session_end(d);
}

// The stand-in daemon refuses between connect and HELLO if a test asks for it.
static uint32_t early;

int connect(int fd, const struct sockaddr *address, socklen_t bytes) {
  long result = syscall(SYS_connect, fd, address, bytes);
  if (result != 0 || __atomic_load_n(&early, __ATOMIC_ACQUIRE) == 0) return (int)result;
  d->socket = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
  CHECK(d->socket >= 0);
  send_refusal(XSW_VERSION, 0);
  __atomic_store_n(&early, 0, __ATOMIC_RELEASE);
  return 0;
}

static void set_retry(struct xsi_session_retry retry) {
  xsi_session_lock(); // the helper thread reads it
  xsi_session_retry = retry;
  xsi_session_unlock();
}

// A refusal counts although the daemon never read HELLO: the next attempt comes after the pause of a
// refusal, not at once.
static void unread_hello_is_refused(void) {
  struct xsi_session_retry usual = xsi_session_retry;
  set_retry((struct xsi_session_retry){.first_ms = 10, .last_ms = 20, .refused_ms = 600});
  for (int before = 0; before < 2; before++) {
    __atomic_store_n(&early, (uint32_t)before, __ATOMIC_RELEASE);
    if (before != 0) {
      EVENTUALLY(__atomic_load_n(&early, __ATOMIC_ACQUIRE) == 0);
    } else {
      CHECK(test_readable(d->listener, 5000));
      d->socket = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
      CHECK(d->socket >= 0 && test_readable(d->socket, 5000));
      send_refusal(XSW_VERSION, 0);
    }
    uint64_t refused_ns = xsi_now_ns();
    CHECK(test_readable(d->listener, 5000));
    CHECK(xsi_now_ns() - refused_ns > 400000000);
    test_daemon_accept(d);
    test_daemon_hang_up(d);
  }
  set_retry(usual);
}

// ---- versions -------------------------------------------------------------------

// A daemon of the previous release refuses our version and gets its own at once; the next connection
// starts with ours again.
static void previous_daemon_is_served(void) {
  test_daemon_accept(d);
  CHECK(d->hello.frame.version == XSW_VERSION);
  uint64_t refused_ns = xsi_now_ns();
  d->version = XSW_VERSION_MIN;
  send_refusal(XSW_VERSION_MIN, XSW_VERSION);
  test_session_start(d, 80);
  CHECK(d->hello.frame.version == XSW_VERSION_MIN && d->hello.hint.priority == 9);
  CHECK(xsi_now_ns() - refused_ns < 1500000000); // no pause as after other refusals
  // Its shared lease counts, and its frames must be of its version.
  struct xsw_header *header = test_header(d);
  __atomic_store_n(&header->lease_epoch, 3, __ATOMIC_RELEASE);
  __atomic_store_n(&header->lease_deadline_ns, xsi_now_ns(), __ATOMIC_RELEASE);
  EVENTUALLY(field(&header->recovered_epoch) == 3);
  struct xsw_hint hint = {.said = XSW_HINT_PRIORITY, .priority = 4};
  xsi_hint_process(&hint, NULL);
  struct xsw_hint_frame frame;
  CHECK(test_readable(d->socket, 5000));
  CHECK(recv(d->socket, &frame, sizeof frame, 0) ==
        (ssize_t)test_bytes(sizeof frame, XSW_VERSION_MIN));
  CHECK(frame.frame.version == XSW_VERSION_MIN && frame.hint.priority == 4);
  test_session_end(d);
  d->version = XSW_VERSION;
  test_session_start(d, 81);
  CHECK(d->hello.frame.version == XSW_VERSION);
  test_session_end(d);

  // A refusal of the previous version, too, and one for another reason: the usual pause.
  test_daemon_accept(d);
  send_refusal(XSW_VERSION_MIN, XSW_VERSION);
  test_daemon_accept(d);
  CHECK(d->hello.frame.version == XSW_VERSION_MIN);
  send_refusal(XSW_VERSION_MIN, 0);
  refused_ns = xsi_now_ns();
  test_daemon_accept(d);
  CHECK(d->hello.frame.version == XSW_VERSION && xsi_now_ns() - refused_ns > 1500000000);
  test_daemon_hang_up(d);

  // WELCOME in another version than HELLO's.
  test_daemon_accept(d);
  d->version = XSW_VERSION_MIN;
  test_daemon_welcome(d, 82);
  char byte;
  CHECK(test_readable(d->socket, 5000) && recv(d->socket, &byte, 1, 0) == 0);
  CHECK(!xsi_page_joined());
  test_daemon_hang_up(d);
  test_daemon_drop_page(d);
  d->version = XSW_VERSION;
}

// ---- leases of single devices ---------------------------------------------------

// One lease ends: it alone is answered, and the process goes on obeying the daemon. False: the daemon's heart was late
// on a busy machine, so that all leases were answered.
static bool device_lease_recovers_alone(void) {
  test_session_start(d, 90);
  test_heart_start(d);
  struct xsw_header *header = test_header(d);
  const uint64_t *recovered = test_leases(d)->recovered_epochs;
  uint64_t all = field(&header->recoveries), single = field(&header->lease_recoveries);
  test_lease(d, 0, 0x0200, 5, xsi_now_ns() + 60000000000u);
  test_lease(d, 1, 0x0300, 8, xsi_now_ns() + 30000000);
  test_lease(d, 15, 0x0400, 2, xsi_now_ns() + 30000000);
  EVENTUALLY(field(&recovered[1]) == 8 && field(&recovered[15]) == 2);
  uint64_t counted = field(&header->lease_recoveries);
  bool others = field(&recovered[0]) != 0 || field(&header->recovered_epoch) != 0;
  test_sleep_ms(1200); // repeated while it lasts, but not counted
  if (field(&header->recoveries) != all) {
    test_heart_stop(d);
    test_session_end(d);
    return false;
  }
  CHECK(counted == single + 2 && !others);
  CHECK(xsi_now_ns() > field(&test_leases(d)->entries[1].deadline_ns));
  CHECK(field(&recovered[0]) == 0 && field(&header->recovered_epoch) == 0);
  CHECK(__atomic_load_n(&xsi_native, __ATOMIC_ACQUIRE) == 0);
  CHECK(field(&header->lease_recoveries) == single + 2);

  // Ended by the daemon: nothing to do. A new one counts again.
  test_lease(d, 1, 0x0300, 8, 0);
  test_lease(d, 1, 0x0300, 9, xsi_now_ns());
  EVENTUALLY(field(&recovered[1]) == 9);
  CHECK(field(&header->lease_recoveries) == single + 3);
  test_lease(d, 1, 0x0300, 9, UINT64_MAX); // no deadline that could overflow
  // The loss of the daemon answers every lease.
  test_heart_stop(d);
  test_daemon_hang_up(d);
  EVENTUALLY(!xsi_page_joined());
  CHECK(field(&recovered[0]) == 5 && field(&recovered[1]) == 9 && field(&recovered[15]) == 2);
  CHECK(field(&header->recoveries) == all + 1);
  test_daemon_drop_page(d);
  test_session_start(d, 91); // epochs start over
  CHECK(field(&test_leases(d)->recovered_epochs[0]) == 0);
  test_lease(d, 0, 0x0200, 1, xsi_now_ns());
  EVENTUALLY(field(&test_leases(d)->recovered_epochs[0]) == 1);
  test_session_end(d);
  return true;
}

static void *accept_later(void *unused) {
  (void)unused;
  test_sleep_ms(5);
  int fd = accept(d->listener, NULL, NULL);
  CHECK(fd >= 0);
  close(fd);
  return NULL;
}

// Somebody else's flood fills the queue of connections: a place that becomes free for a moment is ours.
static void crowd_is_waited_for(void) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", d->path);
  CHECK(listen(d->listener, 1) == 0);
  int held[8], count = 0, result = 0;
  while (count < 8 && result == 0) {
    held[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    result = connect(held[count++], (struct sockaddr *)&address, sizeof address);
  }
  CHECK(result < 0 && errno == EAGAIN);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, accept_later, NULL) == 0);
  CHECK(xsi_daemon_listens());
  pthread_join(thread, NULL);
  uint64_t begun = xsi_now_ns();
  CHECK(!xsi_daemon_listens()); // full again: it gives up soon
  CHECK(xsi_now_ns() - begun < 1000000000u);
  while (count > 0)
    close(held[--count]);
}

int main(void) {
  test_daemon_place(d);
  setenv("XSCHED_AUTO_XQUEUE_PRIORITY", "9", 1);
  setenv("XSCHED_AUTO_XQUEUE_LEVEL", "3", 1);
  setenv("XSCHED_AUTO_XQUEUE_THRESHOLD", "4", 1);
  setenv("XSCHED_AUTO_XQUEUE_BATCH_SIZE", "2", 1);
  xsi_options_init(); // the constructor ran before these were set
  xsi_hint_init();
  alarm(60);
  test_daemon_listen(d);
  crowd_is_waited_for();
  close(d->listener);
  test_daemon_listen(d);
  joins_and_publishes();
  gate_holds_and_opens();
  expired_lease_recovers();
  loss_recovers_and_rejoins();
  silence_opens_gate_and_recovers();
  unsigned fds = test_count_fds();
  refusal_is_accepted();
  unread_hello_is_refused();
  previous_daemon_is_served();
  bool seen = false;
  for (int tries = 0; tries < 5 && !seen; tries++)
    seen = device_lease_recovers_alone();
  CHECK(seen);
  test_session_start(d, 70);
  test_session_end(d);
  EVENTUALLY(test_count_fds() <= fds);
  CHECK(test_count_helpers() == 1);
  test_daemon_remove(d);
  puts("ok session");
  return 0;
}
