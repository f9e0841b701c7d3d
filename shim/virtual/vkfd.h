/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface between libvkfd.so and the device process; internal/virtual/amd is the other side.
 */
#ifndef XSCHED_VIRTUAL_VKFD_H
#define XSCHED_VIRTUAL_VKFD_H

#include <stdint.h>

#define VK_MAGIC 0x4F494B56 /* "VKIO" */
#define VK_MAX_ARG 512
#define VK_MAX_PARAMS 65536
#define VK_FLAG_FAULT 1 /* the embedded pointer is invalid */

struct vk_request {
  uint32_t magic, request, arg_bytes, params_bytes;
  uint32_t tid; /* of the calling thread: a debugger is one thread */
  uint32_t flags;
  uint64_t _rsv;
};

struct vk_reply {
  int32_t result; /* as the system call returns it, errors negative */
  uint32_t arg_bytes, params_bytes, _rsv;
};

/* Requests of the virtual device only: work for a queue, in place of packets and doorbells. */
#define VK_IOC_SUBMIT 0xC0404BE0u
#define VK_IOC_RETIRED 0xC0204BE1u

/* Compute queues execute copies and fills, like the runtime's blit kernels. */
enum vk_op { VK_KERNEL = 0, VK_COPY = 1, VK_FILL = 2, VK_WAIT = 3, VK_MARK = 4 };

/* Addresses are offsets into the file of ACQUIRE_VM (the GPU's memory), plus 1; 0: none. */
struct vk_submit {
  uint32_t queue_id, count; /* each is the next in the queue's sequence, which begins with 1 */
  uint64_t duration_ns;     /* of a kernel; copy, fill: bytes */
  uint32_t seed;            /* of a kernel; fill: the value */
  uint32_t op;
  uint64_t dst; /* kernel: its two result words; mark: its time */
  uint64_t src;
  uint32_t width;      /* of a fill: 1, 2 or 4 */
  uint32_t wait_queue; /* of a wait: for this queue of the same GPU */
  uint64_t wait_sequence;
  uint64_t _rsv;
};

struct vk_retired {
  uint32_t queue_id, wait; /* wait: reply after sequence has completed */
  uint64_t sequence;
  uint64_t retired, checksum; /* out */
};

/* A compute queue's save area on the default GPU, gfx942 with 4 dies. */
#define VK_STACK_BYTES 8192u
#define VK_SAVE_BYTES 12214272u
#define VK_SAVE_DEBUG_BYTES 25600u
#define VK_SAVE_TOTAL (4u * (VK_SAVE_BYTES + VK_SAVE_DEBUG_BYTES))

_Static_assert(sizeof(struct vk_request) == 32 && sizeof(struct vk_reply) == 16, "headers");
_Static_assert(sizeof(struct vk_submit) == 64 && sizeof(struct vk_retired) == 32, "arguments");

#endif /* XSCHED_VIRTUAL_VKFD_H */
