/* SPDX-License-Identifier: Apache-2.0
 *
 * Prototypes of exported calls that other files of the stand-in use, and for the table of
 * cuGetProcAddress.
 */
#ifndef XSCHED_VIRTUAL_API_H
#define XSCHED_VIRTUAL_API_H

#include "standin.h"

VG_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context);
VG_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context);

#endif /* XSCHED_VIRTUAL_API_H */
