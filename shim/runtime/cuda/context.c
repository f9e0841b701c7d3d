// SPDX-License-Identifier: Apache-2.0
//
// Entry points of contexts, written by hand. A context that goes is forgotten before the driver
// destroys it, with the watcher kept away: nothing of ours touches it afterwards.

#include "core/memory.h"
#include "move.h"

// ---- primary contexts: the driver names them by device when they go ------------------------------

#define PRIMARIES 64

static CUcontext primaries[PRIMARIES]; /* by device ordinal; atomic */

static void remember_primary(CUdevice_v1 device, CUcontext context) {
  if (device < 0 || device >= PRIMARIES) return; // forgotten when the watcher finds it gone
  __atomic_store_n(&primaries[device], context, __ATOMIC_RELEASE);
}

static CUcontext primary_of(CUdevice_v1 device) {
  if (device < 0 || device >= PRIMARIES) return NULL;
  return __atomic_load_n(&primaries[device], __ATOMIC_ACQUIRE);
}

// Memory that is away needs a context of its device to return.
static void comes(CUcontext context) {
  if (__atomic_load_n(&xsi_cu_moves, __ATOMIC_ACQUIRE)) xsi_cu_move_context(context);
}

// What was allocated in a context goes after the driver has destroyed it: work may use it until then.
static void gone(CUcontext context) {
  xsi_memory_drop_context((uintptr_t)context);
  xsi_cu_unback_context(context);
}

// Bytes of a context, roughly: how much is known only when there is one.
#define CONTEXT_BYTES (512ull << 20)

static bool tries_again(struct xsi_move_want *want, CUdevice_v1 device, CUresult result) {
  struct xsi_memory_place place;
  return XSI_UNLIKELY(result == XSI_CU_OUT_OF_MEMORY) && xsi_cu_active() &&
         xsi_cu_place_of(device, &place) && xsi_move_wants(want, place, CONTEXT_BYTES, 0);
}

// A call that makes a context, again while room is being made.
#define MAKES(device, call)                                                                        \
  ({                                                                                               \
    struct xsi_move_want want_ = {0};                                                              \
    CUresult made_;                                                                                \
    do                                                                                             \
      made_ = (call);                                                                              \
    while (tries_again(&want_, device, made_));                                                    \
    xsi_move_wanted(&want_);                                                                       \
    made_;                                                                                         \
  })

// Its queue is opened when it is first used: many programs retain the contexts of all devices.
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice_v1 device) {
  XSI_CU_REAL(cuDevicePrimaryCtxRetain);
  CUresult result = MAKES(device, real(context, device));
  if (xsi_cu_enter() && result == XSI_CU_SUCCESS && context && *context) {
    remember_primary(device, *context);
    xsi_work_context_named((uintptr_t)*context);
    comes(*context);
  }
  return result;
}
XSI_HOOK(cuDevicePrimaryCtxRetain)

static CUresult release_primary(__typeof__(&cuDevicePrimaryCtxRelease) real, CUdevice_v1 device) {
  if (!xsi_cu_enter()) return real(device);
  unsigned flags;
  int active = 1;
  CUcontext context = primary_of(device);
  xsi_move_enter_to_free();
  xsi_cu_move_goes(context, true);
  struct xsi_work_context *excluded = xsi_work_exclude((uintptr_t)context);
  CUresult result = real(device);
  if (result == XSI_CU_SUCCESS && context &&
      xsi_cu_call_real(cuDevicePrimaryCtxGetState, device, &flags, &active) == XSI_CU_SUCCESS &&
      !active) {
    xsi_work_context_drop((uintptr_t)context);
    gone(context);
  }
  xsi_cu_move_goes(context, false);
  xsi_work_include(excluded);
  xsi_move_leave();
  return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice_v1 device) {
  XSI_CU_REAL(cuDevicePrimaryCtxRelease);
  return release_primary(real, device);
}
XSI_HOOK(cuDevicePrimaryCtxRelease)

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice_v1 device) {
  XSI_CU_REAL(cuDevicePrimaryCtxRelease_v2);
  return release_primary(real, device);
}
XSI_HOOK(cuDevicePrimaryCtxRelease_v2)

static CUresult reset_primary(__typeof__(&cuDevicePrimaryCtxReset) real, CUdevice_v1 device) {
  CUcontext context = xsi_cu_enter() ? primary_of(device) : NULL;
  if (!context) return real(device);
  struct xsi_work_context *excluded = xsi_work_exclude((uintptr_t)context);
  xsi_work_context_drop((uintptr_t)context);
  xsi_work_include(excluded);
  xsi_move_enter_to_free();
  xsi_cu_move_goes(context, true);
  CUresult result = real(device);
  gone(context);
  xsi_move_leave();
  return result;
}

CUresult cuDevicePrimaryCtxReset(CUdevice_v1 device) {
  XSI_CU_REAL(cuDevicePrimaryCtxReset);
  return reset_primary(real, device);
}
XSI_HOOK(cuDevicePrimaryCtxReset)

CUresult cuDevicePrimaryCtxReset_v2(CUdevice_v1 device) {
  XSI_CU_REAL(cuDevicePrimaryCtxReset_v2);
  return reset_primary(real, device);
}
XSI_HOOK(cuDevicePrimaryCtxReset_v2)

// ---- contexts of the program's own ---------------------------------------------------------------

static CUresult created(CUresult result, CUcontext *context) {
  if (xsi_cu_enter() && result == XSI_CU_SUCCESS && context && *context) {
    xsi_work_context_seen(&xsi_cu_platform, (uintptr_t)*context);
    comes(*context);
  }
  return result;
}

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice_v1 device) {
  XSI_CU_REAL(cuCtxCreate);
  return created(MAKES(device, real(context, flags, device)), context);
}
XSI_HOOK(cuCtxCreate)

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice_v1 device) {
  XSI_CU_REAL(cuCtxCreate_v2);
  return created(MAKES(device, real(context, flags, device)), context);
}
XSI_HOOK(cuCtxCreate_v2)

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count,
                        unsigned flags, CUdevice_v1 device) {
  XSI_CU_REAL(cuCtxCreate_v3);
  return created(MAKES(device, real(context, affinity, count, flags, device)), context);
}
XSI_HOOK(cuCtxCreate_v3)

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags,
                        CUdevice device) {
  XSI_CU_REAL(cuCtxCreate_v4);
  return created(MAKES(device, real(context, parameters, flags, device)), context);
}
XSI_HOOK(cuCtxCreate_v4)

// A context that others can wait for, too: OpenGL and video never call us.
static CUresult created_for_graphics(CUresult result, CUcontext *context) {
  xsi_work_never_batch();
  return created(result, context);
}

CUresult cuGLCtxCreate(CUcontext *context, unsigned flags, CUdevice_v1 device) {
  XSI_CU_REAL(cuGLCtxCreate);
  return created_for_graphics(MAKES(device, real(context, flags, device)), context);
}
XSI_HOOK(cuGLCtxCreate)

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice_v1 device) {
  XSI_CU_REAL(cuGLCtxCreate_v2);
  return created_for_graphics(MAKES(device, real(context, flags, device)), context);
}
XSI_HOOK(cuGLCtxCreate_v2)

CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned flags, CUdevice_v1 device, unsigned video,
                          void *address_of) {
  XSI_CU_REAL(cuVDPAUCtxCreate);
  return created_for_graphics(MAKES(device, real(context, flags, device, video, address_of)),
                              context);
}
XSI_HOOK(cuVDPAUCtxCreate)

CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice_v1 device, unsigned video,
                             void *address_of) {
  XSI_CU_REAL(cuVDPAUCtxCreate_v2);
  return created_for_graphics(MAKES(device, real(context, flags, device, video, address_of)),
                              context);
}
XSI_HOOK(cuVDPAUCtxCreate_v2)

// These two name a context that there is. Its queue is opened when it is first used.
static CUresult handed_out(CUresult result, CUcontext *context) {
  if (xsi_cu_enter() && result == XSI_CU_SUCCESS && context && *context) {
    xsi_work_context_named((uintptr_t)*context);
    comes(*context);
  }
  return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
  XSI_CU_REAL(cuCtxFromGreenCtx);
  return handed_out(real(context, green), context);
}
XSI_HOOK(cuCtxFromGreenCtx)

CUresult cuCtxAttach(CUcontext *context, unsigned flags) {
  XSI_CU_REAL(cuCtxAttach);
  return handed_out(real(context, flags), context);
}
XSI_HOOK(cuCtxAttach)

static void destroying(CUcontext context) {
  if (!xsi_cu_enter() || !context) return;
  struct xsi_work_context *excluded = xsi_work_exclude((uintptr_t)context);
  xsi_work_context_drop((uintptr_t)context);
  xsi_work_include(excluded);
}

static CUresult destroy(__typeof__(&cuCtxDestroy) real, CUcontext context) {
  destroying(context);
  xsi_move_enter_to_free();
  xsi_cu_move_goes(context, true);
  CUresult result = real(context);
  if (xsi_cu_active() && result == XSI_CU_SUCCESS) gone(context);
  xsi_cu_move_goes(context, false);
  xsi_move_leave();
  return result;
}

CUresult cuCtxDestroy(CUcontext context) {
  XSI_CU_REAL(cuCtxDestroy);
  return destroy(real, context);
}
XSI_HOOK(cuCtxDestroy)

CUresult cuCtxDestroy_v2(CUcontext context) {
  XSI_CU_REAL(cuCtxDestroy_v2);
  return destroy(real, context);
}
XSI_HOOK(cuCtxDestroy_v2)

// Destroys the context only when its last user detaches; a surviving one is found again when used.
CUresult cuCtxDetach(CUcontext context) {
  XSI_CU_REAL(cuCtxDetach);
  destroying(context);
  return real(context);
}
XSI_HOOK(cuCtxDetach)

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  XSI_CU_REAL(cuGreenCtxDestroy);
  CUcontext context = NULL;
  if (xsi_cu_active() && xsi_cu_call_real(cuCtxFromGreenCtx, &context, green) == XSI_CU_SUCCESS)
    destroying(context);
  xsi_move_enter_to_free();
  xsi_cu_move_goes(context, true);
  CUresult result = real(green);
  if (result == XSI_CU_SUCCESS) xsi_cu_move_forget(context); // its memory is the device's
  xsi_cu_move_goes(context, false);
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuGreenCtxDestroy)

// ---- waiting for a whole context -----------------------------------------------------------------

static CUresult synchronized(CUresult result, struct xsi_work_marks *marks) {
  if (result == XSI_CU_SUCCESS) xsi_count(syncs, 1);
  xsi_work_marks_done(marks, result == XSI_CU_SUCCESS);
  return result;
}

CUresult cuCtxSynchronize(void) {
  XSI_CU_REAL(cuCtxSynchronize);
  if (!xsi_cu_enter()) return real();
  struct xsi_work_marks marks;
  xsi_work_marks_take(&marks, (uintptr_t)xsi_cu_context());
  return synchronized(real(), &marks);
}
XSI_HOOK(cuCtxSynchronize)

CUresult cuCtxSynchronize_v2(CUcontext context) {
  XSI_CU_REAL(cuCtxSynchronize_v2);
  if (!xsi_cu_enter()) return real(context);
  struct xsi_work_marks marks;
  xsi_work_marks_take(&marks, (uintptr_t)(context ? context : xsi_cu_context()));
  return synchronized(real(context), &marks);
}
XSI_HOOK(cuCtxSynchronize_v2)
