/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the CUDA driver's binary interface the shim touches. Names and values as in NVIDIA's
 * cuda.h, against which test_prototypes.c holds them. What is only passed on stays incomplete.
 */
#ifndef XSCHED_CUDA_ABI_H
#define XSCHED_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef int CUdevice_v1;
typedef unsigned CUdeviceptr_v1;
typedef unsigned long long CUdeviceptr_v2;
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef int CUstreamCaptureMode;
typedef int CUstreamCaptureStatus;
typedef int CUdriverProcAddressQueryResult;
typedef int CUdevice_attribute;
typedef int CUpointer_attribute;
typedef int CUmem_advise;
typedef int CUmem_range_attribute;
typedef int CUmemAllocationHandleType;
typedef int CUmemRangeHandleType;
typedef int CUgraphExecUpdateResult;
typedef cuuint32_t CUlogicalEndpointId;
typedef unsigned long long CUtexObject_v1;

typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUarray_st *CUarray;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUtexref_st *CUtexref;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef unsigned long long CUmemGenericAllocationHandle_v1;
typedef struct CUgraphicsResource_st *CUgraphicsResource;
typedef struct CUextSemaphore_st *CUexternalSemaphore;
typedef void (*CUhostFn)(void *);
typedef CUresult (*CUgraphRecaptureCallback)(void *, CUgraphNode, const void *, const void *, int);
typedef struct CUstreamCigCaptureParams CUstreamCigCaptureParams;
typedef void (*CUstreamCallback)(CUstream, CUresult, void *);

typedef struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_v1 CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_v1;
typedef struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_v1 CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS_v1;
typedef struct CUDA_MEMCPY2D_v1 CUDA_MEMCPY2D_v1;
typedef struct CUDA_MEMCPY3D_v1 CUDA_MEMCPY3D_v1;
typedef struct CUmemcpyAttributes_v1 CUmemcpyAttributes_v1;
typedef struct CUmemDecompressParams CUmemDecompressParams;
typedef struct CUgraphEdgeData CUgraphEdgeData;
typedef struct CUexecAffinityParam CUexecAffinityParam;
typedef struct CUctxCreateParams CUctxCreateParams;
typedef struct CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 CUDA_BATCH_MEM_OP_NODE_PARAMS_v1;
typedef struct CUDA_MEMSET_NODE_PARAMS_v1 CUDA_MEMSET_NODE_PARAMS_v1;
typedef struct CUDA_RESOURCE_DESC_v1 CUDA_RESOURCE_DESC_v1;
typedef struct CUDA_RESOURCE_VIEW_DESC_v1 CUDA_RESOURCE_VIEW_DESC_v1;
typedef struct CUDA_TEXTURE_DESC_v1 CUDA_TEXTURE_DESC_v1;
typedef struct CUgraphNodeParams CUgraphNodeParams;
typedef struct CUgraphExecUpdateResultInfo_v1 CUgraphExecUpdateResultInfo_v1;
typedef struct CUipcMemHandle_v1 {
  char bytes[64];
} CUipcMemHandle_v1;

/* One side of a copy: kind of memory, then its address. Longer; the strides follow. */
struct xsi_cu_side {
  int type;
  const void *host;
  CUdeviceptr_v2 device;
};
typedef struct CUDA_MEMCPY2D_v2 {
  size_t source_at[2];
  struct xsi_cu_side source;
  void *source_array;
  size_t source_pitch, to_at[2];
  struct xsi_cu_side to;
  void *to_array;
  size_t to_pitch, width, height;
} CUDA_MEMCPY2D_v2;
typedef struct CUDA_MEMCPY3D_v2 {
  size_t source_at[4];
  struct xsi_cu_side source;
  void *source_array, *source_context;
  size_t source_pitch, source_height, to_at[4];
  struct xsi_cu_side to;
} CUDA_MEMCPY3D_v2;
typedef CUDA_MEMCPY3D_v2 CUDA_MEMCPY3D_PEER_v1; /* with a context, which is reserved in the other */

/* Arrays of these are passed: the size matters. */
typedef struct CUDA_MEMCPY3D_BATCH_OP_v1 {
  struct {
    int type;
    CUdeviceptr_v2 pointer; /* or an array, and offsets */
    uint64_t pad[3];
  } source, to;
  uint64_t pad[4];
} CUDA_MEMCPY3D_BATCH_OP_v1;
typedef union CUstreamBatchMemOpParams_v1 {
  int operation;
  uint64_t pad[6];
} CUstreamBatchMemOpParams_v1;

/* Passed by value: its size and classes of registers matter. */
typedef struct CUmemLocation_v1 {
  int type;
  int id;
} CUmemLocation_v1;

typedef struct CUmemAllocationProp_v1 {
  int type, handle_types;
  CUmemLocation_v1 location;
  void *win32;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
} CUmemAllocationProp_v1;
typedef struct CUmemAccessDesc_v1 {
  CUmemLocation_v1 location;
  int flags;
} CUmemAccessDesc_v1;
/* Arrays of these are passed: the size matters. */
typedef struct CUarrayMapInfo_v1 {
  uint64_t pad[7]; /* what is mapped, and where in it */
  int operation, handle_type;
  CUmemGenericAllocationHandle_v1 handle;
  uint64_t more[3];
} CUarrayMapInfo_v1;

typedef struct CUDA_ARRAY_DESCRIPTOR_v2 {
  size_t Width, Height;
  int Format;
  unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v2;
typedef struct CUDA_ARRAY3D_DESCRIPTOR_v2 {
  size_t Width, Height, Depth;
  int Format;
  unsigned NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v2;

/* Up to the stream; longer in newer drivers. */
typedef struct CUlaunchAttribute {
  int id;
  union {
    uint64_t pad[8];
    int cooperative;
    CUevent event; /* of a programmatic or launch completion event */
  } value;
} CUlaunchAttribute;
typedef struct CUlaunchConfig {
  unsigned dimensions[7];
  CUstream hStream;
  CUlaunchAttribute *attrs;
  unsigned numAttrs;
} CUlaunchConfig;

/* An array of these is passed: the size matters. */
typedef struct CUDA_LAUNCH_PARAMS_v1 {
  CUfunction function;
  unsigned dimensions[7];
  CUstream hStream;
  void **kernelParams;
} CUDA_LAUNCH_PARAMS_v1;

#endif /* XSCHED_CUDA_ABI_H */
