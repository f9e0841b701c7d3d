/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the OpenCL runtime share. A context of the bookkeeping is a device, a stream a
 * command queue.
 */
#ifndef XSCHED_OPENCL_LIBRARY_H
#define XSCHED_OPENCL_LIBRARY_H

#include <errno.h>

#include "abi.h"
#include "callbacks.h"
#include "runtime/account.h"
#include "runtime/runtime.h"

#define XSI_CL_EXPORT XSI_EXPORT
#include "runtime/opencl/hooks_gen.h"

extern const struct xsi_runtime xsi_cl_runtime;        /* opencl.c */
extern const struct xsi_work_platform xsi_cl_platform; /* platform.c */

extern const struct xsi_symbol xsi_cl_symbols[XSI_CL_SLOTS];

enum { XSI_CL_FRESH, XSI_CL_ACTIVE, XSI_CL_DISABLED };
extern int xsi_cl_state;
bool xsi_cl_start(void) __attribute__((cold));
/* False: switched off. */
static inline bool xsi_cl_active(void) {
  int now = __atomic_load_n(&xsi_cl_state, __ATOMIC_ACQUIRE);
  return XSI_LIKELY(now == XSI_CL_ACTIVE) || (now == XSI_CL_FRESH && xsi_cl_start());
}

void *xsi_cl_slot(unsigned slot); /* the real function; NULL: no library has it */
#define XSI_CL_REAL(name) __typeof__(&name) real = (__typeof__(&name))xsi_cl_slot(XSI_CL_##name)
/* Calls the real function on the shim's own behalf: errno stays the application's. */
#define xsi_cl_call(name, ...)                                                                     \
  ({                                                                                               \
    int errno_ = errno;                                                                            \
    __typeof__(&name) real_ = (__typeof__(&name))xsi_cl_slot(XSI_CL_##name);                       \
    cl_int result_ = real_ ? real_(__VA_ARGS__) : CL_INVALID_OPERATION;                            \
    errno = errno_;                                                                                \
    result_;                                                                                       \
  })

/* ---- queues.c: the program's queues and the events behind their last commands ---------- */

/* OpenCL has no query for a whole queue. Each command therefore gets an event, and the shim keeps the
 * event of the last one: in order, its end is the end of all before it. A queue that runs commands in
 * any order keeps all events that are not complete. The implementation's reference counts include its
 * own references, so the shim counts the program's. */
void xsi_cl_queue_created(cl_command_queue queue);
void xsi_cl_queue_retained(cl_command_queue queue);
/* True: the program gives up its last reference, and the queue is forgotten. */
bool xsi_cl_queue_released(cl_command_queue queue);
/* Its record, without a lock if it has one; NULL: no memory. */
struct xsi_cl_queue;
struct xsi_cl_queue *xsi_cl_queue_find(cl_command_queue queue);
bool xsi_cl_queue_ordered(struct xsi_cl_queue *queue);
/* Around the real call. leave takes what enter returned, and one reference of the event. No lock but the queue's
 * own. */
uint32_t xsi_cl_queue_enter(struct xsi_cl_queue *queue);
void xsi_cl_queue_leave(struct xsi_cl_queue *queue, uint32_t ticket, cl_event event);
/* An event behind everything that was submitted, with a reference for the caller; NULL: none. */
cl_event xsi_cl_queue_last(cl_command_queue queue);
enum xsi_work_answer xsi_cl_queue_query(cl_command_queue queue);
enum xsi_work_answer xsi_cl_status(cl_event event);
/* Releases an event later, from a call of the program: safe under any lock. */
void xsi_cl_release_later(cl_event event);
void xsi_cl_queues_reset(void); /* in the child of a fork */

#endif /* XSCHED_OPENCL_LIBRARY_H */
