/* SPDX-License-Identifier: Apache-2.0
 *
 * The frames of AMD's kernel driver: hardware queues, and orders to their owner. A part of the
 * contract of xsched/wire.h, under the same rules; internal/driver/amd/frames_gen.go is generated
 * from it (make generate).
 */
#ifndef XSCHED_KFD_FRAMES_H
#define XSCHED_KFD_FRAMES_H

#include "xsched/wire.h"

#define XSW_MAX_KFD_EVENTS 64   /* queues in one frame */
#define XSW_MAX_KFD_QUEUES 2048 /* AMD hardware queues of one process */
#define XSW_KFD_MASK_WORDS 32   /* of compute units: 1024 bits, the most that the driver takes */

enum xsw_kfd_frame {
  XSW_FRAME_KFD = 512,   /* client -> daemon: hardware queues that came, changed or went */
  XSW_FRAME_ORDER = 513, /* daemon -> client: what only the owner of those may do to them */
  XSW_FRAME_DONE = 514,  /* client -> daemon: the result of an order */
};

/* A queue obeys only the process that made it, so the daemon's wish is carried out by the
 * client's helper thread. Orders are carried out in their order, at once, one at a time; each is
 * answered. A pause is obeyed only under a lease that still runs, and ends with that lease. */

enum xsw_kfd_kind {
  XSW_KFD_QUEUE = 1, /* it is there, and is like this now */
  XSW_KFD_GONE = 2,  /* only the id counts */
};

struct xsw_kfd_event {
  uint32_t kind; /* enum xsw_kfd_kind */
  uint32_t id;   /* as the driver numbers it; used again after its end */
  uint32_t gpu_id;
  uint32_t type; /* of CREATE_QUEUE: 0 and 2 compute, 1, 3 and 4 copy */
  uint64_t ring;
  uint32_t ring_bytes;
  uint32_t priority; /* the application's own, 0 to 15 */
  uint32_t late;     /* 1: it was made while its GPU was paused, and is paused too */
  uint32_t _rsv;
};

struct xsw_kfd {
  struct xsw_frame frame;
  uint32_t count; /* events used; the packet is cut after the last one */
  uint32_t _rsv;
  struct xsw_kfd_event events[XSW_MAX_KFD_EVENTS];
};

enum xsw_order_kind {
  XSW_ORDER_PAUSE = 1, /* and keep paused what appears, until resumed */
  XSW_ORDER_RESUME = 2,
  XSW_ORDER_PRIORITY = 3, /* of the driver, 0 to 15; -1: the application's own */
  XSW_ORDER_CU_MASK = 4,  /* compute units that compute queues may use; mask_bits 0: all */
};

enum xsw_order_queues {
  XSW_ORDER_COMPUTE = 1,
  XSW_ORDER_COPY = 2,
  XSW_ORDER_BOTH = 3,
};

struct xsw_order {
  struct xsw_frame frame;
  uint64_t sequence;
  uint32_t kind;   /* enum xsw_order_kind */
  uint32_t gpu_id; /* 0: all */
  uint32_t queues; /* enum xsw_order_queues, for pause and resume */
  int32_t priority;
  uint32_t mask_bits; /* a multiple of 32 */
  uint32_t lease;     /* of a pause: 1 + index of its lease; 0: the shared lease. Version 5 */
  uint32_t mask[XSW_KFD_MASK_WORDS];
};

struct xsw_done {
  struct xsw_frame frame;
  uint64_t sequence;
  int32_t result; /* queues that are as wanted, or -errno: -ESTALE for a pause without a lease */
  uint32_t _rsv;
  uint64_t begin_ns; /* when the client turned to it, and when the driver had answered */
  uint64_t end_ns;
};

_Static_assert(sizeof(struct xsw_kfd_event) == 40, "a queue");
_Static_assert(sizeof(struct xsw_kfd) <= XSW_FRAME_MAX_BYTES, "a full KFD frame fits a packet");

#endif /* XSCHED_KFD_FRAMES_H */
