/* SPDX-License-Identifier: Apache-2.0
 *
 * Accounting of CUDA calls. Stream 0 is made explicit first (xsi_cu_legacy, xsi_cu_thread).
 */
#ifndef XSCHED_CUDA_ACCOUNT_H
#define XSCHED_CUDA_ACCOUNT_H

#include "core/move.h"
#include "library.h"
#include "runtime/account.h"

#define XSI_CU_LEGACY ((CUstream)XSI_WORK_LEGACY)
#define XSI_CU_THREAD ((CUstream)XSI_WORK_THREAD)

static inline CUstream xsi_cu_legacy(CUstream stream) { return stream ? stream : XSI_CU_LEGACY; }
static inline CUstream xsi_cu_thread(CUstream stream) { return stream ? stream : XSI_CU_THREAD; }
static inline CUstream xsi_cu_config_stream(const CUlaunchConfig *config) {
  return config ? config->hStream : NULL;
}

/* The kernel, for batches, of a launch with attributes: XSI_WORK_OTHER if it has none. Events among the attributes
 * mark no work that we know. */
uintptr_t xsi_cu_attributes(const CUlaunchConfig *config, uintptr_t kernel) __attribute__((cold));
static inline uintptr_t xsi_cu_config_kernel(const CUlaunchConfig *config, uintptr_t kernel) {
  return XSI_LIKELY(!config || config->numAttrs == 0) ? kernel : xsi_cu_attributes(config, kernel);
}

/* A graph may record events, also those that stand for work in a stream: none does after its launch. */
extern bool xsi_cu_graph_events; /* atomic */
static inline void xsi_cu_graph_launches(void) {
  if (XSI_UNLIKELY(__atomic_load_n(&xsi_cu_graph_events, __ATOMIC_RELAXED)))
    xsi_work_events_forget_all();
}
static inline void xsi_cu_record_flags(unsigned flags) {
  if (XSI_UNLIKELY((flags & XSI_CU_RECORD_EXTERNAL) != 0))
    __atomic_store_n(&xsi_cu_graph_events, true, __ATOMIC_RELAXED);
}

enum xsi_cu_state { XSI_CU_FRESH, XSI_CU_ACTIVE, XSI_CU_DISABLED };
extern int xsi_cu_state;
bool xsi_cu_start(void) __attribute__((cold));
/* False: XSCHED_DISABLE, every entry point is the plain call. */
static inline bool xsi_cu_active(void) {
  int state = __atomic_load_n(&xsi_cu_state, __ATOMIC_ACQUIRE);
  return XSI_LIKELY(state == XSI_CU_ACTIVE) || (state == XSI_CU_FRESH && xsi_cu_start());
}

/* There was movable memory: calls that take addresses or handles of memory have to be between xsi_move_enter and
 * xsi_move_leave. Atomic. False: there was none yet, and what the call is about can't move. */
extern bool xsi_cu_moves;
static inline bool xsi_cu_memory_enter(void) {
  if (XSI_LIKELY(!__atomic_load_n(&xsi_cu_moves, __ATOMIC_ACQUIRE))) return false;
  xsi_move_enter();
  return true;
}
static inline int xsi_cu_memory_leave(bool entered, int result) {
  if (entered) xsi_move_leave();
  return result;
}

extern const struct xsi_account xsi_cu_account;        /* account.c */
struct xsi_call xsi_cu_begin(uintptr_t stream);        /* work that is no launch and may wait */
struct xsi_call xsi_cu_begin_inside(uintptr_t stream); /* the same that never waits */
extern const struct xsi_work_platform xsi_cu_platform; /* platform.c */

static inline CUcontext xsi_cu_current(void) {
  CUcontext context = NULL;
  return xsi_cu_call_real(cuCtxGetCurrent, &context) == XSI_CU_SUCCESS ? context : NULL;
}

/* The same for accounting: asking the driver costs several times what the rest of a launch does. */
static inline CUcontext xsi_cu_context(void) {
  uintptr_t only = __atomic_load_n(&xsi_work_hot.only, __ATOMIC_ACQUIRE);
  if (XSI_LIKELY(only && xsi_thread.work.believed++ % XSI_WORK_BELIEVE)) return (CUcontext)only;
  CUcontext current = xsi_cu_current();
  if (XSI_UNLIKELY(only && current && current != (CUcontext)only)) xsi_work_only_is_wrong();
  return current;
}

static inline struct xsi_work_stream *xsi_cu_work(CUstream stream) {
  uintptr_t handle = (uintptr_t)stream;
  if (handle > XSI_WORK_THREAD) return xsi_work_find(&xsi_cu_platform, 0, handle);
  uintptr_t context = (uintptr_t)xsi_cu_context();
  return XSI_LIKELY(context) ? xsi_work_find(&xsi_cu_platform, context, handle) : NULL;
}

/* Counts the call; false: plain. */
static inline bool xsi_cu_enter_submit(void) {
  if (XSI_UNLIKELY(!xsi_cu_active())) return false;
  xsi_count(hooked_calls, 1);
  return true;
}
/* The same of a call that may wait: every call of which nothing else is known. */
static inline bool xsi_cu_enter(void) {
  xsi_work_open();
  return xsi_cu_enter_submit();
}

/* ---- work ------------------------------------------------------------------------- */

/* The stream's record if it is the one this thread used last: then it is active, too. */
XSI_INLINE struct xsi_work_stream *xsi_cu_same(CUstream stream) {
  struct xsi_work_thread *mine = &xsi_thread.work;
  uintptr_t handle = (uintptr_t)stream;
  if (handle > XSI_WORK_THREAD) return xsi_work_same(0, handle);
  uintptr_t only = __atomic_load_n(&xsi_work_hot.only, __ATOMIC_ACQUIRE);
  struct xsi_work_stream *work = only ? xsi_work_same(only, handle) : NULL;
  if (XSI_UNLIKELY(!work || mine->believed % XSI_WORK_BELIEVE == 0)) return NULL;
  mine->believed++;
  return work;
}

/* Launches have it inlined, as far as it is the same stream again and again. */
XSI_INLINE struct xsi_call xsi_cu_begin_launch(CUstream stream, uintptr_t kernel) {
  if (kernel == XSI_WORK_OTHER) xsi_work_open();
  struct xsi_call call = {xsi_cu_same(stream), XSI_COUNTED};
  if (XSI_UNLIKELY(!call.work)) return xsi_begin_work(&xsi_cu_account, (uintptr_t)stream, kernel);
  xsi_count(hooked_calls, 1);
  xsi_work_submit(call.work, kernel);
  return call;
}

/* ---- may this copy wait? What it waited for is asked afterwards --------------------- */

/* An asynchronous copy may wait if it goes to pageable host memory, a synchronous one if it goes to any. */
bool xsi_cu_pageable(CUdeviceptr_v2 address);
bool xsi_cu_host(CUdeviceptr_v2 address);
#define xsi_cu_waits_to(to) xsi_cu_pageable((CUdeviceptr_v2)(uintptr_t)(to))
#define xsi_cu_waits_host(to) xsi_cu_host(to)
#define xsi_cu_waits_2d(copy) ((copy) && xsi_cu_waits_side(&(copy)->to, false))
#define xsi_cu_waits_3d(copy) ((copy) && xsi_cu_waits_side(&(copy)->to, false))
#define xsi_cu_waits_2dhost(copy) ((copy) && xsi_cu_waits_side(&(copy)->to, true))
#define xsi_cu_waits_3dhost(copy) ((copy) && xsi_cu_waits_side(&(copy)->to, true))
bool xsi_cu_waits_side(const struct xsi_cu_side *to, bool synchronous);
/* From the host. Documented: the driver takes up to 64 KB along with the command and returns. 580 waits. The
 * wait is the entry point's. */
#define XSI_CU_SMALL 65536
#define xsi_cu_waits_size(bytes) ((bytes) > XSI_CU_SMALL || xsi_maybe_small(&wait))
bool xsi_cu_waits_list(const CUdeviceptr_v2 *to, size_t count);
bool xsi_cu_waits_operations(size_t count, const CUDA_MEMCPY3D_BATCH_OP_v1 *operations);
#define xsi_cu_waits_operation(copy) xsi_cu_waits_operations(1, copy)
bool xsi_cu_waits_batch(unsigned count, const CUstreamBatchMemOpParams_v1 *operations);

CUresult xsi_cu_stream_created(CUresult result, CUstream *stream);
void xsi_cu_stream_destroying(CUstream stream);

#endif /* XSCHED_CUDA_ACCOUNT_H */
