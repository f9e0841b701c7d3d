/* SPDX-License-Identifier: Apache-2.0
 *
 * AMD's kernel driver as seen at ioctl: the requests that make, change and end a hardware queue,
 * the queues this process has, and what only their owner may do to them.
 *
 * A pause is UPDATE_QUEUE with percentage 0. The driver wants the queue's true ring address and
 * size with it (a wrong one is an error, and wedges the process with some drivers), so they are
 * remembered from CREATE_QUEUE on and nothing is ever sent for a queue that is not known.
 */
#ifndef XSCHED_KFD_H
#define XSCHED_KFD_H

#include "core/base.h"

/* From include/uapi/linux/kfd_ioctl.h. */
#define AMDKFD_IOC_CREATE_QUEUE_88 0xC0584B02u /* up to interface 1.16 */
#define AMDKFD_IOC_CREATE_QUEUE_96 0xC0604B02u
#define AMDKFD_IOC_DESTROY_QUEUE 0xC0084B03u
#define AMDKFD_IOC_UPDATE_QUEUE 0x40184B07u
#define AMDKFD_IOC_SET_CU_MASK 0x40104B1Au

struct kfd_create_queue { /* what both forms share */
  uint64_t ring, wptr, rptr, doorbell;
  uint32_t ring_bytes, gpu_id, type, percentage, priority, queue_id;
  uint64_t eop, eop_bytes, save;
  uint32_t save_bytes, ctl_stack_bytes;
};
struct kfd_update_queue {
  uint64_t ring;
  uint32_t queue_id, ring_bytes, percentage, priority;
};
struct kfd_destroy_queue {
  uint32_t queue_id, _rsv;
};
struct kfd_set_cu_mask {
  uint32_t queue_id, bits;
  uint64_t mask;
};

_Static_assert(sizeof(struct kfd_create_queue) == 88 &&
                   offsetof(struct kfd_create_queue, ring_bytes) == 32 &&
                   offsetof(struct kfd_create_queue, gpu_id) == 36 &&
                   offsetof(struct kfd_create_queue, priority) == 48 &&
                   offsetof(struct kfd_create_queue, queue_id) == 52,
               "create_queue");
_Static_assert(sizeof(struct kfd_update_queue) == 24 &&
                   offsetof(struct kfd_update_queue, queue_id) == 8 &&
                   offsetof(struct kfd_update_queue, percentage) == 16,
               "update_queue");
_Static_assert(sizeof(struct kfd_destroy_queue) == 8, "destroy_queue");
_Static_assert(sizeof(struct kfd_set_cu_mask) == 16 && offsetof(struct kfd_set_cu_mask, mask) == 8,
               "set_cu_mask");

enum {
  KFD_MAX_PERCENTAGE = 100,
  KFD_MAX_PRIORITY = 15,
  KFD_MAX_CU_BITS = 1024,
  KFD_CU_WORDS = KFD_MAX_CU_BITS / 32,
};

enum xsi_kfd_kind { XSI_KFD_COMPUTE = 1, XSI_KFD_SDMA = 2, XSI_KFD_ALL = 3 };

/* ---- observer.c ------------------------------------------------------------------- */

/* The application's call: goes through, with a pause kept in force. */
int xsi_kfd_ioctl(int fd, unsigned long request, void *argument);

/* For fork. The lock is not held over a call of the driver. */
void xsi_kfd_lock(void);
void xsi_kfd_unlock(void);
void xsi_kfd_reset(void);

struct xsi_kfd_queue {
  uint32_t id, gpu_id, kind, type;
  uint64_t ring;
  uint32_t ring_bytes, percentage, priority; /* the application's own */
  bool paused;                               /* by us, in the hardware */
  uint32_t priority_now;
};
/* The queues there are; returns how many. */
unsigned xsi_kfd_list(struct xsi_kfd_queue *list, unsigned room);

/* ---- what is wanted, by GPU (0: all): in force for the queues there are and for all that come.
 * Each returns the number of queues that are as wanted, or the first error as -errno. They call
 * the driver: with no lock held. ------------------------------------------------------ */

int xsi_kfd_pause(uint32_t gpu_id, uint32_t kinds);
int xsi_kfd_resume(uint32_t gpu_id, uint32_t kinds);
/* Priority of the driver, 0 to 15; -1: the application's own. */
int xsi_kfd_set_priority(uint32_t gpu_id, int32_t priority);
/* Compute units that compute queues may use, beside the application's own mask; bits 0: all. */
int xsi_kfd_set_cu_mask(uint32_t gpu_id, const uint32_t *mask, uint32_t bits);

/* Fail open: every queue as its application made it. 0, or -EAGAIN if one is not. */
int xsi_kfd_recover(void);

#endif /* XSCHED_KFD_H */
