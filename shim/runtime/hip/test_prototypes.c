/* SPDX-License-Identifier: Apache-2.0
 *
 * Declares every call of hooks.table after AMD's hip_runtime_api.h has declared it: a difference is
 * a compile error. Compiled by `hookgen -check path/to/hip/hip_runtime_api.h` only; part of no
 * library. What the header is too old for is declared by ours alone. */

#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <stddef.h>

#if HIP_VERSION_MAJOR < 6
typedef int hipDriverProcAddressQueryResult;
typedef struct hipGraphEdgeData hipGraphEdgeData;
typedef struct hipGraphNodeParams hipGraphNodeParams;
typedef struct hipFunctionLaunchParams hipFunctionLaunchParams;
#endif
#if HIP_VERSION_MAJOR < 7
typedef struct hipLaunchConfig_t hipLaunchConfig_t;
typedef struct HIP_LAUNCH_CONFIG HIP_LAUNCH_CONFIG;
typedef struct hipStreamBatchMemOpParams hipStreamBatchMemOpParams;
typedef struct hipMemcpy3DPeerParms hipMemcpy3DPeerParms;
typedef struct hipMemcpyAttributes hipMemcpyAttributes;
typedef int hipDriverEntryPointQueryResult;
struct hipMemcpy3DBatchOp;
#endif

#define XSI_HIP_EXPORT
#include "hooks_gen.h"

#include "constants.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is " #theirs)
SAME(XSI_HIP_SUCCESS, hipSuccess);
SAME(XSI_HIP_INVALID_VALUE, hipErrorInvalidValue);
SAME(XSI_HIP_OUT_OF_MEMORY, hipErrorOutOfMemory);
SAME(XSI_HIP_NOT_FOUND, hipErrorNotFound);
SAME(XSI_HIP_NOT_READY, hipErrorNotReady);
SAME(XSI_HIP_CAPTURE_FIRST, hipErrorStreamCaptureUnsupported);
SAME(XSI_HIP_CAPTURE_LAST, hipErrorStreamCaptureWrongThread);
SAME(XSI_HIP_CAPTURE_NONE, hipStreamCaptureStatusNone);
SAME(XSI_HIP_CAPTURE_RELAXED, hipStreamCaptureModeRelaxed);
SAME(XSI_HIP_EVENT_FLAGS, hipEventBlockingSync | hipEventDisableTiming);
SAME(XSI_HIP_HOST_TO_DEVICE, hipMemcpyHostToDevice);
SAME(XSI_HIP_DEVICE_TO_HOST, hipMemcpyDeviceToHost);
SAME(XSI_HIP_PINNED, hipMemAllocationTypePinned);
SAME(XSI_HIP_LOCATION_DEVICE, hipMemLocationTypeDevice);
SAME(XSI_HIP_ACCESS_BOTH, hipMemAccessFlagsProtReadWrite);
SAME(XSI_HIP_PORTABLE, hipHostRegisterPortable);
SAME(XSI_HIP_NON_BLOCKING, hipStreamNonBlocking);
SAME(XSI_HIP_POINTER_RANGE_START, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(XSI_HIP_POINTER_RANGE_SIZE, HIP_POINTER_ATTRIBUTE_RANGE_SIZE);
#if HIP_VERSION_MAJOR >= 6
_Static_assert(offsetof(hipMemAllocationProp, type) == 0 &&
                   offsetof(hipMemAllocationProp, location) == 8 &&
                   sizeof(hipMemAllocationProp) == 32,
               "where memory shall be");
#endif
#if HIP_VERSION_MAJOR >= 7
SAME(XSI_HIP_RECORD_EXTERNAL, hipEventRecordExternal);
SAME(XSI_HIP_OP_WAIT_32, hipStreamMemOpWaitValue32);
SAME(XSI_HIP_OP_WAIT_64, hipStreamMemOpWaitValue64);
_Static_assert(sizeof(hipStreamBatchMemOpParams) == 48, "operations on values");
#endif

/* The layouts of abi.h: offsets as that header gives them. */
_Static_assert(sizeof(hipLaunchParams) == 56, "size of launch parameters");
_Static_assert(offsetof(hipLaunchParams, stream) == 48, "stream of launch parameters");
_Static_assert(sizeof(dim3) == 12 && sizeof(hipExtent) == 24 && sizeof(hipPitchedPtr) == 32,
               "passed by value");
_Static_assert(sizeof(hipMemLocation) == 8 && sizeof(hipMemAccessDesc) == 12 &&
                   offsetof(hipMemAccessDesc, flags) == 8,
               "memory location");
_Static_assert(sizeof(hipError_t) == sizeof(int) && sizeof(hipStreamCaptureMode) == sizeof(int) &&
                   sizeof(hipMemcpyKind) == sizeof(int),
               "enums");
_Static_assert((size_t)hipStreamPerThread == 2, "the thread's default stream");
