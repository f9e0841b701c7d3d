/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory, copies and fills. The addresses determine the device's side of a copy. The kind matters
 * only for host-to-host copies; otherwise only its range is checked.
 */
#include <string.h>

#include "api.h"
#include "hip.h"

#define HOST_TO_HOST 0
#define LAST_KIND 4
#define AT(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

HIP_CALL(hipMalloc, (void **address, size_t bytes),
         address &&bytes == 0 ? (*address = NULL, CUDA_SUCCESS)
                              : cuMemAlloc((CUdeviceptr *)(void *)address, bytes))
HIP_CALL(hipFree, (void *address), cuMemFree(AT(address)))
HIP_CALL(hipHostMalloc, (void **address, size_t bytes, unsigned int flags),
         cuMemHostAlloc(address, bytes, flags))
HIP_CALL(hipHostFree, (void *address), cuMemFreeHost(address))
HIP_CALL(hipHostRegister, (void *address, size_t bytes, unsigned int flags),
         cuMemHostRegister_v2(address, bytes, flags))
HIP_CALL(hipHostUnregister, (void *address), cuMemHostUnregister(address))
HIP_CALL(hipMemGetInfo, (size_t * free_bytes, size_t *total), cuMemGetInfo_v2(free_bytes, total))

HIP_CALL(hipMallocPitch, (void **address, size_t *pitch, size_t width, size_t height),
         cuMemAllocPitch_v2((CUdeviceptr *)(void *)address, pitch, width, height, 4))
HIP_CALL(hipMemGetAddressRange, (hipDeviceptr_t * base, size_t *bytes, hipDeviceptr_t address),
         cuMemGetAddressRange_v2((CUdeviceptr *)(void *)base, bytes, AT(address)))

/* ---- mapped memory ------------------------------------------------------------------------- */

HIP_CALL(hipMemAddressReserve,
         (void **address, size_t bytes, size_t alignment, void *wanted, unsigned long long flags),
         cuMemAddressReserve((CUdeviceptr *)(void *)address, bytes, alignment, AT(wanted), flags))
HIP_CALL(hipMemAddressFree, (void *address, size_t bytes), cuMemAddressFree(AT(address), bytes))
HIP_CALL(hipMemGetAllocationGranularity,
         (size_t * bytes, const struct properties *properties, int option),
         cuMemGetAllocationGranularity(bytes, properties, option))
HIP_CALL(hipMemCreate,
         (unsigned long long *handle, size_t bytes, const struct properties *properties,
          unsigned long long flags),
         cuMemCreate(handle, bytes, properties, flags))
HIP_CALL(hipMemRelease, (unsigned long long handle), cuMemRelease(handle))
HIP_CALL(hipMemMap,
         (void *address, size_t bytes, size_t offset, unsigned long long handle,
          unsigned long long flags),
         cuMemMap(AT(address), bytes, offset, handle, flags))
HIP_CALL(hipMemUnmap, (void *address, size_t bytes), cuMemUnmap(AT(address), bytes))
HIP_CALL(hipMemSetAccess, (void *address, size_t bytes, const struct access_of *list, size_t count),
         cuMemSetAccess(AT(address), bytes, list, count))

/* ---- behind a stream ----------------------------------------------------------------------- */

static CUresult free_behind(void *address, hipStream_t stream, bool per_thread) {
  CUresult result = per_thread ? cuStreamSynchronize_ptsz(stream) : cuStreamSynchronize(stream);
  return result == CUDA_SUCCESS ? cuMemFree(AT(address)) : result;
}
HIP_CALL(hipMallocAsync, (void **address, size_t bytes, hipStream_t stream),
         ((void)stream, cuMemAlloc((CUdeviceptr *)(void *)address, bytes)))
HIP_CALL(hipFreeAsync, (void *address, hipStream_t stream), free_behind(address, stream, false))

/* ---- copies -------------------------------------------------------------------------------- */

/* Returns the device of the memory, if not the thread's device. */
static CUcontext owner(const void *address) {
  uint64_t offset;
  CUcontext found = NULL;
  pthread_mutex_lock(&vg_lock);
  for (uint32_t i = 0; !found && i < VG_MAX_CONTEXTS; i++) {
    CUcontext context = vg_context_at(i);
    if (context && vg_offset(context, AT(address), 0, &offset)) found = context;
  }
  pthread_mutex_unlock(&vg_lock);
  return found == vg_current() ? NULL : found;
}

static CUresult copy_here(bool per_thread, bool wait, void *dst, const void *src, size_t bytes,
                          int kind, hipStream_t stream) {
  if (kind < 0 || kind > LAST_KIND || ((!dst || !src) && bytes)) return CUDA_ERROR_INVALID_VALUE;
  CUresult result;
  if (kind == HOST_TO_HOST) {
    result = per_thread ? cuStreamSynchronize_ptsz(stream) : cuStreamSynchronize(stream);
    if (result == CUDA_SUCCESS) memmove(dst, src, bytes);
    return result;
  }
  result = per_thread ? cuMemcpyAsync_ptsz(AT(dst), AT(src), bytes, stream)
                      : cuMemcpyAsync(AT(dst), AT(src), bytes, stream);
  if (result != CUDA_SUCCESS || !wait) return result;
  return per_thread ? cuStreamSynchronize_ptsz(stream) : cuStreamSynchronize(stream);
}

/* A default stream is that of the memory's device. */
static CUresult copy(bool per_thread, bool wait, void *dst, const void *src, size_t bytes, int kind,
                     hipStream_t stream) {
  CUcontext other = (uintptr_t)stream > 2 ? NULL : owner(kind == 2 ? src : dst);
  if (other && cuCtxPushCurrent_v2(other) != CUDA_SUCCESS) other = NULL;
  CUresult result = copy_here(per_thread, wait, dst, src, bytes, kind, stream);
  if (other) (void)cuCtxPopCurrent_v2(NULL);
  return result;
}

HIP_BOTH(hipMemcpy, (void *dst, const void *src, size_t bytes, int kind),
         copy(false, true, dst, src, bytes, kind, NULL),
         copy(true, true, dst, src, bytes, kind, NULL))
HIP_BOTH(hipMemcpyAsync, (void *dst, const void *src, size_t bytes, int kind, hipStream_t stream),
         copy(false, false, dst, src, bytes, kind, stream),
         copy(true, false, dst, src, bytes, kind, stream))
HIP_CALL(hipMemcpyWithStream,
         (void *dst, const void *src, size_t bytes, int kind, hipStream_t stream),
         copy(false, true, dst, src, bytes, kind, stream))
HIP_CALL(hipMemcpyHtoD, (hipDeviceptr_t dst, const void *src, size_t bytes),
         copy(false, true, dst, src, bytes, 1, NULL))
HIP_CALL(hipMemcpyDtoH, (void *dst, hipDeviceptr_t src, size_t bytes),
         copy(false, true, dst, src, bytes, 2, NULL))
HIP_CALL(hipMemcpyDtoD, (hipDeviceptr_t dst, hipDeviceptr_t src, size_t bytes),
         copy(false, true, dst, src, bytes, 3, NULL))
HIP_CALL(hipMemcpyHtoDAsync,
         (hipDeviceptr_t dst, const void *src, size_t bytes, hipStream_t stream),
         copy(false, false, dst, src, bytes, 1, stream))
HIP_CALL(hipMemcpyDtoHAsync, (void *dst, hipDeviceptr_t src, size_t bytes, hipStream_t stream),
         copy(false, false, dst, src, bytes, 2, stream))
HIP_CALL(hipMemcpyDtoDAsync,
         (hipDeviceptr_t dst, hipDeviceptr_t src, size_t bytes, hipStream_t stream),
         copy(false, false, dst, src, bytes, 3, stream))

/* ---- fills --------------------------------------------------------------------------------- */

HIP_BOTH(hipMemset, (void *dst, int value, size_t bytes),
         cuMemsetD8Async(AT(dst), (unsigned char)value, bytes, NULL),
         cuMemsetD8Async_ptsz(AT(dst), (unsigned char)value, bytes, NULL))
HIP_BOTH(hipMemsetAsync, (void *dst, int value, size_t bytes, hipStream_t stream),
         cuMemsetD8Async(AT(dst), (unsigned char)value, bytes, stream),
         cuMemsetD8Async_ptsz(AT(dst), (unsigned char)value, bytes, stream))
HIP_CALL(hipMemsetD8, (hipDeviceptr_t dst, unsigned char value, size_t count),
         cuMemsetD8Async(AT(dst), value, count, NULL))
HIP_CALL(hipMemsetD8Async,
         (hipDeviceptr_t dst, unsigned char value, size_t count, hipStream_t stream),
         cuMemsetD8Async(AT(dst), value, count, stream))
HIP_CALL(hipMemsetD16, (hipDeviceptr_t dst, unsigned short value, size_t count),
         cuMemsetD16Async(AT(dst), value, count, NULL))
HIP_CALL(hipMemsetD16Async,
         (hipDeviceptr_t dst, unsigned short value, size_t count, hipStream_t stream),
         cuMemsetD16Async(AT(dst), value, count, stream))
HIP_CALL(hipMemsetD32, (hipDeviceptr_t dst, int value, size_t count),
         cuMemsetD32Async(AT(dst), (unsigned int)value, count, NULL))
HIP_CALL(hipMemsetD32Async, (hipDeviceptr_t dst, int value, size_t count, hipStream_t stream),
         cuMemsetD32Async(AT(dst), (unsigned int)value, count, stream))
