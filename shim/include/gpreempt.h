/* SPDX-License-Identifier: Apache-2.0
 *
 * libgpreempt: suspend and resume the GPU queues of another process on AMD GPUs, as its debugger.
 * The caller needs permission to trace the process (same user, or root) and driver interface 1.13
 * or later. A process can have one debugger: rocgdb and this library exclude each other.
 *
 * Functions return 0 or a count, or a negative errno; they print nothing and never exit. One thread
 * at a time may use a handle. Each handle has a small process that traces the target, so the
 * target's signals never wait for the caller. When the caller dies, everything is resumed.
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
  uint32_t id; /* the driver's id, not the number in a runtime's log */
  uint32_t gpu_id;
  uint32_t type; /* enum gpreempt_type */
  uint32_t ring_bytes;
  uint64_t ring;      /* the log's HWq */
  uint32_t suspended; /* by this handle */
  uint32_t _rsv;
} gpreempt_queue;

enum gpreempt_outcome {
  GPREEMPT_DONE = 0,
  GPREEMPT_INVALID = 1, /* no such queue, or under destruction */
  GPREEMPT_FAILED = 2,  /* the hardware did not respond */
};

#define GPREEMPT_MAX_QUEUES 1024
#define GPREEMPT_GRACE_DEFAULT 0xFFFFFFFFu

/* Becomes the debugger of a process. -EPERM: no permission, or already traced; -EALREADY: already
 * debugged; -ESRCH: no such process, or no use of /dev/kfd; -ENOTTY: the driver is too old;
 * -ENODEV: no driver. Forks. */
int gpreempt_init(gpreempt **handle, pid_t pid);

/* Writes at most room of the process's queues, newest first, and returns their number. */
int gpreempt_find_queues(gpreempt *handle, gpreempt_queue *queues, unsigned room);

/* Suspends queues in mid-kernel; count 0: all. Returns the number suspended. grace: time for
 * running waves to finish, in units of 1024 GPU clocks, 1 to 255, or GPREEMPT_GRACE_DEFAULT.
 * outcomes (one enum gpreempt_outcome per id) may be NULL. -EPERM: the process's runtime has not
 * started. */
int gpreempt_suspend_queues(gpreempt *handle, const uint32_t *ids, unsigned count, uint32_t grace,
                            uint8_t *outcomes);
/* Resumes queues; count 0: all. Returns the number resumed. */
int gpreempt_resume_queues(gpreempt *handle, const uint32_t *ids, unsigned count,
                           uint8_t *outcomes);

/* -ENOENT: no such queue. */
int gpreempt_get_queue_status(gpreempt *handle, uint32_t id, gpreempt_queue *queue);

/* Resumes everything and detaches. NULL is allowed. */
void gpreempt_close(gpreempt *handle);

#ifdef __cplusplus
}
#endif
#endif /* GPREEMPT_H */
