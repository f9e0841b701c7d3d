// SPDX-License-Identifier: Apache-2.0
//
// The parts of the CUDA entry points that are not on the way of a launch.

#include "account.h"

#include "core/options.h"

int xsi_cu_state = XSI_CU_FRESH;
bool xsi_cu_graph_events;

bool xsi_cu_start(void) {
  xsi_runtime_init();
  bool active = !xsi_options.disabled;
  if (active) xsi_runtime_bind_all(&xsi_cu_runtime);
  active = active && xsi_work_start(&xsi_cu_platform);
  int state = active ? XSI_CU_ACTIVE : XSI_CU_DISABLED;
  __atomic_store_n(&xsi_cu_state, state, __ATOMIC_RELEASE);
  return state == XSI_CU_ACTIVE;
}

static bool is_capturing(uintptr_t stream) {
  CUstreamCaptureStatus status = XSI_CU_CAPTURE_NONE;
  // The legacy stream answers with an error while a stream that waits for it is captured: not
  // captured.
  return xsi_cu_call_real(cuStreamIsCapturing, (CUstream)stream, &status) == XSI_CU_SUCCESS &&
         status != XSI_CU_CAPTURE_NONE;
}

// ---- streams -----------------------------------------------------------------------------------

CUresult xsi_cu_stream_created(CUresult result, CUstream *stream) {
  if (xsi_cu_enter() && result == XSI_CU_SUCCESS && stream)
    xsi_work_stream_created((uintptr_t)*stream);
  return result;
}

void xsi_cu_stream_destroying(CUstream stream) {
  if (xsi_cu_enter() && (uintptr_t)stream > XSI_WORK_THREAD)
    xsi_work_stream_destroying((uintptr_t)stream);
}

struct xsi_call xsi_cu_begin(uintptr_t stream) {
  return xsi_cu_begin_launch((CUstream)stream, XSI_WORK_OTHER);
}

struct xsi_call xsi_cu_begin_inside(uintptr_t stream) {
  return xsi_cu_begin_launch((CUstream)stream, XSI_WORK_INSIDE);
}

_Static_assert(sizeof(CUlaunchAttribute) == 72, "as in test_prototypes.c");
uintptr_t xsi_cu_attributes(const CUlaunchConfig *config, uintptr_t kernel) {
  if (!config->attrs || !xsi_cu_active()) return kernel;
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const CUlaunchAttribute *attribute = &config->attrs[i];
    if (attribute->id == XSI_CU_ATTRIBUTE_COOPERATIVE && attribute->value.cooperative)
      kernel = XSI_WORK_OTHER;
    if (attribute->id == XSI_CU_ATTRIBUTE_PROGRAMMATIC_EVENT ||
        attribute->id == XSI_CU_ATTRIBUTE_COMPLETION_EVENT)
      xsi_work_event_forget((uintptr_t)attribute->value.event);
  }
  return kernel;
}

// The driver knows device memory and pinned memory. What it does not know is pageable.
static bool ask_pointer(CUdeviceptr_v2 address, bool pinned_too) {
  int type = 0;
  CUresult result =
      xsi_cu_call_real(cuPointerGetAttribute, &type, XSI_CU_POINTER_MEMORY_TYPE, address);
  return result == XSI_CU_INVALID_VALUE ||
         (pinned_too && result == XSI_CU_SUCCESS && type == XSI_CU_MEMORY_HOST);
}
bool xsi_cu_pageable(CUdeviceptr_v2 address) { return ask_pointer(address, false); }
bool xsi_cu_host(CUdeviceptr_v2 address) { return ask_pointer(address, true); }

bool xsi_cu_waits_side(const struct xsi_cu_side *to, bool synchronous) {
  if (to->type == XSI_CU_MEMORY_HOST) return synchronous || xsi_cu_pageable((uintptr_t)to->host);
  return to->type == XSI_CU_MEMORY_UNIFIED && ask_pointer(to->device, synchronous);
}

// The first few tell: a batch of copies goes one way, mostly.
enum { FEW = 4 };

bool xsi_cu_waits_list(const CUdeviceptr_v2 *to, size_t count) {
  for (size_t i = 0; to && i < count && i < FEW; i++)
    if (xsi_cu_pageable(to[i])) return true;
  return false;
}

_Static_assert(sizeof(CUDA_MEMCPY3D_BATCH_OP_v1) == 112, "as in test_prototypes.c");
_Static_assert(offsetof(CUDA_MEMCPY3D_BATCH_OP_v1, to.pointer) == 48, "as in test_prototypes.c");
bool xsi_cu_waits_operations(size_t count, const CUDA_MEMCPY3D_BATCH_OP_v1 *operations) {
  for (size_t i = 0; operations && i < count && i < FEW; i++)
    if (operations[i].to.type == XSI_CU_OPERAND_POINTER &&
        xsi_cu_pageable(operations[i].to.pointer))
      return true;
  return false;
}

bool xsi_cu_waits_batch(unsigned count, const CUstreamBatchMemOpParams_v1 *operations) {
  for (unsigned i = 0; operations && i < count && i < 256; i++)
    if (operations[i].operation == XSI_CU_OP_WAIT_32 ||
        operations[i].operation == XSI_CU_OP_WAIT_64)
      return true;
  return false;
}

static bool enter(void) { return xsi_cu_enter(); }
static bool enter_submit(void) { return xsi_cu_enter_submit(); }
static struct xsi_work_stream *work(uintptr_t stream) { return xsi_cu_work((CUstream)stream); }

const struct xsi_account xsi_cu_account = {
    .enter = enter,
    .enter_submit = enter_submit,
    .begin = xsi_cu_begin,
    .work = work, // without a context there is none, and nothing to account for
    .is_capturing = is_capturing,
    .still_capturing = is_capturing, // the driver keeps no last error
    .not_ready = XSI_CU_NOT_READY,
};
