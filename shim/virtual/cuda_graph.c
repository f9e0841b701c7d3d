/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream capture, with the real driver's rules about calls during a capture. A graph holds the
 * captured work in recording order.
 */
#include <stdlib.h>
#include <string.h>

#include "standin.h"

static CUgraph captures; /* in progress */
static CUgraph pool;     /* unused structs; events may still point to them */

/* A call that may synchronise, e.g. a query or an allocation. Depending on the thread's mode, such
 * a call is forbidden while this thread captures, or another one does in global mode. A forbidden
 * call fails and invalidates the capture. */
CUresult vg_unsafe_call(void) {
  int mode = *vg_thread_capture_mode();
  if (mode == CAPTURE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (CUgraph graph = captures; graph; graph = graph->next_capture) {
    bool mine = graph->thread == vg_thread_id() && graph->mode != CAPTURE_RELAXED;
    bool global = mode == CAPTURE_GLOBAL && graph->mode == CAPTURE_GLOBAL;
    if (!mine && !global) continue;
    graph->status = CAPTURE_INVALIDATED;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

/* A call that no mode permits on a capturing stream. */
CUresult vg_capture_break(CUstream stream) {
  if (stream->capture->status == CAPTURE_INVALIDATED) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  stream->capture->status = CAPTURE_INVALIDATED;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* The legacy stream may not be used while a blocking stream of its context captures. */
bool vg_capture_blocks_legacy(CUcontext context, bool spoil) {
  for (CUgraph graph = captures; graph; graph = graph->next_capture) {
    if (graph->origin->context != context || graph->origin->flags & CU_STREAM_NON_BLOCKING ||
        graph->mode == CAPTURE_RELAXED)
      continue;
    if (spoil) graph->status = CAPTURE_INVALIDATED;
    return true;
  }
  return false;
}

CUresult vg_capture_implicit(CUcontext context, CUstream stream) {
  return stream->legacy && vg_capture_blocks_legacy(context, true)
             ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
             : CUDA_SUCCESS;
}

CUresult vg_capture_add(CUgraph graph, CUstream stream, const struct vg_node *node) {
  if (graph->status != CAPTURE_ACTIVE) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (graph->count == graph->room) {
    size_t room = graph->room ? 2 * graph->room : 16;
    struct vg_node *nodes = realloc(graph->nodes, room * sizeof *nodes);
    if (!nodes) return CUDA_ERROR_OUT_OF_MEMORY;
    graph->nodes = nodes;
    graph->room = room;
  }
  graph->nodes[graph->count++] = *node;
  stream->capture_ops++;
  return CUDA_SUCCESS;
}

static CUresult enter(CUstream handle, bool per_thread, CUstream *stream) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  result = vg_stream(context, handle, per_thread, stream);
  return result == CUDA_SUCCESS ? result : vg_leave(result);
}

static CUresult begin(bool per_thread, CUstream handle, int mode) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  if (stream->legacy) return vg_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (stream->capture) return vg_leave(CUDA_ERROR_ILLEGAL_STATE);
  static uint64_t ids;
  CUgraph graph = pool;
  if (graph)
    pool = graph->next_capture;
  else
    graph = malloc(sizeof *graph);
  if (!graph) return vg_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *graph = (struct vg_graph){.magic = MAGIC_GRAPH, .id = ++ids};
  graph->mode = mode;
  graph->status = CAPTURE_ACTIVE;
  graph->origin = stream;
  graph->thread = vg_thread_id();
  graph->next_capture = captures;
  captures = graph;
  stream->capture = graph;
  stream->capture_ops = stream->capture_joined = 0;
  return vg_leave(CUDA_SUCCESS);
}
VG_BOTH(cuStreamBeginCapture_v2, _ptsz, begin, (CUstream stream, int mode), stream, mode)
VG_BOTH(cuStreamBeginCapture, _ptsz, begin, (CUstream stream), stream, CAPTURE_GLOBAL)

static void unlink_capture(CUgraph graph) {
  CUgraph *link = &captures;
  while (*link && *link != graph)
    link = &(*link)->next_capture;
  if (*link) *link = graph->next_capture;
  graph->next_capture = NULL;
}

/* Releases the streams of a capture; false if one has work that the origin did not wait for. */
static bool release_streams(CUgraph graph) {
  CUcontext context = graph->origin->context;
  bool joined = true;
  for (CUstream s = context->streams; s; s = s->next) {
    if (s->capture != graph) continue;
    if (s != graph->origin && s->capture_joined < s->capture_ops) joined = false;
    s->capture = NULL;
  }
  for (int i = 0; i < VG_THREAD_STREAMS; i++)
    if (context->threads[i].capture == graph) context->threads[i].capture = NULL;
  return joined;
}

static void free_graph(CUgraph graph) {
  free(graph->nodes);
  graph->nodes = NULL;
  graph->magic = 0;
  graph->id = 0;
  graph->next_capture = pool;
  pool = graph;
}

static CUresult end(bool per_thread, CUstream handle, CUgraph *out) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  CUgraph graph = stream->capture;
  if (!graph) return vg_leave(CUDA_ERROR_ILLEGAL_STATE);
  if (graph->origin != stream) return vg_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  if (graph->mode != CAPTURE_RELAXED && graph->thread != vg_thread_id())
    return vg_leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  unlink_capture(graph);
  bool joined = release_streams(graph);
  if (out) *out = NULL;
  if (graph->status == CAPTURE_INVALIDATED)
    result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (!joined)
    result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  graph->status = CAPTURE_NONE;
  if (result == CUDA_SUCCESS && out)
    *out = graph;
  else
    free_graph(graph);
  return vg_leave(result);
}
VG_BOTH(cuStreamEndCapture, _ptsz, end, (CUstream stream, CUgraph *graph), stream, graph)

static CUresult is_capturing(bool per_thread, CUstream handle, int *status) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (!status) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  if (stream->legacy && vg_capture_blocks_legacy(stream->context, false))
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *status = stream->capture ? stream->capture->status : CAPTURE_NONE;
  return vg_leave(result);
}
VG_BOTH(cuStreamIsCapturing, _ptsz, is_capturing, (CUstream stream, int *status), stream, status)

static CUresult capture_info(bool per_thread, CUstream handle, int *status, uint64_t *id,
                             CUgraph *graph) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (!status) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  *status = stream->capture ? stream->capture->status : CAPTURE_NONE;
  if (id) *id = (uintptr_t)stream->capture;
  if (graph) *graph = stream->capture;
  return vg_leave(CUDA_SUCCESS);
}
VG_BOTH(cuStreamGetCaptureInfo, _ptsz, capture_info, (CUstream stream, int *status, uint64_t *id),
        stream, status, id, NULL)

static CUresult capture_info_2(bool per_thread, CUstream stream, int *status, uint64_t *id,
                               CUgraph *graph, const void **dependencies, size_t *count) {
  if (dependencies) *dependencies = NULL;
  if (count) *count = 0;
  return capture_info(per_thread, stream, status, id, graph);
}
VG_BOTH(cuStreamGetCaptureInfo_v2, _ptsz, capture_info_2,
        (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const void **dependencies,
         size_t *count),
        stream, status, id, graph, dependencies, count)

static CUresult instantiate(CUgraphExec *out, CUgraph graph) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!out || !graph || graph->magic != MAGIC_GRAPH) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  CUgraphExec exec = calloc(1, sizeof *exec);
  if (exec) exec->nodes = malloc((graph->count + 1) * sizeof *exec->nodes);
  if (!exec || !exec->nodes) {
    free(exec);
    return vg_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  exec->magic = MAGIC_EXEC;
  exec->count = exec->room = graph->count;
  if (graph->count) memcpy(exec->nodes, graph->nodes, graph->count * sizeof *exec->nodes);
  *out = exec;
  return vg_leave(CUDA_SUCCESS);
}
VG_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
                                               unsigned long long flags) {
  (void)flags;
  return instantiate(out, graph);
}
VG_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, void *error_node,
                                         char *log, size_t bytes) {
  (void)error_node, (void)log, (void)bytes;
  return instantiate(out, graph);
}
VG_EXPORT CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, void *error_node, char *log,
                                      size_t bytes) {
  return cuGraphInstantiate_v2(out, graph, error_node, log, bytes);
}

static CUresult launch(bool per_thread, CUgraphExec exec, CUstream handle) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (!exec || exec->magic != MAGIC_EXEC) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++)
    result = vg_perform(stream, &exec->nodes[i]);
  return vg_leave(result);
}
VG_BOTH(cuGraphLaunch, _ptsz, launch, (CUgraphExec exec, CUstream stream), exec, stream)

VG_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&vg_lock);
  if (!graph || graph->magic != MAGIC_GRAPH || graph->status != CAPTURE_NONE)
    return vg_leave(CUDA_ERROR_INVALID_VALUE);
  free_graph(graph);
  return vg_leave(CUDA_SUCCESS);
}
VG_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&vg_lock);
  if (!exec || exec->magic != MAGIC_EXEC) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  free_graph(exec);
  return vg_leave(CUDA_SUCCESS);
}
VG_EXPORT CUresult cuGraphGetNodes(CUgraph graph, void **nodes, size_t *count) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!graph || graph->magic != MAGIC_GRAPH || !count || nodes) return CUDA_ERROR_INVALID_VALUE;
  *count = graph->count;
  return CUDA_SUCCESS;
}
