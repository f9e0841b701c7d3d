/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams. As on hardware, they share the eight channels of a context.
 */
#include <stdlib.h>

#include "standin.h"

static CUstream pool; /* destroyed streams: a stale handle finds a struct without magic */
static uint64_t ids;

void vg_streams_init(CUcontext context) {
  context->legacy.magic = MAGIC_STREAM;
  context->legacy.context = context;
  context->legacy.legacy = true;
  context->legacy.id = 1;
  for (uint32_t i = 0; i < VG_THREAD_STREAMS; i++) {
    CUstream stream = &context->threads[i];
    stream->magic = MAGIC_STREAM;
    stream->context = context;
    int usual = 0;
    stream->channel = vg_pick_channel(context, &usual);
    stream->id = 2;
  }
  context->stream_count = 0;
}

/* The stream behind a handle. */
CUresult vg_stream(CUcontext context, CUstream handle, bool per_thread, CUstream *stream) {
  if (handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread)) {
    *stream = &context->threads[vg_thread_id() % VG_THREAD_STREAMS];
    return CUDA_SUCCESS;
  }
  if (handle == NULL || handle == CU_STREAM_LEGACY) {
    *stream = &context->legacy;
    return CUDA_SUCCESS;
  }
  if ((uintptr_t)handle < 4096 || handle->magic != MAGIC_STREAM) return CUDA_ERROR_INVALID_HANDLE;
  if (handle->context->magic != MAGIC_CONTEXT) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *stream = handle;
  return CUDA_SUCCESS;
}

static CUresult enter(CUstream handle, bool per_thread, CUstream *stream) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  result = vg_stream(context, handle, per_thread, stream);
  return result == CUDA_SUCCESS ? result : vg_leave(result);
}

VG_EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!out || flags > CU_STREAM_NON_BLOCKING) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  CUstream stream = pool;
  if (stream)
    pool = stream->next;
  else
    stream = malloc(sizeof *stream);
  if (!stream) return vg_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *stream = (struct vg_stream){.magic = MAGIC_STREAM,
                               .context = context,
                               .channel = vg_pick_channel(context, &priority),
                               .flags = flags,
                               .id = 3 + ids++,
                               .created = true,
                               .next = context->streams};
  stream->priority = priority;
  context->streams = stream;
  *out = stream;
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
  return cuStreamCreateWithPriority(out, flags, 0);
}

/* Invalidates the handle; submitted work still completes. */
VG_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  CUstream found;
  CUresult result = enter(stream, false, &found);
  if (result != CUDA_SUCCESS) return result;
  if (!found->created) return vg_leave(CUDA_ERROR_INVALID_HANDLE);
  if (found->capture) (void)vg_capture_break(found);
  CUstream *link = &found->context->streams;
  while (*link && *link != found)
    link = &(*link)->next;
  if (*link) *link = found->next;
  found->magic = 0;
  found->next = pool;
  pool = found;
  return vg_leave(CUDA_SUCCESS);
}
VG_EXPORT CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

static CUresult stream_query(bool per_thread, CUstream handle) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->capture) return vg_leave(vg_capture_break(stream));
  result = vg_unsafe_call();
  if (result == CUDA_SUCCESS) result = vg_capture_implicit(stream->context, stream);
  if (result == CUDA_SUCCESS) result = vg_check(stream->context);
  if (result != CUDA_SUCCESS) return vg_leave(result);
  CUcontext context = stream->context;
  bool done = vg_done(context, stream->channel) >= stream->seq;
  if (stream->legacy) /* includes the work of all blocking streams */
    for (uint32_t i = 0; i < context->channels; i++)
      done = done && vg_done(context, i) >= context->blocking[i];
  if (!done && !vg_rm_alive()) return vg_leave(context->broken = CUDA_ERROR_UNKNOWN);
  return vg_leave(done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}
VG_BOTH(cuStreamQuery, _ptsz, stream_query, (CUstream stream), stream)

static CUresult stream_synchronize(bool per_thread, CUstream handle) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->capture) return vg_leave(vg_capture_break(stream));
  result = vg_unsafe_call();
  if (result == CUDA_SUCCESS) result = vg_capture_implicit(stream->context, stream);
  if (result != CUDA_SUCCESS) return vg_leave(result);
  CUcontext context = stream->context;
  uint64_t blocking[VG_CHANNELS];
  bool legacy = stream->legacy;
  for (uint32_t i = 0; i < VG_CHANNELS; i++)
    blocking[i] = context->blocking[i];
  result = vg_wait(context, stream->channel, stream->seq);
  for (uint32_t i = 0; legacy && result == CUDA_SUCCESS && i < context->channels; i++)
    result = vg_wait(context, i, blocking[i]);
  return vg_leave(result == CUDA_SUCCESS ? vg_check(context) : result);
}
VG_BOTH(cuStreamSynchronize, _ptsz, stream_synchronize, (CUstream stream), stream)

static CUresult stream_get_priority(bool per_thread, CUstream handle, int *priority) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (!priority) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  *priority = stream->priority;
  return vg_leave(CUDA_SUCCESS);
}
VG_BOTH(cuStreamGetPriority, _ptsz, stream_get_priority, (CUstream stream, int *priority), stream,
        priority)

static CUresult stream_get_flags(bool per_thread, CUstream handle, unsigned int *flags) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (!flags) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  *flags = stream->flags;
  return vg_leave(CUDA_SUCCESS);
}
VG_BOTH(cuStreamGetFlags, _ptsz, stream_get_flags, (CUstream stream, unsigned int *flags), stream,
        flags)

static CUresult stream_get_context(bool per_thread, CUstream handle, CUcontext *context) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (!context) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  *context = stream->context;
  return vg_leave(CUDA_SUCCESS);
}
VG_BOTH(cuStreamGetCtx, _ptsz, stream_get_context, (CUstream stream, CUcontext *context), stream,
        context)

static CUresult stream_get_id(bool per_thread, CUstream handle, unsigned long long *id) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (!id) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  *id = stream->id;
  return vg_leave(CUDA_SUCCESS);
}
VG_BOTH(cuStreamGetId, _ptsz, stream_get_id, (CUstream stream, unsigned long long *id), stream, id)

static CUresult stream_get_device(bool per_thread, CUstream handle, CUdevice *device) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (!device) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  *device = stream->context->device;
  return vg_leave(CUDA_SUCCESS);
}
VG_BOTH(cuStreamGetDevice, _ptsz, stream_get_device, (CUstream stream, CUdevice *device), stream,
        device)
