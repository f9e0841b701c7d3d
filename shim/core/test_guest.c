// SPDX-License-Identifier: Apache-2.0
//
// Guest rules: nothing before the first queue, high close-on-exec descriptors, a log only where it
// was asked for, errno untouched, no signals in the helper, nothing at all when switched off.

#include <sys/syscall.h>

#include "test_support.h"

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;

static size_t file_bytes(const char *path) {
  struct stat found;
  return stat(path, &found) == 0 ? (size_t)found.st_size : 0;
}

static int run_self(const char *mode) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl("/proc/self/exe", "test_guest", mode, (char *)NULL);
    _exit(99);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  return WEXITSTATUS(status);
}

// ---- parts run in a process of their own: their environment is read at load -----

static void disabled(void) {
  CHECK(xsi_options.disabled);
  CHECK(xsi_queue_open(0, 0, 0) < 0);
  CHECK(test_count_helpers() == 0);
  CHECK(xsi_real_dlsym(NULL, "getpid") != NULL);
}

static void logging(const char *path) {
  CHECK(xsi_log_threshold == XSI_WARN);
  unsigned fds = test_count_fds();
  errno = 77;
  CHECK(chdir("/") == 0);
  xsi_log(XSI_ERROR, "first %d", 1);
  xsi_log(XSI_INFO, "not this one");
  xsi_log(XSI_WARN, "%0600d", 5); // longer than a line may be
  CHECK(errno == 77 && test_count_fds() == fds);
  CHECK(file_bytes(path) > 500 && file_bytes(path) < 700);
}

// The descriptor named for the log was closed and its number taken for something else.
static void log_descriptor(void) {
  CHECK(xsi_log_threshold == XSI_INFO);
  char text[256];
  int ends[2];
  xsi_log(XSI_INFO, "through the pipe");
  CHECK(pipe2(ends, O_NONBLOCK) == 0);
  CHECK(dup2(ends[1], 50) == 50);
  xsi_log(XSI_INFO, "not into somebody's file");
  CHECK(read(ends[0], text, sizeof text) < 0 && errno == EAGAIN);
}

static void log_to_broken_pipe(void) {
  int ends[2];
  CHECK(pipe(ends) == 0 && dup2(ends[1], 50) == 50);
  setenv("XSCHED_LOG", "50", 1);
  xsi_log_init();
  close(ends[0]);
  xsi_log(XSI_ERROR, "nobody reads"); // SIGPIPE would end us
}

static void bad_values(void) {
  CHECK(xsi_options.hint.said == XSW_HINT_LIMITS && xsi_options.hint.level == XSW_LEVEL_AUTO);
  CHECK(xsi_options.hint.in_flight == 0 && xsi_options.hint.batch == 17);
  struct sockaddr_un address;
  CHECK(xsi_socket_candidate(0, NULL, &address) == 0 && address.sun_path[0] == 0);
}

static void exits_at_once(void) {
  CHECK(xsi_queue_open(0, 0x0100, 0) == 0);
  EVENTUALLY(xsi_page_joined());
  xsi_count(launches, 3);
}

// What was counted last is published by the exit itself.
static void exit_publishes(void) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    execl("/proc/self/exe", "test_guest", "exits-at-once", (char *)NULL);
    _exit(99);
  }
  test_daemon_accept(d);
  test_daemon_welcome(d, 5);
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(test_header(d)->launches == 3);
  test_daemon_hang_up(d);
  test_daemon_drop_page(d);
}

// ---- this process ---------------------------------------------------------------

static void nothing_before_first_queue(unsigned fds) {
  CHECK(test_count_fds() == fds && test_count_helpers() == 0);
  xsi_count(launches, 1);
  xsi_counters_publish();
  xsi_wake_helper();
  xsi_gate_pass(0);
  CHECK(test_count_fds() == fds && test_count_helpers() == 0);
}

static bool theirs[4096];

static void note_fds(void) {
  for (int fd = 0; fd < 4096; fd++)
    theirs[fd] = fcntl(fd, F_GETFD) >= 0;
}

static unsigned ours_are_high_and_cloexec(void) {
  unsigned ours = 0;
  for (int fd = 0; fd < 4096; fd++) {
    int flags = fcntl(fd, F_GETFD);
    if (flags < 0 || theirs[fd]) continue;
    if (fd == d->socket || fd == d->memfd || fd == d->doorbell) continue; // the stand-in's
    CHECK(fd >= 100 && (flags & FD_CLOEXEC) != 0);
    ours++;
  }
  return ours;
}

static uint32_t signal_elsewhere;
static void on_signal(int number) {
  (void)number;
  if (xsi_wake_is_helper()) __atomic_store_n(&signal_elsewhere, 1, __ATOMIC_RELEASE);
}

static void helper_takes_no_signals(void) {
  struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGUSR1, &action, NULL);
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  CHECK(pthread_sigmask(SIG_BLOCK, &set, &before) == 0); // only the helper could take it
  CHECK(kill(getpid(), SIGUSR1) == 0);
  test_sleep_ms(60);
  CHECK(sigpending(&set) == 0 && sigismember(&set, SIGUSR1));
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  CHECK(__atomic_load_n(&signal_elsewhere, __ATOMIC_ACQUIRE) == 0);
}

// An application that closes everything takes our descriptors, too: it goes on, and we find back.
static void survives_close_of_everything(void) {
  for (int fd = 100; fd < 4096; fd++)
    if (!theirs[fd]) syscall(SYS_close, fd); // behind the sanitizers' back
  test_set_busy(0, true);
  test_set_busy(0, false);
  xsi_wake_helper();
  test_daemon_hang_up(d);
  EVENTUALLY(!xsi_page_joined());
  test_daemon_drop_page(d);
  test_session_start(d, 2);
  test_set_busy(0, true);
  CHECK(test_rung(d));
}

int main(int count, char **arguments) {
  alarm(60);
  const char *mode = count > 1 ? arguments[1] : "";
  if (strcmp(mode, "disabled") == 0) return disabled(), 0;
  if (strcmp(mode, "logging") == 0) return logging(getenv("TEST_LOG")), 0;
  if (strcmp(mode, "log-descriptor") == 0) return log_descriptor(), 0;
  if (strcmp(mode, "log-to-broken-pipe") == 0) return log_to_broken_pipe(), 0;
  if (strcmp(mode, "bad-values") == 0) return bad_values(), 0;
  if (strcmp(mode, "exits-at-once") == 0) return exits_at_once(), 0;
  if (strcmp(mode, "count-fds") == 0) return (int)test_count_fds();

  test_daemon_place(d);
  char log[128];
  snprintf(log, sizeof log, "%s/log", test_directory);

  setenv("XSCHED_DISABLE", "1", 1);
  CHECK(run_self("disabled") == 0);
  unsetenv("XSCHED_DISABLE");

  CHECK(chdir(test_directory) == 0);
  setenv("XSCHED_LOG", "log", 1); // relative
  setenv("XSCHED_LOG_LEVEL", "warn", 1);
  setenv("TEST_LOG", log, 1);
  CHECK(run_self("logging") == 0);
  unsetenv("XSCHED_LOG_LEVEL");
  unlink(log);
  int log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  CHECK(dup2(log_fd, 50) == 50);
  setenv("XSCHED_LOG", "50", 1);
  CHECK(run_self("log-descriptor") == 0);
  CHECK(file_bytes(log) > 20 && file_bytes(log) < 100);
  close(50);
  close(log_fd);
  unlink(log);
  unsetenv("XSCHED_LOG");
  CHECK(run_self("log-to-broken-pipe") == 0);

  setenv("XSCHED_AUTO_XQUEUE_PRIORITY", "256", 1);
  setenv("XSCHED_AUTO_XQUEUE_LEVEL", "4", 1);
  setenv("XSCHED_AUTO_XQUEUE_THRESHOLD", "99999999999999999999", 1);
  setenv("XSCHED_AUTO_XQUEUE_BATCH_SIZE", "17", 1);
  char longer[200];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = 0;
  setenv("XSCHED_CUDA_LIB", longer, 1);
  setenv("XSCHED_SOCKET", longer, 1);
  CHECK(run_self("bad-values") == 0);

  setenv("XSCHED_SOCKET", d->path, 1);
  xsi_options_init();
  test_daemon_listen(d);
  unsetenv("XSCHED_AUTO_XQUEUE_PRIORITY");
  exit_publishes();
  unsigned fds = test_count_fds();
  note_fds();
  nothing_before_first_queue(fds);
  int plain = run_self("count-fds");
  errno = 4321;
  CHECK(xsi_queue_open(0, 0x0100, 0) == 0);
  test_set_busy(0, true);
  test_set_busy(0, false);
  CHECK(errno == 4321);
  test_session_start(d, 1);
  CHECK(test_count_helpers() == 1);
  CHECK(ours_are_high_and_cloexec() >= 3);
  CHECK(run_self("count-fds") == plain);
  helper_takes_no_signals();
  test_heart_start(d);
  test_heart_stop(d);
  survives_close_of_everything();
  test_daemon_remove(d);
  puts("ok guest");
  return 0;
}
