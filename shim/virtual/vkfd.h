/* SPDX-License-Identifier: Apache-2.0
 *
 * Between libvkfd.so and the process that plays the amdkfd driver; internal/kfd is the other side.
 */
#ifndef XSCHED_VIRTUAL_VKFD_H
#define XSCHED_VIRTUAL_VKFD_H

#include <stdint.h>

#define VK_MAGIC 0x4F494B56 /* "VKIO" */
#define VK_MAX_ARG 512
#define VK_MAX_PARAMS 65536
#define VK_FLAG_FAULT 1 /* the embedded pointer leads nowhere */

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

/* Requests that only the double knows: work for a queue, in place of packets and doorbells. */
#define VK_IOC_SUBMIT 0xC0184BE0u
#define VK_IOC_RETIRED 0xC0204BE1u

struct vk_submit {
  uint32_t queue_id, count;
  uint64_t duration_ns;
  uint32_t seed, _rsv;
};

struct vk_retired {
  uint32_t queue_id, wait; /* wait: not before sequence is done */
  uint64_t sequence;
  uint64_t retired, checksum; /* out */
};

_Static_assert(sizeof(struct vk_request) == 32 && sizeof(struct vk_reply) == 16, "headers");
_Static_assert(sizeof(struct vk_submit) == 24 && sizeof(struct vk_retired) == 32, "arguments");

#endif /* XSCHED_VIRTUAL_VKFD_H */
