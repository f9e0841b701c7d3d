/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: marks in a channel. The device writes their timestamps into VRAM.
 */
#include <stdlib.h>

#include "standin.h"

#define EVENT_DISABLE_TIMING 2
#define STAMP_BASE ((uint64_t)VG_STAGING_SLOTS * VG_STAGING_BYTES)

static CUevent pool;

/* Returns a timestamp slot: a freed one whose last mark has completed, a fresh one, or none. */
static uint32_t take_stamp(CUcontext context) {
  if (!context->stamps) {
    context->stamps = calloc(VG_STAMP_COUNT, sizeof *context->stamps);
    context->stamp_free = VG_STAMP_COUNT;
    if (!context->stamps) return VG_STAMP_COUNT;
  }
  uint32_t stamp = context->stamp_free;
  if (stamp != VG_STAMP_COUNT &&
      vg_done(context, context->stamps[stamp].channel) >= context->stamps[stamp].seq) {
    context->stamp_free = context->stamps[stamp].next;
    return stamp;
  }
  return context->stamp_fresh < VG_STAMP_COUNT ? context->stamp_fresh++ : VG_STAMP_COUNT;
}

static void give_stamp(CUevent event) {
  if (event->stamp == VG_STAMP_COUNT) return;
  CUcontext context = event->context;
  context->stamps[event->stamp] =
      (struct vg_stamp){context->stamp_free, event->channel, event->recorded ? event->seq : 0};
  context->stamp_free = event->stamp;
}

static uint64_t stamp_time(CUevent event) {
  uint64_t *times = (void *)(event->context->vram + STAMP_BASE);
  return __atomic_load_n(&times[event->stamp], __ATOMIC_RELAXED);
}

static CUresult enter(CUevent event) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if ((uintptr_t)event < 4096) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&vg_lock);
  if (event->magic != MAGIC_EVENT) return vg_leave(CUDA_ERROR_INVALID_HANDLE);
  if (event->context->magic != MAGIC_CONTEXT) return vg_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!out) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  CUevent event = pool;
  if (event)
    pool = event->next;
  else
    event = malloc(sizeof *event);
  if (!event) return vg_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *event = (struct vg_event){.magic = MAGIC_EVENT, .context = context, .flags = flags};
  event->stamp = flags & EVENT_DISABLE_TIMING ? VG_STAMP_COUNT : take_stamp(context);
  *out = event;
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  CUresult result = enter(event);
  if (result != CUDA_SUCCESS) return result;
  give_stamp(event);
  event->magic = 0;
  event->next = pool;
  pool = event;
  return vg_leave(CUDA_SUCCESS);
}
VG_EXPORT CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

static CUresult event_record(bool per_thread, CUevent event, CUstream handle, unsigned int flags) {
  CUresult result = enter(event);
  if (result != CUDA_SUCCESS) return result;
  if (flags > 1) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  CUstream stream;
  result = vg_stream(event->context, handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return vg_leave(result);
  if (stream->context != event->context) return vg_leave(CUDA_ERROR_INVALID_HANDLE);
  if (stream->capture) {
    if (stream->capture->status != CAPTURE_ACTIVE)
      return vg_leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    event->capture = stream->capture;
    event->capture_id = stream->capture->id;
    event->capture_stream = stream;
    event->capture_op = ++stream->capture_ops;
    return vg_leave(CUDA_SUCCESS);
  }
  result = vg_capture_implicit(stream->context, stream);
  if (result != CUDA_SUCCESS) return vg_leave(result);
  event->capture = NULL;
  struct vg_entry mark = {.op = VG_MARK, .dst = VG_NO_ADDRESS};
  if (event->stamp != VG_STAMP_COUNT) mark.dst = STAMP_BASE + 8ull * event->stamp;
  result = vg_submit(stream, &mark, &event->seq);
  if (result != CUDA_SUCCESS) return vg_leave(result);
  event->channel = stream->channel;
  event->recorded = true;
  vg_kick(stream->context);
  return vg_leave(CUDA_SUCCESS);
}
VG_BOTH(cuEventRecord, _ptsz, event_record, (CUevent event, CUstream stream), event, stream, 0)
VG_BOTH(cuEventRecordWithFlags, _ptsz, event_record,
        (CUevent event, CUstream stream, unsigned int flags), event, stream, flags)

/* An event last recorded into a capture cannot be queried. */
static CUresult askable(CUevent event) {
  if (event->capture) {
    if (event->capture->id == event->capture_id && event->capture->status == CAPTURE_ACTIVE)
      event->capture->status = CAPTURE_INVALIDATED;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  CUresult result = vg_unsafe_call();
  return result == CUDA_SUCCESS ? vg_check(event->context) : result;
}

VG_EXPORT CUresult cuEventQuery(CUevent event) {
  CUresult result = enter(event);
  if (result != CUDA_SUCCESS) return result;
  result = askable(event);
  if (result != CUDA_SUCCESS) return vg_leave(result);
  if (!event->recorded || vg_done(event->context, event->channel) >= event->seq)
    return vg_leave(CUDA_SUCCESS);
  if (!vg_rm_alive()) return vg_leave(event->context->broken = CUDA_ERROR_UNKNOWN);
  return vg_leave(CUDA_ERROR_NOT_READY);
}

VG_EXPORT CUresult cuEventSynchronize(CUevent event) {
  CUresult result = enter(event);
  if (result != CUDA_SUCCESS) return result;
  result = askable(event);
  if (result == CUDA_SUCCESS && event->recorded)
    result = vg_wait(event->context, event->channel, event->seq);
  return vg_leave(result);
}

VG_EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
  CUresult result = enter(start);
  if (result != CUDA_SUCCESS) return result;
  if ((uintptr_t)end < 4096 || end->magic != MAGIC_EVENT || !start->recorded || !end->recorded ||
      start->stamp == VG_STAMP_COUNT || end->stamp == VG_STAMP_COUNT)
    return vg_leave(CUDA_ERROR_INVALID_HANDLE);
  if (!milliseconds) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  if (vg_done(start->context, start->channel) < start->seq ||
      vg_done(end->context, end->channel) < end->seq)
    return vg_leave(CUDA_ERROR_NOT_READY);
  *milliseconds = (float)((double)(int64_t)(stamp_time(end) - stamp_time(start)) / 1e6);
  return vg_leave(CUDA_SUCCESS);
}
VG_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}

/* In a capture the waiting stream joins it. */
static CUresult wait_captured(CUstream stream, CUevent event) {
  CUgraph graph = event->capture;
  if (stream->capture && stream->capture != graph) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (graph->id != event->capture_id || graph->status != CAPTURE_ACTIVE)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!stream->capture) {
    if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    stream->capture = graph;
    stream->capture_ops = 1; /* a stream that only joined must be joined back too */
    stream->capture_joined = 0;
  }
  if (event->capture_stream != stream && event->capture_stream->capture == graph &&
      event->capture_op > event->capture_stream->capture_joined)
    event->capture_stream->capture_joined = event->capture_op;
  return CUDA_SUCCESS;
}

static CUresult stream_wait_event(bool per_thread, CUstream handle, CUevent event,
                                  unsigned int flags) {
  CUresult result = enter(event);
  if (result != CUDA_SUCCESS) return result;
  (void)flags;
  CUcontext context = vg_current();
  if (!context) context = event->context;
  CUstream stream;
  result = vg_stream(context, handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return vg_leave(result);
  if (event->capture) return vg_leave(wait_captured(stream, event));
  if (stream->capture) { /* a capture cannot wait for an outside event */
    stream->capture->status = CAPTURE_INVALIDATED;
    return vg_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  if (!event->recorded || vg_done(event->context, event->channel) >= event->seq)
    return vg_leave(CUDA_SUCCESS);
  if (event->context != stream->context) /* of another device: wait on the host */
    return vg_leave(vg_wait(event->context, event->channel, event->seq));
  struct vg_entry wait = {
      .op = VG_WAIT, .wait_channel = event->channel, .wait_seq = event->seq, .dst = VG_NO_ADDRESS};
  result = vg_submit(stream, &wait, NULL);
  vg_kick(stream->context);
  return vg_leave(result);
}
VG_BOTH(cuStreamWaitEvent, _ptsz, stream_wait_event,
        (CUstream stream, CUevent event, unsigned int flags), stream, event, flags)
