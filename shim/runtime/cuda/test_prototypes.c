/* SPDX-License-Identifier: Apache-2.0
 *
 * Declares every call of hooks.table after NVIDIA's cuda.h has declared it: a difference is a
 * compile error. Compiled by `hookgen -check path/to/cuda.h` only; part of no library. */

/* Also the older versions of each function. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stddef.h>

#if CUDA_VERSION < 13020
typedef struct CUstreamCigCaptureParams CUstreamCigCaptureParams;
#endif
#if CUDA_VERSION < 13030
typedef cuuint32_t CUlogicalEndpointId;
typedef int (*CUgraphRecaptureCallback)(void *, CUgraphNode, const void *, const void *, int);
#endif

#define XSI_CU_EXPORT
#include "hooks_gen.h"

#include "constants.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is " #theirs)
SAME(XSI_CU_SUCCESS, CUDA_SUCCESS);
SAME(XSI_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(XSI_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(XSI_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(XSI_CU_FORMAT_U16, CU_AD_FORMAT_UNSIGNED_INT16);
SAME(XSI_CU_FORMAT_U32, CU_AD_FORMAT_UNSIGNED_INT32);
SAME(XSI_CU_FORMAT_S16, CU_AD_FORMAT_SIGNED_INT16);
SAME(XSI_CU_FORMAT_S32, CU_AD_FORMAT_SIGNED_INT32);
SAME(XSI_CU_FORMAT_HALF, CU_AD_FORMAT_HALF);
SAME(XSI_CU_FORMAT_FLOAT, CU_AD_FORMAT_FLOAT);
SAME(XSI_CU_POINTER_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME(XSI_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(XSI_CU_POINTER_P2P_TOKENS, CU_POINTER_ATTRIBUTE_P2P_TOKENS);
SAME(XSI_CU_POINTER_SYNC_MEMOPS, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
SAME(XSI_CU_POINTER_BUFFER_ID, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME(XSI_CU_POINTER_LEGACY_IPC, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(XSI_CU_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(XSI_CU_POINTER_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(XSI_CU_POINTER_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
SAME(XSI_CU_POINTER_MAPPING_SIZE, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
SAME(XSI_CU_POINTER_MAPPING_BASE, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
SAME(XSI_CU_POINTER_BLOCK_ID, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID);
SAME(XSI_CU_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(XSI_CU_HANDLE_POSIX, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(XSI_CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME(XSI_CU_ACCESS_BOTH, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(XSI_CU_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(XSI_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(XSI_CU_DEVICE_RDMA_MAPPED, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(XSI_CU_DEVICE_POSIX_HANDLES, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(XSI_CU_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(XSI_CU_MEMORY_UNIFIED, CU_MEMORYTYPE_UNIFIED);
SAME(XSI_CU_OPERAND_POINTER, CU_MEMCPY_OPERAND_TYPE_POINTER);
SAME(XSI_CU_OP_WAIT_32, CU_STREAM_MEM_OP_WAIT_VALUE_32);
SAME(XSI_CU_OP_WAIT_64, CU_STREAM_MEM_OP_WAIT_VALUE_64);
SAME(XSI_CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(XSI_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(XSI_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(XSI_CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(XSI_CU_CONTEXT_IS_DESTROYED, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(XSI_CU_CAPTURE_FIRST, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(XSI_CU_CAPTURE_LAST, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME(XSI_CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(XSI_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(XSI_CU_EVENT_FLAGS, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
SAME(XSI_CU_RECORD_EXTERNAL, CU_EVENT_RECORD_EXTERNAL);
SAME(XSI_CU_ATTRIBUTE_COOPERATIVE, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME(XSI_CU_ATTRIBUTE_PROGRAMMATIC_EVENT, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
SAME(XSI_CU_ATTRIBUTE_COMPLETION_EVENT, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
SAME(XSI_CU_PROC_PER_THREAD, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);

/* The layouts of abi.h: offsets as that header gives them. */
_Static_assert(offsetof(CUlaunchConfig, hStream) == 32, "stream of a launch configuration");
_Static_assert(offsetof(CUlaunchConfig, attrs) == 40 && offsetof(CUlaunchConfig, numAttrs) == 48,
               "attributes of a launch configuration");
_Static_assert(sizeof(CUlaunchAttribute) == 72 && offsetof(CUlaunchAttribute, id) == 0 &&
                   offsetof(CUlaunchAttribute, value) == 8,
               "attributes are an array");
_Static_assert(offsetof(CUlaunchAttributeValue, cooperative) == 0 &&
                   offsetof(CUlaunchAttributeValue, programmaticEvent.event) == 0 &&
                   offsetof(CUlaunchAttributeValue, launchCompletionEvent.event) == 0,
               "values of attributes");
_Static_assert(sizeof(CUDA_LAUNCH_PARAMS_v1) == 56, "size of launch parameters");
_Static_assert(offsetof(CUDA_LAUNCH_PARAMS_v1, hStream) == 40, "stream of launch parameters");
_Static_assert(sizeof(CUmemLocation_v1) == 8, "memory location");
_Static_assert(sizeof(CUmemAllocationProp_v1) == 32 &&
                   offsetof(CUmemAllocationProp_v1, location) == 8 &&
                   offsetof(CUmemAllocationProp_v1, allocFlags.gpuDirectRDMACapable) == 25,
               "properties of memory");
_Static_assert(sizeof(CUmemAccessDesc_v1) == 12, "access to memory");
_Static_assert(sizeof(CUarrayMapInfo_v1) == 96 && offsetof(CUarrayMapInfo_v1, memHandle) == 64,
               "mapping of an array");
_Static_assert(sizeof(CUipcMemHandle_v1) == 64, "handle for another process");
_Static_assert(offsetof(CUDA_ARRAY_DESCRIPTOR_v2, NumChannels) == 20, "array");
_Static_assert(offsetof(CUDA_ARRAY3D_DESCRIPTOR_v2, NumChannels) == 28, "array in 3D");
_Static_assert(sizeof(CUmemGenericAllocationHandle_v1) == 8, "handle of memory");
_Static_assert(offsetof(CUDA_MEMCPY2D_v2, dstMemoryType) == 72, "side of a copy in 2D");
_Static_assert(offsetof(CUDA_MEMCPY2D_v2, dstHost) == 80, "side of a copy in 2D");
_Static_assert(offsetof(CUDA_MEMCPY2D_v2, dstDevice) == 88, "side of a copy in 2D");
_Static_assert(offsetof(CUDA_MEMCPY3D_v2, dstMemoryType) == 120, "side of a copy in 3D");
_Static_assert(offsetof(CUDA_MEMCPY3D_v2, dstHost) == 128, "side of a copy in 3D");
_Static_assert(offsetof(CUDA_MEMCPY3D_v2, dstDevice) == 136, "side of a copy in 3D");
_Static_assert(offsetof(CUDA_MEMCPY3D_PEER_v1, dstMemoryType) == 120, "side of a copy in 3D");
_Static_assert(offsetof(CUDA_MEMCPY3D_PEER_v1, dstHost) == 128, "side of a copy in 3D");
_Static_assert(sizeof(CUDA_MEMCPY3D_BATCH_OP_v1) == 112, "size of a copy in a batch");
_Static_assert(offsetof(CUDA_MEMCPY3D_BATCH_OP_v1, dst.type) == 40, "side of a copy in a batch");
_Static_assert(offsetof(CUDA_MEMCPY3D_BATCH_OP_v1, dst.op.ptr.ptr) == 48,
               "side of a copy in a batch");
_Static_assert(sizeof(CUstreamBatchMemOpParams_v1) == 48, "size of a memory operation");
_Static_assert(offsetof(CUstreamBatchMemOpParams_v1, operation) == 0, "memory operation");
_Static_assert(sizeof(CUdeviceptr_v1) == 4 && sizeof(CUdeviceptr_v2) == 8, "device pointers");
_Static_assert(sizeof(CUresult) == sizeof(int) && sizeof(CUstreamCaptureMode) == sizeof(int),
               "enums");
_Static_assert((size_t)CU_STREAM_LEGACY == 1 && (size_t)CU_STREAM_PER_THREAD == 2,
               "default streams");
