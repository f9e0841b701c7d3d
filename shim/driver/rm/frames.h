/* SPDX-License-Identifier: Apache-2.0
 *
 * The frames of NVIDIA's resource manager: what a client tells of its RM objects. A part of the
 * contract of xsched/wire.h, under the same rules; internal/driver/nvidia/frames_gen.go is
 * generated from it (make generate).
 */
#ifndef XSCHED_RM_FRAMES_H
#define XSCHED_RM_FRAMES_H

#include "xsched/wire.h"

#define XSW_MAX_RM_EVENTS 64    /* events in one frame */
#define XSW_MAX_RM_OBJECTS 4096 /* objects of one process the daemon remembers */
#define XSW_MAX_RM_CLIENTS 64   /* RM clients (file descriptors) of one process */

enum xsw_rm_frame {
  XSW_FRAME_RM = 256, /* client -> daemon: objects that came, changed or went */
};

enum xsw_rm_kind {
  XSW_RM_CLIENT = 1, /* a new RM client; the frame carries its fd and this event alone */
  XSW_RM_ALLOC = 2,  /* an object we care about appeared */
  XSW_RM_FREE = 3,   /* an object (or a client: object == client) is gone, its children with it */
  XSW_RM_TIMESLICE = 4, /* the application set a group's timeslice itself: value in us */
};

struct xsw_rm_event {
  uint32_t kind; /* enum xsw_rm_kind */
  uint32_t client;
  uint32_t parent;
  uint32_t object;
  uint32_t object_class;
  uint32_t _rsv;
  uint64_t value; /* timeslice in us for XSW_RM_TIMESLICE */
};

struct xsw_rm {
  struct xsw_frame frame;
  uint32_t count; /* events used; the packet is cut after the last one */
  uint32_t _rsv;
  struct xsw_rm_event events[XSW_MAX_RM_EVENTS];
};

_Static_assert(sizeof(struct xsw_rm) <= XSW_FRAME_MAX_BYTES, "a full RM frame fits a packet");

#endif /* XSCHED_RM_FRAMES_H */
