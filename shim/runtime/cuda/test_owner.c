// SPDX-License-Identifier: Apache-2.0
//
// The thread that owns a stream counts without locked instructions: nothing it submits may be taken
// for idleness, whoever else finds ends or submits at that moment, and with or without membarrier.

#include "test_fake.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SCALE 8
#else
#define SCALE 1
#endif

static struct xsi_work_stream *stream;

static void find(CUstream handle) {
  stream = xsi_work_find(&xsi_cu_platform, 0, (uintptr_t)handle);
}

static uint64_t busy(void) { return __atomic_load_n(&stream->busy, __ATOMIC_SEQ_CST); }
static uint64_t owner(void) { return __atomic_load_n(&stream->owner, __ATOMIC_SEQ_CST); }

// At rest: idle if and only if everything is over.
static bool sound(void) {
  uint64_t was = xsi_work_freeze(stream);
  bool over = xsi_work_submitted(stream) == stream->completed;
  bool is = over == (was == 0) && xsi_work_mark(stream) == xsi_work_submitted(stream);
  xsi_work_thaw(stream, was);
  return is;
}

// ---- races --------------------------------------------------------------------------------------

static int stop, by_watcher;
static uint64_t lost; /* work in mid-call in a stream that was idle */

static void dally(volatile unsigned loops) {
  while (loops > 0)
    loops = loops - 1;
}

// Nobody can know the end of work in mid-call: the stream is busy, or frozen.
static void submit(unsigned after) {
  xsi_work_submit(stream, XSI_WORK_OTHER);
  dally(after);
  if (busy() == 0) __atomic_fetch_add(&lost, 1, __ATOMIC_SEQ_CST);
}

static void *find_ends(void *seed) {
  unsigned random = (unsigned)(uintptr_t)seed;
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
    xsi_work_complete(stream, xsi_work_mark(stream), by_watcher);
    random = random * 1103515245 + 12345;
    dally(random >> 24);
  }
  return NULL;
}

static void *submit_beside(void *seed) {
  unsigned random = (unsigned)(uintptr_t)seed;
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
    submit(random >> 25);
    if (by_watcher || (random & 1 << 20))
      xsi_work_landed(stream);
    else
      xsi_work_withdraw(stream); // which may be an end that it finds
    random = random * 1103515245 + 12345;
    dally(random >> 22);
  }
  return NULL;
}

// The owner submits while one thread finds ends, and another may submit too.
static void race(unsigned launches, bool beside) {
  pthread_t ends, others;
  stop = 0;
  CHECK(pthread_create(&ends, NULL, find_ends, (void *)(uintptr_t)1) == 0);
  if (beside) CHECK(pthread_create(&others, NULL, submit_beside, (void *)(uintptr_t)2) == 0);
  for (unsigned i = 0; i < launches; i++) {
    submit(i % 61 * 4);
    if (i % 7 == 6)
      xsi_work_withdraw(stream);
    else
      xsi_work_landed(stream);
    dally(i % 127 * 4);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  CHECK(pthread_join(ends, NULL) == 0);
  if (beside) CHECK(pthread_join(others, NULL) == 0);
  CHECK(sound());
  xsi_work_complete(stream, xsi_work_mark(stream), false);
  CHECK(sound() && busy() == 0 && stream->completed == xsi_work_submitted(stream));
}

// What the watcher finds never makes a stream lose its owner.
static void test_race(bool beside) {
  CUstream handle = fake_stream();
  find(handle);
  by_watcher = true;
  for (int i = 0; i < 10; i++)
    race(100000 / SCALE, beside);
  CHECK(owner() != XSI_WORK_NOBODY);
  CHECK(lost == 0);
  CHECK(cuStreamDestroy_v2(handle) == 0);
}

// Here each stream loses its owner in the middle.
static void test_race_for_owner(void) {
  by_watcher = false;
  for (int i = 0; i < 400 / SCALE; i++) {
    CUstream handle = fake_stream();
    find(handle);
    CHECK(owner() == xsi_thread.work.token);
    race(500, i % 2);
    CHECK(cuStreamDestroy_v2(handle) == 0);
  }
  CHECK(lost == 0);
}

// ---- who owns a stream -------------------------------------------------------------------------

static void *find_end(void *unused) {
  errno = 4711;
  xsi_work_complete(stream, xsi_work_mark(stream), by_watcher);
  CHECK(errno == 4711 && busy() == 0);
  return unused;
}

static void elsewhere(void *(*function)(void *)) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, function, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void end_elsewhere(CUstream handle, int launches) {
  for (int i = 0; i < launches; i++)
    CHECK(launch(handle) == 0);
  CHECK(busy() == owner() && noted[0].busy);
  elsewhere(find_end);
  CHECK(sound() && !noted[0].busy);
}

static void *launch_elsewhere(void *handle) {
  CHECK(launch((CUstream)handle) == 0);
  return NULL;
}

static void *launch_and_wait(void *handle) {
  for (int i = 0; i < 60; i++) // too few to become the owner
    CHECK(launch((CUstream)handle) == 0);
  CHECK(cuStreamSynchronize((CUstream)handle) == 0 && busy() == 0);
  return NULL;
}

// A barrier for every launch or two is more than the owner saves.
static void test_loses_owner(void) {
  CUstream handle = fake_stream();
  find(handle);
  uint64_t me = xsi_thread.work.token;
  CHECK(me != 0 && owner() == me && busy() == 0);
  by_watcher = true; // it comes by so rarely that its barriers cost nothing
  for (int i = 0; i < 40; i++)
    end_elsewhere(handle, 1);
  by_watcher = false;
  CHECK(owner() == me);
  for (int i = 0; i < 40; i++) // it saves a lot
    end_elsewhere(handle, 100);
  CHECK(owner() == me);
  for (int round = 0; round < 3; round++) { // not all ends are found by others
    for (int i = 0; i < 15; i++)
      end_elsewhere(handle, 1);
    CHECK(launch(handle) == 0 && cuStreamSynchronize(handle) == 0 && !noted[0].busy);
    CHECK(owner() == me);
  }
  for (int i = 0; i < 16; i++)
    end_elsewhere(handle, 1);
  CHECK(owner() == XSI_WORK_NOBODY);
  end_elsewhere(handle, 3);
  CHECK(launch(handle) == 0 && cuStreamSynchronize(handle) == 0);
  CHECK(sound() && !noted[0].busy);
  CHECK(cuStreamDestroy_v2(handle) == 0);
}

static int locked, given;

static void *hold_lock(void *unused) {
  uint64_t was = xsi_work_freeze(stream);
  __atomic_store_n(&locked, 1, __ATOMIC_SEQ_CST);
  usleep(20000);
  __atomic_store_n(&given, 1, __ATOMIC_SEQ_CST);
  xsi_work_thaw(stream, was);
  return unused;
}

// It saves nothing in a stream that it used only once.
static void test_owner_elsewhere(void) {
  CUstream handle = fake_stream();
  find(handle);
  CHECK(launch(handle) == 0 && cuStreamSynchronize(handle) == 0);
  for (int i = 0; i < 16; i++) {
    CHECK(owner() == xsi_thread.work.token);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, launch_and_wait, handle) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  CHECK(owner() == XSI_WORK_NOBODY && sound());
  CHECK(cuStreamDestroy_v2(handle) == 0);
}

// Who has not noticed yet that it lost the stream finds nobody's token in it, and waits until it is thawed: no
// barrier is passed for it any more.
static void test_former_owner(void) {
  CUstream handle = fake_stream();
  find(handle);
  __atomic_store_n(&stream->owner, XSI_WORK_NOBODY, __ATOMIC_SEQ_CST);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, launch_elsewhere, handle) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(busy() == XSI_WORK_NOBODY);
  CHECK(pthread_create(&thread, NULL, hold_lock, NULL) == 0);
  while (!__atomic_load_n(&locked, __ATOMIC_SEQ_CST))
    sched_yield();
  __atomic_store_n(&stream->owner, xsi_thread.work.token, __ATOMIC_SEQ_CST); // as it still reads it
  xsi_work_submit(stream, XSI_WORK_OTHER);
  CHECK(__atomic_load_n(&given, __ATOMIC_SEQ_CST) == 1);
  CHECK(pthread_join(thread, NULL) == 0);
  __atomic_store_n(&stream->owner, XSI_WORK_NOBODY, __ATOMIC_SEQ_CST);
  xsi_work_landed(stream);
  elsewhere(find_end);
  CHECK(sound() && !noted[0].busy);
  CHECK(cuStreamDestroy_v2(handle) == 0);
}

// ---- owners change ------------------------------------------------------------------------------

enum { ENOUGH = 20000 }; // for a machine where a barrier takes 400 us

static CUstream moving;
static uint64_t token_there;
static int turn; // whose it is: 1 the other thread's, 0 this one's, -1 the end

static bool movable = true;

static void launch_until_owner(void) {
  int launches = 0;
  while (owner() != xsi_thread.work.token && launches < ENOUGH) {
    CHECK(launch(moving) == 0);
    launches++;
  }
  CHECK((owner() == xsi_thread.work.token) == movable && busy() == owner());
  if (!movable) return;
  uint64_t others = stream->submitted_others;
  for (int i = 0; i < 100; i++)
    CHECK(launch(moving) == 0);
  CHECK(stream->submitted_others == others); // no locked instruction any more
}

static void give_turn(int to) {
  int from = 1 - to;
  __atomic_store_n(&turn, to, __ATOMIC_SEQ_CST);
  while (to >= 0 && __atomic_load_n(&turn, __ATOMIC_SEQ_CST) != from)
    sched_yield();
}

static void *take_turns(void *unused) {
  for (;;) {
    int now;
    while ((now = __atomic_load_n(&turn, __ATOMIC_SEQ_CST)) == 0)
      sched_yield();
    if (now < 0) return unused;
    launch_until_owner();
    token_there = xsi_thread.work.token;
    __atomic_store_n(&turn, 0, __ATOMIC_SEQ_CST);
  }
}

// Like a training loop: one thread launches the first half of each step, another one the second, and the
// stream is never idle in between.
static void test_moves(void) {
  pthread_t thread;
  moving = fake_stream();
  find(moving);
  turn = 0;
  CHECK(pthread_create(&thread, NULL, take_turns, NULL) == 0);
  for (int i = 0; i < 3; i++) {
    give_turn(1);
    CHECK(owner() == token_there);
    launch_until_owner();
  }
  // In the middle of a call the owner keeps it.
  xsi_work_submit(stream, XSI_WORK_OTHER);
  movable = false;
  give_turn(1);
  CHECK(owner() == xsi_thread.work.token);
  movable = true;
  xsi_work_landed(stream);
  give_turn(1);
  CHECK(owner() == token_there);
  __atomic_store_n(&turn, -1, __ATOMIC_SEQ_CST);
  CHECK(pthread_join(thread, NULL) == 0);
  // A thread that ends leaves its streams to nobody, and whoever launches next becomes the owner.
  CHECK(owner() == XSI_WORK_NOBODY && busy() == XSI_WORK_NOBODY);
  launch_until_owner();
  CHECK(cuStreamSynchronize(moving) == 0 && sound() && !noted[0].busy);
  CHECK(stream->submitted_owner + stream->submitted_others == stream->completed);
  CHECK(cuStreamDestroy_v2(moving) == 0);
}

static uint64_t moves;

// Runs of submissions, long enough to become the owner, or shorter.
static void *submit_runs(void *seed) {
  unsigned random = (unsigned)(uintptr_t)seed;
  CHECK(xsi_work_find(&xsi_cu_platform, 0, (uintptr_t)moving) == stream);
  for (int i = 0; i < 300 / SCALE; i++) {
    random = random * 1103515245 + 12345;
    for (unsigned n = random >> 21; n > 0; n--) {
      submit(n % 5);
      if (n % 7 == 6)
        xsi_work_withdraw(stream);
      else
        xsi_work_landed(stream);
    }
    if (owner() == xsi_thread.work.token) __atomic_fetch_add(&moves, 1, __ATOMIC_SEQ_CST);
    if (random & 1 << 18) sched_yield();
  }
  return NULL;
}

static void test_race_of_moves(void) {
  pthread_t ends, threads[3];
  moving = fake_stream();
  find(moving);
  for (int k = 0; k < 2; k++) {
    by_watcher = k == 0;
    stop = 0;
    moves = 0;
    CHECK(pthread_create(&ends, NULL, find_ends, (void *)(uintptr_t)1) == 0);
    for (int i = 0; i < 3; i++)
      CHECK(pthread_create(&threads[i], NULL, submit_runs, (void *)(uintptr_t)(i + 7)) == 0);
    for (int i = 0; i < 3; i++)
      CHECK(pthread_join(threads[i], NULL) == 0);
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(ends, NULL) == 0);
    xsi_work_complete(stream, xsi_work_mark(stream), false);
    CHECK(lost == 0 && sound() && busy() == 0 && moves > 0);
  }
  CHECK(cuStreamDestroy_v2(moving) == 0);
}

// Refused in one thread, with another one's work in the stream.
static void test_counts_of_both(void) {
  CUstream handle = fake_stream();
  find(handle);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, launch_elsewhere, handle) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(stream->submitted_others == 1 && stream->submitted_owner == 0 && busy() == owner());
  fake_launch_result = 999;
  CHECK(launch(handle) == 999 && noted[0].busy && sound());
  fake_launch_result = 0;
  CHECK(launch(handle) == 0 && stream->submitted_owner == 1 && xsi_work_submitted(stream) == 2);
  elsewhere(find_end);
  CHECK(sound() && !noted[0].busy);
  CHECK(cuStreamDestroy_v2(handle) == 0);
}

// A context is reset while a launch is in mid-call, which then fails, or lands all the same: the
// next stream with that record begins with nothing.
static void test_ends_after_its_life(void) {
  for (int lands = 0; lands < 2; lands++) {
    struct fake_context *context = fake_context();
    find(fake_stream());
    struct xsi_work_stream *before = stream;
    xsi_work_submit(stream, XSI_WORK_OTHER);
    CHECK(cuCtxDestroy_v2((CUcontext)context) == 0);
    if (lands)
      xsi_work_landed(stream);
    else
      xsi_work_withdraw(stream);
    context = fake_context();
    CUstream handle = fake_stream();
    find(handle);
    CHECK(stream == before && busy() == 0 && sound());
    CHECK(launch(handle) == 0 && busy() != 0 && sound());
    uint64_t mark = xsi_work_mark(stream);
    CHECK(launch(handle) == 0);
    xsi_work_complete(stream, mark, false); // of the first
    CHECK(busy() != 0 && cuStreamSynchronize(handle) == 0 && busy() == 0 && sound());
    CHECK(cuCtxDestroy_v2((CUcontext)context) == 0);
  }
}

// Contexts may be neighbours; streams are told apart all the same.
static void test_keys(void) {
  uintptr_t context = 0x1001;
  CHECK(xsi_work_key(context, XSI_WORK_THREAD) != xsi_work_key(context + 1, XSI_WORK_LEGACY));
  CHECK(xsi_work_key(context, XSI_WORK_LEGACY) != xsi_work_key(context, XSI_WORK_THREAD));
  CHECK(xsi_work_key(0, context << 2) != xsi_work_key(context, XSI_WORK_LEGACY));
}

// ---- without membarrier, each in a process of its own ------------------------------------------

static bool refuse_barriers(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof code[0], code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void uses_streams_of_nobody(void) {
  CUstream handle = fake_stream();
  find(handle);
  CHECK(owner() == XSI_WORK_NOBODY);
  end_elsewhere(handle, 3);
  CHECK(stream->submitted_owner == 0 && stream->submitted_others == 3);
  CHECK(launch(handle) == 0 && cuStreamSynchronize(handle) == 0 && !noted[0].busy && sound());
  by_watcher = true;
  race(20000 / SCALE, true);
  CHECK(lost == 0);
  CHECK(cuStreamDestroy_v2(handle) == 0);
}

static void test_never_there(void) {
  errno = 4711;
  fake_context();
  uses_streams_of_nobody();
}

// The program takes it away in the middle.
static void test_taken_away(void) {
  fake_context();
  CUstream handle = fake_stream();
  find(handle);
  CHECK(owner() == xsi_thread.work.token);
  CHECK(launch(handle) == 0);
  CHECK(refuse_barriers());
  elsewhere(find_end);
  CHECK(owner() == XSI_WORK_NOBODY && sound() && !noted[0].busy);
  end_elsewhere(handle, 2);
  uses_streams_of_nobody();
}

// The child of a fork finds out for itself.
static void test_child(void) {
  fake_context();
  CUstream handle = fake_stream();
  find(handle);
  CHECK(owner() == xsi_thread.work.token);
  pid_t child = fork();
  if (child == 0) {
    CHECK(refuse_barriers());
    errno = 4711;
    noted_fork();
    CHECK(errno == 4711);
    fake_context();
    uses_streams_of_nobody();
    fflush(stdout);
    _exit(failures != 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void alone(void (*test)(void), bool refused) {
  pid_t child = fork();
  if (child == 0) {
    if (refused) CHECK(refuse_barriers());
    fake_install();
    test();
    fflush(stdout);
    _exit(failures != 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
  xsi_work_watch_by_thread = false;
  test_keys();
  long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  if (commands < 0 || !(commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED)) {
    alone(test_never_there, false);
    printf("skipped the rest: no membarrier here\n");
    return failures != 0;
  }
  pid_t child = fork();
  if (child == 0) _exit(!refuse_barriers());
  int status = -1;
  if (waitpid(child, &status, 0) == child && status == 0) {
    alone(test_never_there, true);
    alone(test_taken_away, false);
    alone(test_child, false);
  } else {
    printf("skipped: no seccomp here to take membarrier away\n");
  }
  fake_install();
  fake_context();
  test_counts_of_both();
  test_loses_owner();
  test_owner_elsewhere();
  test_former_owner();
  test_race(false);
  test_race(true);
  test_race_for_owner();
  test_moves();
  test_race_of_moves();
  test_ends_after_its_life();
  if (failures) return 1;
  printf("ok owner\n");
  return 0;
}
