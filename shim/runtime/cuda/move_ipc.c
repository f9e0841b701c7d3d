// SPDX-License-Identifier: Apache-2.0
//
// Allocations that other processes open (cuIpcGetMemHandle). The driver refuses that for mapped memory, so the handle
// of an allocation of ours names this process, and a thread of ours sends the memory's handles as descriptors to
// processes of the same user that open it. These have to run with the shim, too. What was exported moves no more.

#include "move.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/fd.h"
#include "core/fork.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/thread.h"

static const char magic[16] = "xsched memory 1";

// What the program passes on: at most 64 bytes.
struct passed {
  char magic[16];
  char socket[8];   // its name, chosen by the kernel, behind the leading zero
  uint64_t process; // tells this process from a later one with a socket of that name
  uint64_t id, address, bytes;
  uint32_t pid;
  int32_t device;
};
_Static_assert(sizeof(struct passed) == sizeof(CUipcMemHandle_v1), "the driver's size");

struct piece {
  uint64_t bytes; // 0: there is no such memory
};

enum { NAME = 5, WAIT_S = 5, STACK = 64 << 10 };

static XSI_FORK_STATE struct xsi_lock lock;
static XSI_FORK_STATE int server = -1;
static XSI_FORK_STATE struct passed self; // magic, socket, process, pid

// ---- sockets -------------------------------------------------------------------------------------

static void limit_waits(int fd) {
  struct timeval most = {WAIT_S, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

static bool of_same_user(int fd) {
  struct ucred peer;
  socklen_t bytes = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

static bool send_piece(int fd, struct piece piece, int passed) {
  struct iovec data = {&piece, sizeof piece};
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
  } control = {{0}};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
  if (passed >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &passed, sizeof passed);
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL) == sizeof piece;
}

static bool receive_piece(int fd, struct piece *piece, int *passed) {
  struct iovec data = {piece, sizeof *piece};
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
  } control;
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  *passed = -1;
  if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != sizeof *piece) return false;
  const struct cmsghdr *got = CMSG_FIRSTHDR(&message);
  if (got && got->cmsg_type == SCM_RIGHTS) memcpy(passed, CMSG_DATA(got), sizeof *passed);
  return *passed >= 0;
}

static const struct xsi_cu_memory *memory_of(const struct xsi_block_view *view) {
  return (const struct xsi_cu_memory *)(uintptr_t)view->properties;
}
static bool can_be_sent(const struct xsi_block_view *view) {
  return (memory_of(view)->properties.handle_types & XSI_CU_HANDLE_POSIX) != 0;
}

// ---- the process that exports --------------------------------------------------------------------

// What was exported is resident, also while other memory of this process is away. The allocation can be freed between
// two pieces.
static bool export_piece(const struct passed *wanted, uint64_t offset, struct piece *piece,
                         int *fd) {
  struct xsi_block_view view;
  struct xsi_block_piece at;
  xsi_move_enter_to_free();
  bool found = xsi_cu_backed(wanted->address, &view) && view.fixed &&
               memory_of(&view)->buffer_id == wanted->id && offset < view.bytes &&
               xsi_block_piece_at(wanted->address + offset, &at) &&
               xsi_cu_call_real(cuMemExportToShareableHandle, fd, at.handle, XSI_CU_HANDLE_POSIX,
                                0ull) == XSI_CU_SUCCESS;
  xsi_move_leave();
  if (found) piece->bytes = at.bytes;
  return found;
}

static void serve(int fd) {
  struct passed wanted;
  limit_waits(fd);
  if (!of_same_user(fd) || recv(fd, &wanted, sizeof wanted, 0) != sizeof wanted ||
      wanted.process != self.process)
    return;
  for (uint64_t offset = 0; offset < wanted.bytes;) {
    struct piece piece = {0};
    int passed = -1;
    bool found = export_piece(&wanted, offset, &piece, &passed);
    bool sent = send_piece(fd, piece, passed);
    if (passed >= 0) close(passed);
    if (!found || !sent) return;
    offset += piece.bytes;
  }
}

static void *serve_all(void *unused) {
  int listening = server;
  for (;;) {
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && errno != EINTR && errno != ECONNABORTED) {
      if (errno != EMFILE && errno != ENFILE) return unused; // the program has closed our socket
      usleep(10000);
    }
    if (fd < 0) continue;
    serve(fd);
    close(fd);
  }
}

static void reset_in_child(void) {
  lock = (struct xsi_lock){0};
  xsi_fd_close(&server);
}

// Under the lock.
static bool start(void) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  socklen_t bytes = sizeof address;
  if (server >= 0 && self.pid == (uint32_t)getpid()) return true;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  fd = xsi_fd_raise(fd);
  // Without a name the kernel chooses one.
  if (bind(fd, (struct sockaddr *)&address, sizeof address.sun_family) == 0 &&
      getsockname(fd, (struct sockaddr *)&address, &bytes) == 0 && listen(fd, 64) == 0) {
    memcpy(self.magic, magic, sizeof magic);
    memcpy(self.socket, address.sun_path + 1, NAME);
    self.process = xsi_now_ns();
    self.pid = (uint32_t)getpid();
    server = fd;
    xsi_at_fork_child(reset_in_child);
    if (xsi_thread_start(STACK, serve_all) == 0) return true;
  }
  server = -1;
  xsi_fd_close(&fd);
  return false;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle_v1 *handle, CUdeviceptr_v2 address) {
  XSI_CU_REAL(cuIpcGetMemHandle);
  if (xsi_cu_enter()) xsi_work_never_batch();
  if (!xsi_cu_memory_enter()) return real(handle, address);
  struct xsi_block_view view;
  CUresult result = XSI_CU_INVALID_VALUE;
  if (!handle || !xsi_cu_backed(address, &view) || !can_be_sent(&view)) {
    result = real(handle, address);
  } else {
    int saved = errno;
    xsi_lock_take(&lock);
    if (start()) {
      struct passed passed = self;
      passed.id = memory_of(&view)->buffer_id;
      passed.address = view.address;
      passed.bytes = view.bytes;
      passed.device = view.device.ordinal;
      memcpy(handle, &passed, sizeof passed);
      result = XSI_CU_SUCCESS;
    }
    xsi_lock_give(&lock);
    errno = saved;
    if (result == XSI_CU_SUCCESS) xsi_block_fix(view.address, XSW_FIXED_EXPORTED);
  }
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuIpcGetMemHandle)

// ---- the process that opens it -------------------------------------------------------------------

struct opened {
  struct opened *next;
  struct passed from;
  CUdeviceptr_v2 address;
  CUcontext context;
  unsigned references;
};
static XSI_FORK_STATE struct opened *list; // under the lock

static CUresult map_pieces(int fd, CUdeviceptr_v2 address, uint64_t bytes, uint64_t *mapped) {
  for (*mapped = 0; *mapped < bytes;) {
    struct piece piece = {0};
    int passed;
    CUmemGenericAllocationHandle_v1 handle;
    if (!receive_piece(fd, &piece, &passed)) return XSI_CU_INVALID_VALUE;
    CUresult result = piece.bytes > bytes - *mapped
                          ? XSI_CU_INVALID_VALUE
                          : xsi_cu_call_real(cuMemImportFromShareableHandle, &handle,
                                             (void *)(intptr_t)passed, XSI_CU_HANDLE_POSIX);
    close(passed);
    if (result != XSI_CU_SUCCESS) return result;
    result = xsi_cu_call_real(cuMemMap, address + *mapped, piece.bytes, (size_t)0, handle, 0ull);
    xsi_cu_call_real(cuMemRelease, handle); // the mapping keeps it
    if (result != XSI_CU_SUCCESS) return result;
    *mapped += piece.bytes;
  }
  return XSI_CU_SUCCESS;
}

static int ask(const struct passed *passed) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  memcpy(address.sun_path + 1, passed->socket, NAME);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  limit_waits(fd);
  if (connect(fd, (struct sockaddr *)&address,
              (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + NAME)) == 0 &&
      of_same_user(fd) && send(fd, passed, sizeof *passed, MSG_NOSIGNAL) == (ssize_t)sizeof *passed)
    return fd;
  close(fd);
  return -1;
}

static CUresult open_memory(CUdeviceptr_v2 *address, const struct passed *passed) {
  CUdevice_v1 ordinal = -1;
  uint64_t mapped = 0;
  CUresult result = xsi_cu_call_real(cuCtxGetDevice, &ordinal);
  if (result != XSI_CU_SUCCESS) return result;
  if (ordinal < 0 || ordinal >= XSI_CU_ORDINALS) return XSI_CU_INVALID_VALUE;
  result = xsi_cu_call_real(cuMemAddressReserve, address, passed->bytes, (size_t)0, 0ull, 0ull);
  if (result != XSI_CU_SUCCESS) return result;
  int fd = ask(passed);
  result = fd < 0 ? XSI_CU_INVALID_VALUE : map_pieces(fd, *address, passed->bytes, &mapped);
  if (fd >= 0) close(fd);
  if (result == XSI_CU_SUCCESS)
    result = xsi_cu_allow(*address, passed->bytes, XSI_CU_ACCESS_BOTH, 1ull << ordinal);
  if (result == XSI_CU_SUCCESS) return result;
  if (mapped) xsi_cu_call_real(cuMemUnmap, *address, mapped);
  xsi_cu_call_real(cuMemAddressFree, *address, passed->bytes);
  xsi_log(XSI_WARN,
          "cannot open memory of process %u: it may have ended, or belong to another user",
          passed->pid);
  return result;
}

// Under the lock. The same context may open it again, and gets the same address.
static struct opened **find(const struct passed *passed, CUcontext context) {
  struct opened **at = &list;
  while (*at && ((*at)->context != context || memcmp(&(*at)->from, passed, sizeof *passed) != 0))
    at = &(*at)->next;
  return at;
}

static CUresult open_ours(CUdeviceptr_v2 *address, const struct passed *passed) {
  if (passed->pid == (uint32_t)getpid() && passed->process == self.process)
    return XSI_CU_INVALID_CONTEXT;
  CUcontext context = xsi_cu_current();
  xsi_lock_take(&lock);
  struct opened *there = *find(passed, context);
  if (there) {
    there->references++;
    *address = there->address;
  }
  xsi_lock_give(&lock);
  if (there) return XSI_CU_SUCCESS;
  struct opened *made = calloc(1, sizeof *made);
  if (!made) return XSI_CU_OUT_OF_MEMORY;
  CUresult result = open_memory(address, passed);
  if (result != XSI_CU_SUCCESS) {
    free(made);
    return result;
  }
  xsi_lock_take(&lock);
  *made = (struct opened){list, *passed, *address, context, 1};
  list = made;
  xsi_lock_give(&lock);
  return XSI_CU_SUCCESS;
}

static CUresult open_handle(__typeof__(&cuIpcOpenMemHandle) real, CUdeviceptr_v2 *address,
                            const CUipcMemHandle_v1 *handle, unsigned flags) {
  struct passed passed;
  memcpy(&passed, handle, sizeof passed);
  if (!xsi_cu_enter()) return real(address, *handle, flags);
  xsi_work_never_batch();
  if (!address || memcmp(passed.magic, magic, sizeof magic) != 0)
    return real(address, *handle, flags);
  int saved = errno;
  CUresult result = open_ours(address, &passed);
  errno = saved;
  return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr_v2 *address, CUipcMemHandle_v1 handle, unsigned flags) {
  XSI_CU_REAL(cuIpcOpenMemHandle);
  return open_handle(real, address, &handle, flags);
}
XSI_HOOK(cuIpcOpenMemHandle)

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr_v2 *address, CUipcMemHandle_v1 handle, unsigned flags) {
  XSI_CU_REAL(cuIpcOpenMemHandle_v2);
  return open_handle(real, address, &handle, flags);
}
XSI_HOOK(cuIpcOpenMemHandle_v2)

CUresult cuIpcCloseMemHandle(CUdeviceptr_v2 address) {
  XSI_CU_REAL(cuIpcCloseMemHandle);
  if (!xsi_cu_enter()) return real(address);
  xsi_lock_take(&lock);
  struct opened **at = &list;
  while (*at && (*at)->address != address)
    at = &(*at)->next;
  struct opened *it = *at;
  bool last = it && --it->references == 0;
  if (last) *at = it->next;
  xsi_lock_give(&lock);
  if (!it) return real(address);
  if (!last) return XSI_CU_SUCCESS;
  CUresult result = xsi_cu_call_real(cuCtxSynchronize); // work may use it
  xsi_cu_call_real(cuMemUnmap, it->address, it->from.bytes);
  xsi_cu_call_real(cuMemAddressFree, it->address, it->from.bytes);
  free(it);
  return result;
}
XSI_HOOK(cuIpcCloseMemHandle)
