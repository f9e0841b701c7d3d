/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules, functions and launches. The device implements one kernel, xs_spin(out, microseconds,
 * seed). All other kernels run for 10 us without a result.
 */
#include <stdlib.h>
#include <string.h>

#include "standin.h"

#define DEFAULT_KERNEL_NS 10000

struct vg_function {
  uint32_t magic;
  bool spin;
  char name[64];
  struct vg_function *next;
};
struct vg_module {
  uint32_t magic;
  struct vg_function *functions;
};

/* From cuda.h: CUlaunchConfig. */
struct launch_config {
  unsigned int grid[3], block[3], shared_bytes;
  CUstream stream;
  void *attributes;
  unsigned int attribute_count;
};

/* The context's internal channel uploads the code: work that no hook observes. */
static CUresult upload(CUcontext context) {
  struct vg_entry entry = {.op = VG_MARK, .dst = VG_NO_ADDRESS};
  CUresult result = vg_append(context, 0, &entry);
  if (result != CUDA_SUCCESS) return result;
  uint64_t seq = context->put[0];
  vg_kick(context);
  return vg_wait(context, 0, seq);
}

static CUresult load(CUmodule *module, const void *image) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!module || !image) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  result = vg_unsafe_call();
  if (result != CUDA_SUCCESS) return vg_leave(result);
  CUmodule made = calloc(1, sizeof *made);
  if (!made) return vg_leave(CUDA_ERROR_OUT_OF_MEMORY);
  made->magic = MAGIC_MODULE;
  result = upload(context);
  if (result != CUDA_SUCCESS) {
    free(made);
    return vg_leave(result);
  }
  *module = made;
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  return load(module, image);
}
VG_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                      int *options, void **values) {
  (void)count, (void)options, (void)values;
  return load(module, image);
}
VG_EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
  return load(module, image);
}
VG_EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) { return load(module, path); }

VG_EXPORT CUresult cuModuleUnload(CUmodule module) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!module || module->magic != MAGIC_MODULE) return vg_leave(CUDA_ERROR_INVALID_HANDLE);
  while (module->functions) {
    struct vg_function *next = module->functions->next;
    free(module->functions);
    module->functions = next;
  }
  module->magic = 0;
  free(module);
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!function || !name || !*name) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  if (!module || module->magic != MAGIC_MODULE) return vg_leave(CUDA_ERROR_INVALID_HANDLE);
  for (CUfunction f = module->functions; f; f = f->next)
    if (strncmp(f->name, name, sizeof f->name - 1) == 0) {
      *function = f;
      return vg_leave(CUDA_SUCCESS);
    }
  CUfunction made = calloc(1, sizeof *made);
  if (!made) return vg_leave(CUDA_ERROR_OUT_OF_MEMORY);
  made->magic = MAGIC_FUNCTION;
  made->spin = strcmp(name, "xs_spin") == 0;
  strncpy(made->name, name, sizeof made->name - 1);
  made->next = module->functions;
  module->functions = made;
  *function = made;
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!function || function->magic != MAGIC_FUNCTION) return CUDA_ERROR_INVALID_HANDLE;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute == 0 ? 1024 : 0; /* MAX_THREADS_PER_BLOCK */
  return CUDA_SUCCESS;
}
VG_EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  (void)attribute, (void)value;
  return !function || function->magic != MAGIC_FUNCTION ? CUDA_ERROR_INVALID_HANDLE : vg_ready();
}
/* Arguments of xs_spin, passed in either way. */
static bool read_arguments(void **params, void **extra, uint64_t *out, uint32_t *us,
                           uint32_t *seed) {
  if (params) {
    memcpy(out, params[0], sizeof *out);
    memcpy(us, params[1], sizeof *us);
    memcpy(seed, params[2], sizeof *seed);
    return true;
  }
  /* CU_LAUNCH_PARAM_BUFFER_POINTER is 1, _SIZE 2, _END 0 */
  for (; extra && extra[0]; extra += 2) {
    if (extra[0] != (void *)1) continue;
    const unsigned char *buffer = extra[1];
    memcpy(out, buffer, sizeof *out);
    memcpy(us, buffer + 8, sizeof *us);
    memcpy(seed, buffer + 12, sizeof *seed);
    return true;
  }
  return false;
}

static CUresult launch(bool per_thread, CUfunction function, unsigned int grid_x,
                       unsigned int block_x, CUstream handle, void **params, void **extra) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!function || function->magic != MAGIC_FUNCTION) return vg_leave(CUDA_ERROR_INVALID_HANDLE);
  if (!grid_x || !block_x || block_x > 1024) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  CUstream stream;
  result = vg_stream(context, handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return vg_leave(result);
  struct vg_node node = {
      .entry = {.op = VG_KERNEL, .amount = DEFAULT_KERNEL_NS, .dst = VG_NO_ADDRESS}};
  if (function->spin) {
    uint64_t out;
    uint32_t us;
    if (!read_arguments(params, extra, &out, &us, &node.entry.value))
      return vg_leave(CUDA_ERROR_INVALID_VALUE);
    node.entry.amount = (uint64_t)us * 1000;
    if (vg_is_mapped(out))
      node.mapped_dst = out;
    else if (out && !vg_offset(stream->context, out, 16, &node.entry.dst))
      node.entry.dst = VG_BAD_ADDRESS;
  }
  return vg_leave(vg_perform(stream, &node));
}

#define LAUNCH_PARAMETERS                                                                          \
  (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,             \
   unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,    \
   CUstream stream, void **params, void **extra)

static CUresult launch_kernel(bool per_thread, CUfunction function, unsigned int grid_x,
                              unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                              unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                              CUstream stream, void **params, void **extra) {
  (void)shared_bytes;
  if (!grid_y || !grid_z || !block_y || !block_z) return CUDA_ERROR_INVALID_VALUE;
  return launch(per_thread, function, grid_x, block_x, stream, params, extra);
}
VG_BOTH(cuLaunchKernel, _ptsz, launch_kernel, LAUNCH_PARAMETERS, function, grid_x, grid_y, grid_z,
        block_x, block_y, block_z, shared_bytes, stream, params, extra)
VG_BOTH(cuLaunchCooperativeKernel, _ptsz, launch_kernel,
        (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
         unsigned int block_x, unsigned int block_y, unsigned int block_z,
         unsigned int shared_bytes, CUstream stream, void **params),
        function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params,
        NULL)

static CUresult launch_ex(bool per_thread, const struct launch_config *config, CUfunction function,
                          void **params, void **extra) {
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  return launch(per_thread, function, config->grid[0], config->block[0], config->stream, params,
                extra);
}
VG_BOTH(cuLaunchKernelEx, _ptsz, launch_ex,
        (const struct launch_config *config, CUfunction function, void **params, void **extra),
        config, function, params, extra)
