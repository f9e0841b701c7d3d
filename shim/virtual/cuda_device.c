/* SPDX-License-Identifier: Apache-2.0
 *
 * Device queries.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

VG_EXPORT CUresult cuDriverGetVersion(int *version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = VG_DRIVER_VERSION;
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuDeviceGetCount(int *count) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = vg_device_count();
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (vg_device_ordinal(ordinal) < 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

static CUresult find(CUdevice device, const void *out, int *ordinal) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *ordinal = vg_device_ordinal(device);
  return *ordinal < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

VG_EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
  int ordinal;
  CUresult result = find(device, name, &ordinal);
  if (result != CUDA_SUCCESS) return result;
  if (bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, (size_t)bytes, "XSched virtual GPU");
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuDeviceGetUuid(void *uuid, CUdevice device) {
  int ordinal;
  CUresult result = find(device, uuid, &ordinal);
  if (result != CUDA_SUCCESS) return result;
  memcpy(uuid, "XSched virtual\0", 15);
  ((unsigned char *)uuid)[15] = (unsigned char)(ordinal + 1);
  return CUDA_SUCCESS;
}
VG_EXPORT CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice device) {
  return cuDeviceGetUuid(uuid, device);
}

VG_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  int ordinal;
  CUresult result = find(device, bytes, &ordinal);
  uint64_t room, total;
  if (result == CUDA_SUCCESS) result = vg_rm_room((uint32_t)ordinal, &room, &total);
  if (result == CUDA_SUCCESS) *bytes = total;
  return result;
}
VG_EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  return cuDeviceTotalMem_v2(bytes, device);
}

VG_EXPORT CUresult cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device) {
  int ordinal;
  CUresult result = find(device, id, &ordinal);
  if (result != CUDA_SUCCESS) return result;
  if (bytes < 13) return CUDA_ERROR_INVALID_VALUE;
  snprintf(id, (size_t)bytes, "0000:%02X:00.0", (unsigned)(ordinal + 1) & 0xff);
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!device || !id) return CUDA_ERROR_INVALID_VALUE;
  const char *colon = strrchr(id, ':');
  if (!colon) return CUDA_ERROR_INVALID_VALUE;
  while (colon > id && colon[-1] != ':')
    colon--;
  long bus = strtol(colon, NULL, 16);
  for (int i = 0; i < vg_device_count(); i++) {
    if (vg_device_ordinal(i) + 1 != bus) continue;
    *device = i;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

/* From cuda.h: CUdevice_attribute. Others are 0, as for a missing feature. */
static int attribute_value(int attribute, int ordinal) {
  switch (attribute) {
  case 1: return 1024;       /* MAX_THREADS_PER_BLOCK */
  case 2: return 1024;       /* MAX_BLOCK_DIM_X */
  case 3: return 1024;       /* MAX_BLOCK_DIM_Y */
  case 4: return 64;         /* MAX_BLOCK_DIM_Z */
  case 5: return 2147483647; /* MAX_GRID_DIM_X */
  case 6:
  case 7: return 65535;        /* MAX_GRID_DIM_Y, Z */
  case 8: return 49152;        /* MAX_SHARED_MEMORY_PER_BLOCK */
  case 9: return 65536;        /* TOTAL_CONSTANT_MEMORY */
  case 10: return 32;          /* WARP_SIZE */
  case 12: return 65536;       /* MAX_REGISTERS_PER_BLOCK */
  case 13: return 1980000;     /* CLOCK_RATE */
  case 15: return 1;           /* GPU_OVERLAP */
  case 16: return 132;         /* MULTIPROCESSOR_COUNT */
  case 19: return 1;           /* CAN_MAP_HOST_MEMORY */
  case 31: return 1;           /* CONCURRENT_KERNELS */
  case 33: return ordinal + 1; /* PCI_BUS_ID */
  case 34: return 0;           /* PCI_DEVICE_ID */
  case 39: return 2048;        /* MAX_THREADS_PER_MULTIPROCESSOR */
  case 40: return 3;           /* ASYNC_ENGINE_COUNT */
  case 41: return 1;           /* UNIFIED_ADDRESSING */
  case 50: return 0;           /* PCI_DOMAIN_ID */
  case 75: return 9;           /* COMPUTE_CAPABILITY_MAJOR */
  case 76: return 0;           /* COMPUTE_CAPABILITY_MINOR */
  case 78: return 1;           /* STREAM_PRIORITIES_SUPPORTED */
  case 90: return 1;           /* COMPUTE_PREEMPTION_SUPPORTED */
  case 102: return 1;          /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
  case 115: return 1;          /* MEMORY_POOLS_SUPPORTED */
  default: return 0;
  }
}

VG_EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  int ordinal;
  CUresult result = find(device, value, &ordinal);
  if (result != CUDA_SUCCESS) return result;
  if (attribute <= 0 || attribute > 200) return CUDA_ERROR_INVALID_VALUE;
  *value = attribute_value(attribute, ordinal);
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  int ordinal;
  CUresult result = find(device, can, &ordinal);
  if (result == CUDA_SUCCESS) result = find(peer, can, &ordinal);
  if (result == CUDA_SUCCESS) *can = 0;
  return result;
}

VG_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  int ordinal;
  CUresult result = find(device, major, &ordinal);
  if (result != CUDA_SUCCESS) return result;
  if (!minor) return CUDA_ERROR_INVALID_VALUE;
  *major = 9;
  *minor = 0;
  return CUDA_SUCCESS;
}
