/* SPDX-License-Identifier: Apache-2.0
 *
 * cuGetProcAddress, and the names of errors.
 */
#include <string.h>

#include "standin.h"

#define FLAG_PER_THREAD 2

/* One ABI of a call: its base name, the CUDA version that introduced it, the exported symbol, and
 * the suffix of its per-thread form, if any. */
#define PLAIN(name, version, symbol) X(name, version, symbol, symbol)
#define PTSZ(name, version, symbol) X(name, version, symbol, symbol##_ptsz)
#define PTDS(name, version, symbol) X(name, version, symbol, symbol##_ptds)
#define SYMBOLS                                                                                    \
  PLAIN(cuInit, 2000, cuInit)                                                                      \
  PLAIN(cuDriverGetVersion, 2020, cuDriverGetVersion)                                              \
  PLAIN(cuDeviceGet, 2000, cuDeviceGet)                                                            \
  PLAIN(cuDeviceGetCount, 2000, cuDeviceGetCount)                                                  \
  PLAIN(cuDeviceGetName, 2000, cuDeviceGetName)                                                    \
  PLAIN(cuDeviceGetUuid, 9020, cuDeviceGetUuid)                                                    \
  PLAIN(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2)                                                \
  PLAIN(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)                                               \
  PLAIN(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)                                          \
  PLAIN(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId)                                            \
  PLAIN(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId)                                        \
  PLAIN(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer)                                        \
  PLAIN(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)                                  \
  PLAIN(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease)                                \
  PLAIN(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)                            \
  PLAIN(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset)                                    \
  PLAIN(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2)                                \
  PLAIN(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags)                              \
  PLAIN(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2)                          \
  PLAIN(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState)                              \
  PLAIN(cuCtxCreate, 3020, cuCtxCreate_v2)                                                         \
  PLAIN(cuCtxCreate, 11040, cuCtxCreate_v3)                                                        \
  PLAIN(cuCtxCreate, 12050, cuCtxCreate_v4)                                                        \
  PLAIN(cuCtxDestroy, 4000, cuCtxDestroy_v2)                                                       \
  PLAIN(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2)                                               \
  PLAIN(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2)                                                 \
  PLAIN(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                                                    \
  PLAIN(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                                                    \
  PLAIN(cuCtxGetDevice, 2000, cuCtxGetDevice)                                                      \
  PLAIN(cuCtxGetDevice, 13000, cuCtxGetDevice_v2)                                                  \
  PLAIN(cuCtxSynchronize, 2000, cuCtxSynchronize)                                                  \
  PLAIN(cuCtxSynchronize, 13000, cuCtxSynchronize_v2)                                              \
  PLAIN(cuCtxGetFlags, 7000, cuCtxGetFlags)                                                        \
  PLAIN(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion)                                              \
  PLAIN(cuCtxGetId, 12000, cuCtxGetId)                                                             \
  PLAIN(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange)                            \
  PLAIN(cuModuleLoad, 2000, cuModuleLoad)                                                          \
  PLAIN(cuModuleLoadData, 2000, cuModuleLoadData)                                                  \
  PLAIN(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx)                                              \
  PLAIN(cuModuleLoadFatBinary, 2000, cuModuleLoadFatBinary)                                        \
  PLAIN(cuModuleUnload, 2000, cuModuleUnload)                                                      \
  PLAIN(cuModuleGetFunction, 2000, cuModuleGetFunction)                                            \
  PLAIN(cuFuncGetAttribute, 2020, cuFuncGetAttribute)                                              \
  PLAIN(cuFuncSetAttribute, 9000, cuFuncSetAttribute)                                              \
  PTSZ(cuLaunchKernel, 4000, cuLaunchKernel)                                                       \
  PTSZ(cuLaunchKernelEx, 11060, cuLaunchKernelEx)                                                  \
  PTSZ(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel)                                 \
  PLAIN(cuStreamCreate, 2000, cuStreamCreate)                                                      \
  PLAIN(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority)                              \
  PLAIN(cuStreamDestroy, 4000, cuStreamDestroy_v2)                                                 \
  PTSZ(cuStreamQuery, 2000, cuStreamQuery)                                                         \
  PTSZ(cuStreamSynchronize, 2000, cuStreamSynchronize)                                             \
  PTSZ(cuStreamWaitEvent, 3020, cuStreamWaitEvent)                                                 \
  PTSZ(cuStreamGetPriority, 5050, cuStreamGetPriority)                                             \
  PTSZ(cuStreamGetFlags, 5050, cuStreamGetFlags)                                                   \
  PTSZ(cuStreamGetCtx, 9020, cuStreamGetCtx)                                                       \
  PTSZ(cuStreamGetId, 12000, cuStreamGetId)                                                        \
  PTSZ(cuStreamGetDevice, 12080, cuStreamGetDevice)                                                \
  PTSZ(cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2)                                         \
  PTSZ(cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2)                                       \
  PLAIN(cuMemHostRegister, 6050, cuMemHostRegister_v2)                                             \
  PLAIN(cuMemHostUnregister, 4000, cuMemHostUnregister)                                            \
  PLAIN(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)                             \
  PTSZ(cuStreamBeginCapture, 10000, cuStreamBeginCapture)                                          \
  PTSZ(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2)                                       \
  PTSZ(cuStreamEndCapture, 10000, cuStreamEndCapture)                                              \
  PTSZ(cuStreamIsCapturing, 10000, cuStreamIsCapturing)                                            \
  PTSZ(cuStreamGetCaptureInfo, 10010, cuStreamGetCaptureInfo)                                      \
  PTSZ(cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2)                                   \
  PLAIN(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode)               \
  PLAIN(cuEventCreate, 2000, cuEventCreate)                                                        \
  PLAIN(cuEventDestroy, 4000, cuEventDestroy_v2)                                                   \
  PTSZ(cuEventRecord, 2000, cuEventRecord)                                                         \
  PTSZ(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags)                                      \
  PLAIN(cuEventQuery, 2000, cuEventQuery)                                                          \
  PLAIN(cuEventSynchronize, 2000, cuEventSynchronize)                                              \
  PLAIN(cuEventElapsedTime, 2000, cuEventElapsedTime)                                              \
  PLAIN(cuEventElapsedTime, 12080, cuEventElapsedTime_v2)                                          \
  PLAIN(cuGraphInstantiate, 10000, cuGraphInstantiate)                                             \
  PLAIN(cuGraphInstantiate, 11000, cuGraphInstantiate_v2)                                          \
  PLAIN(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags)                           \
  PLAIN(cuGraphInstantiate, 12000, cuGraphInstantiateWithFlags)                                    \
  PTSZ(cuGraphLaunch, 10000, cuGraphLaunch)                                                        \
  PLAIN(cuGraphDestroy, 10000, cuGraphDestroy)                                                     \
  PLAIN(cuGraphExecDestroy, 10000, cuGraphExecDestroy)                                             \
  PLAIN(cuGraphGetNodes, 10000, cuGraphGetNodes)                                                   \
  PLAIN(cuMemAlloc, 3020, cuMemAlloc_v2)                                                           \
  PLAIN(cuMemFree, 3020, cuMemFree_v2)                                                             \
  PLAIN(cuMemAllocHost, 3020, cuMemAllocHost_v2)                                                   \
  PLAIN(cuMemHostAlloc, 2020, cuMemHostAlloc)                                                      \
  PLAIN(cuMemFreeHost, 2000, cuMemFreeHost)                                                        \
  PLAIN(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                                       \
  PLAIN(cuMemAllocPitch, 3020, cuMemAllocPitch_v2)                                                 \
  PLAIN(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2)                                       \
  PTSZ(cuMemAllocAsync, 11020, cuMemAllocAsync)                                                    \
  PTSZ(cuMemFreeAsync, 11020, cuMemFreeAsync)                                                      \
  PLAIN(cuMemAddressReserve, 10020, cuMemAddressReserve)                                           \
  PLAIN(cuMemAddressFree, 10020, cuMemAddressFree)                                                 \
  PLAIN(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity)                       \
  PLAIN(cuMemCreate, 10020, cuMemCreate)                                                           \
  PLAIN(cuMemRelease, 10020, cuMemRelease)                                                         \
  PLAIN(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle)                           \
  PLAIN(cuMemMap, 10020, cuMemMap)                                                                 \
  PLAIN(cuMemUnmap, 10020, cuMemUnmap)                                                             \
  PLAIN(cuMemSetAccess, 10020, cuMemSetAccess)                                                     \
  PLAIN(cuMemGetAccess, 10020, cuMemGetAccess)                                                     \
  PLAIN(cuPointerGetAttribute, 4000, cuPointerGetAttribute)                                        \
  PTDS(cuMemcpy, 4000, cuMemcpy)                                                                   \
  PTSZ(cuMemcpyAsync, 4000, cuMemcpyAsync)                                                         \
  PTDS(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2)                                                        \
  PTDS(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2)                                                        \
  PTDS(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2)                                                        \
  PTSZ(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2)                                              \
  PTSZ(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2)                                              \
  PTSZ(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2)                                                  \
  PTSZ(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2)                                              \
  PTDS(cuMemsetD8, 3020, cuMemsetD8_v2)                                                            \
  PTDS(cuMemsetD16, 3020, cuMemsetD16_v2)                                                          \
  PTDS(cuMemsetD32, 3020, cuMemsetD32_v2)                                                          \
  PTSZ(cuMemsetD8Async, 3020, cuMemsetD8Async)                                                     \
  PTSZ(cuMemsetD16Async, 3020, cuMemsetD16Async)                                                   \
  PTSZ(cuMemsetD32Async, 3020, cuMemsetD32Async)                                                   \
  PLAIN(cuGetErrorString, 6000, cuGetErrorString)                                                  \
  PLAIN(cuGetErrorName, 6000, cuGetErrorName)                                                      \
  PLAIN(cuGetProcAddress, 11030, cuGetProcAddress)                                                 \
  PLAIN(cuGetProcAddress, 12000, cuGetProcAddress_v2)

/* Only the addresses matter here; the defining files have the types. */
#define X(name, version, symbol, thread) extern char symbol##_address[] __asm__(#symbol);
SYMBOLS
#undef X
#define X(name, version, symbol, thread) extern char symbol##_thread[] __asm__(#thread);
SYMBOLS
#undef X

static const struct symbol {
  const char *name;
  int version;
  void *legacy, *per_thread;
} symbols[] = {
#define X(name, version, symbol, thread) {#name, version, symbol##_address, symbol##_thread},
    SYMBOLS
#undef X
};

enum { FOUND = 0, NOT_FOUND = 1, TOO_OLD = 2 };

static int lookup(const char *name, int version, uint64_t flags, void **function) {
  const struct symbol *best = NULL;
  int status = NOT_FOUND;
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    const struct symbol *s = &symbols[i];
    if (strcmp(s->name, name) != 0) continue;
    if (status == NOT_FOUND) status = TOO_OLD;
    if (s->version <= version && (!best || s->version > best->version)) best = s;
  }
  *function = NULL;
  if (!best) return status;
  *function = flags & FLAG_PER_THREAD ? best->per_thread : best->legacy;
  return FOUND;
}

VG_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
                                       uint64_t flags, int *status) {
  if (!name || !function || version > VG_DRIVER_VERSION) return CUDA_ERROR_INVALID_VALUE;
  int found = lookup(name, version, flags, function);
  if (status) *status = found;
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version,
                                    uint64_t flags) {
  if (!name || !function || version > VG_DRIVER_VERSION) return CUDA_ERROR_INVALID_VALUE;
  return lookup(name, version, flags, function) == FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static const struct {
  CUresult code;
  const char *name, *text;
} errors[] = {
#define E(code, text)                                                                              \
  { code, #code, text }
    E(CUDA_SUCCESS, "no error"),
    E(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    E(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    E(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    E(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    E(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    E(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    E(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    E(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    E(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    E(CUDA_ERROR_ILLEGAL_STATE, "operation not permitted in the current state"),
    E(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    E(CUDA_ERROR_NOT_READY, "device not ready"),
    E(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    E(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "primary context is active"),
    E(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    E(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    E(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "capture failed due to a previous error"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not initiated in this stream"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    E(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
      "operation would make the legacy stream depend on a capturing blocking stream"),
    E(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "capture was begun in another thread"),
    E(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef E
};

static CUresult describe(CUresult code, const char **out, bool name) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) *out = name ? errors[i].name : errors[i].text;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

VG_EXPORT CUresult cuGetErrorName(CUresult code, const char **name) {
  return describe(code, name, true);
}
VG_EXPORT CUresult cuGetErrorString(CUresult code, const char **text) {
  return describe(code, text, false);
}
