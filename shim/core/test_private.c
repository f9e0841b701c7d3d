// SPDX-License-Identifier: Apache-2.0
//
// A private scheduler, started for the program: a script stands in for the xsched program, and two
// stand-ins for the daemons. The environment counts as it was at the start, so each case is a process
// of its own.

#include "test_support.h"

#include <sys/prctl.h>

#include "core/private.h"

static struct test_daemon global, own;
static char base[64]; // with the script, what it was given, and what it answers

static const char *file(const char *name) {
  static char path[90];
  snprintf(path, sizeof path, "%s/%s", base, name);
  return path;
}

static void write_file(const char *name, const char *text) {
  char draft[128];
  snprintf(draft, sizeof draft, "%s", file("draft"));
  FILE *out = fopen(draft, "we");
  CHECK(out != NULL && fputs(text, out) >= 0 && fchmod(fileno(out), 0700) == 0);
  CHECK(fclose(out) == 0 && rename(draft, file(name)) == 0); // complete as soon as it is there
}

static bool has_file(const char *name) { return access(file(name), F_OK) == 0; }

static void read_file(const char *name, char *text, size_t bytes) {
  FILE *in = fopen(file(name), "re");
  CHECK(in != NULL && fgets(text, (int)bytes, in) != NULL);
  fclose(in);
}

static uint32_t children;
static void child_ended(int number) {
  (void)number;
  __atomic_fetch_add(&children, 1, __ATOMIC_SEQ_CST);
}

static void begin(void) {
  struct sigaction action = {.sa_handler = child_ended};
  CHECK(sigaction(SIGCHLD, &action, NULL) == 0);
  test_daemon_place(&global);
  own = global;
  snprintf(own.path, sizeof own.path, "%s", file("xsched.sock"));
  xsi_options_init(); // the constructor ran before the place was named
  xsi_hint_init();
  test_daemon_listen(&global);
  test_daemon_listen(&own);
  CHECK(xsi_queue_open(0, 0x0100, 0) == 0);
}

static void end(void) {
  test_daemon_remove(&global);
  close(own.listener);
  CHECK(children == 0 && waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

static void leaves(struct test_daemon *daemon) {
  EVENTUALLY(!xsi_page_joined());
  test_daemon_hang_up(daemon);
  test_daemon_drop_page(daemon);
}

static void choose_local(void) {
  struct xsw_hint nothing = {.said = 0};
  CHECK(xsi_private_find() == 0);
  xsi_set_scheduler(XSW_SCHEDULER_LOCAL);
  xsi_hint_process(&nothing, "RR");
}

// The child of a fork shares its parent's scheduler.
static void check_child(void) {
  pid_t child = fork();
  if (child == 0) {
    const char *directory = xsi_private_directory();
    _exit(xsi_private_wanted() && directory != NULL && strcmp(directory, base) == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  EVENTUALLY(__atomic_exchange_n(&children, 0, __ATOMIC_SEQ_CST) == 1); // its signal
}

static void starts(void) {
  begin();
  test_session_start(&global, 1);
  CHECK(!xsi_private_wanted() && !xsi_private_given() && global.hello.policy[0] == 0);
  CHECK(dup2(1, 77) == 77); // the program's, not closed by exec
  unsigned fds = test_count_fds();
  choose_local();
  leaves(&global);
  EVENTUALLY(has_file("arguments"));
  char text[128], wanted[128];
  read_file("arguments", text, sizeof text);
  snprintf(wanted, sizeof wanted, "private --pid %d in ", (int)getpid());
  CHECK(strncmp(text, wanted, strlen(wanted)) == 0);
  CHECK(atoi(text + strlen(wanted)) != getsid(0)); // a signal of the terminal is for the program
  CHECK(strstr(text, "with") == NULL);             // none of the program's descriptors
  // Until it is ready the program is nobody's.
  CHECK(!test_readable(global.listener, 100) && xsi_private_directory() == NULL);
  snprintf(text, sizeof text, "%s\n", base);
  write_file("answer", text);
  test_session_start(&own, 2);
  CHECK(own.hello.scheduler == XSW_SCHEDULER_LOCAL && strcmp(own.hello.policy, "RR") == 0);
  check_child();
  // Back to the environment's and here again, with the same private scheduler.
  CHECK(unlink(file("arguments")) == 0);
  xsi_set_scheduler(XSW_SCHEDULER_GLOBAL);
  leaves(&own);
  test_session_start(&global, 3);
  CHECK(global.hello.scheduler == XSW_SCHEDULER_GLOBAL);
  xsi_set_scheduler(XSW_SCHEDULER_LOCAL);
  leaves(&global);
  test_session_start(&own, 4);
  CHECK(!has_file("arguments"));
  test_session_end(&own);
  CHECK(test_count_fds() <= fds + 1);
  end();
}

// An answer that is no directory ends the attempt: the program runs natively, not with another's.
static void refused(void) {
  begin();
  test_session_start(&global, 1);
  write_file("answer", "xsched: no room\n");
  choose_local();
  leaves(&global);
  EVENTUALLY(has_file("arguments"));
  CHECK(!test_readable(global.listener, 500) && !xsi_page_joined());
  CHECK(xsi_private_directory() == NULL);
  end();
}

// A program that adopts orphans, as PID 1 of a container does, is left no zombie.
static void adopted(void) {
  CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
  begin();
  test_session_start(&global, 1);
  write_file("answer", "xsched: no room\n");
  choose_local();
  leaves(&global);
  EVENTUALLY(__atomic_load_n(&children, __ATOMIC_SEQ_CST) > 0); // this signal is unavoidable
  EVENTUALLY(waitid(P_ALL, 0, &(siginfo_t){0}, WEXITED | WNOHANG | WNOWAIT) < 0);
  CHECK(errno == ECHILD);
  children = 0;
  end();
}

// A program that sets its title writes it over the environment it was started with.
static void retitled(void) {
  char *last = environ[0];
  for (char **pair = environ; *pair != NULL; pair++)
    last = *pair;
  memset(environ[0], 0, (size_t)(last + strlen(last) - environ[0]));
  xsi_options.scheduler = XSW_SCHEDULER_GLOBAL; // what the environment selected was wanted at load
  begin();
  test_session_start(&global, 1);
  choose_local();
  leaves(&global);
  EVENTUALLY(has_file("arguments"));
  write_file("answer", "xsched: no room\n");
  end();
}

static void absent(void) { CHECK(xsi_private_find() == -ENOENT); }

// A private scheduler that the environment names is only to be joined.
static void given(void) {
  begin();
  CHECK(xsi_private_given() && !xsi_private_wanted());
  test_session_start(&global, 1);
  CHECK(global.hello.scheduler == XSW_SCHEDULER_LOCAL && !has_file("arguments"));
  test_session_end(&global);
  end();
}

// ---- each case in a process ---------------------------------------------------------------------

static const struct {
  const char *name, *variable, *value;
  void (*run)(void);
} cases[] = {
    {"starts", "A", "1", starts},
    {"refused", "A", "1", refused},
    {"adopted", "A", "1", adopted},
    {"retitled", "XSCHED_POLICY", "RR", retitled},
    {"absent", "XSCHED_BINARY", "/nowhere/xsched", absent},
    {"given", "XSCHED_SCHEDULER", "LCL", given},
};
enum { CASES = sizeof cases / sizeof *cases };

static void run_case(unsigned i) {
  unlink(file("answer"));
  unlink(file("arguments"));
  pid_t child = fork();
  if (child == 0) {
    setenv("XSCHED_BINARY", file("xsched"), 1);
    setenv(cases[i].variable, cases[i].value, 1);
    execl("/proc/self/exe", "test", cases[i].name, base, (char *)NULL);
    _exit(127);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
  alarm(100);
  if (argc == 3) {
    snprintf(base, sizeof base, "%s", argv[2]);
    for (unsigned i = 0; i < CASES; i++)
      if (strcmp(cases[i].name, argv[1]) == 0) cases[i].run();
    return 0;
  }
  strcpy(base, "/tmp/xsched-test-XXXXXX");
  CHECK(mkdtemp(base) != NULL);
  write_file("xsched", "#!/bin/sh\n"
                       "d=${0%/*}; read -r _ _ _ _ _ session _ </proc/self/stat\n"
                       "[ -e /proc/$$/fd/77 ] && session=\"$session with 77\"\n"
                       "echo \"$@ in $session\" >$d/draft2; mv $d/draft2 $d/arguments\n"
                       "until [ -e $d/answer ]; do [ -d $d ] || exit; sleep 0.02; done\n"
                       "cat $d/answer\n");
  for (unsigned i = 0; i < CASES; i++)
    run_case(i);
  static const char *const left[] = {"answer", "arguments", "xsched", "xsched.sock"};
  for (unsigned i = 0; i < sizeof left / sizeof *left; i++)
    unlink(file(left[i]));
  CHECK(rmdir(base) == 0);
  puts("ok private");
  return 0;
}
