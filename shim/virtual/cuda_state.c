/* SPDX-License-Identifier: Apache-2.0
 *
 * Initialisation, fork, per-thread state, and the application's numbering of devices.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

#define STACK_DEPTH 64

pthread_mutex_t vg_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t vg_room = PTHREAD_COND_INITIALIZER;

static bool initialised;
static bool forked; /* child of an initialised process: the driver is unusable */
static int visible[VG_MAX_DEVICES], visible_count;

static _Thread_local struct {
  CUcontext stack[STACK_DEPTH];
  int depth;
  int capture_mode;
  uint64_t id;
} thread;

static void before_fork(void) { pthread_mutex_lock(&vg_lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&vg_lock); }
static void after_fork_child(void) {
  if (initialised) forked = true;
  pthread_mutex_unlock(&vg_lock);
}

uint64_t vg_thread_id(void) {
  static uint64_t threads;
  if (!thread.id) thread.id = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
  return thread.id;
}

int *vg_thread_capture_mode(void) { return &thread.capture_mode; }

CUresult vg_ready(void) {
  return !__atomic_load_n(&initialised, __ATOMIC_ACQUIRE) || forked ? CUDA_ERROR_NOT_INITIALIZED
                                                                    : CUDA_SUCCESS;
}

CUcontext vg_current(void) { return thread.depth ? thread.stack[thread.depth - 1] : NULL; }

CUresult vg_enter(CUcontext *context) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  CUcontext current = vg_current();
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  pthread_mutex_lock(&vg_lock);
  while (current->magic == MAGIC_CONTEXT && current->crowded)
    pthread_cond_wait(&vg_room, &vg_lock);
  if (current->magic != MAGIC_CONTEXT) return vg_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
  *context = current;
  return CUDA_SUCCESS;
}

/* The GPU of a UUID as cuDeviceGetUuid returns it; -1: not one of ours. */
static int uuid_ordinal(const char *text, char **end) {
  static const char ours[] = "GPU-58536368-6564-2076-6972-7475616c";
  if (strncmp(text, ours, sizeof ours - 1) != 0 || strlen(text) < sizeof ours - 1 + 4) return -1;
  return (int)strtol(text + sizeof ours - 1, end, 16) - 1;
}

/* On hardware a container has the device files of the GPUs that its runtime added, and the others do
 * not exist for it. The runtime's variable stands for these files. A list without a UUID of ours is
 * for real GPUs, and does not count. */
static int read_present(int existing, int *present) {
  const char *list = getenv(vg_container_variable);
  int count = 0;
  for (char *end; list && *list; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL) {
    int n = uuid_ordinal(list, &end);
    if (n >= 0 && n < existing && count < VG_MAX_DEVICES) present[count++] = n;
  }
  if (count) return count;
  for (int i = 0; i < existing; i++)
    present[i] = i;
  return existing;
}

/* Narrows the devices by one variable: numbers or UUIDs, in the application's order. The first
 * invalid entry ends the list. */
static void read_visible(const char *variable) {
  const char *list = getenv(variable);
  if (!list) return;
  int before[VG_MAX_DEVICES], existing = visible_count;
  memcpy(before, visible, sizeof before);
  visible_count = 0;
  while (visible_count < existing) {
    char *end = (char *)list;
    int n = uuid_ordinal(list, &end);
    if (n < 0) {
      long number = strtol(list, &end, 10);
      if (end == list || number < 0 || number >= existing) return;
      n = before[number];
    }
    bool there = false;
    for (int i = 0; i < existing; i++)
      there |= before[i] == n;
    for (int i = 0; i < visible_count; i++)
      if (visible[i] == n) return;
    if (!there) return;
    visible[visible_count++] = n;
    if (*end != ',') return;
    list = end + 1;
  }
}

VG_EXPORT CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (forked) return CUDA_ERROR_NOT_INITIALIZED;
  pthread_mutex_lock(&vg_lock);
  if (initialised) return vg_leave(visible_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE);
  int status = vg_rm_open();
  if (status != 0) return vg_leave(CUDA_ERROR_NO_DEVICE);
  int existing = 0;
  while (existing < VG_MAX_DEVICES && vg_rm_device_exists((uint32_t)existing) == 1)
    existing++;
  visible_count = read_present(existing, visible);
  for (int i = 0; vg_visible_variables[i]; i++)
    read_visible(vg_visible_variables[i]);
  static bool watching;
  if (!watching) pthread_atfork(before_fork, after_fork_parent, after_fork_child);
  watching = true;
  __atomic_store_n(&initialised, true, __ATOMIC_RELEASE);
  return vg_leave(visible_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE);
}

int vg_device_count(void) { return visible_count; }

int vg_device_ordinal(CUdevice device) {
  return device >= 0 && device < visible_count ? visible[device] : -1;
}

VG_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!context || context->magic != MAGIC_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
  if (thread.depth == STACK_DEPTH) return CUDA_ERROR_UNKNOWN;
  thread.stack[thread.depth++] = context;
  return CUDA_SUCCESS;
}
VG_EXPORT CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }

VG_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!thread.depth) return CUDA_ERROR_INVALID_CONTEXT;
  CUcontext top = thread.stack[--thread.depth];
  if (context) *context = top;
  return CUDA_SUCCESS;
}
VG_EXPORT CUresult cuCtxPopCurrent(CUcontext *context) { return cuCtxPopCurrent_v2(context); }

VG_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!context) {
    if (thread.depth) thread.depth--;
    return CUDA_SUCCESS;
  }
  if (context->magic != MAGIC_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
  if (!thread.depth) thread.depth = 1;
  thread.stack[thread.depth - 1] = context;
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  *context = vg_current();
  return CUDA_SUCCESS;
}

VG_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!mode || *mode < CAPTURE_GLOBAL || *mode > CAPTURE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  int before = thread.capture_mode;
  thread.capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}
