/* SPDX-License-Identifier: Apache-2.0
 *
 * HIP streams as hardware queues. Works with and without HIP's own headers, which come first.
 */
#ifndef XSCHED_HIP_HAL_H
#define XSCHED_HIP_HAL_H

#include "xsched/xsched.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef HIP_INCLUDE_HIP_HIP_RUNTIME_API_H
typedef struct ihipStream_t *hipStream_t;
#endif
/* A stream of any device; NULL: the default stream of the current one. Destroy the queue first. */
XResult HipQueueCreate(HwQueueHandle *hwq, hipStream_t stream);
XResult HipQueueGet(HwQueueHandle *hwq, hipStream_t stream);

#ifdef __cplusplus
}
#endif

#endif /* XSCHED_HIP_HAL_H */
