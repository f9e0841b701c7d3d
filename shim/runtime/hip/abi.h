/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of HIP's binary interface the shim touches. Names and values as in AMD's
 * hip_runtime_api.h, against which test_prototypes.c holds them. What is only passed on stays
 * incomplete.
 */
#ifndef XSCHED_HIP_ABI_H
#define XSCHED_HIP_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int hipError_t;
typedef int hipDevice_t;
typedef int hipMemcpyKind;
typedef int hipPointer_attribute;
typedef int hipStreamCaptureMode;
typedef int hipStreamCaptureStatus;
typedef int hipDriverProcAddressQueryResult;
typedef int hipDriverEntryPointQueryResult;
typedef void *hipDeviceptr_t;
typedef void *hipExternalSemaphore_t;

typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;
typedef struct ihipModule_t *hipModule_t;
typedef struct ihipModuleSymbol_t *hipFunction_t;
typedef struct ihipGraph *hipGraph_t;
typedef struct hipGraphNode *hipGraphNode_t;
typedef struct hipGraphExec *hipGraphExec_t;
typedef struct hipArray *hipArray_t;
typedef const struct hipArray *hipArray_const_t;
typedef struct ihipMemPoolHandle_t *hipMemPool_t;
typedef struct ihipMemGenericAllocationHandle *hipMemGenericAllocationHandle_t;
typedef void (*hipHostFn_t)(void *);
typedef void (*hipStreamCallback_t)(hipStream_t, hipError_t, void *);

struct hipMemcpy3DParms;
struct hipMemcpy3DBatchOp;
typedef struct hip_Memcpy2D hip_Memcpy2D;
typedef struct HIP_MEMCPY3D HIP_MEMCPY3D;
typedef struct hipMemcpy3DPeerParms hipMemcpy3DPeerParms;
typedef struct hipMemcpyAttributes hipMemcpyAttributes;
typedef struct hipArrayMapInfo hipArrayMapInfo;
typedef struct hipMemAllocationProp hipMemAllocationProp;
typedef struct hipPointerAttribute_t hipPointerAttribute_t;
typedef struct hipIpcMemHandle_st hipIpcMemHandle_t;
typedef struct hipGraphEdgeData hipGraphEdgeData;
typedef struct hipGraphNodeParams hipGraphNodeParams;
typedef struct hipExternalSemaphoreSignalParams hipExternalSemaphoreSignalParams;
typedef struct hipExternalSemaphoreWaitParams hipExternalSemaphoreWaitParams;

/* Passed by value: their sizes and classes of registers matter. */
typedef struct dim3 {
  uint32_t x, y, z;
} dim3;
typedef struct hipPitchedPtr {
  void *ptr;
  size_t pitch, xsize, ysize;
} hipPitchedPtr;
typedef struct hipExtent {
  size_t width, height, depth;
} hipExtent;
typedef struct hipMemLocation {
  int type, id;
} hipMemLocation;

typedef struct hipMemAccessDesc {
  hipMemLocation location;
  int flags;
} hipMemAccessDesc;

/* hipMemAllocationProp as it is from HIP 6 on. */
struct xsi_hip_properties {
  int type, handle_types;
  hipMemLocation location;
  void *win32;
  unsigned char flags[8];
};

/* Up to the stream, which is at the same place in both. */
typedef struct hipLaunchConfig_t {
  dim3 grid, block;
  size_t dynamicSmemBytes;
  hipStream_t stream;
} hipLaunchConfig_t;
typedef struct HIP_LAUNCH_CONFIG {
  unsigned dimensions[7];
  hipStream_t hStream;
} HIP_LAUNCH_CONFIG;

/* Arrays of these are passed: the sizes matter. */
typedef struct hipLaunchParams {
  void *func;
  dim3 gridDim, blockDim;
  void **args;
  size_t sharedMem;
  hipStream_t stream;
} hipLaunchParams;
typedef struct hipFunctionLaunchParams {
  hipFunction_t function;
  unsigned dimensions[7];
  hipStream_t hStream;
  void **kernelParams;
} hipFunctionLaunchParams;
typedef union hipStreamBatchMemOpParams {
  int operation;
  uint64_t pad[6];
} hipStreamBatchMemOpParams;

#endif /* XSCHED_HIP_ABI_H */
