/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices, the calling thread's current device, and errors. HIP initialises with the first call
 * that needs a device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hip.h"

#define VERSION 60200000

static _Thread_local struct {
  int device;
  hipError_t last;
} thread;

int hip_device(void) { return thread.device; }

/* Success does not clear an unread error. */
hipError_t hip_said(hipError_t result) {
  if (result != CUDA_SUCCESS) thread.last = result;
  return result;
}

hipError_t hip_enter(void) {
  CUcontext context = vg_current();
  if (context && context->magic == MAGIC_CONTEXT && context->device == thread.device &&
      vg_ready() == CUDA_SUCCESS)
    return CUDA_SUCCESS;
  hipError_t result = (hipError_t)cuInit(0);
  if (result == CUDA_SUCCESS)
    result = (hipError_t)cuDevicePrimaryCtxRetain(&context, thread.device);
  if (result == CUDA_SUCCESS) result = (hipError_t)cuCtxSetCurrent(context);
  return result;
}

/* ---- devices ------------------------------------------------------------------------- */

static hipError_t find(int device, const void *out, const struct hip_gpu **gpu) {
  hipError_t result = (hipError_t)cuInit(0);
  if (result != CUDA_SUCCESS) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *gpu = hip_gpu_at(vg_device_ordinal(device));
  return *gpu ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

VG_EXPORT hipError_t hipInit(unsigned int flags) { return hip_said((hipError_t)cuInit(flags)); }

VG_EXPORT hipError_t hipDriverGetVersion(int *version) {
  if (!version) return hip_said(CUDA_ERROR_INVALID_VALUE);
  *version = VERSION;
  return CUDA_SUCCESS;
}
VG_EXPORT hipError_t hipRuntimeGetVersion(int *version) { return hipDriverGetVersion(version); }

VG_EXPORT hipError_t hipGetDeviceCount(int *count) {
  if (!count) return hip_said(CUDA_ERROR_INVALID_VALUE);
  *count = 0;
  hipError_t result = (hipError_t)cuInit(0);
  return hip_said(result == CUDA_SUCCESS ? (hipError_t)cuDeviceGetCount(count) : result);
}

VG_EXPORT hipError_t hipSetDevice(int device) {
  const struct hip_gpu *gpu;
  hipError_t result = find(device, &device, &gpu);
  if (result == CUDA_SUCCESS) thread.device = device;
  return hip_said(result);
}

VG_EXPORT hipError_t hipGetDevice(int *device) {
  const struct hip_gpu *gpu;
  hipError_t result = find(thread.device, device, &gpu);
  if (result == CUDA_SUCCESS) *device = thread.device;
  return hip_said(result);
}

VG_EXPORT hipError_t hipDeviceGet(int *device, int ordinal) {
  const struct hip_gpu *gpu;
  hipError_t result = find(ordinal, device, &gpu);
  if (result == CUDA_SUCCESS) *device = ordinal;
  return hip_said(result);
}

VG_EXPORT hipError_t hipDeviceGetName(char *name, int bytes, int device) {
  const struct hip_gpu *gpu;
  hipError_t result = find(device, name, &gpu);
  if (result == CUDA_SUCCESS && bytes <= 0) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) snprintf(name, (size_t)bytes, "XSched virtual GPU");
  return hip_said(result);
}

VG_EXPORT hipError_t hipDeviceTotalMem(size_t *bytes, int device) {
  const struct hip_gpu *gpu;
  hipError_t result = find(device, bytes, &gpu);
  if (result == CUDA_SUCCESS) *bytes = 4ull << 30;
  return hip_said(result);
}

VG_EXPORT hipError_t hipDeviceGetPCIBusId(char *id, int bytes, int device) {
  const struct hip_gpu *gpu;
  hipError_t result = find(device, id, &gpu);
  if (result == CUDA_SUCCESS && bytes < 13) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS)
    snprintf(id, (size_t)bytes, "%04x:%02x:%02x.%x", gpu->domain, gpu->location >> 8 & 0xff,
             gpu->location >> 3 & 0x1f, gpu->location & 7);
  return hip_said(result);
}

/* From hip_runtime_api.h: hipDeviceAttribute_t; the same numbers since 5.0. */
VG_EXPORT hipError_t hipDeviceGetAttribute(int *value, int attribute, int device) {
  const struct hip_gpu *gpu;
  hipError_t result = find(device, value, &gpu);
  if (result != CUDA_SUCCESS) return hip_said(result);
  switch (attribute) {
  case 5: *value = 2100000; break;                           /* ClockRate */
  case 56: *value = 1024; break;                             /* MaxThreadsPerBlock */
  case 63: *value = gpu->units; break;                       /* MultiprocessorCount */
  case 67: *value = (int)(gpu->location >> 8 & 0xff); break; /* PciBusId */
  case 68: *value = (int)(gpu->location >> 3 & 0x1f); break; /* PciDeviceId */
  case 69: *value = (int)gpu->domain; break;                 /* PciDomainID */
  case 87: *value = 64; break;                               /* WarpSize */
  default: *value = 0;
  }
  return CUDA_SUCCESS;
}

VG_EXPORT hipError_t hipDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 1;
  if (greatest) *greatest = -1;
  return CUDA_SUCCESS;
}

HIP_CALL(hipDeviceSynchronize, (void), cuCtxSynchronize())
HIP_CALL(hipCtxSynchronize, (void), cuCtxSynchronize())
HIP_CALL(hipDeviceReset, (void), cuDevicePrimaryCtxReset(thread.device))

/* ---- contexts, which represent devices in HIP -------------------------------------------- */

VG_EXPORT hipError_t hipCtxCreate(void **context, unsigned int flags, int device) {
  (void)flags;
  if (!context) return hip_said(CUDA_ERROR_INVALID_VALUE);
  hipError_t result = hipSetDevice(device);
  if (result == CUDA_SUCCESS) result = hip_enter();
  if (result == CUDA_SUCCESS) *context = vg_current();
  return hip_said(result);
}

VG_EXPORT hipError_t hipCtxDestroy(void *context) {
  return hip_said(context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

HIP_CALL(hipCtxGetCurrent, (void **context), (*context = vg_current(), CUDA_SUCCESS))

/* ---- errors ------------------------------------------------------------------------------ */

VG_EXPORT hipError_t hipGetLastError(void) {
  hipError_t last = thread.last;
  thread.last = CUDA_SUCCESS;
  return last;
}
VG_EXPORT hipError_t hipPeekAtLastError(void) { return thread.last; }

static const struct {
  hipError_t code;
  const char *name, *text;
} errors[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "initialization error"},
    {98, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {709, "hipErrorContextIsDestroyed", "context is destroyed"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
    {801, "hipErrorNotSupported", "operation not supported"},
};

VG_EXPORT const char *hipGetErrorName(hipError_t code) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return errors[i].name;
  return "hipErrorUnknown";
}
VG_EXPORT const char *hipGetErrorString(hipError_t code) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return errors[i].text;
  return "unknown error";
}
