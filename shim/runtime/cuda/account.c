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

bool xsi_cu_is_capturing(CUstream stream) {
  CUstreamCaptureStatus status = XSI_CU_CAPTURE_NONE;
  // The legacy stream answers with an error while a stream that waits for it is captured: not
  // captured.
  return xsi_cu_call_real(cuStreamIsCapturing, stream, &status) == XSI_CU_SUCCESS &&
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

// Without a context there is nothing to account for.
static void xsi_cu_unknown(CUstream stream) { (void)stream; }

// The driver keeps no last error.
static bool xsi_cu_still_capturing(CUstream stream) { return xsi_cu_is_capturing(stream); }

#define P(name) xsi_cu_##name
#define C(name) XSI_CU_##name
#define XSI_RESULT CUresult
#define XSI_STREAM CUstream
#define XSI_EVENT CUevent
#define XSI_DONE XSI_CU_SUCCESS
#include "runtime/account.inc"
