// SPDX-License-Identifier: Apache-2.0
//
// Functions of the null runtime with results.

#include "null_hip.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOT_READY 600
#define NOT_FOUND 500
#define PER_THREAD 2
#define MOST_STREAMS 65536

static uint64_t calls[XSI_HIP_SLOTS];
static int answer;
static bool busy;
static _Thread_local int current;
static uintptr_t next_handle = 0x10000;
static unsigned char device_of_stream[MOST_STREAMS];

int xsn_called(unsigned slot) {
  __atomic_fetch_add(&calls[slot], 1, __ATOMIC_RELAXED);
  return __atomic_load_n(&answer, __ATOMIC_RELAXED);
}

static int slot_of(const char *symbol) {
  for (int i = 0; i < XSI_HIP_SLOTS; i++)
    if (strcmp(xsn_symbols[i].name, symbol) == 0) return i;
  return -1;
}

uint64_t xsn_calls(const char *symbol) {
  int slot = slot_of(symbol);
  return slot < 0 ? UINT64_MAX : __atomic_load_n(&calls[slot], __ATOMIC_RELAXED);
}
void xsn_answer(int code) { __atomic_store_n(&answer, code, __ATOMIC_RELAXED); }
void xsn_busy(bool now) { __atomic_store_n(&busy, now, __ATOMIC_RELAXED); }

// The function itself: our exported names may resolve to a preloaded library.
#ifdef XSN_STATIC
void *xsn_plain(const char *symbol) {
  int slot = slot_of(symbol);
  return slot < 0 ? NULL : xsn_symbols[slot].function;
}
#else
void *xsn_plain(const char *symbol) {
  Dl_info own;
  void *libc = dlopen("libc.so.6", RTLD_LAZY);
  void *(*ask)(void *, const char *) = (void *(*)(void *, const char *))dlsym(libc, "dlsym");
  if (!dladdr((void *)xsn_called, &own)) return NULL;
  void *found = ask(dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD), symbol);
  if (!found) dlerror();
  return found;
}
#endif

// ---- devices and streams ---------------------------------------------------------------------

hipError_t XSN_NAME(hipSetDevice)(int device) {
  int result = xsn_called(XSI_HIP_hipSetDevice);
  if (result == 0) current = device;
  return result;
}
hipError_t XSN_NAME(hipGetDevice)(int *device) {
  if (device) *device = current;
  return xsn_called(XSI_HIP_hipGetDevice);
}

// Like ROCm 5.2, does not validate its argument.
int XSN_NAME(hipGetStreamDeviceId)(hipStream_t stream) {
  __atomic_fetch_add(&calls[XSI_HIP_hipGetStreamDeviceId], 1, __ATOMIC_RELAXED);
  if (!stream) return current;
  uintptr_t index = ((uintptr_t)stream - 0x10000) / 0x100;
  if ((uintptr_t)stream < 0x10000 || index >= MOST_STREAMS) abort();
  return device_of_stream[index];
}
hipError_t XSN_NAME(hipDeviceGetPCIBusId)(char *name, int bytes, hipDevice_t device) {
  snprintf(name, (size_t)bytes, "0000:3b:01.%d", device == 0 ? 2 : device + 2);
  return xsn_called(XSI_HIP_hipDeviceGetPCIBusId);
}

static hipError_t create(unsigned slot, hipStream_t *stream) {
  int result = xsn_called(slot);
  if (result != 0 || !stream) return result;
  uintptr_t handle = __atomic_fetch_add(&next_handle, 0x100, __ATOMIC_RELAXED);
  device_of_stream[(handle - 0x10000) / 0x100 % MOST_STREAMS] = (unsigned char)current;
  *stream = (hipStream_t)handle;
  return 0;
}
hipError_t XSN_NAME(hipStreamCreate)(hipStream_t *stream) {
  return create(XSI_HIP_hipStreamCreate, stream);
}
hipError_t XSN_NAME(hipStreamCreateWithFlags)(hipStream_t *stream, unsigned flags) {
  (void)flags;
  return create(XSI_HIP_hipStreamCreateWithFlags, stream);
}
hipError_t XSN_NAME(hipStreamCreateWithPriority)(hipStream_t *stream, unsigned flags,
                                                 int priority) {
  (void)flags, (void)priority;
  return create(XSI_HIP_hipStreamCreateWithPriority, stream);
}
hipError_t XSN_NAME(hipExtStreamCreateWithCUMask)(hipStream_t *stream, uint32_t words,
                                                  const uint32_t *mask) {
  (void)words, (void)mask;
  return create(XSI_HIP_hipExtStreamCreateWithCUMask, stream);
}
hipError_t XSN_NAME(hipStreamQuery)(hipStream_t stream) {
  (void)stream;
  int result = xsn_called(XSI_HIP_hipStreamQuery);
  return result ? result : __atomic_load_n(&busy, __ATOMIC_RELAXED) ? NOT_READY : 0;
}
hipError_t XSN_NAME(hipEventQuery)(hipEvent_t event) {
  (void)event;
  int result = xsn_called(XSI_HIP_hipEventQuery);
  return result ? result : __atomic_load_n(&busy, __ATOMIC_RELAXED) ? NOT_READY : 0;
}
hipError_t XSN_NAME(hipEventCreateWithFlags)(hipEvent_t *event, unsigned flags) {
  (void)flags;
  if (event) *event = (hipEvent_t)__atomic_fetch_add(&next_handle, 0x100, __ATOMIC_RELAXED);
  return xsn_called(XSI_HIP_hipEventCreateWithFlags);
}
hipError_t XSN_NAME(hipStreamIsCapturing)(hipStream_t stream, hipStreamCaptureStatus *status) {
  (void)stream;
  if (status) *status = 0;
  __atomic_fetch_add(&calls[XSI_HIP_hipStreamIsCapturing], 1, __ATOMIC_RELAXED);
  return 0;
}

// ---- functions that call others by their exported names, as a runtime may ------------------------

#ifndef XSN_STATIC
hipError_t hipMemcpyDtoD(hipDeviceptr_t dst, hipDeviceptr_t src, size_t bytes) {
  xsn_called(XSI_HIP_hipMemcpyDtoD);
  int result = hipMemcpy(dst, src, bytes, 3);                         // in the middle
  return result ? result : hipMemcpyDtoDAsync(dst, src, bytes, NULL); // and by a jump at the end
}
#endif

// ---- lookup of entry points ----------------------------------------------------------------------

static hipError_t ask(const char *symbol, void **function, bool per_thread, int *status,
                      unsigned slot) {
  char spt[128];
  void *found = NULL;
  if (per_thread && snprintf(spt, sizeof spt, "%s_spt", symbol) < (int)sizeof spt)
    found = xsn_plain(spt);
  if (!found) found = xsn_plain(symbol);
  *function = found;
  if (status) *status = found ? 0 : 1;
  int result = xsn_called(slot);
  return result ? result : found ? 0 : NOT_FOUND;
}
hipError_t XSN_NAME(hipGetProcAddress)(const char *symbol, void **function, int version,
                                       uint64_t flags, hipDriverProcAddressQueryResult *status) {
  (void)version;
  return ask(symbol, function, flags & PER_THREAD, status, XSI_HIP_hipGetProcAddress);
}
hipError_t XSN_NAME(hipGetProcAddress_spt)(const char *symbol, void **function, int version,
                                           uint64_t flags,
                                           hipDriverProcAddressQueryResult *status) {
  (void)version, (void)flags;
  return ask(symbol, function, true, status, XSI_HIP_hipGetProcAddress_spt);
}
hipError_t XSN_NAME(hipGetDriverEntryPoint)(const char *symbol, void **function,
                                            unsigned long long flags,
                                            hipDriverEntryPointQueryResult *status) {
  return ask(symbol, function, flags & PER_THREAD, status, XSI_HIP_hipGetDriverEntryPoint);
}
hipError_t XSN_NAME(hipGetDriverEntryPoint_spt)(const char *symbol, void **function,
                                                unsigned long long flags,
                                                hipDriverEntryPointQueryResult *status) {
  (void)flags;
  return ask(symbol, function, true, status, XSI_HIP_hipGetDriverEntryPoint_spt);
}
