/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts. Their structs are never freed, so that a stale handle is an error and not a crash.
 */
#include <string.h>

#include "api.h"
#include "standin.h"

static struct vg_context contexts[VG_MAX_CONTEXTS];
static struct {
  CUcontext context;
  unsigned int references, flags;
} primary[VG_MAX_DEVICES];

CUcontext vg_context_at(uint32_t index) {
  if (index >= VG_MAX_CONTEXTS || contexts[index].magic != MAGIC_CONTEXT) return NULL;
  return &contexts[index];
}

/* Preconditions: the caller holds vg_lock. */
static CUresult create(CUcontext *out, unsigned int flags, CUdevice device, bool is_primary) {
  int ordinal = vg_device_ordinal(device);
  if (ordinal < 0) return CUDA_ERROR_INVALID_DEVICE;
  CUcontext context = NULL;
  for (uint32_t i = 0; i < VG_MAX_CONTEXTS && !context; i++)
    if (contexts[i].magic != MAGIC_CONTEXT) context = &contexts[i], context->index = i;
  if (!context) return CUDA_ERROR_OUT_OF_MEMORY;
  uint32_t index = context->index;
  memset(context, 0, sizeof *context);
  context->index = index;
  context->device = device;
  context->flags = flags;
  context->primary = is_primary;
  CUresult result = vg_rm_create(context, (uint32_t)ordinal);
  if (result != CUDA_SUCCESS) return result;
  vg_streams_init(context);
  context->magic = MAGIC_CONTEXT;
  *out = context;
  return CUDA_SUCCESS;
}

static void destroy(CUcontext context) {
  context->magic = 0;
  vg_vmm_destroy(context);
  vg_rm_destroy(context);
  vg_memory_destroy(context);
}

static CUresult create_call(CUcontext *context, unsigned int flags, CUdevice device) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&vg_lock);
  result = vg_leave(create(context, flags, device, false));
  return result == CUDA_SUCCESS ? cuCtxPushCurrent_v2(*context) : result;
}

VG_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
  return create_call(context, flags, device);
}
VG_EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
  return create_call(context, flags, device);
}
VG_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned int flags,
                                  CUdevice device) {
  (void)affinity, (void)count;
  return create_call(context, flags, device);
}
VG_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *params, unsigned int flags,
                                  CUdevice device) {
  (void)params;
  return create_call(context, flags, device);
}

VG_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&vg_lock);
  if (!context || context->magic != MAGIC_CONTEXT || context->primary)
    return vg_leave(CUDA_ERROR_INVALID_CONTEXT);
  destroy(context);
  pthread_mutex_unlock(&vg_lock);
  CUcontext popped;
  if (vg_current() == context) (void)cuCtxPopCurrent_v2(&popped);
  return CUDA_SUCCESS;
}
VG_EXPORT CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

VG_EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!device) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  *device = context->device;
  return vg_leave(CUDA_SUCCESS);
}
VG_EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
  if (!context) return cuCtxGetDevice(device);
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (context->magic != MAGIC_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext context) {
  CUresult result = vg_unsafe_call();
  return vg_leave(result == CUDA_SUCCESS ? vg_wait_all(context) : result);
}

VG_EXPORT CUresult cuCtxSynchronize(void) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  return result == CUDA_SUCCESS ? synchronize(context) : result;
}
VG_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
  if (!context) return cuCtxSynchronize();
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&vg_lock);
  if (context->magic != MAGIC_CONTEXT) return vg_leave(CUDA_ERROR_INVALID_CONTEXT);
  return synchronize(context);
}

VG_EXPORT CUresult cuCtxGetFlags(unsigned int *flags) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!flags) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  *flags = context->flags;
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  (void)context;
  *version = 3020;
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!context) context = vg_current();
  if (!context || context->magic != MAGIC_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = context->index + 1;
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (vg_device_ordinal(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&vg_lock);
  if (!primary[device].references) {
    result = create(&primary[device].context, primary[device].flags, device, true);
    if (result != CUDA_SUCCESS) return vg_leave(result);
  }
  primary[device].references++;
  *context = primary[device].context;
  return vg_leave(CUDA_SUCCESS);
}

static CUresult release(CUdevice device, bool all) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (vg_device_ordinal(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&vg_lock);
  if (!primary[device].references) return vg_leave(all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
  primary[device].references = all ? 0 : primary[device].references - 1;
  if (!primary[device].references) {
    destroy(primary[device].context);
    primary[device].context = NULL;
  }
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return release(device, false); }
VG_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return release(device, false); }
VG_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return release(device, true); }
VG_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return release(device, true); }

VG_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (vg_device_ordinal(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  primary[device].flags = flags;
  return CUDA_SUCCESS;
}
VG_EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

VG_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (vg_device_ordinal(device) < 0) return CUDA_ERROR_INVALID_DEVICE;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  *flags = primary[device].flags;
  *active = primary[device].references > 0;
  return CUDA_SUCCESS;
}
