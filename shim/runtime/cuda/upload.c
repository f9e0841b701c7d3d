// SPDX-License-Identifier: Apache-2.0
//
// Small copies to the device. The driver sends them through the compute channel: up to 64 KB from pageable memory,
// less than 32 KB from pinned memory. While another program has the multiprocessors, such a copy costs a switch of the
// device to this program and back: 0.17 ms for whoever waits for it, 0.34 ms of the other's time. The same copy as two
// rows goes through a copy engine, and costs neither (H200, driver 580; `test/gpu/run.sh OUT uploads`).
//
// So a small copy into an idle stream becomes one of two rows while the daemon asks for batches. In a stream with
// work, the copy needs no switch of its own. Memory, order, and what the caller may do with the source after the
// call are those of the program's own copy: both are asynchronous copies from the host.

#include "account.h"

enum { ROWS = 2 };

static bool by_copy_engine(const struct xsi_call *call, size_t bytes) {
  return call->mode == XSI_COUNTED && call->work && bytes > 0 && bytes <= XSI_CU_SMALL &&
         bytes % ROWS == 0 && xsi_work_gathers(call->work) && xsi_work_is_first(call->work);
}

static CUDA_MEMCPY2D_v2 as_rows(CUdeviceptr_v2 to, const void *from, size_t bytes) {
  size_t row = bytes / ROWS;
  return (CUDA_MEMCPY2D_v2){.source = {.type = XSI_CU_MEMORY_HOST, .host = from},
                            .source_pitch = row,
                            .to = {.type = XSI_CU_MEMORY_DEVICE, .device = to},
                            .to_pitch = row,
                            .width = row,
                            .height = ROWS};
}

// A driver that refuses the rows gets the program's own call, whose result counts.
#define UPLOAD(symbol, rows, explicit_stream)                                                      \
  CUresult symbol(CUdeviceptr_v2 to, const void *from, size_t bytes, CUstream stream) {            \
    XSI_CU_REAL(symbol);                                                                           \
    struct xsi_call call = xsi_begin_copy(&xsi_cu_account, (uintptr_t)explicit_stream(stream));    \
    if (XSI_UNLIKELY(by_copy_engine(&call, bytes))) {                                              \
      CUDA_MEMCPY2D_v2 copy = as_rows(to, from, bytes);                                            \
      if (xsi_cu_call_real(rows, &copy, stream) == XSI_CU_SUCCESS)                                 \
        return xsi_end_copy(call, XSI_CU_SUCCESS);                                                 \
    }                                                                                              \
    return xsi_end_copy(call, real(to, from, bytes, stream));                                      \
  }                                                                                                \
  XSI_HOOK(symbol)

UPLOAD(cuMemcpyHtoDAsync_v2, cuMemcpy2DAsync_v2, xsi_cu_legacy)
UPLOAD(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpy2DAsync_v2_ptsz, xsi_cu_thread)
