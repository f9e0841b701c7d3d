// SPDX-License-Identifier: Apache-2.0
//
// A preloaded library that writes the requests of a process to the NVIDIA device files, one a line, to the file in
// XSCHED_RMTRACE: open, close, and ioctl with the RM handles of allocations, frees and controls.
//
//   milliseconds thread what fd ...
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int out = -1;

static void say(const char *format, ...) {
  if (out < 0) return;
  int saved = errno;
  char line[256];
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int n = snprintf(line, sizeof line, "%lld.%03ld %ld ", (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000,
                   now.tv_nsec / 1000 % 1000, (long)syscall(SYS_gettid));
  va_list list;
  va_start(list, format);
  n += vsnprintf(line + n, sizeof line - (size_t)n - 1, format, list);
  va_end(list);
  if (n > (int)sizeof line - 2) n = sizeof line - 2;
  line[n++] = '\n';
  if (write(out, line, (size_t)n) < 0) out = -1;
  errno = saved;
}

// The name of the device file behind a descriptor; NULL if it is another file.
static const char *device(int fd, char *name, size_t bytes) {
  char link[32];
  int saved = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, name, bytes - 1);
  errno = saved;
  name[n < 0 ? 0 : n] = 0;
  return strncmp(name, "/dev/nvidia", 11) == 0 ? name + 5 : NULL;
}

static void *next(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (!found) say("missing %s", name);
  return found;
}

static int opened(int fd, const char *path) {
  if (fd >= 0 && strncmp(path, "/dev/nvidia", 11) == 0) say("open %d %s", fd, path + 5);
  return fd;
}

static mode_t mode_of(int flags, va_list list) { return flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0; }
#define OPEN(name)                                              \
  int name(const char *path, int flags, ...) {                  \
    static int (*real)(const char *, int, ...);                 \
    if (!real) real = (int (*)(const char *, int, ...))next(#name); \
    va_list list;                                               \
    va_start(list, flags);                                      \
    mode_t mode = mode_of(flags, list);                         \
    va_end(list);                                               \
    return opened(real(path, flags, mode), path);               \
  }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                      \
  int name(int at, const char *path, int flags, ...) {                    \
    static int (*real)(int, const char *, int, ...);                      \
    if (!real) real = (int (*)(int, const char *, int, ...))next(#name);  \
    va_list list;                                                         \
    va_start(list, flags);                                                \
    mode_t mode = mode_of(flags, list);                                   \
    va_end(list);                                                         \
    return opened(real(at, path, flags, mode), path);                     \
  }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
  char name[64];
  const char *file = out >= 0 ? device(fd, name, sizeof name) : NULL;
  int result = (int)syscall(SYS_close, fd);
  if (file) say("close %d %s", fd, file);
  return result;
}

int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  char name[64];
  const char *file = out >= 0 ? device(fd, name, sizeof name) : NULL;
  int result = (int)syscall(SYS_ioctl, fd, request, argument);
  if (!file) return result;
  const uint32_t *word = argument;
  unsigned number = request & 0xff;
  if (strncmp(file, "nvidia-uvm", 10) == 0)
    say("uvm %d request %lu -> %d", fd, request, result);
  else if (number == 0x2b && _IOC_SIZE(request) >= 32)
    say("alloc %d root %#x parent %#x object %#x class %#x status %#x -> %d", fd, word[0], word[1], word[2], word[3],
        word[_IOC_SIZE(request) == 32 ? 7 : 10], result);
  else if (number == 0x29)
    say("free %d root %#x parent %#x object %#x status %#x -> %d", fd, word[0], word[1], word[2], word[3], result);
  else if (number == 0x2a)
    say("control %d client %#x object %#x command %#x status %#x -> %d", fd, word[0], word[1], word[2], word[7], result);
  else
    say("ioctl %d %s number %#x -> %d", fd, file, number, result);
  return result;
}

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("XSCHED_RMTRACE");
  int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  if (fd < 0) return;
  out = fcntl(fd, F_DUPFD_CLOEXEC, 900);
  syscall(SYS_close, fd);
}
