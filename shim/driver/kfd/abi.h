/* SPDX-License-Identifier: Apache-2.0
 *
 * The binary interface of AMD's kernel driver, as far as the library reads or the virtual GPU speaks it.
 */
#ifndef XSCHED_KFD_ABI_H
#define XSCHED_KFD_ABI_H

#include <stddef.h>
#include <stdint.h>

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

#endif /* XSCHED_KFD_ABI_H */
