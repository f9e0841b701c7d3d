/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream values: a stream waits until a word in memory has a value, or writes one. The word is in device
 * memory, or in host memory that the device can access.
 */
#include "standin.h"

enum { WAIT_GEQ = 0 }; /* from cuda.h */

static CUresult value(bool per_thread, CUstream handle, CUdeviceptr address,
                      struct vg_entry entry) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  CUstream stream;
  result = vg_stream(context, handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) return vg_leave(result);
  if (stream->capture) return vg_leave(CUDA_ERROR_NOT_SUPPORTED);
  if (address % 4 != 0 || !vg_offset(stream->context, address, 4, &entry.dst))
    return vg_leave(CUDA_ERROR_INVALID_VALUE);
  struct vg_node node = {.entry = entry};
  return vg_leave(vg_perform(stream, &node));
}

/* The other comparisons have no user here. */
static CUresult wait_value(bool per_thread, CUstream stream, CUdeviceptr address, uint32_t at_least,
                           unsigned int flags) {
  if (flags != WAIT_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
  return value(per_thread, stream, address, (struct vg_entry){.op = VG_VALUE, .value = at_least});
}
VG_BOTH(cuStreamWaitValue32_v2, _ptsz, wait_value,
        (CUstream stream, CUdeviceptr address, uint32_t at_least, unsigned int flags), stream,
        address, at_least, flags)

static CUresult write_value(bool per_thread, CUstream stream, CUdeviceptr address, uint32_t written,
                            unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
  struct vg_entry fill = {.op = VG_FILL, .width = 4, .amount = 4, .value = written, .lane = 2};
  return value(per_thread, stream, address, fill);
}
VG_BOTH(cuStreamWriteValue32_v2, _ptsz, write_value,
        (CUstream stream, CUdeviceptr address, uint32_t written, unsigned int flags), stream,
        address, written, flags)
