// SPDX-License-Identifier: Apache-2.0
//
// The entry points written by hand: events, waits for a device, launches on several devices, the
// old way of launching, and the questions for entry points.

#include "core/memory.h"
#include "move.h"

/* Begins one: a call of the runtime by itself goes straight on. Work is counted where it begins. */
#define BEGIN_WORK(symbol, ...)                                                                    \
  XSI_HIP_REAL(symbol);                                                                            \
  XSI_HIP_GUARD(symbol, __VA_ARGS__)
#define BEGIN(symbol, ...)                                                                         \
  BEGIN_WORK(symbol, __VA_ARGS__);                                                                 \
  if (!xsi_hip_enter()) return real(__VA_ARGS__)

// ---- events ------------------------------------------------------------------------------------

hipError_t hipEventQuery(hipEvent_t event) {
  BEGIN(hipEventQuery, event);
  struct xsi_work_standing standing;
  xsi_work_event_look(&standing, (uintptr_t)event, false);
  hipError_t result = xsi_hip_done(real(event));
  xsi_work_event_conclude(&standing, (uintptr_t)event, false, result == XSI_HIP_SUCCESS);
  if (result == XSI_HIP_NOT_READY && standing.known)
    xsi_work_polled(standing.stream, (uintptr_t)event);
  return result;
}
XSI_HOOK(hipEventQuery)

hipError_t hipEventSynchronize(hipEvent_t event) {
  BEGIN(hipEventSynchronize, event);
  struct xsi_work_standing standing;
  xsi_work_event_look(&standing, (uintptr_t)event, true);
  hipError_t result = xsi_hip_done(real(event));
  if (result == XSI_HIP_SUCCESS) xsi_count(syncs, 1);
  xsi_work_event_conclude(&standing, (uintptr_t)event, true, result == XSI_HIP_SUCCESS);
  return result;
}
XSI_HOOK(hipEventSynchronize)

hipError_t hipEventDestroy(hipEvent_t event) {
  BEGIN(hipEventDestroy, event);
  xsi_work_event_forget((uintptr_t)event);
  return xsi_hip_done(real(event));
}
XSI_HOOK(hipEventDestroy)

// A time between two events is known only when both are over.
hipError_t hipEventElapsedTime(float *milliseconds, hipEvent_t start, hipEvent_t end) {
  BEGIN(hipEventElapsedTime, milliseconds, start, end);
  struct xsi_work_standing first, second;
  xsi_work_event_look(&first, (uintptr_t)start, false);
  xsi_work_event_look(&second, (uintptr_t)end, false);
  hipError_t result = xsi_hip_done(real(milliseconds, start, end));
  xsi_work_event_conclude(&first, (uintptr_t)start, false, result == XSI_HIP_SUCCESS);
  xsi_work_event_conclude(&second, (uintptr_t)end, false, result == XSI_HIP_SUCCESS);
  return result;
}
XSI_HOOK(hipEventElapsedTime)

// ---- a whole device ------------------------------------------------------------------------------

static hipError_t synchronize(hipError_t (*real)(void)) {
  struct xsi_work_marks marks;
  xsi_work_marks_take(&marks, xsi_hip_current());
  hipError_t result = xsi_hip_done(real());
  if (result == XSI_HIP_SUCCESS) xsi_count(syncs, 1);
  xsi_work_marks_done(&marks, result == XSI_HIP_SUCCESS);
  return result;
}

hipError_t hipDeviceSynchronize(void) {
  BEGIN(hipDeviceSynchronize, );
  return synchronize(real);
}
XSI_HOOK(hipDeviceSynchronize)

hipError_t hipCtxSynchronize(void) {
  BEGIN(hipCtxSynchronize, );
  return synchronize(real);
}
XSI_HOOK(hipCtxSynchronize)

// Everything of ours on the device is forgotten before the runtime takes it down, with the watcher
// kept away.
hipError_t hipDeviceReset(void) {
  BEGIN(hipDeviceReset, );
  xsi_hip_moves_no_more();
  xsi_move_enter();
  uintptr_t context = xsi_hip_current();
  if (context) {
    struct xsi_work_context *excluded = xsi_work_exclude(context);
    xsi_work_context_drop(context);
    xsi_work_include(excluded);
    xsi_hip_streams_forget((int)(context - xsi_hip_context(0)));
  }
  hipError_t result = xsi_hip_done(real());
  if (context && result == XSI_HIP_SUCCESS) {
    xsi_memory_drop_context(context);
    xsi_hip_unback_device(context);
  }
  xsi_move_leave();
  return result;
}
XSI_HOOK(hipDeviceReset)

// ---- one launch on several devices: a list with a stream for each --------------------------------

#define MOST_DEVICES 64

static struct xsi_call begin_work(hipStream_t stream) {
  return xsi_begin_work(&xsi_hip_account, (uintptr_t)xsi_hip_legacy(stream), XSI_WORK_OTHER);
}

struct several {
  struct xsi_call calls[MOST_DEVICES];
  unsigned count;
};

static void begin_several(struct several *all, const void *list, unsigned count, size_t bytes,
                          size_t stream_at) {
  all->count = list && count <= MOST_DEVICES ? count : 0;
  for (unsigned i = 0; i < all->count; i++) {
    const char *stream = (const char *)list + i * bytes + stream_at;
    all->calls[i] = begin_work(*(hipStream_t const *)(const void *)stream);
  }
}

static hipError_t end_several(struct several *all, hipError_t result) {
  for (unsigned i = 0; i < all->count; i++)
    xsi_end_launch(all->calls[i], result);
  return result;
}

#define SEVERAL(symbol, type, number, stream)                                                      \
  hipError_t symbol(type *list, number count, unsigned flags) {                                    \
    BEGIN_WORK(symbol, list, count, flags);                                                        \
    struct several all;                                                                            \
    begin_several(&all, list, (unsigned)count, sizeof *list, offsetof(type, stream));              \
    return end_several(&all, xsi_hip_done(real(list, count, flags)));                              \
  }                                                                                                \
  XSI_HOOK(symbol)
SEVERAL(hipLaunchCooperativeKernelMultiDevice, hipLaunchParams, int, stream)
SEVERAL(hipExtLaunchMultiKernelMultiDevice, hipLaunchParams, int, stream)
SEVERAL(hipModuleLaunchCooperativeKernelMultiDevice, hipFunctionLaunchParams, unsigned, hStream)

// ---- configure, set arguments, launch: the runtime keeps a stack of configurations a thread --------

#define DEPTH 8

static _Thread_local struct {
  hipStream_t streams[DEPTH];
  unsigned depth;
} configured __attribute__((tls_model("initial-exec")));

hipError_t hipConfigureCall(dim3 grid, dim3 block, size_t shared, hipStream_t stream) {
  BEGIN(hipConfigureCall, grid, block, shared, stream);
  hipError_t result = xsi_hip_done(real(grid, block, shared, stream));
  if (result == XSI_HIP_SUCCESS && configured.depth < DEPTH)
    configured.streams[configured.depth++] = stream;
  return result;
}
XSI_HOOK(hipConfigureCall)

hipError_t hipLaunchByPtr(const void *function) {
  BEGIN_WORK(hipLaunchByPtr, function);
  hipStream_t stream = configured.depth ? configured.streams[--configured.depth] : NULL;
  struct xsi_call call = begin_work(stream);
  return xsi_end_launch(call, xsi_hip_done(real(function)));
}
XSI_HOOK(hipLaunchByPtr)

// ---- questions for entry points ---------------------------------------------------------------

#define PER_THREAD 2

static hipError_t answered(hipError_t result, const char *symbol, void **function,
                           bool per_thread) {
  if (result == XSI_HIP_SUCCESS && symbol && function && *function)
    *function = xsi_hip_match(symbol, per_thread, *function);
  return result;
}

hipError_t hipGetProcAddress(const char *symbol, void **function, int version, uint64_t flags,
                             hipDriverProcAddressQueryResult *status) {
  BEGIN(hipGetProcAddress, symbol, function, version, flags, status);
  return answered(real(symbol, function, version, flags, status), symbol, function,
                  flags & PER_THREAD);
}
XSI_HOOK(hipGetProcAddress)

hipError_t hipGetProcAddress_spt(const char *symbol, void **function, int version, uint64_t flags,
                                 hipDriverProcAddressQueryResult *status) {
  BEGIN(hipGetProcAddress_spt, symbol, function, version, flags, status);
  return answered(real(symbol, function, version, flags, status), symbol, function, true);
}
XSI_HOOK(hipGetProcAddress_spt)

hipError_t hipGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                  hipDriverEntryPointQueryResult *status) {
  BEGIN(hipGetDriverEntryPoint, symbol, function, flags, status);
  return answered(real(symbol, function, flags, status), symbol, function, flags & PER_THREAD);
}
XSI_HOOK(hipGetDriverEntryPoint)

hipError_t hipGetDriverEntryPoint_spt(const char *symbol, void **function, unsigned long long flags,
                                      hipDriverEntryPointQueryResult *status) {
  BEGIN(hipGetDriverEntryPoint_spt, symbol, function, flags, status);
  return answered(real(symbol, function, flags, status), symbol, function, true);
}
XSI_HOOK(hipGetDriverEntryPoint_spt)
