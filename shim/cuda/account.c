// SPDX-License-Identifier: Apache-2.0
//
// The parts of the CUDA entry points that are not on the way of a launch.

#include "account.h"

int xsi_cu_state = XSI_CU_FRESH;

bool xsi_cu_start(void) {
  xsi_init();
  if (!xsi_options.disabled) xsi_work_start(&xsi_cu_platform);
  int state = xsi_options.disabled ? XSI_CU_DISABLED : XSI_CU_ACTIVE;
  __atomic_store_n(&xsi_cu_state, state, __ATOMIC_RELEASE);
  return state == XSI_CU_ACTIVE;
}

bool xsi_cu_is_capturing(CUstream stream) {
  CUstreamCaptureStatus status = XSI_CU_CAPTURE_NONE;
  // The legacy stream answers with an error while a stream that waits for it is captured: not
  // captured.
  return xsi_cu_call_real(cuStreamIsCapturing, stream, &status) == XSI_CU_SUCCESS &&
         status != XSI_CU_CAPTURE_NONE;
}

// ---- work other than launches -----------------------------------------------------------------

struct xsi_cu_call xsi_cu_begin_work(CUstream stream) { return xsi_cu_begin_launch(stream); }
struct xsi_cu_call xsi_cu_begin_copy(CUstream stream) { return xsi_cu_begin_launch(stream); }

CUresult xsi_cu_end_work(struct xsi_cu_call call, CUresult result) {
  if (call.work && result == XSI_CU_SUCCESS)
    xsi_work_landed(call.work);
  else if (call.work)
    xsi_work_withdraw(call.work);
  return result;
}

CUresult xsi_cu_end_copy(struct xsi_cu_call call, CUresult result) {
  if (result == XSI_CU_SUCCESS && call.mode == XSI_CU_COUNTED) xsi_count(copies, 1);
  return xsi_cu_end_work(call, result);
}

// ---- copies that wait ------------------------------------------------------------------------

static void mark(struct xsi_cu_wait *wait) {
  if (!wait->call.work) return;
  wait->mark = xsi_work_mark(wait->call.work);
  __atomic_fetch_add(&wait->call.work->syncing, 1, __ATOMIC_SEQ_CST);
}

static void unmark(struct xsi_cu_wait *wait, CUresult result) {
  if (!wait->call.work) return;
  __atomic_fetch_sub(&wait->call.work->syncing, 1, __ATOMIC_SEQ_CST);
  if (result == XSI_CU_SUCCESS) xsi_work_complete(wait->call.work, wait->mark, false);
}

static void enter(struct xsi_cu_wait *wait) {
  wait->call.work = NULL;
  wait->call.mode = xsi_cu_enter() ? XSI_CU_COUNTED : XSI_CU_PLAIN;
}

// Such a copy is work while it runs, and none when it returned: what it leaves behind is the end of
// what was in its stream when it began.
void xsi_cu_begin_wait(struct xsi_cu_wait *wait, CUstream stream) {
  wait->call = xsi_cu_begin_copy(stream);
  mark(wait);
}

CUresult xsi_cu_end_wait(struct xsi_cu_wait *wait, CUresult result) {
  if (result == XSI_CU_SUCCESS && wait->call.mode == XSI_CU_COUNTED) xsi_count(copies, 1);
  unmark(wait, result);
  if (wait->call.work) xsi_work_withdraw(wait->call.work);
  return result;
}

// ---- waits and events ---------------------------------------------------------------------------

void xsi_cu_begin_sync(struct xsi_cu_wait *wait, CUstream stream) {
  enter(wait);
  if (wait->call.mode == XSI_CU_COUNTED) wait->call.work = xsi_cu_work(stream);
  mark(wait);
}

CUresult xsi_cu_end_sync(struct xsi_cu_wait *wait, CUresult result) {
  if (result == XSI_CU_SUCCESS && wait->call.mode == XSI_CU_COUNTED) xsi_count(syncs, 1);
  unmark(wait, result);
  return result;
}

void xsi_cu_begin_record(struct xsi_cu_wait *wait, CUevent event, CUstream stream) {
  enter(wait);
  if (wait->call.mode == XSI_CU_PLAIN) return;
  xsi_work_event_forget((uintptr_t)event, false);
  if (xsi_cu_captured(stream)) return; // recorded into a graph
  wait->call.work = xsi_cu_work(stream);
  if (wait->call.work) wait->mark = xsi_work_mark(wait->call.work);
}

CUresult xsi_cu_end_record(struct xsi_cu_wait *wait, CUevent event, CUresult result) {
  if (wait->call.work && result == XSI_CU_SUCCESS)
    xsi_work_event_recorded((uintptr_t)event, wait->call.work, wait->mark);
  return result;
}

// ---- streams -----------------------------------------------------------------------------------

CUresult xsi_cu_stream_created(CUresult result, CUstream *stream) {
  if (xsi_cu_enter() && result == XSI_CU_SUCCESS && stream)
    xsi_work_stream_created((uintptr_t)*stream);
  return result;
}

void xsi_cu_stream_destroying(CUstream stream) {
  if (xsi_cu_enter() && (uintptr_t)stream > XSI_WORK_THREAD)
    xsi_work_stream_destroying((uintptr_t)stream);
}

// ---- captures
// ------------------------------------------------------------------------------------

// The watcher is kept away while a stream enters or leaves a capture: it must not ask about one
// that is in.
void xsi_cu_capture_begin(struct xsi_cu_wait *wait, CUstream stream) {
  enter(wait);
  if (wait->call.mode == XSI_CU_PLAIN) return;
  wait->call.work = xsi_cu_work(stream);
  xsi_work_exclude();
  __atomic_fetch_add(&xsi_work_captures, 1, __ATOMIC_SEQ_CST);
}

CUresult xsi_cu_capture_begin_done(struct xsi_cu_wait *wait, CUresult result) {
  if (wait->call.mode == XSI_CU_PLAIN) return result;
  if (result == XSI_CU_SUCCESS && wait->call.work)
    xsi_work_capture_begun(wait->call.work);
  else // without a record its end could not be told from another's: the stream answers for itself
    __atomic_fetch_sub(&xsi_work_captures, 1, __ATOMIC_SEQ_CST);
  xsi_work_include();
  return result;
}

void xsi_cu_capture_end(struct xsi_cu_wait *wait, CUstream stream) {
  enter(wait);
  if (wait->call.mode == XSI_CU_PLAIN) return;
  wait->call.work = xsi_cu_work(stream);
  wait->mark = (uint64_t)(uintptr_t)stream;
  xsi_work_exclude();
}

CUresult xsi_cu_capture_end_done(struct xsi_cu_wait *wait, CUresult result) {
  if (wait->call.mode == XSI_CU_PLAIN) return result;
  // An invalidated capture ends with an error; one of another thread does not end.
  if (wait->call.work &&
      (result == XSI_CU_SUCCESS || !xsi_cu_is_capturing((CUstream)(uintptr_t)wait->mark)))
    xsi_work_capture_ended(wait->call.work);
  xsi_work_include();
  return result;
}

bool xsi_cu_capture_wait(void) {
  if (!xsi_cu_enter() || __atomic_load_n(&xsi_work_captures, __ATOMIC_SEQ_CST) == 0) return false;
  xsi_work_exclude();
  return true;
}

CUresult xsi_cu_capture_wait_done(bool excluded, CUresult result) {
  if (excluded) xsi_work_include();
  return result;
}
