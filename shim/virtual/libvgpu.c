/* SPDX-License-Identifier: Apache-2.0
 *
 * libvgpu.so: redirects open("/dev/nvidiactl") and ioctls on that file to the virtual GPU's device
 * process. This library takes the place of the kernel, after libxsched.so in LD_PRELOAD, and is
 * independent of scheduling. Without XSCHED_VGPU_SOCKET, all calls are forwarded.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "interpose.h"
#include "vgpu.h"

#define DEVICE_PATH "/dev/nvidiactl"
#define ESC_RM_CONTROL 0x2A
#define ESC_RM_ALLOC 0x2B

static const char *wanted(const char *path) {
  if (!path || strcmp(path, DEVICE_PATH) != 0) return NULL;
  const char *socket_path = getenv("XSCHED_VGPU_SOCKET");
  return socket_path && *socket_path ? socket_path : NULL;
}

static int open_by(const char *symbol, void **cache, const char *path, int flags, mode_t mode) {
  const char *device = wanted(path);
  if (device) return open_device(device, flags);
  open_function next = (open_function)next_symbol(symbol, cache);
  if (!next) {
    errno = ENOSYS;
    return -1;
  }
  return next(path, flags, mode);
}

static int openat_by(const char *symbol, void **cache, int directory, const char *path, int flags,
                     mode_t mode) {
  const char *device = wanted(path);
  if (device) return open_device(device, flags);
  openat_function next = (openat_function)next_symbol(symbol, cache);
  if (!next) {
    errno = ENOSYS;
    return -1;
  }
  return next(directory, path, flags, mode);
}

EXPORT int open(const char *path, int flags, ...) {
  static void *next;
  READ_MODE(flags, mode)
  return open_by("open", &next, path, flags, mode);
}

EXPORT int open64(const char *path, int flags, ...) {
  static void *next;
  READ_MODE(flags, mode)
  return open_by("open64", &next, path, flags, mode);
}

EXPORT int openat(int directory, const char *path, int flags, ...) {
  static void *next;
  READ_MODE(flags, mode)
  return openat_by("openat", &next, directory, path, flags, mode);
}

EXPORT int openat64(int directory, const char *path, int flags, ...) {
  static void *next;
  READ_MODE(flags, mode)
  return openat_by("openat64", &next, directory, path, flags, mode);
}

/* Locates the embedded pointer of a request and the size of its target. */
static bool pointer_field(uint32_t request, size_t *pointer, size_t *size) {
  *pointer = 16;
  switch (IOC_NR(request)) {
  case ESC_RM_CONTROL: *size = 24; return IOC_SIZE(request) == 32;
  case ESC_RM_ALLOC: *size = IOC_SIZE(request) == 48 ? 32 : 24; return IOC_SIZE(request) >= 32;
  default: return false;
  }
}

/* Receives the reply, with the descriptors of a mapping. Returns 0 or an errno. */
static int read_reply(int fd, unsigned char *arg, size_t arg_bytes, void *params,
                      size_t params_bytes, bool map) {
  unsigned char packet[sizeof(struct vg_reply) + VG_MAX_ARG + VG_MAX_PARAMS];
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(3 * sizeof(int))];
  } rights;
  struct iovec part = {packet, sizeof packet};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = rights.space,
                           .msg_controllen = sizeof rights.space};
  ssize_t got;
  do
    got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  struct vg_reply reply;
  if (got < (ssize_t)sizeof reply) return EIO; /* 0: the device has gone */
  memcpy(&reply, packet, sizeof reply);
  if (reply.arg_bytes != arg_bytes || reply.params_bytes != params_bytes ||
      (size_t)got != sizeof reply + arg_bytes + params_bytes)
    return EIO;
  memcpy(arg, packet + sizeof reply, arg_bytes);
  if (params_bytes) memcpy(params, packet + sizeof reply + arg_bytes, params_bytes);
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (map && header && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(3 * sizeof(int)))
    memcpy(arg + offsetof(struct vg_map, control_fd), CMSG_DATA(header), 3 * sizeof(int));
  return reply.error;
}

/* Sends one packet, with one end of a new socket pair for the reply. */
static int call_device(int fd, uint32_t request, unsigned char *arg) {
  unsigned char packet[sizeof(struct vg_request) + VG_MAX_ARG + VG_MAX_PARAMS];
  size_t arg_bytes = IOC_SIZE(request), params_bytes = 0, pointer_at, size_at;
  if (arg_bytes > VG_MAX_ARG || !arg) return EINVAL;
  unsigned char local[VG_MAX_ARG];
  memcpy(local, arg, arg_bytes);
  uint64_t pointer = 0;
  bool embeds = pointer_field(request, &pointer_at, &size_at);
  if (embeds) {
    uint32_t size;
    memcpy(&pointer, local + pointer_at, sizeof pointer);
    memcpy(&size, local + size_at, sizeof size);
    memset(local + pointer_at, 0, sizeof pointer);
    if (pointer)
      params_bytes = size;
    else
      memset(local + size_at, 0, sizeof size);
    if (params_bytes > VG_MAX_PARAMS) return EINVAL;
  }
  struct vg_request head = {VG_IOCTL_MAGIC, request, (uint32_t)arg_bytes, (uint32_t)params_bytes};
  memcpy(packet, &head, sizeof head);
  memcpy(packet + sizeof head, local, arg_bytes);
  if (params_bytes)
    memcpy(packet + sizeof head + arg_bytes, (const void *)(uintptr_t)pointer, params_bytes);

  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return errno;
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
  } rights;
  memset(&rights, 0, sizeof rights);
  struct iovec part = {packet, sizeof head + arg_bytes + params_bytes};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = rights.space,
                           .msg_controllen = sizeof rights.space};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &pair[1], sizeof(int));
  ssize_t sent;
  do
    sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  close(pair[1]); /* the device now holds the only copy, so its death is our EOF */
  int error = EIO;
  if (sent == (ssize_t)part.iov_len)
    error = read_reply(pair[0], local, arg_bytes, (void *)(uintptr_t)pointer, params_bytes,
                       IOC_NR(request) == VG_ESC_MAP);
  close(pair[0]);
  if (error) return error;
  if (embeds) memcpy(local + pointer_at, &pointer, sizeof pointer);
  memcpy(arg, local, arg_bytes);
  return 0;
}

EXPORT int ioctl(int fd, unsigned long request, ...) {
  static void *cache;
  va_list rest;
  va_start(rest, request);
  void *arg = va_arg(rest, void *);
  va_end(rest);
  if (IOC_TYPE(request) == 'F' && IOC_SIZE(request) != 0) {
    int before = errno;
    if (is_device(fd)) {
      int error = call_device(fd, (uint32_t)request, arg);
      errno = error ? error : before;
      return error ? -1 : 0;
    }
    errno = before;
  }
  ioctl_function next = (ioctl_function)next_symbol("ioctl", &cache);
  if (!next) {
    errno = ENOSYS;
    return -1;
  }
  return next(fd, request, arg);
}
