// SPDX-License-Identifier: Apache-2.0
//
// Starts `xsched private`, which starts the daemon, prints its directory when it is ready, and ends.

#include "private.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fd.h"
#include "hint.h"
#include "log.h"
#include "options.h"

#define MS 1000000u
#define NAME "xsched"
enum { STACK_BYTES = 128 * 1024, LOOK_MS = 5, LIMIT_MS = 60000 };

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define CLOSE_ON_EXEC 4u // CLOSE_RANGE_CLOEXEC

enum state { NONE, STARTING, READY, FAILED };

static struct {
  enum state state;
  int fd;        // what the starter prints
  pid_t starter; // to wait for; 0: another process adopts it
  uint64_t limit_ns;
  size_t length;
  char text[512]; // the directory, or an error message
} private XSI_FORK_STATE = {.fd = -1};

bool xsi_private_given(void) {
  return xsi_options.scheduler == XSW_SCHEDULER_LOCAL && xsi_place_named();
}

bool xsi_private_wanted(void) {
  return xsi_scheduler() == XSW_SCHEDULER_LOCAL && !xsi_private_given();
}

const char *xsi_private_directory(void) { return private.state == READY ? private.text : NULL; }

// ---- the environment the program was started with ---------------------------------------------

// environ belongs to the program, which may change it in another thread. A program that sets its title
// overwrites what /proc shows, so it is read once, as early as a private scheduler is wanted.
struct environment {
  char *text;
  char **list;
};

static int read_environment(struct environment *e) {
  size_t room = 1 << 16, length = 0;
  *e = (struct environment){NULL, NULL};
  int fd = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  ssize_t got = 1;
  while (got > 0) {
    char *larger = realloc(e->text, room);
    if (larger == NULL) break;
    e->text = larger;
    got = read(fd, e->text + length, room - 1 - length);
    if (got > 0) length += (size_t)got;
    if (length == room - 1) room *= 2;
  }
  close(fd);
  if (got != 0) return -EIO;
  e->text[length] = 0;
  size_t count = 0;
  for (size_t i = 0; i < length; i += strlen(e->text + i) + 1)
    count++;
  e->list = calloc(count + 1, sizeof *e->list);
  if (e->list == NULL) return -ENOMEM;
  for (size_t i = 0, at = 0; i < length; i += strlen(e->text + i) + 1)
    e->list[at++] = e->text + i;
  return 0;
}

static struct environment started;
static int start_error;
static void read_started(void) { start_error = read_environment(&started); }

static int started_environment(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_started);
  return start_error;
}

void xsi_private_init(void) {
  if (xsi_private_wanted() && getauxval(AT_SECURE) == 0) started_environment();
}

static const char *variable(const struct environment *e, const char *name) {
  size_t length = strlen(name);
  for (char **pair = e->list; *pair != NULL; pair++)
    if (strncmp(*pair, name, length) == 0 && (*pair)[length] == '=') return *pair + length + 1;
  return "";
}

// ---- where the program is -----------------------------------------------------------------------

static bool is_program(const char *path, bool of_a_friend) {
  struct statx found;
  if (syscall(SYS_statx, AT_FDCWD, path, 0, STATX_TYPE | STATX_MODE | STATX_UID, &found) != 0 ||
      !S_ISREG(found.stx_mode) || access(path, X_OK) != 0)
    return false;
  return !of_a_friend || ((found.stx_uid == 0 || found.stx_uid == geteuid()) &&
                          (found.stx_mode & (S_IWGRP | S_IWOTH)) == 0);
}

// PREFIX/bin beside PREFIX/lib or PREFIX/lib/ARCHITECTURE. The library may be unpacked where anybody
// can make a folder.
static bool beside_library(char *path) {
  Dl_info info;
  if (dladdr((void *)xsi_private_find, &info) == 0 || info.dli_fname == NULL) return false;
  const char *end = strrchr(info.dli_fname, '/');
  if (end == NULL) return false;
  static const char *const ups[] = {"/../bin/" NAME, "/../../bin/" NAME};
  for (unsigned i = 0; i < sizeof ups / sizeof *ups; i++) {
    int length =
        snprintf(path, PATH_MAX, "%.*s%s", (int)(end - info.dli_fname), info.dli_fname, ups[i]);
    if (length > 0 && length < PATH_MAX && is_program(path, true)) return true;
  }
  return false;
}

static bool in_path(const struct environment *e, char *path) {
  const char *from = variable(e, "PATH");
  while (*from != 0) {
    size_t length = strcspn(from, ":");
    if (*from == '/' && length + sizeof "/" NAME <= PATH_MAX) {
      memcpy(path, from, length);
      memcpy(path + length, "/" NAME, sizeof "/" NAME);
      if (is_program(path, false)) return true;
    }
    from += length + (from[length] == ':');
  }
  return false;
}

static int find(const struct environment *e, char *path) {
  const char *named = variable(e, "XSCHED_BINARY");
  if (named[0] != 0) {
    if (strlen(named) >= PATH_MAX) return -ENAMETOOLONG;
    memcpy(path, named, strlen(named) + 1);
    return is_program(path, false) ? 0 : -ENOENT;
  }
  return beside_library(path) || in_path(e, path) ? 0 : -ENOENT;
}

// A set-user-ID program must start nothing that its caller names.
static int prepare(char *path) {
  if (getauxval(AT_SECURE) != 0) return -EPERM;
  int result = started_environment();
  return result < 0 ? result : find(&started, path);
}

static void complain(int result) {
  xsi_log(XSI_ERROR,
          "no private scheduler, running natively: cannot find the xsched program, errno=%d; set "
          "XSCHED_BINARY to its path, or use `xsched run`",
          -result);
}

int xsi_private_find(void) {
  int saved = errno;
  char path[PATH_MAX];
  int result = prepare(path);
  if (result < 0) complain(result);
  errno = saved;
  return result;
}

// ---- starting it ----------------------------------------------------------------------------------

struct launch {
  const char *path;
  char *const *arguments, *const *environment;
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  pid_t pid;
  int result;
};

static int in_between(void *argument) {
  struct launch *launch = argument;
  // The program's own must not stay open in another process. The table is a copy.
  syscall(SYS_close_range, 3, ~0u, CLOSE_ON_EXEC);
  launch->result = posix_spawn(&launch->pid, launch->path, &launch->actions, &launch->attributes,
                               launch->arguments, launch->environment);
  syscall(SYS_exit_group, 0);
  return 0;
}

// A process in between ends at once, so that the starter is init's child. It has no signal for its
// end: the program's handler for SIGCHLD does not run, and its wait() does not see it. It shares the
// memory, which needs no copy of the page tables and runs no handlers of fork.
static int spawn(struct launch *launch) {
  char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return -errno;
  launch->result = 0;
  int result = 0, status;
  pid_t pid = clone(in_between, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, launch);
  if (pid < 0) result = -errno;
  while (pid > 0 && waitpid(pid, &status, __WCLONE) < 0 && errno == EINTR)
    continue;
  munmap(stack, STACK_BYTES);
  return result < 0 ? result : -launch->result;
}

static int set_up(struct launch *launch, int output) {
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID;
  int result = posix_spawnattr_setflags(&launch->attributes, flags);
  if (result == 0) result = posix_spawnattr_setsigmask(&launch->attributes, &none);
  if (result == 0) result = posix_spawnattr_setsigdefault(&launch->attributes, &all);
  if (result == 0)
    result = posix_spawn_file_actions_addopen(&launch->actions, 0, "/dev/null", O_RDWR, 0);
  for (int fd = 1; fd <= 2 && result == 0; fd++)
    result = posix_spawn_file_actions_adddup2(&launch->actions, output, fd);
  return -result;
}

static int launch_into(struct launch *launch, int output) {
  int result = -posix_spawn_file_actions_init(&launch->actions);
  if (result < 0) return result;
  result = -posix_spawnattr_init(&launch->attributes);
  if (result == 0) {
    result = set_up(launch, output);
    if (result == 0) result = spawn(launch);
    posix_spawnattr_destroy(&launch->attributes);
  }
  posix_spawn_file_actions_destroy(&launch->actions);
  return result;
}

// PID 1 of a container, or a subreaper, adopts what its children leave.
static bool adopts(void) {
  int on = 0;
  return getpid() == 1 || (prctl(PR_GET_CHILD_SUBREAPER, &on, 0, 0, 0) == 0 && on != 0);
}

static int start(const char *path) {
  char pid[16];
  snprintf(pid, sizeof pid, "%d", (int)getpid());
  char *arguments[] = {NAME, "private", "--pid", pid, NULL};
  struct launch launch = {.path = path, .arguments = arguments, .environment = started.list};
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) return -errno;
  private.fd = xsi_fd_raise(ends[0]);
  int output = xsi_fd_raise(ends[1]); // not a standard one, which would lose its flag
  int result = launch_into(&launch, output);
  xsi_fd_close(&output);
  if (result < 0) xsi_fd_close(&private.fd);
  if (result == 0 && adopts()) private.starter = launch.pid;
  return result;
}

static void begin(uint64_t now) {
  char path[PATH_MAX];
  int result = prepare(path);
  if (result < 0) {
    complain(result);
  } else {
    result = start(path);
    if (result < 0)
      xsi_log(XSI_ERROR, "no private scheduler, running natively: cannot start %s, errno=%d", path,
              -result);
  }
  private.length = 0;
  private.limit_ns = now + (uint64_t)LIMIT_MS * MS;
  private.state = result < 0 ? FAILED : STARTING;
}

// The first line is all that counts.
static void conclude(void) {
  xsi_fd_close(&private.fd);
  private.text[private.length] = 0;
  private.text[strcspn(private.text, "\n")] = 0;
  private.state = private.text[0] == '/' ? READY : FAILED;
  if (private.state == READY)
    xsi_log(XSI_INFO, "private scheduler in %s", private.text);
  else
    xsi_log(XSI_ERROR, "no private scheduler, running natively: %s",
            private.text[0] != 0 ? private.text : "it did not start");
}

static bool look(uint64_t now) {
  size_t room = sizeof private.text - 1 - private.length;
  ssize_t got = read(private.fd, private.text + private.length, room);
  if (got > 0) private.length += (size_t)got;
  bool waits = got < 0 && (errno == EAGAIN || errno == EINTR) && now < private.limit_ns;
  if (memchr(private.text, '\n', private.length) != NULL || (got <= 0 && !waits)) conclude();
  return private.state != STARTING;
}

// Leaves no zombie to a program that adopted the starter.
static bool gone(uint64_t now) {
  if (private.starter == 0) return true;
  if (waitpid(private.starter, NULL, WNOHANG) == 0 && now < private.limit_ns) return false;
  private.starter = 0;
  return true;
}

uint64_t xsi_private_step(uint64_t now) {
  if (private.state == NONE && xsi_private_wanted()) begin(now);
  bool known = private.state != STARTING || look(now);
  if (gone(now) && known) return UINT64_MAX;
  return now + (uint64_t)LOOK_MS * MS;
}

void xsi_private_reset(void) {
  private.starter = 0;
  if (private.state != STARTING) return;
  xsi_fd_close(&private.fd);
  private.state = NONE; // the parent's; this process starts its own if it needs one
}
