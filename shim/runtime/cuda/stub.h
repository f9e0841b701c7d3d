/* SPDX-License-Identifier: Apache-2.0
 *
 * Entry points that are not hooked, but must not be called while a batch is closed: entry_points.txt says which.
 */
#ifndef XSCHED_CUDA_STUB_H
#define XSCHED_CUDA_STUB_H

#include "library.h"

enum xsi_cu_stub_kind {
  XSI_CU_NO_STUB, /* hooked, or known to return at once */
  XSI_CU_OPENS,   /* may wait: batches are released first */
  XSI_CU_CODE,    /* the same, unless it is about a kernel that has been launched before */
  XSI_CU_UNLOADS, /* may wait; kernels that were launched count as new afterwards */
  XSI_CU_EVENTS,  /* may wait; graphs may record events from here on */
  XSI_CU_SHARES,  /* others may wait for this process's work: no batches from here on */
};

/* The kinds of slots, and of the names in xsi_known_cuda. */
extern const uint8_t xsi_cu_stub_kinds[XSI_CU_HOOKS], xsi_cu_known_kinds[];

#endif /* XSCHED_CUDA_STUB_H */
