/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules, kernels registered by compiled code, launches and host functions. The device implements
 * one kernel, xs_spin(out, microseconds, seed); all others run for 10 us without a result.
 */
#include <stdlib.h>
#include <string.h>

#include "hip.h"

/* ---- modules ------------------------------------------------------------------------------ */

HIP_CALL(hipModuleLoad, (hipModule_t * module, const char *path), cuModuleLoadData(module, path))
HIP_CALL(hipModuleLoadData, (hipModule_t * module, const void *image),
         cuModuleLoadData(module, image))
HIP_CALL(hipModuleLoadDataEx,
         (hipModule_t * module, const void *image, unsigned int count, int *options, void **values),
         ((void)count, (void)options, (void)values, cuModuleLoadData(module, image)))
HIP_CALL(hipModuleUnload, (hipModule_t module), cuModuleUnload(module))
HIP_CALL(hipModuleGetFunction, (hipFunction_t * function, hipModule_t module, const char *name),
         cuModuleGetFunction(function, module, name))

/* ---- registrations of hipcc's code at load: host stub -> kernel ------------------------------ */

#define MAX_STUBS 256

static pthread_mutex_t stubs_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  const void *stub;
  char name[64];
  hipFunction_t function;
} stubs[MAX_STUBS];
static unsigned stub_count;
static hipModule_t stub_module;

VG_EXPORT void **__hipRegisterFatBinary(const void *data) {
  static void *module;
  (void)data;
  return &module;
}
VG_EXPORT void __hipUnregisterFatBinary(void **module) { (void)module; }
VG_EXPORT void __hipRegisterFunction(void **module, const void *stub, char *device_function,
                                     const char *name, unsigned int threads, void *tid, void *bid,
                                     void *block, void *grid, int *warp) {
  (void)module, (void)device_function, (void)threads, (void)tid, (void)bid, (void)block, (void)grid;
  (void)warp;
  pthread_mutex_lock(&stubs_lock);
  if (stub_count < MAX_STUBS && name) {
    stubs[stub_count].stub = stub;
    strncpy(stubs[stub_count].name, name, sizeof stubs->name - 1);
    stub_count++;
  }
  pthread_mutex_unlock(&stubs_lock);
}

/* Preconditions: entered. */
static CUresult function_of(const void *stub, hipFunction_t *function) {
  CUresult result = (CUresult)HIP_INVALID_DEVICE_FUNCTION;
  pthread_mutex_lock(&stubs_lock);
  for (unsigned i = 0; i < stub_count; i++) {
    if (stubs[i].stub != stub) continue;
    result = CUDA_SUCCESS;
    if (!stub_module) result = cuModuleLoadData(&stub_module, "stubs");
    if (result == CUDA_SUCCESS && !stubs[i].function)
      result = cuModuleGetFunction(&stubs[i].function, stub_module, stubs[i].name);
    *function = stubs[i].function;
    break;
  }
  pthread_mutex_unlock(&stubs_lock);
  return result;
}

static _Thread_local struct {
  struct dim3 grid, block;
  size_t shared_bytes;
  hipStream_t stream;
} configuration;

VG_EXPORT hipError_t __hipPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t bytes,
                                                hipStream_t stream) {
  configuration.grid = grid;
  configuration.block = block;
  configuration.shared_bytes = bytes;
  configuration.stream = stream;
  return CUDA_SUCCESS;
}
VG_EXPORT hipError_t __hipPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *bytes,
                                               hipStream_t *stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *bytes = configuration.shared_bytes;
  *stream = configuration.stream;
  return CUDA_SUCCESS;
}

/* ---- launches ----------------------------------------------------------------------------------
 */

static CUresult launch(bool per_thread, hipFunction_t function, struct dim3 grid, struct dim3 block,
                       size_t shared, hipStream_t stream, void **params, void **extra,
                       hipEvent_t start, hipEvent_t stop) {
  CUresult result = CUDA_SUCCESS;
  unsigned bytes = (unsigned)shared;
  if (start) result = per_thread ? cuEventRecord_ptsz(start, stream) : cuEventRecord(start, stream);
  if (result == CUDA_SUCCESS)
    result = per_thread ? cuLaunchKernel_ptsz(function, grid.x, grid.y, grid.z, block.x, block.y,
                                              block.z, bytes, stream, params, extra)
                        : cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y,
                                         block.z, bytes, stream, params, extra);
  if (result == CUDA_SUCCESS && stop)
    result = per_thread ? cuEventRecord_ptsz(stop, stream) : cuEventRecord(stop, stream);
  return result;
}

static CUresult launch_stub(bool per_thread, const void *stub, struct dim3 grid, struct dim3 block,
                            void **args, size_t shared, hipStream_t stream, hipEvent_t start,
                            hipEvent_t stop) {
  hipFunction_t function;
  CUresult result = function_of(stub, &function);
  if (result != CUDA_SUCCESS) return result;
  return launch(per_thread, function, grid, block, shared, stream, args, NULL, start, stop);
}

#define DIM(name) ((struct dim3){name##_x, name##_y, name##_z})
#define GRID                                                                                       \
  unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,             \
      unsigned int block_y, unsigned int block_z

HIP_CALL(hipModuleLaunchKernel,
         (hipFunction_t function, GRID, unsigned int shared, hipStream_t stream, void **params,
          void **extra),
         launch(false, function, DIM(grid), DIM(block), shared, stream, params, extra, NULL, NULL))
HIP_CALL(hipModuleLaunchCooperativeKernel,
         (hipFunction_t function, GRID, unsigned int shared, hipStream_t stream, void **params),
         launch(false, function, DIM(grid), DIM(block), shared, stream, params, NULL, NULL, NULL))

/* This call takes the grid in work-items. */
static CUresult launch_ext(hipFunction_t function, struct dim3 items, struct dim3 block,
                           size_t shared, hipStream_t stream, void **params, void **extra,
                           hipEvent_t start, hipEvent_t stop) {
  if (!block.x || !block.y || !block.z) return CUDA_ERROR_INVALID_VALUE;
  struct dim3 grid = {items.x / block.x, items.y / block.y, items.z / block.z};
  return launch(false, function, grid, block, shared, stream, params, extra, start, stop);
}
#define EXT_PARAMETERS                                                                             \
  (hipFunction_t function, GRID, size_t shared, hipStream_t stream, void **params, void **extra,   \
   hipEvent_t start, hipEvent_t stop, uint32_t flags)
#define EXT_CALL                                                                                   \
  ((void)flags,                                                                                    \
   launch_ext(function, DIM(grid), DIM(block), shared, stream, params, extra, start, stop))
HIP_CALL(hipExtModuleLaunchKernel, EXT_PARAMETERS, EXT_CALL)
/* The mangled C++ name, which runtimes before 6.1 export. */
HIP_CALL(
    _Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j,
    EXT_PARAMETERS, EXT_CALL)
HIP_CALL(
    _Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_,
    (hipFunction_t function, GRID, size_t shared, hipStream_t stream, void **params, void **extra,
     hipEvent_t start, hipEvent_t stop),
    launch_ext(function, DIM(grid), DIM(block), shared, stream, params, extra, start, stop))

HIP_BOTH(hipLaunchKernel,
         (const void *stub, struct dim3 grid, struct dim3 block, void **args, size_t shared,
          hipStream_t stream),
         launch_stub(false, stub, grid, block, args, shared, stream, NULL, NULL),
         launch_stub(true, stub, grid, block, args, shared, stream, NULL, NULL))
HIP_CALL(hipExtLaunchKernel,
         (const void *stub, struct dim3 grid, struct dim3 block, void **args, size_t shared,
          hipStream_t stream, hipEvent_t start, hipEvent_t stop, int flags),
         ((void)flags, launch_stub(false, stub, grid, block, args, shared, stream, start, stop)))
HIP_BOTH(hipLaunchCooperativeKernel,
         (const void *stub, struct dim3 grid, struct dim3 block, void **args, unsigned int shared,
          hipStream_t stream),
         launch_stub(false, stub, grid, block, args, shared, stream, NULL, NULL),
         launch_stub(true, stub, grid, block, args, shared, stream, NULL, NULL))

/* ---- host functions: the caller waits for preceding work and runs them ----------------------- */

static CUresult host_function(bool per_thread, hipStream_t stream, void (*function)(void *),
                              void *data) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = per_thread ? cuStreamSynchronize_ptsz(stream) : cuStreamSynchronize(stream);
  if (result == CUDA_SUCCESS) function(data);
  return result;
}
HIP_BOTH(hipLaunchHostFunc, (hipStream_t stream, void (*function)(void *), void *data),
         host_function(false, stream, function, data), host_function(true, stream, function, data))

typedef void (*stream_callback)(hipStream_t stream, hipError_t status, void *data);
static CUresult add_callback(bool per_thread, hipStream_t stream, stream_callback callback,
                             void *data) {
  if (!callback) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = per_thread ? cuStreamSynchronize_ptsz(stream) : cuStreamSynchronize(stream);
  if (result == CUDA_SUCCESS) callback(stream, CUDA_SUCCESS, data);
  return result;
}
HIP_BOTH(hipStreamAddCallback,
         (hipStream_t stream, stream_callback callback, void *data, unsigned int flags),
         ((void)flags, add_callback(false, stream, callback, data)),
         ((void)flags, add_callback(true, stream, callback, data)))
