// SPDX-License-Identifier: Apache-2.0
//
// Functions of the null driver with results. Each thread counts for itself: a line that two threads write would
// hide the cost of the shim.

#include "null.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define NOT_FOUND 500
#define INVALID_VALUE 1

struct counts {
  uint64_t calls[XSI_CU_SLOTS];
  struct counts *next;
};
static struct counts *all; // never freed
static _Thread_local __attribute__((tls_model("initial-exec"))) struct counts *mine;
static _Thread_local CUcontext current;
static uintptr_t next_handle = 0x10000;

static struct counts *begin_counts(void) {
  struct counts *fresh = aligned_alloc(64, (sizeof *fresh + 63) / 64 * 64);
  if (!fresh) abort();
  memset(fresh, 0, sizeof *fresh);
  fresh->next = __atomic_load_n(&all, __ATOMIC_ACQUIRE);
  while (!__atomic_compare_exchange_n(&all, &fresh->next, fresh, false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE)) {
  }
  return mine = fresh;
}

CUresult xsn_called(unsigned slot) {
  uint64_t *count = &(mine ? mine : begin_counts())->calls[slot];
  __atomic_store_n(count, *count + 1, __ATOMIC_RELAXED);
  return 0;
}

static uint64_t sum(unsigned slot) {
  uint64_t total = 0;
  for (const struct counts *at = __atomic_load_n(&all, __ATOMIC_ACQUIRE); at; at = at->next)
    total += __atomic_load_n(&at->calls[slot], __ATOMIC_RELAXED);
  return total;
}

/* For tests: number of calls that reached a driver function. */
EXPORT uint64_t xsn_calls(const char *symbol);
uint64_t xsn_calls(const char *symbol) {
  for (unsigned i = 0; i < XSI_CU_SLOTS; i++)
    if (xsn_symbols[i].name && strcmp(xsn_symbols[i].name, symbol) == 0) return sum(i);
  return UINT64_MAX;
}

/* The function itself, even if dlsym is interposed. */
EXPORT void *xsn_plain(const char *symbol);
void *xsn_plain(const char *symbol) {
  for (unsigned i = 0; i < XSI_CU_SLOTS; i++)
    if (xsn_symbols[i].name && strcmp(xsn_symbols[i].name, symbol) == 0)
      return xsn_symbols[i].exported;
  return NULL;
}

static void *fresh(void) {
  return (void *)__atomic_fetch_add(&next_handle, 0x100, __ATOMIC_RELAXED);
}

// ---- not in the hook table ----------------------------------------------------------------------

EXPORT CUresult cuInit(unsigned flags);
CUresult cuInit(unsigned flags) {
  (void)flags;
  return 0;
}
EXPORT CUresult cuNewCall(void); // newer than any table
CUresult cuNewCall(void) { return 0; }
EXPORT CUresult cuDriverGetVersion(int *version);
CUresult cuDriverGetVersion(int *version) {
  *version = XSI_CU_NEWEST;
  return 0;
}
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return 0;
}
EXPORT CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetCount(int *count) {
  *count = 1;
  return 0;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return 0;
}

// ---- contexts ------------------------------------------------------------------------------------

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = current;
  return 0;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  current = context;
  return 0;
}
CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  *context = current;
  return 0;
}
CUresult cuCtxGetDevice(CUdevice_v1 *device) {
  *device = 0;
  return 0;
}
CUresult cuDeviceGetPCIBusId(char *name, int bytes, CUdevice_v1 device) {
  (void)device;
  /* No kernel driver lists this device, so it has no PCI address: XSW_NO_PCI_DOMAIN. */
  static const char address[] = "ffff0000:00:00.0";
  if (bytes < (int)sizeof address) return INVALID_VALUE;
  memcpy(name, address, sizeof address);
  return 0;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice_v1 device, unsigned *flags, int *active) {
  (void)device;
  *flags = 0;
  *active = 0;
  return xsn_called(XSI_CU_cuDevicePrimaryCtxGetState);
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice_v1 device) {
  *context = (CUcontext)(uintptr_t)(0x1000 + 0x100 * device);
  return xsn_called(XSI_CU_cuDevicePrimaryCtxRetain);
}
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice_v1 device) {
  (void)flags, (void)device;
  *context = current = fresh();
  return xsn_called(XSI_CU_cuCtxCreate_v2);
}

// ---- streams and events --------------------------------------------------------------------------

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  (void)flags;
  *stream = fresh();
  return xsn_called(XSI_CU_cuStreamCreate);
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
  (void)stream;
  *context = current;
  return 0;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  (void)stream;
  *status = 0;
  return 0;
}
CUresult cuEventCreate(CUevent *event, unsigned flags) {
  (void)flags;
  *event = fresh();
  return xsn_called(XSI_CU_cuEventCreate);
}

// ---- cuGetProcAddress ----------------------------------------------------------------------------

// Names outside the hook table get distinct addresses that are never called.
static void *stand_in(const char *name) {
  static char blob[1 << 16];
  uint32_t hash = 2166136261u;
  for (; *name; name++)
    hash = (hash ^ (unsigned char)*name) * 16777619u;
  return &blob[hash & 0xffff];
}

static void *address_of(const char *api, int version, cuuint64_t flags) {
  bool internal = getenv("XSN_INTERNAL") != NULL, thread = flags & 2, known = false;
  const struct xsn_symbol *best = NULL;
  for (unsigned i = 0; i < XSI_CU_SLOTS; i++) {
    const struct xsn_symbol *symbol = &xsn_symbols[i];
    if (!symbol->api || strcmp(symbol->api, api) != 0) continue;
    known = true;
    if (symbol->since > version || (symbol->thread && !thread)) continue;
    if (!best || symbol->since > best->since ||
        (symbol->since == best->since && symbol->thread > best->thread))
      best = symbol;
  }
  if (best) return internal ? best->internal : best->exported;
  return known ? NULL : stand_in(api);
}

CUresult cuGetProcAddress(const char *api, void **function, int version, cuuint64_t flags) {
  xsn_called(XSI_CU_cuGetProcAddress);
  *function = address_of(api, version, flags);
  return *function ? 0 : NOT_FOUND;
}

CUresult cuGetProcAddress_v2(const char *api, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  xsn_called(XSI_CU_cuGetProcAddress_v2);
  *function = address_of(api, version, flags);
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : NOT_FOUND;
}
