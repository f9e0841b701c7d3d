// SPDX-License-Identifier: Apache-2.0
//
// Queues of the program's own: a stream that is scheduled by itself. A submit passes the stream's
// gate and launches in the caller's thread; there is no worker and no buffer, hence nothing to
// drop.

#include "api.h"

#include <errno.h>

#include "core/hints_gen.h"
#include "core/log.h"
#include "core/options.h"

// ---- work in a stream ---------------------------------------------------------------------

// Waits until the stream is empty, with the platform's own call: our hook would count a synchronization
// that the program did not make.
static XResult synchronize(const struct xsi_api_object *hardware, struct xsi_work_life life) {
  if (!xsi_work_started()) return kXSchedSuccess; // no driver was ever seen
  bool counted = xsi_work_lives(life);
  uint64_t mark = counted ? xsi_work_mark(life.stream) : 0;
  if (counted) {
    xsi_work_fed(life.stream);
    __atomic_fetch_add(&life.stream->syncing, 1, __ATOMIC_SEQ_CST);
  }
  xsi_work_open();
  int result = hardware->hardware.platform->synchronize(hardware->hardware.context,
                                                        hardware->hardware.stream);
  if (counted) {
    __atomic_fetch_sub(&life.stream->syncing, 1, __ATOMIC_SEQ_CST);
    if (result == 0) xsi_work_complete(life.stream, mark, false);
  }
  return result == 0 ? kXSchedSuccess : kXSchedErrorHardware;
}

static bool get_both(XQueueHandle xq, struct xsi_api_object *queue,
                     struct xsi_api_object *hardware) {
  return xsi_api_get(xq, XSI_API_QUEUE, queue) &&
         xsi_api_get(queue->queue.hardware, XSI_API_HARDWARE, hardware);
}

// ---- making and ending -------------------------------------------------------------------------

static void set_queue(struct xsi_api_object *object, void *handle) {
  object->hardware.queue = *(uint64_t *)handle;
}

XSI_EXPORT XResult XQueueCreate(XQueueHandle *xq, HwQueueHandle hwq, int64_t level, int64_t flags) {
  struct xsi_api_object hardware, queue = {.kind = XSI_API_QUEUE};
  if (xq == NULL || level < kPreemptLevelBlock || level >= kPreemptLevelMax ||
      (flags & ~(int64_t)kQueueCreateFlagBlockingSubmit) != 0)
    return kXSchedErrorInvalidValue;
  if (!xsi_api_get(hwq, XSI_API_HARDWARE, &hardware)) return kXSchedErrorNotFound;
  if (level != kPreemptLevelBlock) return kXSchedErrorNotSupported;
  if (hardware.hardware.queue != 0) return kXSchedErrorNotAllowed; // it has one
  queue.queue.hardware = hwq;
  queue.queue.slot = -1;
  if (!xsi_options.disabled && xsi_work_started()) {
    uintptr_t stream = hardware.hardware.stream;
    struct xsi_work_stream *work =
        xsi_work_find(hardware.hardware.platform,
                      stream > XSI_WORK_THREAD ? 0 : hardware.hardware.context, stream);
    if (work != NULL) {
      queue.queue.life = xsi_work_life_of(work);
      queue.queue.slot = xsi_work_own(queue.queue.life, 0);
    }
    if (queue.queue.slot < 0)
      xsi_log(XSI_WARN, "this queue runs unscheduled: errno=%d", -queue.queue.slot);
  }
  uint64_t handle = xsi_api_add(&queue);
  if (handle == 0) {
    xsi_work_disown(queue.queue.life);
    return kXSchedErrorUnknown;
  }
  xsi_api_edit(hwq, XSI_API_HARDWARE, set_queue, &handle);
  *xq = handle;
  return kXSchedSuccess;
}

// Where the driver's calls do not pass through us (the library was opened late), the end of a stream
// is not seen: nothing of it may be left when its queue goes.
static void forget_unhooked(const struct xsi_api_object *hardware, struct xsi_work_life life) {
  struct xsi_counters total;
  xsi_counters_sum(&total);
  if (total.hooked_calls != 0 || !xsi_work_lives(life)) return;
  synchronize(hardware, life);
  if (hardware->hardware.stream > XSI_WORK_THREAD)
    xsi_work_stream_destroying(hardware->hardware.stream);
}

XSI_EXPORT XResult XQueueDestroy(XQueueHandle xq) {
  struct xsi_api_object queue, hardware;
  uint64_t none = 0;
  if (!xsi_api_remove(xq, XSI_API_QUEUE, &queue)) return kXSchedErrorNotFound;
  xsi_work_disown(queue.queue.life);
  if (xsi_api_get(queue.queue.hardware, XSI_API_HARDWARE, &hardware))
    forget_unhooked(&hardware, queue.queue.life);
  xsi_api_edit(queue.queue.hardware, XSI_API_HARDWARE, set_queue, &none);
  return kXSchedSuccess;
}

XSI_EXPORT XResult XQueueGet(XQueueHandle *xq, HwQueueHandle hwq) {
  struct xsi_api_object hardware;
  if (xq == NULL) return kXSchedErrorInvalidValue;
  if (!xsi_api_get(hwq, XSI_API_HARDWARE, &hardware) || hardware.hardware.queue == 0)
    return kXSchedErrorNotFound;
  *xq = hardware.hardware.queue;
  return kXSchedSuccess;
}

XSI_EXPORT XResult XQueueSetPreemptLevel(XQueueHandle xq, int64_t level) {
  struct xsi_api_object queue;
  if (level < kPreemptLevelBlock || level >= kPreemptLevelMax) return kXSchedErrorInvalidValue;
  if (!xsi_api_get(xq, XSI_API_QUEUE, &queue)) return kXSchedErrorNotFound;
  return level == kPreemptLevelBlock ? kXSchedSuccess : kXSchedErrorNotSupported;
}

XSI_EXPORT XResult XQueueSetLaunchConfig(XQueueHandle xq, int64_t threshold, int64_t batch_size) {
  struct xsi_api_object queue;
  if (threshold < 1 || threshold > XSI_HINT_IN_FLIGHT_MAX || batch_size < 1 ||
      batch_size > threshold)
    return kXSchedErrorInvalidValue;
  if (!xsi_api_get(xq, XSI_API_QUEUE, &queue)) return kXSchedErrorNotFound;
  struct xsw_hint hint = {
      .said = XSW_HINT_LIMITS, .in_flight = (uint32_t)threshold, .batch = (uint32_t)batch_size};
  return xsi_api_hint(xq, &hint);
}

// ---- submitting ---------------------------------------------------------------------------------

static void count_command(struct xsi_api_object *object, void *unused) {
  (void)unused;
  object->queue.commands++;
}

static void set_place(struct xsi_api_object *object, void *place) {
  const struct xsi_api_object *from = place;
  object->command.life = from->command.life;
  object->command.mark = from->command.mark;
}

// One submission by hand around the callback, which marks the stream busy and passes its gate. The
// hooks, where there are any, count the launches inside it; then this one was none.
static XResult submit(struct xsi_work_stream *work, HwQueueHandle hwq,
                      const struct xsi_api_object *command) {
  struct xsi_counters *mine = xsi_counters_mine();
  uint64_t before = mine->hooked_calls;
  xsi_work_submit(work, XSI_WORK_OTHER);
  XResult result = command->command.launch(hwq, command->command.data);
  if (result == kXSchedSuccess && mine->hooked_calls == before)
    xsi_work_landed(work);
  else
    xsi_work_withdraw(work);
  return result;
}

XSI_EXPORT XResult XQueueSubmit(XQueueHandle xq, HwCommandHandle hw_cmd) {
  struct xsi_api_object queue, hardware, command;
  if (!get_both(xq, &queue, &hardware) || !xsi_api_get(hw_cmd, XSI_API_COMMAND, &command))
    return kXSchedErrorNotFound;
  HwQueueHandle hwq = queue.queue.hardware;
  struct xsi_work_life life = queue.queue.life;
  XResult result;
  if (xsi_work_lives(life) && !hardware.hardware.platform->capturing(hardware.hardware.stream)) {
    result = submit(life.stream, hwq, &command);
    command.command.life = life;
    command.command.mark = xsi_work_mark(life.stream);
    xsi_api_edit(hw_cmd, XSI_API_COMMAND, set_place, &command);
  } else {
    result = command.command.launch(hwq, command.command.data);
  }
  if (result == kXSchedSuccess) xsi_api_edit(xq, XSI_API_QUEUE, count_command, NULL);
  return result;
}

// ---- waiting ------------------------------------------------------------------------------------

XSI_EXPORT XResult XQueueWait(XQueueHandle xq, HwCommandHandle hw_cmd) {
  struct xsi_api_object queue, hardware, command;
  if (!get_both(xq, &queue, &hardware) || !xsi_api_get(hw_cmd, XSI_API_COMMAND, &command))
    return kXSchedErrorNotFound;
  struct xsi_work_life life = command.command.life;
  if (xsi_work_lives(life) && life.stream == queue.queue.life.stream &&
      __atomic_load_n(&life.stream->completed, __ATOMIC_SEQ_CST) >= command.command.mark)
    return kXSchedSuccess;
  return synchronize(&hardware, queue.queue.life);
}

XSI_EXPORT XResult XQueueWaitAll(XQueueHandle xq) {
  struct xsi_api_object queue, hardware;
  if (!get_both(xq, &queue, &hardware)) return kXSchedErrorNotFound;
  return synchronize(&hardware, queue.queue.life);
}

XSI_EXPORT XResult XQueueQuery(XQueueHandle xq, XQueueState *state) {
  struct xsi_api_object queue, hardware;
  if (state == NULL) return kXSchedErrorInvalidValue;
  if (!get_both(xq, &queue, &hardware)) return kXSchedErrorNotFound;
  *state = kQueueStateIdle;
  if (!xsi_work_lives(queue.queue.life)) return kXSchedSuccess;
  struct xsi_work_stream *work = queue.queue.life.stream;
  if (!xsi_work_is_busy(work)) return kXSchedSuccess;
  xsi_work_open();
  uint64_t mark = xsi_work_mark(work);
  if (xsi_work_ask(work, hardware.hardware.stream)) xsi_work_complete(work, mark, false);
  if (xsi_work_is_busy(work)) *state = kQueueStateReady;
  return kXSchedSuccess;
}

// ---- the program's own gate ------------------------------------------------------------------

XSI_EXPORT XResult XQueueSuspend(XQueueHandle xq, int64_t flags) {
  struct xsi_api_object queue, hardware;
  const int64_t known =
      kQueueSuspendFlagSyncHwQueue | kQueueSuspendFlagWaitAll | kQueueSuspendFlagWaitIdle;
  if ((flags & ~known) != 0) return kXSchedErrorInvalidValue;
  if (!get_both(xq, &queue, &hardware)) return kXSchedErrorNotFound;
  xsi_work_hold(queue.queue.life, true);
  return flags != 0 ? synchronize(&hardware, queue.queue.life) : kXSchedSuccess;
}

XSI_EXPORT XResult XQueueResume(XQueueHandle xq, int64_t flags) {
  struct xsi_api_object queue;
  if ((flags & ~(int64_t)kQueueResumeFlagDropCommands) != 0) return kXSchedErrorInvalidValue;
  if (!xsi_api_get(xq, XSI_API_QUEUE, &queue)) return kXSchedErrorNotFound;
  // Nothing is buffered that could be dropped; and it stays suspended, so that this is seen.
  if (flags != 0) return kXSchedErrorNotSupported;
  xsi_work_hold(queue.queue.life, false);
  return kXSchedSuccess;
}

XSI_EXPORT XResult XQueueProfileHwCommandCount(XQueueHandle xq, int64_t *count) {
  struct xsi_api_object queue;
  if (count == NULL) return kXSchedErrorInvalidValue;
  if (!xsi_api_get(xq, XSI_API_QUEUE, &queue)) return kXSchedErrorNotFound;
  *count = queue.queue.commands;
  return kXSchedSuccess;
}

// ---- hardware queues and commands ------------------------------------------------------------

XSI_EXPORT XResult HwQueueDestroy(HwQueueHandle hwq) {
  struct xsi_api_object hardware;
  if (!xsi_api_get(hwq, XSI_API_HARDWARE, &hardware)) return kXSchedErrorNotFound;
  if (hardware.hardware.queue != 0) return kXSchedErrorNotAllowed; // its queue goes first
  return xsi_api_remove(hwq, XSI_API_HARDWARE, &hardware) ? kXSchedSuccess : kXSchedErrorNotFound;
}

XSI_EXPORT XResult HwQueueLaunch(HwQueueHandle hwq, HwCommandHandle hw_cmd) {
  struct xsi_api_object hardware, command;
  if (!xsi_api_get(hwq, XSI_API_HARDWARE, &hardware) ||
      !xsi_api_get(hw_cmd, XSI_API_COMMAND, &command))
    return kXSchedErrorNotFound;
  return command.command.launch(hwq, command.command.data);
}

XSI_EXPORT XResult HwQueueSynchronize(HwQueueHandle hwq) {
  struct xsi_api_object hardware, queue = {.kind = XSI_API_FREE};
  if (!xsi_api_get(hwq, XSI_API_HARDWARE, &hardware)) return kXSchedErrorNotFound;
  struct xsi_work_life life = {NULL, 0};
  if (xsi_api_get(hardware.hardware.queue, XSI_API_QUEUE, &queue)) life = queue.queue.life;
  return synchronize(&hardware, life);
}

XSI_EXPORT XResult HwCommandCreateCallback(HwCommandHandle *hw_cmd, LaunchCallback launch,
                                           void *data) {
  if (hw_cmd == NULL || launch == NULL) return kXSchedErrorInvalidValue;
  struct xsi_api_object command = {.kind = XSI_API_COMMAND};
  command.command.launch = launch;
  command.command.data = data;
  uint64_t handle = xsi_api_add(&command);
  if (handle == 0) return kXSchedErrorUnknown;
  *hw_cmd = handle;
  return kXSchedSuccess;
}

XSI_EXPORT XResult HwCommandDestroy(HwCommandHandle hw_cmd) {
  struct xsi_api_object command;
  return xsi_api_remove(hw_cmd, XSI_API_COMMAND, &command) ? kXSchedSuccess : kXSchedErrorNotFound;
}
