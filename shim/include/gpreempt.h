/* SPDX-License-Identifier: Apache-2.0
 *
 * libgpreempt: find, suspend and resume the GPU queues of other processes on AMD GPUs, as their
 * debugger. The caller needs permission to trace a process (same user, or root) and driver
 * interface 1.13 or later. A process can have one debugger: rocgdb and this library exclude each
 * other.
 *
 * The first part finds queues on the whole machine and names each by one number. The second part
 * controls one process. Functions return 0 or a count, or a negative errno; they print nothing and
 * never exit. Each debugged process has a small tracing process, so its signals never wait for the
 * caller. When the caller dies, everything is resumed, even if children of it live on (Linux 5.3).
 */
#ifndef GPREEMPT_H
#define GPREEMPT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gpreempt_type {
  GPREEMPT_COMPUTE = 0, /* PM4 packets; in a list without a debugger: any packets */
  GPREEMPT_SDMA = 1,
  GPREEMPT_COMPUTE_AQL = 2,
  GPREEMPT_SDMA_XGMI = 3,
  GPREEMPT_SDMA_BY_ENGINE = 4,
};

/* Longest grace period. The hardware's field has 8 bits, in units of 1024 GPU clocks. */
#define GPREEMPT_GRACE_UNITS 255u
#define GPREEMPT_GRACE_DEFAULT 0xFFFFFFFFu /* the driver's own */

/* ---- queues of all processes ------------------------------------------------------- */

#define GPREEMPT_PRIORITY_UNKNOWN 0xFFFFFFFFu
#define GPREEMPT_ONLINE_PRIORITY 10u /* from here on a queue is online */

enum gpreempt_class { GPREEMPT_UNKNOWN = 0, GPREEMPT_OFFLINE = 1, GPREEMPT_ONLINE = 2 };

typedef struct {
  uint32_t queue_id; /* unique on this machine: process_id << 10 | kfd_id */
  uint32_t priority; /* 0 to 15, or GPREEMPT_PRIORITY_UNKNOWN */
  uint32_t gpu_id;
  pid_t process_id;
  bool is_active;         /* not suspended by this program */
  uint64_t queue_address; /* of the ring, the log's HWq; 0: unknown */
  uint32_t kfd_id;        /* the driver's id, unique in the process only */
  uint32_t type;          /* enum gpreempt_type */
  uint32_t ring_bytes;
  uint32_t queue_class; /* enum gpreempt_class */
  char tag[64];         /* AMD_QUEUE_TAG of the process; empty: none */
} gpreempt_queue_info_t;

/* Opens the driver. -ENODEV: no driver; -ENOTTY: the driver is too old. May be called again. */
int gpreempt_poc_init(void);

/* Resumes everything and detaches from all processes. */
void gpreempt_poc_cleanup(void);

/* List queues into a new array, which gpreempt_free_queue_info releases. The list needs no
 * debugger. The priority is AMD_QUEUE_PRIORITY (0 to 15) of the process's environment, else the
 * driver's, which only root can read. A queue whose priority is not certain has none, and no
 * priority range contains it.
 *
 * The class follows AMD_QUEUE_TAG if that begins with ONLINE or OFFLINE, else the priority. The
 * environment is the one the process started with. By process: pid may also be the process's pid
 * in its container; -ENOTUNIQ: several processes have it. */
int gpreempt_get_all_queues(gpreempt_queue_info_t **queues, uint32_t *num_queues);
int gpreempt_find_queues_by_process(pid_t pid, gpreempt_queue_info_t **queues,
                                    uint32_t *num_queues);
int gpreempt_find_queues_by_priority(uint32_t min_priority, uint32_t max_priority,
                                     gpreempt_queue_info_t **queues, uint32_t *num_queues);
int gpreempt_find_queues_by_tag(const char *tag, gpreempt_queue_info_t **queues,
                                uint32_t *num_queues);
int gpreempt_find_queues_by_class(enum gpreempt_class queue_class, gpreempt_queue_info_t **queues,
                                  uint32_t *num_queues);
void gpreempt_free_queue_info(gpreempt_queue_info_t *queues);

/* Suspend or resume queues of any processes. A suspend changes all of them, or none and returns an
 * error; a resume goes on after an error. A queue that has the wanted state already counts as done.
 * A queue_id below 1024 is the driver's id, which must belong to one process only (-ENOTUNIQ). A
 * queue_id is valid while its process lives; later the pid may be another's.
 *
 * grace_period_us is the time for running waves to finish at the GPU's highest clock, or
 * GPREEMPT_GRACE_DEFAULT; the hardware's maximum of about 120 us replaces a longer one. -EPERM: no
 * permission, already traced, or the process's runtime has not started; -EALREADY: already debugged;
 * -ENOENT: no such queue; -ESRCH: the process has ended; -EIO: the hardware did not respond. */
int gpreempt_suspend_queues(const uint32_t *queue_ids, uint32_t num_queues,
                            uint32_t grace_period_us);
int gpreempt_resume_queues(const uint32_t *queue_ids, uint32_t num_queues);

/* -ENOENT: no such queue. */
int gpreempt_get_queue_status(uint32_t queue_id, gpreempt_queue_info_t *queue);

/* ---- queues of one process --------------------------------------------------------- */

/* One thread at a time may use a handle. */
typedef struct gpreempt gpreempt;

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

/* Becomes the debugger of a process. -EPERM: no permission, or already traced; -EALREADY: already
 * debugged; -ESRCH: no such process, or no use of /dev/kfd; -ENOTTY: the driver is too old;
 * -ENODEV: no driver. Forks. */
int gpreempt_attach(gpreempt **handle, pid_t pid);

/* Writes at most room of the process's queues, newest first, and returns their number. */
int gpreempt_list(gpreempt *handle, gpreempt_queue *queues, unsigned room);

/* Suspends queues in mid-kernel; count 0: all. Returns the number suspended. grace_us as for
 * gpreempt_suspend_queues. outcomes (one enum gpreempt_outcome per id) may be NULL. -EPERM: the
 * process's runtime has not started. */
int gpreempt_suspend(gpreempt *handle, const uint32_t *ids, unsigned count, uint32_t grace_us,
                     uint8_t *outcomes);
/* Resumes queues; count 0: all. Returns the number resumed. */
int gpreempt_resume(gpreempt *handle, const uint32_t *ids, unsigned count, uint8_t *outcomes);

/* -ENOENT: no such queue. */
int gpreempt_status(gpreempt *handle, uint32_t id, gpreempt_queue *queue);

/* Resumes everything and detaches. NULL is allowed. */
void gpreempt_detach(gpreempt *handle);

#ifdef __cplusplus
}
#endif
#endif /* GPREEMPT_H */
