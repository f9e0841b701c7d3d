// SPDX-License-Identifier: Apache-2.0
//
// Orders of a stand-in daemon, over the stand-in driver: what is announced, what is obeyed, and
// that nothing stays paused when the daemon is silent, goes, or says nonsense.

#include "frames.h"
#include "test_driver.h"

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;
static uint64_t sequence;

static uint64_t field(const uint64_t *where) { return __atomic_load_n(where, __ATOMIC_ACQUIRE); }

// The next frame of the client's, which must be of this type; -1: none came.
static ssize_t read_frame(void *frame, size_t bytes, uint32_t type) {
  if (!test_readable(d->socket, 2000)) return -1;
  ssize_t got = recv(d->socket, frame, bytes, 0);
  if (got <= 0) return got;
  const struct xsw_frame *head = frame;
  CHECK(head->magic == XSW_FRAME_MAGIC && head->type == type && head->bytes == (uint32_t)got);
  return got;
}

static struct xsw_kfd_event read_event(void) {
  struct xsw_kfd frame;
  ssize_t got = read_frame(&frame, sizeof frame, XSW_FRAME_KFD);
  CHECK(got == (ssize_t)(offsetof(struct xsw_kfd, events) + sizeof(struct xsw_kfd_event)));
  CHECK(frame.count == 1);
  return frame.events[0];
}

static struct xsw_order new_order(uint32_t kind, uint32_t gpu) {
  return (struct xsw_order){
      .frame = {XSW_FRAME_MAGIC, XSW_VERSION, XSW_FRAME_ORDER, sizeof(struct xsw_order)},
      .sequence = ++sequence,
      .kind = kind,
      .gpu_id = gpu,
      .queues = XSW_ORDER_COMPUTE};
}

static int32_t give(const struct xsw_order *order) {
  struct xsw_done done;
  test_send(d->socket, order, sizeof *order, NULL, 0);
  CHECK(read_frame(&done, sizeof done, XSW_FRAME_DONE) == sizeof done);
  CHECK(done.sequence == order->sequence && done.begin_ns != 0 && done.end_ns >= done.begin_ns);
  return done.result;
}

static int32_t order(uint32_t kind, uint32_t gpu) {
  struct xsw_order o = new_order(kind, gpu);
  return give(&o);
}

static void lease(uint64_t epoch, uint64_t deadline) {
  __atomic_store_n(&test_header(d)->lease_deadline_ns, deadline, __ATOMIC_RELEASE);
  __atomic_store_n(&test_header(d)->lease_epoch, epoch, __ATOMIC_RELEASE);
}
static uint64_t later(void) { return xsi_now_ns() + 60000000000u; }

static uint32_t compute, copy;

static void join(uint64_t id) {
  test_session_start(d, id);
  test_heart_start(d);
}

// A queue made before anybody listens is told on joining; later ones, changes and ends at once.
static void announces(void) {
  compute = create(GPU, 2, 0x1000); // starts the helper by itself
  test_daemon_accept(d);
  test_daemon_welcome(d, 1);
  struct xsw_kfd_event e = read_event();
  EVENTUALLY(xsi_page_joined());
  test_heart_start(d);
  CHECK(e.kind == XSW_KFD_QUEUE && e.id == compute && e.gpu_id == GPU && e.type == 2);
  CHECK(e.ring == 0x1000 && e.ring_bytes == 4096 && e.priority == 7 && e.late == 0);
  copy = create(GPU, 1, 0x2000);
  e = read_event();
  CHECK(e.id == copy && e.type == 1 && e.ring == 0x2000);
  struct kfd_update_queue own = {0x1000, compute, 4096, 100, 11};
  CHECK(ioctl(kfd, AMDKFD_IOC_UPDATE_QUEUE, &own) == 0);
  e = read_event();
  CHECK(e.id == compute && e.priority == 11);
  uint32_t other = create(OTHER_GPU, 0, 0x3000);
  CHECK(read_event().id == other);
  destroy(other);
  e = read_event();
  CHECK(e.kind == XSW_KFD_GONE && e.id == other);
}

static void obeys(void) {
  CHECK(order(XSW_ORDER_PAUSE, GPU) == -ESTALE && percentage(compute) == 100); // no lease
  lease(1, xsi_now_ns() - 1);
  CHECK(order(XSW_ORDER_PAUSE, GPU) == -ESTALE && percentage(compute) == 100);
  lease(2, later());
  CHECK(order(XSW_ORDER_PAUSE, GPU) == 2);
  CHECK(percentage(compute) == 0 && percentage(copy) == 100);
  CHECK(order(XSW_ORDER_PAUSE, GPU) == 2); // again: nothing to do
  uint32_t fresh = create(GPU, 0, 0x4000);
  CHECK(percentage(fresh) == 0);
  struct xsw_kfd_event e = read_event();
  CHECK(e.id == fresh && e.late == 1);
  struct xsw_order both = new_order(XSW_ORDER_PAUSE, 0);
  both.queues = XSW_ORDER_BOTH;
  CHECK(give(&both) == 3 && percentage(copy) == 0);
  both.kind = XSW_ORDER_RESUME;
  both.sequence = ++sequence;
  CHECK(give(&both) == 3 && percentage(copy) == 100 && percentage(compute) == 0);
  refuse_next(ETIME);
  CHECK(order(XSW_ORDER_RESUME, GPU) == -ETIME); // and the daemon knows
  CHECK(order(XSW_ORDER_RESUME, GPU) == 3);
  CHECK(percentage(compute) == 100 && percentage(fresh) == 100);
  lease(2, 0);
  struct xsw_order lever = new_order(XSW_ORDER_PRIORITY, GPU);
  lever.priority = 3;
  CHECK(give(&lever) == 3 && driver[compute].state.priority == 3);
  lever = new_order(XSW_ORDER_CU_MASK, GPU);
  lever.mask_bits = 64;
  lever.mask[0] = 0xff;
  CHECK(give(&lever) == 3 && driver[compute].mask == 0xff && driver[copy].mask_bits == 0);
  destroy(fresh);
  CHECK(read_event().kind == XSW_KFD_GONE);
}

static void child_is_apart(void) {
  lease(3, later());
  CHECK(order(XSW_ORDER_PAUSE, GPU) == 2);
  pid_t child = fork();
  if (child == 0) _exit(xsi_kfd_list(NULL, 0) == 0 && !xsi_page_joined() ? 0 : 1);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(percentage(compute) == 0);
}

// The lease runs out under a daemon that lives, then the daemon itself falls silent.
static void fails_open(void) {
  lease(3, xsi_now_ns());
  EVENTUALLY(field(&test_header(d)->recovered_epoch) == 3);
  CHECK(percentage(compute) == 100 && driver[compute].state.priority == 11);
  CHECK(driver[compute].mask == 0xffffffff);
  lease(4, later());
  EVENTUALLY(order(XSW_ORDER_PAUSE, GPU) == 2); // obeyed again with the next heartbeat it looks at
  CHECK(percentage(compute) == 0);
  refuse_next(ETIME); // and the recovery is repeated until it has worked
  test_heart_stop(d);
  EVENTUALLY(field(&test_header(d)->recovered_epoch) == 4);
  CHECK(percentage(compute) == 100);
  CHECK(order(XSW_ORDER_PAUSE, GPU) == -ESTALE && percentage(compute) == 100);
}

// A pause that comes after its lease was given back, with the heartbeat there again and the deadline
// still ahead: the daemon would have to undo it.
static void pauses_too_late(void) {
  test_heart_start(d);
  lease(4, later());
  EVENTUALLY(!xsi_gate_silent(xsi_now_ns()));
  CHECK(order(XSW_ORDER_PAUSE, GPU) == -ESTALE && percentage(compute) == 100);
  lease(5, later());
  CHECK(order(XSW_ORDER_PAUSE, GPU) == 2 && percentage(compute) == 0);
  CHECK(order(XSW_ORDER_RESUME, GPU) == 2);
  test_heart_stop(d);
}

static int32_t pause_under(uint32_t gpu, uint32_t number) {
  struct xsw_order o = new_order(XSW_ORDER_PAUSE, gpu);
  o.lease = number;
  return give(&o);
}

// Two GPUs, each with a lease: the end of one resumes that GPU alone.
static void leases_are_independent(void) {
  uint32_t other = create(OTHER_GPU, 0, 0x5000);
  CHECK(read_event().id == other);
  test_heart_start(d);
  lease(5, 0);
  EVENTUALLY(!xsi_gate_silent(xsi_now_ns()));
  CHECK(pause_under(GPU, 1) == -ESTALE); // no such lease yet
  test_lease(d, 0, 0x0100, 1, later());
  test_lease(d, 1, 0x0200, 1, later());
  CHECK(pause_under(GPU, 1) == 2 && pause_under(OTHER_GPU, 2) == 1);
  struct xsw_order lever = new_order(XSW_ORDER_PRIORITY, OTHER_GPU);
  lever.priority = 3;
  CHECK(give(&lever) == 1);
  CHECK(percentage(compute) == 0 && percentage(other) == 0);

  test_lease(d, 0, 0x0100, 1, xsi_now_ns());
  EVENTUALLY(field(&test_leases(d)->recovered_epochs[0]) == 1);
  CHECK(percentage(compute) == 100 && percentage(other) == 0);
  CHECK(driver[other].state.priority == 3 && field(&test_leases(d)->recovered_epochs[1]) == 0);
  test_lease(d, 0, 0x0100, 1, later());
  CHECK(pause_under(GPU, 1) == -ESTALE); // recovered: void, whatever the deadline says
  test_lease(d, 0, 0x0100, 2, later());
  CHECK(pause_under(GPU, 1) == 2 && percentage(compute) == 0);

  refuse_next(ETIME); // repeated until it has worked
  test_lease(d, 1, 0x0200, 1, xsi_now_ns());
  EVENTUALLY(field(&test_leases(d)->recovered_epochs[1]) == 1);
  CHECK(percentage(other) == 100 && driver[other].state.priority == 7 && percentage(compute) == 0);
  test_lease(d, 1, 0x0200, 1, 0);
  CHECK(order(XSW_ORDER_RESUME, GPU) == 2);
  destroy(other);
  CHECK(read_event().kind == XSW_KFD_GONE);
  test_heart_stop(d);
}

static void goes_with_the_session(void) {
  test_heart_start(d);
  lease(6, later());
  EVENTUALLY(order(XSW_ORDER_PAUSE, GPU) == 2);
  test_heart_stop(d);
  test_session_end(d); // as a daemon that is killed
  CHECK(percentage(compute) == 100);
  test_daemon_accept(d);
  test_daemon_welcome(d, 2);
  struct xsw_kfd frame;
  CHECK(read_frame(&frame, sizeof frame, XSW_FRAME_KFD) > 0 && frame.count == 2); // all anew
  EVENTUALLY(xsi_page_joined());
  test_heart_start(d);
  lease(1, later());
  CHECK(order(XSW_ORDER_PAUSE, 0) == 2 && percentage(compute) == 0);
  test_heart_stop(d);
  test_session_end(d);
  CHECK(percentage(compute) == 100);
}

// Each ends the session, and with it a pause.
static void refuses_nonsense(void) {
  struct xsw_order bad[] = {new_order(0, GPU),
                            new_order(99, GPU),
                            new_order(XSW_ORDER_PAUSE, GPU),
                            new_order(XSW_ORDER_RESUME, GPU),
                            new_order(XSW_ORDER_PRIORITY, GPU),
                            new_order(XSW_ORDER_CU_MASK, GPU),
                            new_order(XSW_ORDER_CU_MASK, GPU),
                            new_order(XSW_ORDER_RESUME, GPU),
                            new_order(XSW_ORDER_PAUSE, GPU),
                            new_order(XSW_ORDER_RESUME, GPU)};
  enum { BAD = sizeof bad / sizeof *bad };
  bad[2].queues = 0;
  bad[3].queues = 4;
  bad[4].priority = 16;
  bad[5].mask_bits = 33;
  bad[6].mask_bits = 2048;
  bad[7].frame.version++;
  bad[8].lease = XSW_MAX_LEASES + 1;
  for (uint64_t i = 0; i <= BAD; i++) {
    test_session_start(d, 10 + i);
    test_heart_start(d);
    struct xsw_kfd frame;
    CHECK(read_frame(&frame, sizeof frame, XSW_FRAME_KFD) > 0);
    lease(1, later());
    CHECK(order(XSW_ORDER_PAUSE, 0) == 2 && percentage(compute) == 0);
    int fd = kfd;
    struct xsw_order *sent = &bad[i < BAD ? i : 0];
    size_t bytes = sizeof *sent;
    if (i == BAD) { // cut
      bytes -= 8;
      sent->frame.bytes = (uint32_t)bytes;
    }
    test_send(d->socket, sent, bytes, &fd, i == BAD - 1); // the last whole one brings a descriptor
    EVENTUALLY(!xsi_page_joined());
    CHECK(percentage(compute) == 100);
    test_heart_stop(d);
    test_daemon_hang_up(d);
    test_daemon_drop_page(d);
  }
}

// One order is at hand when the lease runs out, the next comes meanwhile: both are answered.
static void loses_no_order(void) {
  join(5);
  struct xsw_kfd frame;
  CHECK(read_frame(&frame, sizeof frame, XSW_FRAME_KFD) > 0);
  lease(1, later());
  CHECK(order(XSW_ORDER_PAUSE, GPU) == 2);
  xsi_session_lock();
  lease(1, xsi_now_ns());
  struct xsw_order both[] = {new_order(XSW_ORDER_RESUME, GPU),
                             new_order(XSW_ORDER_RESUME, OTHER_GPU)};
  test_send(d->socket, &both[0], sizeof both[0], NULL, 0);
  test_send(d->socket, &both[1], sizeof both[1], NULL, 0);
  test_sleep_ms(1); // the lease is over, whatever the clock's grain
  xsi_session_unlock();
  for (int i = 0; i < 2; i++) {
    struct xsw_done done;
    CHECK(read_frame(&done, sizeof done, XSW_FRAME_DONE) == sizeof done);
    CHECK(done.sequence == both[i].sequence && done.result >= 0);
  }
  CHECK(percentage(compute) == 100);
  test_heart_stop(d);
  test_session_end(d);
}

static void change_then_destroy(uint32_t id) {
  struct kfd_update_queue own = {driver[id].state.ring, id, 4096, 100, 9};
  CHECK(ioctl(kfd, AMDKFD_IOC_UPDATE_QUEUE, &own) == 0);
  destroy(id);
}

// A queue that ends before its last change could be told has still ended.
static void ends_after_a_change(void) {
  join(4);
  struct xsw_kfd frame;
  CHECK(read_frame(&frame, sizeof frame, XSW_FRAME_KFD) > 0);
  for (int i = 0; i < 20; i++) {
    uint32_t id = create(GPU, 2, 0x5000);
    CHECK(read_event().id == id);
    xsi_session_lock(); // the helper can't tell anything meanwhile
    change_then_destroy(id);
    xsi_session_unlock();
    struct xsw_kfd_event e = read_event();
    CHECK(e.kind == XSW_KFD_GONE && e.id == id);
  }
  test_heart_stop(d);
  test_session_end(d);
}

// More queues than a frame holds, and more ends than are remembered while nobody reads.
static void many(void) {
  join(3);
  struct xsw_kfd frame;
  CHECK(read_frame(&frame, sizeof frame, XSW_FRAME_KFD) > 0);
  uint32_t ids[DRIVER_QUEUES - 2];
  for (unsigned i = 0; i < DRIVER_QUEUES - 2; i++)
    ids[i] = create(GPU, 2, 0x10000 + 0x1000 * (uint64_t)i);
  unsigned seen = 0;
  while (seen < DRIVER_QUEUES - 2 && read_frame(&frame, sizeof frame, XSW_FRAME_KFD) > 0)
    seen += frame.count;
  CHECK(seen == DRIVER_QUEUES - 2);
  for (unsigned i = 0; i < DRIVER_QUEUES - 2; i++)
    destroy(ids[i]);
  for (seen = 0; seen < DRIVER_QUEUES - 2 && read_frame(&frame, sizeof frame, XSW_FRAME_KFD) > 0;)
    for (unsigned i = 0; i < frame.count; i++)
      seen += frame.events[i].kind == XSW_KFD_GONE;
  CHECK(seen == DRIVER_QUEUES - 2);
  test_heart_stop(d);
  test_session_end(d);
}

int main(void) {
  test_daemon_place(d);
  d->limit_ns = 1500000000; // one of the tests waits for it
  xsi_options_init();       // the constructor ran before the socket was named
  alarm(60);
  xsi_session_retry.first_ms = xsi_session_retry.last_ms = 10;
  test_daemon_listen(d);
  test_driver_start();
  announces();
  obeys();
  child_is_apart();
  fails_open();
  pauses_too_late();
  leases_are_independent();
  goes_with_the_session();
  refuses_nonsense();
  ends_after_a_change();
  loses_no_order();
  many();
  destroy(compute), destroy(copy);
  CHECK(wrong == 0);
  test_daemon_remove(d);
  printf("ok kfd-orders\n");
  return 0;
}
