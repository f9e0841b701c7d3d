/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream values: a stream waits until a word in memory has a value, or writes one. The word is in device
 * memory, or in host memory that the device can access.
 */
#include <string.h>
#include <sys/mman.h>

#include "standin.h"

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags);

enum { WAIT_GEQ = 0 }; /* from cuda.h */
#define PAGE 4096u

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

static struct {
  uintptr_t page, bytes, view;
} registered[64]; /* under vg_lock; the newest of each page counts */
static unsigned registrations;

/* Registered pages become a second view of memory that the device shares. They stay that after the
 * context has gone: the program's stores then reach nobody. */
VG_EXPORT CUresult cuMemHostRegister_v2(void *page, size_t bytes, unsigned int flags) {
  (void)flags;
  void *shared = NULL;
  if (!page || bytes == 0 || (uintptr_t)page % PAGE != 0 || bytes % PAGE != 0)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = cuMemHostAlloc(&shared, bytes + PAGE, 0);
  if (result != CUDA_SUCCESS) return result;
  unsigned char *view = (unsigned char *)(((uintptr_t)shared + PAGE - 1) / PAGE * PAGE);
  memcpy(view, page, bytes);
  if (mremap(view, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, page) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&vg_lock);
  unsigned at = registrations++ % (sizeof registered / sizeof *registered);
  registered[at].page = (uintptr_t)page;
  registered[at].bytes = bytes;
  registered[at].view = (uintptr_t)view;
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host,
                                                unsigned int flags) {
  if (!address || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *address = (uintptr_t)host; /* of pinned memory */
  pthread_mutex_lock(&vg_lock);
  for (unsigned i = 0; i < sizeof registered / sizeof *registered; i++)
    if ((uintptr_t)host - registered[i].page < registered[i].bytes)
      *address = registered[i].view + ((uintptr_t)host - registered[i].page);
  return vg_leave(CUDA_SUCCESS);
}
