/* SPDX-License-Identifier: Apache-2.0
 *
 * The public interface's objects: hardware queues, queues and commands, behind numbers that can't
 * be mistaken for each other or outlive what they name.
 *
 * Lock order: the objects' lock is never held across a call of anything below.
 */
#ifndef XSCHED_API_H
#define XSCHED_API_H

#include "core/work.h"
#include "xsched/xsched.h"

enum xsi_api_kind { XSI_API_FREE, XSI_API_HARDWARE, XSI_API_QUEUE, XSI_API_COMMAND };

struct xsi_api_object {
  enum xsi_api_kind kind;
  uint32_t generation;
  union {
    struct {
      const struct xsi_work_platform *platform;
      uintptr_t context, stream; /* the platform's; stream as work.h names it */
      uint64_t queue;            /* handle, or 0 */
    } hardware;
    struct {
      uint64_t hardware; /* handle */
      struct xsi_work_life life;
      int slot; /* in the page, or -1: not scheduled */
      int64_t commands;
    } queue;
    struct {
      LaunchCallback launch;
      void *data;
      struct xsi_work_life life; /* where it went last, */
      uint64_t mark;             /* and what must be completed there */
    } command;
  };
};

/* The object's handle, or 0 when there is no memory. */
uint64_t xsi_api_add(const struct xsi_api_object *object);
/* Copies it; false: there is no such object of that kind. */
bool xsi_api_get(uint64_t handle, enum xsi_api_kind kind, struct xsi_api_object *object);
/* Runs change on it, with the lock held. */
bool xsi_api_edit(uint64_t handle, enum xsi_api_kind kind,
                  void (*change)(struct xsi_api_object *object, void *argument), void *argument);
/* Takes it away and copies it. */
bool xsi_api_remove(uint64_t handle, enum xsi_api_kind kind, struct xsi_api_object *object);

/* The hardware queue of a stream; found is false if the runtime knows no such stream. */
struct xsi_api_stream {
  const struct xsi_work_platform *platform;
  uintptr_t context, stream;
  bool found;
};
XResult xsi_api_hardware_create(HwQueueHandle *hwq, struct xsi_api_stream stream);
XResult xsi_api_hardware_get(HwQueueHandle *hwq, struct xsi_api_stream stream);

/* Says something about a queue, or about the process if xq is 0. */
XResult xsi_api_hint(XQueueHandle xq, const struct xsw_hint *hint);

#endif /* XSCHED_API_H */
