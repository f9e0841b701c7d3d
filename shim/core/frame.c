// SPDX-License-Identifier: Apache-2.0

#include "frame.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fd.h"

uint32_t xsi_frame_version = XSW_VERSION;

size_t xsi_frame_narrow(void *frame, size_t bytes, size_t hint_offset) {
  if (xsi_frame_version == XSW_VERSION) return bytes;
  unsigned char *hint = (unsigned char *)frame + hint_offset;
  const size_t old = XSW_HINT_BYTES_4, now = sizeof(struct xsw_hint);
  uint32_t said;
  memcpy(&said, hint + offsetof(struct xsw_hint, said), sizeof said);
  said &= XSW_HINT_ALL_4;
  memcpy(hint + offsetof(struct xsw_hint, said), &said, sizeof said);
  memmove(hint + old, hint + now, bytes - hint_offset - now);
  uint32_t narrow = (uint32_t)(bytes - (now - old));
  memcpy((unsigned char *)frame + offsetof(struct xsw_frame, bytes), &narrow, sizeof narrow);
  return narrow;
}

int xsi_frame_send(int socket, const void *frame, size_t bytes, int fd) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec data = {.iov_base = (void *)frame, .iov_len = bytes};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
  if (fd >= 0) {
    memset(&control, 0, sizeof control);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    message.msg_control = &control;
    message.msg_controllen = sizeof control.space;
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return errno == EWOULDBLOCK ? -EAGAIN : -errno;
  return (size_t)sent == bytes ? 0 : -EIO;
}

static void take_fds(struct msghdr *message, struct xsi_frame *frame) {
  for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control != NULL;
       control = CMSG_NXTHDR(message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
      if (frame->fd_count < XSW_FRAME_MAX_FDS)
        frame->fds[frame->fd_count++] = xsi_fd_raise(fd);
      else
        close(fd);
    }
  }
}

int xsi_frame_receive(int socket, struct xsi_frame *frame) {
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(XSW_FRAME_MAX_FDS * sizeof(int))];
  } control;
  memset(frame, 0, sizeof *frame);
  memset(&control, 0, sizeof control);
  struct iovec data = {.iov_base = frame->bytes_, .iov_len = sizeof frame->bytes_};
  struct msghdr message = {.msg_iov = &data,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control.space};
  ssize_t got;
  bool reset = false; // by a peer that left a frame of ours unread: what it sent before follows
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    reset = got < 0 && errno == ECONNRESET && !reset;
  } while (reset || (got < 0 && errno == EINTR));
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? -EAGAIN : -EPIPE;
  take_fds(&message, frame);
  frame->bytes = (size_t)got;
  int result = 0;
  if (got == 0)
    result = -EPIPE;
  else if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
           frame->bytes < sizeof frame->head || frame->head.magic != XSW_FRAME_MAGIC ||
           frame->head.bytes != frame->bytes)
    result = -EPROTO;
  if (result < 0) xsi_frame_close(frame);
  return result;
}

void xsi_frame_close(struct xsi_frame *frame) {
  for (unsigned i = 0; i < frame->fd_count; i++)
    close(frame->fds[i]);
  frame->fd_count = 0;
}
