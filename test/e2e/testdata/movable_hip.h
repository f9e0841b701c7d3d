/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of movable.c in HIP. A context is a device.
 */
int hipInit(unsigned);
int hipSetDevice(int);
int hipModuleLoadData(handle *, const void *);
int hipModuleGetFunction(handle *, handle, const char *);
int hipStreamCreateWithFlags(handle *, unsigned);
int hipStreamSynchronize(handle);
int hipStreamBeginCapture(handle, int);
int hipStreamEndCapture(handle, handle *);
int hipGraphInstantiateWithFlags(handle *, handle, unsigned long long);
int hipGraphLaunch(handle, handle);
int hipModuleLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, handle, void **, void **);
int hipMalloc(address *, size_t);
int hipFree(address);
int hipHostMalloc(void **, size_t, unsigned);
int hipMemsetD32Async(address, int, size_t, handle);
int hipMemcpyDtoH(void *, address, size_t);
int hipMemcpyDtoHAsync(void *, address, size_t, handle);
int hipMemcpyHtoDAsync(address, const void *, size_t, handle);
int hipMemcpyDtoDAsync(address, address, size_t, handle);

static int device_context(handle *context, int device) {
  *context = (handle)(uintptr_t)(device + 1);
  return 0;
}

#define cuInit hipInit
#define cuDevicePrimaryCtxRetain device_context
#define cuCtxCreate_v2(context, flags, device) device_context(context, device)
#define cuCtxSetCurrent(context) hipSetDevice((int)(uintptr_t)(context)-1)
#define cuModuleLoadData hipModuleLoadData
#define cuModuleGetFunction hipModuleGetFunction
#define cuStreamCreate hipStreamCreateWithFlags
#define cuStreamSynchronize hipStreamSynchronize
#define cuStreamBeginCapture_v2 hipStreamBeginCapture
#define cuStreamEndCapture hipStreamEndCapture
#define cuGraphInstantiateWithFlags hipGraphInstantiateWithFlags
#define cuGraphLaunch hipGraphLaunch
#define cuLaunchKernel hipModuleLaunchKernel
#define cuMemAlloc_v2 hipMalloc
#define cuMemFree_v2 hipFree
#define cuMemHostAlloc hipHostMalloc
#define cuMemsetD32Async(to, value, count, stream)                                                 \
  hipMemsetD32Async(to, (int)(value), count, stream)
#define cuMemcpyDtoH_v2 hipMemcpyDtoH
#define cuMemcpyDtoHAsync_v2 hipMemcpyDtoHAsync
#define cuMemcpyHtoDAsync_v2 hipMemcpyHtoDAsync
#define cuMemcpyDtoDAsync_v2 hipMemcpyDtoDAsync
