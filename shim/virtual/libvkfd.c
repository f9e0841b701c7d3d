/* SPDX-License-Identifier: Apache-2.0
 *
 * libvkfd.so: redirects open("/dev/kfd") and ioctls on that file to the virtual AMD GPU's device
 * process. Mappings of the file are plain memory, and XSCHED_VKFD_ROOT replaces sysfs. This library
 * takes the place of the kernel, after libxsched.so in LD_PRELOAD, and is independent of
 * scheduling. Without XSCHED_VKFD_SOCKET, all calls are forwarded.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "interpose.h"
#include "vkfd.h"

enum { PATH_BYTES = 512 };

typedef void *(*mmap_function)(void *address, size_t bytes, int protection, int flags, int fd,
                               off_t offset);
typedef FILE *(*fopen_function)(const char *path, const char *mode);
typedef DIR *(*opendir_function)(const char *path);

/* ---- files ------------------------------------------------------------------------ */

enum what { OTHER, DEVICE, RENDER, TEXT };

/* Classifies a path; for TEXT, instead receives the replacement. */
static enum what classify(const char *path, char instead[PATH_BYTES]) {
  static const char *const shown[] = {"/sys/devices/virtual/kfd/kfd", "/sys/class/kfd/kfd",
                                      "/sys/kernel/debug/kfd"};
  static const char *const below[] = {"/sys/class/kfd/kfd", "/sys/class/kfd/kfd",
                                      "/sys/kernel/debug/kfd"};
  if (!path || path[0] != '/') return OTHER;
  const char *device = getenv("XSCHED_VKFD_SOCKET"), *root = getenv("XSCHED_VKFD_ROOT");
  if (!device || !*device) return OTHER;
  if (strcmp(path, "/dev/kfd") == 0) return DEVICE;
  if (strncmp(path, "/dev/dri/renderD", 16) == 0) return RENDER;
  if (!root || !*root) return OTHER;
  for (unsigned i = 0; i < sizeof shown / sizeof *shown; i++) {
    size_t length = strlen(shown[i]);
    if (strncmp(path, shown[i], length) != 0 || (path[length] && path[length] != '/')) continue;
    int bytes = snprintf(instead, PATH_BYTES, "%s%s%s", root, below[i], path + length);
    return bytes > 0 && bytes < PATH_BYTES ? TEXT : OTHER;
  }
  return OTHER;
}

/* The graphics driver's file only represents memory here. */
static int open_special(enum what what, int flags) {
  if (what == DEVICE) return open_device(getenv("XSCHED_VKFD_SOCKET"), flags);
  return memfd_create("vkfd-render", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
}

#define DEFINE_OPEN(name)                                                                          \
  EXPORT int name(const char *path, int flags, ...) {                                              \
    static void *cache;                                                                            \
    char instead[PATH_BYTES];                                                                      \
    READ_MODE(flags, mode)                                                                         \
    enum what what = classify(path, instead);                                                      \
    if (what == DEVICE || what == RENDER) return open_special(what, flags);                        \
    open_function next = (open_function)next_symbol(#name, &cache);                                \
    return next(what == TEXT ? instead : path, flags, mode);                                       \
  }

#define DEFINE_OPENAT(name)                                                                        \
  EXPORT int name(int directory, const char *path, int flags, ...) {                               \
    static void *cache;                                                                            \
    char instead[PATH_BYTES];                                                                      \
    READ_MODE(flags, mode)                                                                         \
    enum what what = classify(path, instead);                                                      \
    if (what == DEVICE || what == RENDER) return open_special(what, flags);                        \
    openat_function next = (openat_function)next_symbol(#name, &cache);                            \
    return next(directory, what == TEXT ? instead : path, flags, mode);                            \
  }

#define DEFINE_FOPEN(name)                                                                         \
  EXPORT FILE *name(const char *path, const char *mode) {                                          \
    static void *cache;                                                                            \
    char instead[PATH_BYTES];                                                                      \
    fopen_function next = (fopen_function)next_symbol(#name, &cache);                              \
    return next(classify(path, instead) == TEXT ? instead : path, mode);                           \
  }

DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)
DEFINE_FOPEN(fopen)
DEFINE_FOPEN(fopen64)

EXPORT DIR *opendir(const char *path) {
  static void *cache;
  char instead[PATH_BYTES];
  opendir_function next = (opendir_function)next_symbol("opendir", &cache);
  return next(classify(path, instead) == TEXT ? instead : path);
}

/* The driver returns offsets beyond those of any file. A mapping with such an offset is plain
 * memory, for any of the driver's files. */
static void *map(mmap_function next, void *address, size_t bytes, int protection, int flags, int fd,
                 off_t offset) {
  if ((uint64_t)offset >> 62 == 0 || (flags & MAP_ANONYMOUS))
    return next(address, bytes, protection, flags, fd, offset);
  flags = (flags & ~(MAP_SHARED | MAP_SHARED_VALIDATE)) | MAP_PRIVATE | MAP_ANONYMOUS;
  return next(address, bytes, protection, flags, -1, 0);
}

EXPORT void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  static void *cache;
  return map((mmap_function)next_symbol("mmap", &cache), address, bytes, protection, flags, fd,
             offset);
}

EXPORT void *mmap64(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  static void *cache;
  return map((mmap_function)next_symbol("mmap64", &cache), address, bytes, protection, flags, fd,
             offset);
}

/* ---- ioctl ------------------------------------------------------------------------ */

/* The embedded pointer of a request: its offset and the size of its target. */
struct embedded {
  unsigned at;
  uint64_t bytes;
};

static uint32_t u32(const unsigned char *arg, unsigned at) {
  uint32_t value;
  memcpy(&value, arg + at, sizeof value);
  return value;
}

static bool embeds(uint32_t nr, const unsigned char *arg, struct embedded *e) {
  switch (nr) {
  case 0x0C: *e = (struct embedded){0, u32(arg, 8) * 48ull}; return true; /* WAIT_EVENTS */
  case 0x14: *e = (struct embedded){0, u32(arg, 8) * 56ull}; return true; /* APERTURES_NEW */
  case 0x18:                                                              /* MAP_MEMORY */
  case 0x19: *e = (struct embedded){8, u32(arg, 16) * 4ull}; return true; /* UNMAP_MEMORY */
  case 0x1A: /* SET_CU_MASK; the driver reads no more than 1024 bits */
    *e = (struct embedded){8, (u32(arg, 4) > 1024 ? 1024 : u32(arg, 4)) / 32 * 4ull};
    return true;
  case 0x26: break; /* DBG_TRAP */
  default: return false;
  }
  switch (u32(arg, 4)) {
  case 0: *e = (struct embedded){16, u32(arg, 24) > 16 ? 16 : u32(arg, 24)}; return true;
  case 6: *e = (struct embedded){16, u32(arg, 24) * 4ull}; return true;
  case 7: *e = (struct embedded){8, u32(arg, 16) * 4ull}; return true;
  case 12: *e = (struct embedded){8, u32(arg, 16) > 16 ? 16 : u32(arg, 16)}; return true;
  case 13:
  case 14: *e = (struct embedded){16, (uint64_t)u32(arg, 24) * u32(arg, 28)}; return true;
  default: return false;
  }
}

/* The file descriptor in a request, to be passed to the device. */
static int named_file(uint32_t nr, const unsigned char *arg) {
  int fd = -1;
  if (nr == 0x15) fd = (int)u32(arg, 0);                      /* ACQUIRE_VM */
  if (nr == 0x26 && u32(arg, 4) == 0) fd = (int)u32(arg, 28); /* DBG_TRAP enable */
  return fd >= 0 && fcntl(fd, F_GETFD) >= 0 ? fd : -1;
}

/* Copies like the kernel: a bad address is an error, not a crash. */
static bool copy_in(void *to, uint64_t from, size_t bytes) {
  struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)from, bytes};
  return bytes == 0 || process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

static bool copy_out(uint64_t to, void *from, size_t bytes) {
  struct iovec local = {from, bytes}, remote = {(void *)(uintptr_t)to, bytes};
  return bytes == 0 || process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

static int send_request(int fd, struct vk_request *head, unsigned char *packet, const int *fds,
                        unsigned count) {
  memcpy(packet, head, sizeof *head);
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(2 * sizeof(int))];
  } rights;
  memset(&rights, 0, sizeof rights);
  struct iovec part = {packet, sizeof *head + head->arg_bytes + head->params_bytes};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = rights.space,
                           .msg_controllen = CMSG_SPACE(count * sizeof(int))};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  memcpy(CMSG_DATA(header), fds, count * sizeof(int));
  ssize_t sent;
  do
    sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == (ssize_t)part.iov_len ? 0 : -EIO;
}

static int read_reply(int fd, const struct vk_request *head, unsigned char *packet) {
  ssize_t got;
  do
    got = recv(fd, packet, sizeof(struct vk_reply) + VK_MAX_ARG + VK_MAX_PARAMS, 0);
  while (got < 0 && errno == EINTR);
  struct vk_reply reply;
  if (got < (ssize_t)sizeof reply) return -EIO; /* 0: the device has gone */
  memcpy(&reply, packet, sizeof reply);
  if (reply.arg_bytes != head->arg_bytes || reply.params_bytes != head->params_bytes ||
      (size_t)got != sizeof reply + reply.arg_bytes + reply.params_bytes)
    return -EIO;
  return reply.result;
}

static int call_device(int fd, uint32_t request, void *arg, unsigned char *packet) {
  struct vk_request head = {.magic = VK_MAGIC,
                            .request = request,
                            .arg_bytes = IOC_SIZE(request),
                            .tid = (uint32_t)syscall(SYS_gettid)};
  if (head.arg_bytes > VK_MAX_ARG) return -EINVAL;
  unsigned char local[VK_MAX_ARG] = {0};
  if (!copy_in(local, (uint64_t)(uintptr_t)arg, head.arg_bytes)) return -EFAULT;
  struct embedded e = {0};
  uint64_t pointer = 0;
  if (embeds(IOC_NR(request), local, &e) && e.bytes != 0) {
    memcpy(&pointer, local + e.at, sizeof pointer);
    unsigned char *params = packet + sizeof head + head.arg_bytes;
    if (e.bytes > VK_MAX_PARAMS || !copy_in(params, pointer, e.bytes))
      head.flags |= VK_FLAG_FAULT;
    else
      head.params_bytes = (uint32_t)e.bytes;
  }
  memcpy(packet + sizeof head, local, head.arg_bytes);

  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return -errno;
  int fds[2] = {pair[1], named_file(IOC_NR(request), local)};
  int result = send_request(fd, &head, packet, fds, fds[1] >= 0 ? 2 : 1);
  close(pair[1]); /* the device now holds the only copy, so its death is our EOF */
  if (result == 0) result = read_reply(pair[0], &head, packet);
  close(pair[0]);
  if (result < 0) return result;
  unsigned char *from = packet + sizeof(struct vk_reply);
  if (!copy_out((uint64_t)(uintptr_t)arg, from, head.arg_bytes) ||
      !copy_out(pointer, from + head.arg_bytes, head.params_bytes))
    return -EFAULT;
  return result;
}

EXPORT int ioctl(int fd, unsigned long request, ...) {
  static void *cache;
  va_list rest;
  va_start(rest, request);
  void *arg = va_arg(rest, void *);
  va_end(rest);
  if (IOC_TYPE(request) == 'K') {
    int before = errno;
    if (is_device(fd)) {
      unsigned char *packet = malloc(sizeof(struct vk_request) + VK_MAX_ARG + VK_MAX_PARAMS);
      int result = packet ? call_device(fd, (uint32_t)request, arg, packet) : -ENOMEM;
      free(packet);
      errno = result < 0 ? -result : before;
      return result < 0 ? -1 : result;
    }
    errno = before;
  }
  ioctl_function next = (ioctl_function)next_symbol("ioctl", &cache);
  return next(fd, request, arg);
}
