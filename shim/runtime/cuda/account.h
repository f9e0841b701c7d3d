/* SPDX-License-Identifier: Apache-2.0
 *
 * What a CUDA entry point does before and after the real call: the generated ones are made of
 * these. Streams come with stream 0 made explicit (xsi_cu_legacy, xsi_cu_thread).
 */
#ifndef XSCHED_CUDA_ACCOUNT_H
#define XSCHED_CUDA_ACCOUNT_H

#include "core/work.h"
#include "library.h"

#define XSI_CU_LEGACY ((CUstream)XSI_WORK_LEGACY)
#define XSI_CU_THREAD ((CUstream)XSI_WORK_THREAD)

static inline CUstream xsi_cu_legacy(CUstream stream) { return stream ? stream : XSI_CU_LEGACY; }
static inline CUstream xsi_cu_thread(CUstream stream) { return stream ? stream : XSI_CU_THREAD; }
static inline CUstream xsi_cu_config_stream(const CUlaunchConfig *config) {
  return config ? config->hStream : NULL;
}

enum xsi_cu_state { XSI_CU_FRESH, XSI_CU_ACTIVE, XSI_CU_DISABLED };
extern int xsi_cu_state;
bool xsi_cu_start(void) __attribute__((cold));
/* False: XSCHED_DISABLE, every entry point is the plain call. */
static inline bool xsi_cu_active(void) {
  int state = __atomic_load_n(&xsi_cu_state, __ATOMIC_ACQUIRE);
  return XSI_LIKELY(state == XSI_CU_ACTIVE) || (state == XSI_CU_FRESH && xsi_cu_start());
}

/* From before the real call to after it. Work is kept in registers, the rest in memory. */
enum xsi_cu_mode { XSI_CU_PLAIN, XSI_CU_COUNTED, XSI_CU_CAPTURED };
struct xsi_cu_call {
  struct xsi_work_stream *work; /* NULL: not accounted for */
  enum xsi_cu_mode mode;
};
struct xsi_cu_wait {
  struct xsi_cu_call call;
  uint64_t mark;
};

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

/* Asked only while there are captures: does what goes into the stream become part of a graph? */
bool xsi_cu_is_capturing(CUstream stream) __attribute__((cold));
static inline bool xsi_cu_captured(CUstream stream) {
  return XSI_UNLIKELY(__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) != 0) &&
         xsi_cu_is_capturing(stream);
}

/* Counts the call; false: plain. */
static inline bool xsi_cu_enter(void) {
  if (XSI_UNLIKELY(!xsi_cu_active())) return false;
  xsi_count(hooked_calls, 1);
  return true;
}

/* ---- work ------------------------------------------------------------------------- */

#define XSI_CU_INLINE static inline __attribute__((always_inline))

struct xsi_cu_call xsi_cu_begin_work(CUstream stream);
CUresult xsi_cu_end_work(struct xsi_cu_call call, CUresult result);

/* The stream's record if it is the one this thread used last: then it is active, too. */
XSI_CU_INLINE struct xsi_work_stream *xsi_cu_same(CUstream stream) {
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
XSI_CU_INLINE struct xsi_cu_call xsi_cu_begin_launch(CUstream stream) {
  struct xsi_cu_call call = {xsi_cu_same(stream), XSI_CU_COUNTED};
  if (XSI_UNLIKELY(!call.work)) return xsi_cu_begin_work(stream);
  xsi_count(hooked_calls, 1);
  xsi_work_submit(call.work);
  return call;
}

XSI_CU_INLINE CUresult xsi_cu_end_launch(struct xsi_cu_call call, CUresult result) {
  if (XSI_UNLIKELY(result != XSI_CU_SUCCESS)) {
    if (call.work) xsi_work_withdraw(call.work);
    return result;
  }
  if (XSI_LIKELY(call.mode == XSI_CU_COUNTED))
    xsi_count(launches, 1);
  else if (call.mode == XSI_CU_CAPTURED)
    xsi_count(captured, 1);
  if (XSI_LIKELY(call.work != NULL)) xsi_work_landed(call.work);
  return result;
}

struct xsi_cu_call xsi_cu_begin_copy(CUstream stream);
CUresult xsi_cu_end_copy(struct xsi_cu_call call, CUresult result);

/* Copies that are over when the call returns, and so is all that was in their stream before. */
void xsi_cu_begin_wait(struct xsi_cu_wait *wait, CUstream stream);
CUresult xsi_cu_end_wait(struct xsi_cu_wait *wait, CUresult result);

/* ---- waits and events ---------------------------------------------------------------- */

void xsi_cu_begin_sync(struct xsi_cu_wait *wait, CUstream stream);
CUresult xsi_cu_end_sync(struct xsi_cu_wait *wait, CUresult result);
void xsi_cu_begin_record(struct xsi_cu_wait *wait, CUevent event, CUstream stream);
CUresult xsi_cu_end_record(struct xsi_cu_wait *wait, CUevent event, CUresult result);

/* ---- streams and captures ------------------------------------------------------------- */

CUresult xsi_cu_stream_created(CUresult result, CUstream *stream);
void xsi_cu_stream_destroying(CUstream stream);
void xsi_cu_capture_begin(struct xsi_cu_wait *wait, CUstream stream);
CUresult xsi_cu_capture_begin_done(struct xsi_cu_wait *wait, CUresult result);
void xsi_cu_capture_end(struct xsi_cu_wait *wait, CUstream stream);
CUresult xsi_cu_capture_end_done(struct xsi_cu_wait *wait, CUresult result);
bool xsi_cu_capture_wait(void);
CUresult xsi_cu_capture_wait_done(bool excluded, CUresult result);

#endif /* XSCHED_CUDA_ACCOUNT_H */
