/* SPDX-License-Identifier: Apache-2.0
 *
 * libgpreempt: stop and continue the GPU queues of another process on AMD GPUs, in the role of its
 * debugger. Needs the right to trace the process (same user, or root) and a driver interface of at
 * least 1.13. A process can have one debugger: rocgdb and this library exclude each other.
 *
 * Functions return 0 or a count, or a negative errno; they print nothing and never exit. A handle
 * may be used by one thread at a time. Each handle has a small process of its own that traces the
 * target, so the target's signals flow whatever the caller does; when the caller dies, everything
 * is resumed.
 */
#ifndef GPREEMPT_H
#define GPREEMPT_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpreempt gpreempt;

enum gpreempt_type {
  GPREEMPT_COMPUTE = 0, /* PM4 packets */
  GPREEMPT_SDMA = 1,
  GPREEMPT_COMPUTE_AQL = 2,
  GPREEMPT_SDMA_XGMI = 3,
  GPREEMPT_SDMA_BY_ENGINE = 4,
};

typedef struct {
  uint32_t id; /* what the driver calls it; not the number in a runtime's log */
  uint32_t gpu_id;
  uint32_t type; /* enum gpreempt_type */
  uint32_t ring_bytes;
  uint64_t ring;      /* the log's HWq */
  uint32_t suspended; /* by this handle */
  uint32_t _rsv;
} gpreempt_queue;

enum gpreempt_outcome {
  GPREEMPT_DONE = 0,
  GPREEMPT_INVALID = 1, /* no such queue, or it is being destroyed */
  GPREEMPT_FAILED = 2,  /* the hardware did not answer */
};

#define GPREEMPT_MAX_QUEUES 1024
#define GPREEMPT_GRACE_DEFAULT 0xFFFFFFFFu

/* Becomes the debugger of a process. -EPERM: not allowed to trace it, or somebody else does;
 * -EALREADY: it has a debugger; -ESRCH: no such process, or it does not use /dev/kfd; -ENOTTY: the
 * driver is too old; -ENODEV: there is no driver. Forks. */
int gpreempt_init(gpreempt **handle, pid_t pid);

/* The process's queues, newest first; returns how many there are, of which at most room are
 * written. */
int gpreempt_find_queues(gpreempt *handle, gpreempt_queue *queues, unsigned room);

/* Stops queues, in the middle of what they do; count 0: all there are. Returns how many are
 * stopped. grace: time for running waves to end by themselves, in units of 1024 GPU clocks, 1 to
 * 255, or GPREEMPT_GRACE_DEFAULT. outcomes (one enum gpreempt_outcome an id) may be NULL.
 * -EPERM: the process's runtime has not started. */
int gpreempt_suspend_queues(gpreempt *handle, const uint32_t *ids, unsigned count, uint32_t grace,
                            uint8_t *outcomes);
/* Lets queues go on; count 0: all. Returns how many run. */
int gpreempt_resume_queues(gpreempt *handle, const uint32_t *ids, unsigned count,
                           uint8_t *outcomes);

/* -ENOENT: no such queue. */
int gpreempt_get_queue_status(gpreempt *handle, uint32_t id, gpreempt_queue *queue);

/* Resumes everything and lets the process go. NULL is fine. */
void gpreempt_close(gpreempt *handle);

#ifdef __cplusplus
}
#endif
#endif /* GPREEMPT_H */
