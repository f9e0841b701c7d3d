/* SPDX-License-Identifier: Apache-2.0
 *
 * What can be read about queues without a debugger: sysfs, debugfs and the environment.
 */
#ifndef GPREEMPT_LIST_H
#define GPREEMPT_LIST_H

#include <stddef.h>

#include "gpreempt.h"

enum { KFD_ID_BITS = 10 }; /* a process has at most 1024 queues */

/* A growing list; bytes of an item are set by its first use. */
struct list {
  void *items;
  size_t count, room;
};

/* Appends a copy of an item. Returns false without memory. */
bool list_add(struct list *list, const void *item, size_t bytes);

/* A descriptor of debugfs. */
struct mqd {
  pid_t pid;
  uint32_t gpu_id, priority, ring_bytes;
  uint64_t ring;
};

/* Reads the descriptors of compute queues (struct mqd). Returns 0 or -errno; -EACCES without root. */
int mqds_read(struct list *out);

/* Lists all queues (gpreempt_queue_info_t). -ENODEV: no driver. */
int queues_read(struct list *out);

/* Whether a process has this pid, on the host or in its container. */
bool process_has_pid(pid_t process, pid_t pid);

bool queue_exists(pid_t process, uint32_t kfd_id);

/* The highest clock of any GPU in MHz; 0: unknown. */
uint32_t highest_clock(void);

/* A grace period in the driver's units. Without a clock it is the driver's own. */
uint32_t grace_units(uint32_t grace_us, uint32_t mhz);

#endif /* GPREEMPT_LIST_H */
