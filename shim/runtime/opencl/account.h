/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounting of OpenCL commands. The entry points that hooks.table describes call begin and end.
 */
#ifndef XSCHED_OPENCL_ACCOUNT_H
#define XSCHED_OPENCL_ACCOUNT_H

#include "library.h"

/* At the beginning of an entry point: a platform may lack any function. */
#define XSI_CL_GUARD(...)                                                                          \
  if (XSI_UNLIKELY(!real)) return CL_INVALID_OPERATION

extern const struct xsi_account xsi_cl_account; /* opencl.c */

/* Counts the call; false: plain. */
static inline bool xsi_cl_enter(void) {
  if (!xsi_cl_active()) return false;
  xsi_count(hooked_calls, 1);
  return true;
}

static inline struct xsi_call xsi_cl_begin_launch(uintptr_t queue) {
  struct xsi_call call = {NULL, XSI_COUNTED};
  if (xsi_cl_active()) call.work = xsi_work_same(0, queue);
  if (XSI_UNLIKELY(!call.work)) return xsi_begin_work(&xsi_cl_account, queue, XSI_WORK_OTHER);
  xsi_count(hooked_calls, 1);
  xsi_work_submit(call.work, XSI_WORK_OTHER);
  return call;
}

enum xsi_cl_kind { XSI_CL_LAUNCH, XSI_CL_COPY, XSI_CL_WORK };
struct xsi_cl_command {
  struct xsi_wait wait;
  struct xsi_cl_queue *queue; /* NULL: its events are not followed */
  cl_event mine;              /* asked for where the program asks for none */
  uint64_t before;            /* what had landed in the queue */
  uint32_t ticket;
  bool waits, ordered;
};

/* Returns where the real call shall put the event of its command. */
XSI_INLINE cl_event *xsi_cl_begin(struct xsi_cl_command *command, enum xsi_cl_kind kind,
                                  cl_command_queue queue, cl_bool blocking, cl_event *event) {
  command->queue = queue && xsi_cl_active() ? xsi_cl_queue_find(queue) : NULL;
  command->mine = NULL;
  command->ordered = command->queue && xsi_cl_queue_ordered(command->queue);
  command->waits = blocking && command->ordered;
  if (command->waits)
    xsi_begin_wait(&xsi_cl_account, &command->wait, (uintptr_t)queue);
  else if (kind == XSI_CL_LAUNCH)
    command->wait.call = xsi_cl_begin_launch((uintptr_t)queue);
  else
    command->wait.call = xsi_begin_work(&xsi_cl_account, (uintptr_t)queue, XSI_WORK_OTHER);
  if (command->wait.call.work) command->before = xsi_work_mark(command->wait.call.work);
  if (!command->queue) return event;
  command->ticket = xsi_cl_queue_enter(command->queue);
  return event ? event : &command->mine;
}

XSI_INLINE cl_int xsi_cl_end(struct xsi_cl_command *command, enum xsi_cl_kind kind,
                             const cl_event *event, cl_int result) {
  struct xsi_work_stream *stream = command->wait.call.work;
  if (command->queue) { // before the command counts as landed: see xsi_cl_queue_query
    cl_event last = result == CL_SUCCESS ? (event ? *event : command->mine) : NULL;
    if (last && event && xsi_cl_call(clRetainEvent, last) != CL_SUCCESS) last = NULL;
    xsi_cl_queue_leave(command->queue, command->ticket, last);
  }
  if (command->waits)
    xsi_end_wait(&command->wait, result);
  else if (kind == XSI_CL_LAUNCH)
    xsi_end_launch(command->wait.call, result);
  else if (kind == XSI_CL_COPY)
    xsi_end_copy(command->wait.call, result);
  else
    xsi_end_work(command->wait.call, result);
  if (!stream || !event || !*event || result != CL_SUCCESS) return result;
  /* Other threads may have put commands behind this one meanwhile; its event says nothing of them.
   * In a queue of any order it says nothing of others at all. */
  if (command->ordered && !command->waits)
    xsi_work_event_recorded((uintptr_t)*event, stream, command->before + 1);
  else
    xsi_work_event_forget((uintptr_t)*event);
  return result;
}

#endif /* XSCHED_OPENCL_ACCOUNT_H */
