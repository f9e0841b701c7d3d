/* SPDX-License-Identifier: Apache-2.0
 *
 * One frame over the socket, with the descriptors that go with it.
 */
#ifndef XSCHED_FRAME_H
#define XSCHED_FRAME_H

#include "base.h"
#include "xsched/wire.h"

struct xsi_frame {
  union {
    struct xsw_frame head;
    struct xsw_welcome welcome;
    struct xsw_refused refused;
    unsigned char bytes_[XSW_FRAME_MAX_BYTES];
  };
  size_t bytes;
  unsigned fd_count;
  int fds[XSW_FRAME_MAX_FDS];
};

/* Of the session; only the helper thread uses it. */
extern uint32_t xsi_frame_version;

static inline struct xsw_frame xsi_frame_head(uint32_t type, size_t bytes) {
  return (struct xsw_frame){XSW_FRAME_MAGIC, xsi_frame_version, type, (uint32_t)bytes};
}

/* Gives the hint at that offset of a frame the size and the bits that the session's version knows.
 * Returns the size of the frame, which its head gets. */
size_t xsi_frame_narrow(void *frame, size_t bytes, size_t hint_offset);

/* 0, -EAGAIN when the socket is full, or the error; never SIGPIPE. fd < 0: none goes along. */
int xsi_frame_send(int socket, const void *frame, size_t bytes, int fd);
/* 0 and a frame whose head is checked (magic, size), to be closed; -EAGAIN; -EPIPE: the peer is
 * gone; -EPROTO: not a frame. */
int xsi_frame_receive(int socket, struct xsi_frame *frame);
void xsi_frame_close(struct xsi_frame *frame);

#endif /* XSCHED_FRAME_H */
