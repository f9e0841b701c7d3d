/* SPDX-License-Identifier: Apache-2.0
 *
 * Common part of the libraries that replace a kernel driver: the next library's functions, and a
 * device file that is a socket to the device process. Each library includes it once.
 */
#ifndef XSCHED_VIRTUAL_INTERPOSE_H
#define XSCHED_VIRTUAL_INTERPOSE_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "symver.h"

VG_OLD_SYMBOL(dlsym);

#define EXPORT __attribute__((visibility("default")))
#define IOC_TYPE(request) ((uint32_t)(request) >> 8 & 0xff)
#define IOC_NR(request) ((uint32_t)(request)&0xff)
#define IOC_SIZE(request) ((uint32_t)(request) >> 16 & 0x3fff)

typedef int (*open_function)(const char *path, int flags, ...);
typedef int (*openat_function)(int directory, const char *path, int flags, ...);
typedef int (*ioctl_function)(int fd, unsigned long request, ...);

static void *next_symbol(const char *name, void **cache) {
  void *found = __atomic_load_n(cache, __ATOMIC_ACQUIRE);
  if (!found) {
    found = dlsym(RTLD_NEXT, name);
    __atomic_store_n(cache, found, __ATOMIC_RELEASE);
  }
  return found;
}

/* The mode argument, which open() takes only with some flags. */
#define READ_MODE(flags, mode)                                                                     \
  mode_t mode = 0;                                                                                 \
  if (((flags)&O_CREAT) || ((flags)&O_TMPFILE) == O_TMPFILE) {                                     \
    va_list rest;                                                                                  \
    va_start(rest, flags);                                                                         \
    mode = va_arg(rest, mode_t);                                                                   \
    va_end(rest);                                                                                  \
  }

/* The device process's bound name, as returned by getpeername. Identifies its sockets, including
 * duplicates made elsewhere. Written once, before its length. */
static struct sockaddr_un device_name;
static uint32_t device_name_bytes;

static int peer_name(int fd, struct sockaddr_un *name) {
  socklen_t bytes = sizeof *name;
  memset(name, 0, sizeof *name);
  if (getpeername(fd, (struct sockaddr *)name, &bytes) != 0 || name->sun_family != AF_UNIX)
    return 0;
  return bytes > sizeof *name ? 0 : (int)bytes;
}

/* Connects to the device process: the driver's open(). */
static int open_device(const char *path, int flags) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  size_t length = strlen(path);
  if (length >= sizeof name.sun_path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  memcpy(name.sun_path, path, length + 1);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | (flags & O_CLOEXEC ? SOCK_CLOEXEC : 0), 0);
  if (fd < 0) return -1;
  int result;
  do
    result = connect(fd, (struct sockaddr *)&name, sizeof name);
  while (result != 0 && errno == EINTR);
  if (result != 0) {
    close(fd);
    errno = ENODEV; /* as on a machine without the device */
    return -1;
  }
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (device_name_bytes == 0) {
    int bytes = peer_name(fd, &device_name);
    __atomic_store_n(&device_name_bytes, (uint32_t)bytes, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&lock);
  return fd;
}

/* Tells whether fd is a socket of the device process. Called only for requests of the driver's
 * type. */
static bool is_device(int fd) {
  uint32_t known = __atomic_load_n(&device_name_bytes, __ATOMIC_ACQUIRE);
  if (known == 0) return false;
  struct sockaddr_un name;
  return peer_name(fd, &name) == (int)known && memcmp(&name, &device_name, known) == 0;
}

#endif /* XSCHED_VIRTUAL_INTERPOSE_H */
