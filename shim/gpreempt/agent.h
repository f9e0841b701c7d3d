/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface between the caller's half of libgpreempt and the process that traces the target.
 */
#ifndef GPREEMPT_AGENT_H
#define GPREEMPT_AGENT_H

#include <stdint.h>
#include <sys/types.h>

#include "gpreempt.h"

/* From include/uapi/linux/kfd_ioctl.h. */
#define AMDKFD_IOC_GET_VERSION 0x80084B01u
enum { MIN_MINOR = 13 }; /* the first interface with a debugger */

enum agent_op { AGENT_LIST = 1, AGENT_SUSPEND = 2, AGENT_RESUME = 3 };

struct agent_command {
  uint32_t op, count, grace, _rsv;
  uint32_t ids[GPREEMPT_MAX_QUEUES];
};

struct agent_answer {
  int32_t result; /* a count, or -errno */
  uint32_t count;
  union {
    gpreempt_queue queues[GPREEMPT_MAX_QUEUES];
    uint8_t outcomes[GPREEMPT_MAX_QUEUES];
  };
};

/* Runs in a forked child until the socket closes or the caller ends, with system calls only. The
 * first reply is the result of the start. Undoes all changes before it returns. */
void agent_run(int socket, pid_t caller, pid_t target);

#endif /* GPREEMPT_AGENT_H */
