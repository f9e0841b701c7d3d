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

#include "abi.h"
#include "core/base.h"
#include "core/driver.h"

enum xsi_kfd_kind { XSI_KFD_COMPUTE = 1, XSI_KFD_SDMA = 2, XSI_KFD_ALL = 3 };

/* ---- observer.c ------------------------------------------------------------------- */

/* The application's call: goes through, with a pause kept in force. */
void xsi_kfd_read_options(void);
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

/* Until resumed, or until the lease of that number ends; 0: the shared lease. */
int xsi_kfd_pause(uint32_t gpu_id, uint32_t kinds, uint32_t lease);
int xsi_kfd_resume(uint32_t gpu_id, uint32_t kinds);
/* Priority of the driver, 0 to 15; -1: the application's own. */
int xsi_kfd_set_priority(uint32_t gpu_id, int32_t priority);
/* Compute units that compute queues may use, beside the application's own mask; bits 0: all. */
int xsi_kfd_set_cu_mask(uint32_t gpu_id, const uint32_t *mask, uint32_t bits);

/* Fail open: every queue as its application made it, on the GPUs paused under a lease or (NULL) on
 * all. 0, or -EAGAIN if one is not. */
int xsi_kfd_recover(const struct xsi_lease *lease);

#endif /* XSCHED_KFD_H */
