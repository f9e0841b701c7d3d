// SPDX-License-Identifier: Apache-2.0
//
// The parts of the CUDA entry points that are not on the way of a launch.

#include "account.h"

#include "core/options.h"

int xsi_cu_state = XSI_CU_FRESH;

bool xsi_cu_start(void) {
  xsi_runtime_init();
  if (!xsi_options.disabled) xsi_work_start(&xsi_cu_platform);
  int state = xsi_options.disabled ? XSI_CU_DISABLED : XSI_CU_ACTIVE;
  __atomic_store_n(&xsi_cu_state, state, __ATOMIC_RELEASE);
  return state == XSI_CU_ACTIVE;
}

static bool is_capturing(uintptr_t stream) {
  CUstreamCaptureStatus status = XSI_CU_CAPTURE_NONE;
  // The legacy stream answers with an error while a stream that waits for it is captured: not
  // captured.
  return xsi_cu_call_real(cuStreamIsCapturing, (CUstream)stream, &status) == XSI_CU_SUCCESS &&
         status != XSI_CU_CAPTURE_NONE;
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

struct xsi_call xsi_cu_begin(uintptr_t stream) {
  return xsi_cu_begin_launch((CUstream)stream);
}

static bool enter(void) { return xsi_cu_enter(); }
static struct xsi_work_stream *work(uintptr_t stream) { return xsi_cu_work((CUstream)stream); }

const struct xsi_account xsi_cu_account = {
    .enter = enter,
    .begin = xsi_cu_begin,
    .work = work, // without a context there is none, and nothing to account for
    .is_capturing = is_capturing,
    .still_capturing = is_capturing, // the driver keeps no last error
};
