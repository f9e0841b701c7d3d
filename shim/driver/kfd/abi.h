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
#define AMDKFD_IOC_RUNTIME_ENABLE 0xC0104B25u
#define AMDKFD_IOC_DBG_TRAP 0xC0204B26u

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
struct kfd_runtime_enable {
  uint64_t r_debug;
  uint32_t mode, caps; /* KFD_RUNTIME_ON, or 0 to disable */
};
struct kfd_runtime_info {
  uint64_t r_debug;
  uint32_t state, ttmp_setup;
};
struct kfd_dbg_trap {
  uint32_t pid, op; /* enum kfd_dbg_op */
  union {
    struct {
      uint64_t exceptions, info;
      uint32_t info_bytes, event_fd;
    } enable;
    struct {
      uint64_t exceptions, ids;
      uint32_t count, grace;
    } suspend;
    struct {
      uint64_t ids;
      uint32_t count, _rsv;
    } resume;
    struct {
      uint64_t exceptions, entries;
      uint32_t count, entry_bytes;
    } snapshot;
  };
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

_Static_assert(sizeof(struct kfd_runtime_enable) == 16 && sizeof(struct kfd_runtime_info) == 16 &&
                   offsetof(struct kfd_runtime_info, state) == 8,
               "runtime");
_Static_assert(sizeof(struct kfd_dbg_trap) == 32 &&
                   offsetof(struct kfd_dbg_trap, enable.event_fd) == 28 &&
                   offsetof(struct kfd_dbg_trap, suspend.ids) == 16 &&
                   offsetof(struct kfd_dbg_trap, suspend.grace) == 28 &&
                   offsetof(struct kfd_dbg_trap, resume.ids) == 8 &&
                   offsetof(struct kfd_dbg_trap, resume.count) == 16 &&
                   offsetof(struct kfd_dbg_trap, snapshot.entry_bytes) == 28,
               "dbg_trap");

enum kfd_dbg_op {
  KFD_DBG_ENABLE = 0,
  KFD_DBG_DISABLE = 1,
  KFD_DBG_SUSPEND_QUEUES = 6,
  KFD_DBG_RESUME_QUEUES = 7,
  KFD_DBG_QUEUE_SNAPSHOT = 13,
};

/* Results in the array of a suspend or resume. */
#define KFD_DBG_QUEUE_ERROR 0x40000000u   /* the hardware did not obey */
#define KFD_DBG_QUEUE_INVALID 0x80000000u /* no such queue, a new one, or one being destroyed */
#define KFD_EC_QUEUE_NEW 0x40000000u
#define KFD_DEFAULT_GRACE 0xFFFFFFFFu

enum {
  KFD_RUNTIME_ON = 1,      /* mode of RUNTIME_ENABLE */
  KFD_RUNTIME_ENABLED = 1, /* state */
  KFD_MAX_PERCENTAGE = 100,
  KFD_MAX_PRIORITY = 15,
  KFD_MAX_CU_BITS = 1024,
  KFD_CU_WORDS = KFD_MAX_CU_BITS / 32,
};

#endif /* XSCHED_KFD_ABI_H */
