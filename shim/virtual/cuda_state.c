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

/* vg_visible_variable: numbers or GPU-<uuid>, in the application's order. The first invalid entry
 * ends the list. */
static void read_visible(int existing) {
  const char *list = getenv(vg_visible_variable);
  visible_count = 0;
  if (!list) {
    for (; visible_count < existing; visible_count++)
      visible[visible_count] = visible_count;
    return;
  }
  while (visible_count < VG_MAX_DEVICES) {
    char *end;
    bool uuid = strncmp(list, "GPU-", 4) == 0;
    if (uuid && strlen(list) < strlen("GPU-") + 36) return;
    long n = uuid ? strtol(list + strlen("GPU-") + 34, &end, 16) - 1 : strtol(list, &end, 10);
    if (end == list || n < 0 || n >= existing) return;
    for (int i = 0; i < visible_count; i++)
      if (visible[i] == (int)n) return;
    visible[visible_count++] = (int)n;
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
  read_visible(existing);
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
