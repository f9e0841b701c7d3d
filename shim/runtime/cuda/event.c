// SPDX-License-Identifier: Apache-2.0
//
// The remaining entry points written by hand: events, launches on several devices,
// cuGetProcAddress.

#include "account.h"

// ---- events --------------------------------------------------------------------------------------

CUresult cuEventQuery(CUevent event) {
  XSI_CU_REAL(cuEventQuery);
  if (!xsi_cu_enter()) return real(event);
  struct xsi_work_standing standing;
  xsi_work_event_look(&standing, (uintptr_t)event, false);
  CUresult result = real(event);
  xsi_work_event_conclude(&standing, (uintptr_t)event, false, result == XSI_CU_SUCCESS);
  if (result == XSI_CU_NOT_READY && standing.known)
    xsi_work_polled(standing.stream, (uintptr_t)event);
  return result;
}
XSI_HOOK(cuEventQuery)

CUresult cuEventSynchronize(CUevent event) {
  XSI_CU_REAL(cuEventSynchronize);
  if (!xsi_cu_enter()) return real(event);
  struct xsi_work_standing standing;
  xsi_work_event_look(&standing, (uintptr_t)event, true);
  CUresult result = real(event);
  if (result == XSI_CU_SUCCESS) xsi_count(syncs, 1);
  xsi_work_event_conclude(&standing, (uintptr_t)event, true, result == XSI_CU_SUCCESS);
  return result;
}
XSI_HOOK(cuEventSynchronize)

static void destroying(CUevent event) {
  if (xsi_cu_enter()) xsi_work_event_forget((uintptr_t)event);
}

CUresult cuEventDestroy(CUevent event) {
  XSI_CU_REAL(cuEventDestroy);
  destroying(event);
  return real(event);
}
XSI_HOOK(cuEventDestroy)

CUresult cuEventDestroy_v2(CUevent event) {
  XSI_CU_REAL(cuEventDestroy_v2);
  destroying(event);
  return real(event);
}
XSI_HOOK(cuEventDestroy_v2)

// A time between two events is known only when both are over.
static CUresult elapsed(__typeof__(&cuEventElapsedTime) real, float *milliseconds, CUevent start,
                        CUevent end) {
  if (!xsi_cu_enter()) return real(milliseconds, start, end);
  struct xsi_work_standing first, second;
  xsi_work_event_look(&first, (uintptr_t)start, false);
  xsi_work_event_look(&second, (uintptr_t)end, false);
  CUresult result = real(milliseconds, start, end);
  xsi_work_event_conclude(&first, (uintptr_t)start, false, result == XSI_CU_SUCCESS);
  xsi_work_event_conclude(&second, (uintptr_t)end, false, result == XSI_CU_SUCCESS);
  return result;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  XSI_CU_REAL(cuEventElapsedTime);
  return elapsed(real, milliseconds, start, end);
}
XSI_HOOK(cuEventElapsedTime)

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
  XSI_CU_REAL(cuEventElapsedTime_v2);
  return elapsed(real, milliseconds, start, end);
}
XSI_HOOK(cuEventElapsedTime_v2)

// ---- one launch on several devices ---------------------------------------------------------------

#define MOST_DEVICES 64

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS_v1 *list, unsigned count,
                                              unsigned flags) {
  XSI_CU_REAL(cuLaunchCooperativeKernelMultiDevice);
  xsi_work_open(); // also for a list that is not counted
  struct xsi_call calls[MOST_DEVICES];
  unsigned counted = list && count <= MOST_DEVICES ? count : 0;
  for (unsigned i = 0; i < counted; i++)
    calls[i] =
        xsi_begin_work(&xsi_cu_account, (uintptr_t)xsi_cu_legacy(list[i].hStream), XSI_WORK_OTHER);
  CUresult result = real(list, count, flags);
  for (unsigned i = 0; i < counted; i++)
    xsi_end_launch(calls[i], result);
  return result;
}
XSI_HOOK(cuLaunchCooperativeKernelMultiDevice)

// ---- cuGetProcAddress ----------------------------------------------------------------------------

static CUresult answered(CUresult result, const char *api, void **function, int version,
                         cuuint64_t flags) {
  if (xsi_cu_enter() && result == XSI_CU_SUCCESS && api && function && *function)
    *function = xsi_cu_match(api, version, flags, *function);
  return result;
}

CUresult cuGetProcAddress(const char *api, void **function, int version, cuuint64_t flags) {
  XSI_CU_REAL(cuGetProcAddress);
  return answered(real(api, function, version, flags), api, function, version, flags);
}
XSI_HOOK(cuGetProcAddress)

CUresult cuGetProcAddress_v2(const char *api, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  XSI_CU_REAL(cuGetProcAddress_v2);
  return answered(real(api, function, version, flags, status), api, function, version, flags);
}
XSI_HOOK(cuGetProcAddress_v2)
