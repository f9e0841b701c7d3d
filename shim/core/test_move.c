// SPDX-License-Identifier: Apache-2.0
//
// Each state of movable memory, each way between them, and a failure at each step. The data is complete afterwards.

#include "test_move_fake.h"

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;
static struct fake_stream stream;
static uint64_t session;

#define LOAD(word) __atomic_load_n(&(word), __ATOMIC_SEQ_CST)
#define BIG BASE
#define BIG_BYTES (130 * MIB)
#define SMALL (BASE + 256 * MIB)
#define ALL_BYTES (BIG_BYTES + GRANULE)

static uint64_t launched[2];

static void launch(void) {
  fake_launch(&stream, BIG + 128 * MIB, 0);
  fake_launch(&stream, SMALL, 0);
  __atomic_fetch_add(&launched[0], 1, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&launched[1], 1, __ATOMIC_SEQ_CST);
}

// Everything is where it belongs, with its content, and works.
static void sound(void) {
  EVENTUALLY(ENTRY(residency) == XSW_RESIDENT);
  CHECK(ENTRY(away) == 0 && ENTRY(movable) == ALL_BYTES && fake_mapped() == ALL_BYTES);
  launch();
  CHECK(fake_word(BIG + 128 * MIB) == launched[0] && fake_word(SMALL) == launched[1]);
  CHECK(fake_word(BIG) == 1000 && fake_word(BIG + 64 * MIB) == 1064);
  CHECK(LOAD(fake_missed) == 0 && ENTRY(waiting_ns) == 0);
  CHECK(LOAD(xsi_work_closed) == 0);
}

static void begin_session(void) {
  test_session_start(d, ++session);
  test_heart_start(d);
  EVENTUALLY(ENTRY(known) == 1);
  fake_budget(d, 256 * MIB);
}

static void end_session(void) {
  test_heart_stop(d);
  test_daemon_hang_up(d);
}

static uint64_t out(uint64_t bytes) { return fake_give(d, XSW_WANT_OUT, bytes); }
static uint64_t back(void) { return fake_give(d, XSW_WANT_BACK, 0); }
static uint64_t nothing(void) { return fake_give(d, XSW_WANT_NOTHING, 0); }

// ---- the usual way ---------------------------------------------------------------------------------------

static void goes_and_returns(void) {
  uint64_t room = LOAD(fake_room), moves = ENTRY(moves_out);
  DONE(out(0));
  CHECK(ENTRY(residency) == XSW_AWAY && ENTRY(result) == XSW_MOVE_DONE);
  CHECK(ENTRY(away) == ALL_BYTES && fake_mapped() == 0 && LOAD(fake_room) == room + ALL_BYTES);
  CHECK(ENTRY(moves_out) == moves + 1 && ENTRY(moved) == ALL_BYTES &&
        ENTRY(room) == LOAD(fake_room));
  CHECK(ENTRY(move_ended_ns) >= ENTRY(move_begun_ns) && ENTRY(pinned) >= ALL_BYTES);
  DONE(out(0)); // nothing more
  CHECK(ENTRY(result) == XSW_MOVE_NOTHING && ENTRY(residency) == XSW_AWAY);
  DONE(nothing());
  CHECK(ENTRY(residency) == XSW_AWAY);
  DONE(back());
  CHECK(ENTRY(residency) == XSW_RESIDENT && ENTRY(result) == XSW_MOVE_DONE);
  CHECK(LOAD(fake_room) == room && ENTRY(moves_back) == ENTRY(moves_out));
  sound();
  DONE(back());
  sound();
}

// Pieces of big blocks first, and only as many as ordered.
static void goes_in_part(void) {
  DONE(out(10 * MIB));
  CHECK(ENTRY(residency) == XSW_AWAY && ENTRY(away) == 64 * MIB);
  CHECK(fake_word(SMALL) == launched[1] && fake_word(BIG) == UINT64_MAX);
  DONE(out(64 * MIB)); // in addition
  CHECK(ENTRY(away) == 128 * MIB && ENTRY(result) == XSW_MOVE_DONE);
  DONE(back());
  sound();
}

// The last piece is larger than what is left of the order: there is host memory for that, too.
static void goes_in_whole_pieces(void) {
  enum { BLOCKS = 8 };
  fake_slow(PIN, 200); // so that there is none ahead
  for (unsigned i = 0; i < BLOCKS; i++)
    CHECK(fake_allocate(BASE + (512 + i * 12) * MIB, 12 * MIB) == 0);
  DONE(out(191 * MIB));
  CHECK(ENTRY(result) == XSW_MOVE_DONE && ENTRY(away) == 202 * MIB);
  fake_heal();
  DONE(back());
  for (unsigned i = 0; i < BLOCKS; i++)
    fake_free(BASE + (512 + i * 12) * MIB);
  sound();
}

static void *launch_once(void *unused) {
  (void)unused;
  launch();
  return NULL;
}

static void *allocate_once(void *unused) {
  (void)unused;
  CHECK(fake_allocate(BASE + 512 * MIB, GRANULE) == 0);
  return NULL;
}

static bool rings(void) {
  bool rung = false;
  while (test_rung(d))
    rung = true;
  return rung;
}

static void callers_wait(void) {
  pthread_t threads[3];
  DONE(out(0));
  rings();
  CHECK(ENTRY(waiting_ns) == 0);
  CHECK(pthread_create(&threads[0], NULL, launch_once, NULL) == 0);
  EVENTUALLY(ENTRY(waiting_ns) != 0);
  EVENTUALLY(rings());
  CHECK(pthread_create(&threads[1], NULL, allocate_once, NULL) == 0);
  CHECK(pthread_create(&threads[2], NULL, launch_once, NULL) == 0);
  pthread_cancel(threads[2]); // at the gate: nothing breaks, and it ends afterwards
  test_sleep_ms(50);
  CHECK(LOAD(fake_missed) == 0 && ENTRY(movable) == ALL_BYTES && fake_mapped() == 0);
  CHECK(!xsi_work_is_busy(xsi_work_find(&fake_work, 0, (uintptr_t)&stream))); // nor does it compete
  DONE(back());
  for (unsigned i = 0; i < 3; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  launched[0] = fake_word(BIG + 128 * MIB); // the cancelled thread may have ended in between
  launched[1] = fake_word(SMALL);
  EVENTUALLY(ENTRY(waiting_ns) == 0);
  fake_free(BASE + 512 * MIB);
  sound();
}

// Freeing needs no memory: the copy is dropped.
static void frees_what_is_away(void) {
  uint64_t room = LOAD(fake_room);
  CHECK(fake_allocate(BASE + 512 * MIB, 6 * MIB) == 0);
  DONE(out(0));
  uint32_t creates = fake_calls(CREATE);
  fake_free(BASE + 512 * MIB);
  CHECK(ENTRY(away) == ALL_BYTES && ENTRY(movable) == ALL_BYTES && fake_calls(CREATE) == creates);
  CHECK(ENTRY(residency) == XSW_AWAY);
  DONE(back());
  CHECK(LOAD(fake_room) == room);
  sound();
}

static void fixed_blocks_stay(void) {
  CHECK(fake_allocate(BASE + 512 * MIB, 6 * MIB) == 0);
  xsi_block_fix(BASE + 512 * MIB + 5 * MIB, XSW_FIXED_EXPORTED);
  CHECK(ENTRY(movable) == ALL_BYTES && ENTRY(fixed[XSW_FIXED_EXPORTED]) == 6 * MIB);
  DONE(out(0));
  CHECK(fake_mapped() == 6 * MIB);
  DONE(back());
  fake_free(BASE + 512 * MIB);
  CHECK(ENTRY(fixed[XSW_FIXED_EXPORTED]) == 0);
  sound();
}

// ---- refusals --------------------------------------------------------------------------------------------

static void refused(uint64_t order, enum xsw_move_result result) {
  uint32_t unmaps = fake_calls(UNMAP);
  DONE(order);
  CHECK(ENTRY(result) == result && fake_calls(UNMAP) == unmaps);
  sound();
}

static void waits_for_work_in_vain(void) {
  fake_launch(&stream, SMALL, UINT32_MAX);
  launched[1]++;
  uint64_t begun = xsi_now_ns(), order = out(0);
  EVENTUALLY(ENTRY(residency) == XSW_DRAINING);
  EVENTUALLY(ENTRY(order) == order);
  CHECK(ENTRY(result) == XSW_MOVE_BUSY && xsi_now_ns() - begun > 1000000000u);
  sound();
  // Taken back while it waits.
  order = out(0);
  EVENTUALLY(ENTRY(residency) == XSW_DRAINING);
  DONE(nothing());
  sound();
  // Work that ends in time.
  order = out(0);
  EVENTUALLY(ENTRY(residency) == XSW_DRAINING);
  fake_finish(&stream);
  EVENTUALLY(ENTRY(order) == order);
  CHECK(ENTRY(result) == XSW_MOVE_DONE && ENTRY(residency) == XSW_AWAY);
  DONE(back());
  sound();
}

// A wait for a signal is no work, but the driver would wait for its end: for ever, if the signal is work that waits
// at the gate.
static void waits_for_a_signal(void) {
  struct xsi_work_stream *work = xsi_work_find(&fake_work, 0, (uintptr_t)&stream);
  EVENTUALLY(!xsi_work_is_busy(work));
  xsi_work_fence(work);
  __atomic_fetch_add(&stream.outstanding, 1, __ATOMIC_SEQ_CST);
  refused(out(0), XSW_MOVE_BUSY);
  uint64_t order = out(0);
  EVENTUALLY(ENTRY(residency) == XSW_DRAINING);
  fake_finish(&stream);
  DONE(order);
  CHECK(ENTRY(result) == XSW_MOVE_DONE && ENTRY(residency) == XSW_AWAY);
  DONE(back());
  sound();
}

static void refuses(void) {
  __atomic_fetch_add(&xsi_work_hot.captures, 1, __ATOMIC_SEQ_CST);
  refused(out(0), XSW_MOVE_CAPTURING);
  __atomic_fetch_sub(&xsi_work_hot.captures, 1, __ATOMIC_SEQ_CST);
  fake_fail(SETTLE, 0, 1, -EIO);
  refused(out(0), XSW_MOVE_FAILED);
  for (uint32_t i = 0; i < 3; i++) {
    fake_fail(COPY, i, 1, -EIO);
    refused(out(0), XSW_MOVE_FAILED);
  }
  fake_fail(FINISH, 0, 1, -EIO);
  refused(out(0), XSW_MOVE_FAILED);
  // A call about memory that does not end.
  xsi_move_enter();
  uint64_t order = out(0);
  EVENTUALLY(ENTRY(order) == order);
  CHECK(ENTRY(result) == XSW_MOVE_BUSY);
  xsi_move_leave();
  sound();
}

// The budget is the daemon's. Nothing is closed for what can't be done.
static void host_is_full(void) {
  CHECK(fake_allocate(BASE + 512 * MIB, 512 * MIB) == 0);
  uint64_t order = out(0);
  EVENTUALLY(ENTRY(order) == order);
  CHECK(ENTRY(result) == XSW_MOVE_HOST_FULL && ENTRY(pinned) <= 256 * MIB);
  CHECK(LOAD(fake_pinned) <= 256 * MIB && ENTRY(residency) == XSW_RESIDENT);
  fake_budget(d, 1024 * MIB);
  fake_fail(PIN, 0, 1, -ENOMEM);
  order = out(0);
  EVENTUALLY(ENTRY(order) == order);
  CHECK(ENTRY(result) == XSW_MOVE_HOST_FULL ||
        ENTRY(result) == XSW_MOVE_DONE); // or the pause took it
  fake_heal();
  DONE(back());
  fake_free(BASE + 512 * MIB);
  sound();
}

// ---- failures on the way ---------------------------------------------------------------------------------

static void fails_half_way(void) {
  CHECK(fake_allocate(BASE + 512 * MIB, 384 * MIB) == 0); // more than one group
  fake_budget(d, 1024 * MIB);
  for (unsigned which = 0; which < 3; which++) {
    if (which == 0) fake_fail(UNMAP, 2, 1, -EIO);
    if (which == 1) fake_fail(FINISH, 1, 1, -EIO);
    if (which == 2) fake_fail(COPY, 5, 1, -EIO);
    uint64_t order = out(0);
    EVENTUALLY(ENTRY(order) == order);
    CHECK(ENTRY(result) == XSW_MOVE_FAILED);
    EVENTUALLY(ENTRY(residency) == XSW_RESIDENT); // by itself
    fake_heal();
    CHECK(ENTRY(away) == 0);
  }
  fake_free(BASE + 512 * MIB);
  fake_budget(d, 256 * MIB);
  sound();
}

static void fails_to_return(void) {
  static const struct {
    enum fake_op op;
    uint32_t after;
    int error;
  } faults[] = {{CREATE, 0, -EIO}, {CREATE, 2, -EIO}, {MAP, 1, -EIO},
                {COPY, 0, -EIO},   {COPY, 3, -EIO},   {FINISH, 0, -EIO}};
  for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) {
    DONE(out(0));
    fake_fail(faults[i].op, faults[i].after, 2, faults[i].error);
    // And what was mapped for it can't be unmapped.
    if (faults[i].op == FINISH) fake_fail(UNMAP, 0, 2, -EIO);
    uint64_t order = back();
    EVENTUALLY(ENTRY(result) == XSW_MOVE_FAILED || ENTRY(order) == order);
    EVENTUALLY(ENTRY(order) == order);
    CHECK(ENTRY(result) == XSW_MOVE_DONE);
    fake_heal();
    sound();
  }
}

// Another program took the room.
static void waits_for_room(void) {
  DONE(out(0));
  uint64_t taken = LOAD(fake_room) - 70 * MIB;
  __atomic_fetch_sub(&fake_room, taken, __ATOMIC_SEQ_CST);
  uint64_t order = back();
  EVENTUALLY(ENTRY(residency) == XSW_RETURNING && ENTRY(result) == XSW_MOVE_NO_ROOM);
  EVENTUALLY(ENTRY(away) == ALL_BYTES - 64 * MIB); // one piece fitted
  EVENTUALLY(ENTRY(room) == 6 * MIB);
  CHECK(ENTRY(order) != order);
  // Taken back: what had returned goes again, without a copy.
  uint32_t copies = fake_calls(COPY);
  DONE(nothing());
  CHECK(ENTRY(residency) == XSW_AWAY && ENTRY(away) == ALL_BYTES && fake_mapped() == 0);
  CHECK(fake_calls(COPY) == copies);
  order = back();
  EVENTUALLY(ENTRY(residency) == XSW_RETURNING && ENTRY(result) == XSW_MOVE_NO_ROOM);
  DONE(out(0)); // and the opposite
  CHECK(ENTRY(residency) == XSW_AWAY && ENTRY(away) == ALL_BYTES);
  order = back();
  EVENTUALLY(ENTRY(residency) == XSW_RETURNING && ENTRY(result) == XSW_MOVE_NO_ROOM);
  __atomic_fetch_add(&fake_room, taken, __ATOMIC_SEQ_CST);
  EVENTUALLY(ENTRY(order) == order);
  sound();
}

static void turns_round(void) {
  fake_slow(FINISH, 100);
  out(0);
  EVENTUALLY(ENTRY(residency) == XSW_LEAVING);
  DONE(back());
  CHECK(ENTRY(residency) == XSW_RESIDENT);
  DONE(out(0));
  back();
  EVENTUALLY(ENTRY(residency) == XSW_RETURNING);
  DONE(out(0));
  CHECK(ENTRY(residency) == XSW_AWAY);
  fake_heal();
  DONE(back());
  sound();
}

// ---- no daemon ---------------------------------------------------------------------------------------------

static void loses_its_daemon(enum xsw_residency when) {
  static const enum fake_op slow[] = {
      [XSW_DRAINING] = SETTLE, [XSW_LEAVING] = FINISH, [XSW_AWAY] = PIN, [XSW_RETURNING] = FINISH};
  uint64_t moves = ENTRY(moves_out);
  if (when != XSW_RETURNING) fake_slow(slow[when], 50);
  uint64_t order = out(0);
  if (when == XSW_RETURNING) {
    EVENTUALLY(ENTRY(order) == order);
    fake_slow(FINISH, 50);
    back();
  }
  EVENTUALLY(ENTRY(residency) == when);
  end_session();
  EVENTUALLY(!xsi_page_joined());
  EVENTUALLY(fake_mapped() == ALL_BYTES && LOAD(xsi_work_closed) == 0); // by itself
  fake_heal();
  launch();
  test_daemon_drop_page(d);
  begin_session();
  CHECK(ENTRY(order) == 0 && ENTRY(moves_out) <= moves + 1);
  sound();
}

// Away, and no room. A new daemon that has given no order changes nothing.
static void waits_without_a_daemon(void) {
  DONE(out(0));
  uint64_t taken = LOAD(fake_room);
  __atomic_fetch_sub(&fake_room, taken, __ATOMIC_SEQ_CST);
  end_session();
  EVENTUALLY(!xsi_page_joined());
  test_daemon_drop_page(d);
  test_sleep_ms(200);
  begin_session();
  CHECK(ENTRY(residency) == XSW_RETURNING && ENTRY(away) == ALL_BYTES);
  __atomic_fetch_add(&fake_room, taken, __ATOMIC_SEQ_CST);
  sound();
}

static void hears_nothing(void) {
  d->limit_ns = 300000000;
  end_session();
  EVENTUALLY(!xsi_page_joined());
  test_daemon_drop_page(d);
  begin_session();
  DONE(out(0));
  test_heart_stop(d);
  EVENTUALLY(fake_mapped() == ALL_BYTES); // the page is still there
  CHECK(xsi_page_joined());
  launch();
  uint64_t order = out(0); // not obeyed
  test_sleep_ms(200);
  CHECK(fake_mapped() == ALL_BYTES && ENTRY(order) != order);
  DONE((test_heart_start(d), order)); // until it is heard again
  DONE(back());
  d->limit_ns = 9000000000u;
  test_heart_stop(d);
  test_daemon_hang_up(d);
  EVENTUALLY(!xsi_page_joined());
  test_daemon_drop_page(d);
  begin_session();
  sound();
}

// ---- wants -----------------------------------------------------------------------------------------------

struct wants {
  unsigned attempts; /* that find no room */
  bool succeeded;
  uint64_t took_ns;
};

static void *want_room(void *argument) {
  struct wants *mine = argument;
  struct xsi_move_want want = {.wanted_ns = 0};
  uint64_t begun = xsi_now_ns();
  unsigned attempts = 0;
  for (bool again = true; again && !mine->succeeded;) {
    mine->succeeded = ++attempts > mine->attempts;
    if (!mine->succeeded) again = xsi_move_wants(&want, fake_device.place, 3 * MIB, 1 * MIB);
  }
  xsi_move_wanted(&want);
  mine->took_ns = xsi_now_ns() - begun;
  return NULL;
}

static void answer(enum xsw_memory_verdict verdict) {
  struct xsw_memory_order *order = fake_order(d);
  EVENTUALLY(ENTRY(wanted) == 3 * MIB && ENTRY(room) == 1 * MIB);
  __atomic_store_n(&order->verdict, verdict, __ATOMIC_RELAXED);
  __atomic_store_n(&order->answered_ns, ENTRY(wanted_ns), __ATOMIC_RELEASE);
}

static void asks_for_room(void) {
  static const struct {
    enum xsw_memory_verdict verdict;
    unsigned attempts;
    bool succeeds;
  } cases[] = {{XSW_VERDICT_WAIT, 50, true},
               {XSW_VERDICT_FAIL, 50, false},
               {XSW_VERDICT_NONE, 50, false},
               {XSW_VERDICT_NONE, 0, true}};
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    pthread_t threads[2]; // one asks after the other
    struct wants wants[2] = {{.attempts = cases[i].attempts}, {.attempts = cases[i].attempts}};
    for (unsigned k = 0; k < 2; k++)
      CHECK(pthread_create(&threads[k], NULL, want_room, &wants[k]) == 0);
    uint64_t first = 0;
    for (unsigned k = 0; k < 2 && cases[i].verdict != XSW_VERDICT_NONE; k++) {
      EVENTUALLY(ENTRY(wanted_ns) != first && ENTRY(wanted_ns) != 0);
      first = ENTRY(wanted_ns);
      answer(cases[i].verdict);
    }
    for (unsigned k = 0; k < 2; k++) {
      CHECK(pthread_join(threads[k], NULL) == 0);
      CHECK(wants[k].succeeded == cases[i].succeeds && wants[k].took_ns < 4000000000u);
    }
    CHECK(ENTRY(wanted) == 0 && ENTRY(wanted_ns) == 0);
  }
  // Who holds what the daemon may need to move can't ask.
  struct xsi_move_want want = {.wanted_ns = 0};
  xsi_move_enter();
  CHECK(!xsi_move_wants(&want, fake_device.place, 1, 0));
  xsi_move_leave();
}

// ---- fork, and the end -------------------------------------------------------------------------------------

static int wait_for(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A child has none of the memory, and waits for none of it.
static void forks(void) {
  fake_slow(FINISH, 100);
  for (int i = 0; i < 2; i++) {
    uint64_t order = out(0);
    EVENTUALLY(ENTRY(residency) == (i == 0 ? XSW_LEAVING : XSW_AWAY));
    pid_t child = fork();
    if (child == 0) {
      struct xsi_block_view view;
      xsi_move_enter();
      bool fine = !xsi_block_find(BIG, &view) && LOAD(xsi_work_closed) == 0;
      xsi_move_leave();
      _exit(fine ? 0 : 1);
    }
    CHECK(wait_for(child) == 0);
    EVENTUALLY(ENTRY(order) == order);
    DONE(back());
  }
  fake_heal();
  sound();
}

static bool ending;

// Registered before the mover's own, hence called after it.
static void at_end(void) {
  if (!ending) return;
  CHECK(fake_mapped() == 0);
  fake_free(SMALL);                         // what is away is freed
  fake_launch(&stream, BIG + 128 * MIB, 0); // and what is needed returns
  CHECK(LOAD(fake_missed) == 0 && fake_word(BIG) == 1000);
}

static void *launch_more(void *unused) {
  for (;;)
    fake_launch(&stream, BIG + 64 * MIB, 0);
  return unused;
}

// The program ends while its memory is away, and still uses it.
static void ends_while_away(void) {
  DONE(out(0));
  ending = true;
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, launch_more, NULL) == 0);
  EVENTUALLY(ENTRY(waiting_ns) != 0);
  end_session();
  test_daemon_remove(d);
}

int main(void) {
  alarm(240);
  test_daemon_place(d);
  CHECK(setenv("XSCHED_MOVABLE", "1", 1) == 0);
  xsi_options_init();
  CHECK(xsi_work_start(&fake_work));
  CHECK(atexit(at_end) == 0);
  CHECK(xsi_block_make(&fake_moves, &fake_device, BIG, GRANULE, GRANULE, 7, FAKE_CONTEXT) ==
        -EPERM);
  CHECK(fake_allocate(BIG, BIG_BYTES) == 0 && fake_allocate(SMALL, GRANULE) == 0);
  CHECK(fake_allocate(BASE + 512 * MIB, 1024 * MIB) == -ENOMEM);
  for (unsigned i = 0; i < 1000 + 64; i++) {
    if (i < 1000) fake_launch(&stream, BIG, 0);
    fake_launch(&stream, BIG + 64 * MIB, 0);
  }
  test_daemon_listen(d);
  launch();
  begin_session();
  sound();
  goes_and_returns();
  goes_in_part();
  goes_in_whole_pieces();
  callers_wait();
  frees_what_is_away();
  fixed_blocks_stay();
  refuses();
  waits_for_work_in_vain();
  waits_for_a_signal();
  host_is_full();
  fails_half_way();
  fails_to_return();
  waits_for_room();
  turns_round();
  for (enum xsw_residency when = XSW_DRAINING; when <= XSW_RETURNING; when++)
    loses_its_daemon(when);
  waits_without_a_daemon();
  hears_nothing();
  forks();
  asks_for_room();
  puts("ok move");
  fflush(stdout);
  ends_while_away();
  return 0;
}
