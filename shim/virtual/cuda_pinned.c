/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered host memory. Its pages become a second view of memory that the device shares, so that copies need no
 * staging. They are the program's own again when it unregisters them, or when the context goes.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "standin.h"

#define PAGE 4096u
#define STEP (1u << 20)
enum { ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 }; /* from cuda.h */

struct pinned {
  uintptr_t page, bytes;
  CUcontext context;
  uint64_t block, offset; /* of the memory and of the view in it */
  struct pinned *next;
};

static struct pinned *all; /* under vg_lock */

static struct pinned **find(uintptr_t address, uint64_t bytes) {
  struct pinned **at = &all;
  while (*at && !(address < (*at)->page + (*at)->bytes && (*at)->page < address + bytes))
    at = &(*at)->next;
  return at;
}

bool vg_pinned(CUcontext context, uintptr_t address, uint64_t bytes, uint64_t *offset) {
  struct pinned *p = *find(address, 1);
  if (!p || p->context != context || bytes > p->bytes - (address - p->page)) return false;
  *offset = p->offset + (address - p->page);
  return true;
}

/* Replaces the view by memory of the program with the same content. */
static bool private_again(struct pinned *p) {
  void *own = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) return false;
  memcpy(own, (void *)p->page, p->bytes);
  return mremap(own, p->bytes, p->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)p->page) !=
         MAP_FAILED;
}

void vg_pinned_destroy(CUcontext context) {
  for (struct pinned **at = &all; *at;) {
    struct pinned *p = *at;
    if (p->context != context) {
      at = &p->next;
      continue;
    }
    (void)private_again(p);
    *at = p->next;
    free(p);
  }
}

/* Other calls proceed between two steps, as they do on hardware. */
static CUresult fill(CUcontext context, const struct pinned *p) {
  const struct timespec pause = {.tv_nsec = 1000};
  for (uintptr_t at = 0; at < p->bytes; at += STEP) {
    if (at > 0) {
      pthread_mutex_unlock(&vg_lock);
      nanosleep(&pause, NULL);
      pthread_mutex_lock(&vg_lock);
      if (context->magic != MAGIC_CONTEXT) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    uintptr_t left = p->bytes - at;
    memcpy(context->vram + p->offset + at, (unsigned char *)p->page + at,
           left < STEP ? left : STEP);
  }
  return CUDA_SUCCESS;
}

static CUresult share(CUcontext context, struct pinned *p) {
  CUresult result = vg_heap_take(context, p->bytes + PAGE, true, &p->block);
  if (result != CUDA_SUCCESS) return result;
  p->offset = (p->block + PAGE - 1) / PAGE * PAGE;
  result = fill(context, p);
  if (result != CUDA_SUCCESS) return result; /* its memory went with the context */
  unsigned char *view = context->vram + p->offset;
  if (mremap(view, 0, p->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)p->page) != MAP_FAILED)
    return CUDA_SUCCESS;
  (void)vg_heap_give(context, p->block);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

VG_EXPORT CUresult cuMemHostRegister_v2(void *page, size_t bytes, unsigned int flags) {
  (void)flags;
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!page || bytes == 0 || (uintptr_t)page % PAGE != 0 || bytes % PAGE != 0)
    return vg_leave(CUDA_ERROR_INVALID_VALUE);
  if (*find((uintptr_t)page, bytes)) return vg_leave((CUresult)ALREADY_REGISTERED);
  pthread_mutex_unlock(
      &vg_lock); /* pinning takes long, and other calls of the driver proceed meanwhile */
  result = vg_rm_step(context, VG_MEMORY_PIN, bytes);
  struct pinned *p = calloc(1, sizeof *p);
  pthread_mutex_lock(&vg_lock);
  if (result == CUDA_SUCCESS && context->magic != MAGIC_CONTEXT)
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (result == CUDA_SUCCESS && !p) result = CUDA_ERROR_OUT_OF_MEMORY;
  if (p) *p = (struct pinned){.page = (uintptr_t)page, .bytes = bytes, .context = context};
  if (result == CUDA_SUCCESS) result = share(context, p);
  if (result != CUDA_SUCCESS) {
    free(p);
    return vg_leave(result == CUDA_ERROR_UNKNOWN ? CUDA_ERROR_OUT_OF_MEMORY : result);
  }
  p->next = all;
  all = p;
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuMemHostUnregister(void *page) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  struct pinned *p = *find((uintptr_t)page, 1);
  if (!p || p->page != (uintptr_t)page) return vg_leave((CUresult)NOT_REGISTERED);
  result = vg_wait_all(p->context);
  struct pinned **at = find((uintptr_t)page, 1);
  if (result == CUDA_SUCCESS && *at != p) result = (CUresult)NOT_REGISTERED;
  if (result == CUDA_SUCCESS && !private_again(p)) result = CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) return vg_leave(result);
  (void)vg_heap_give(p->context, p->block);
  *at = p->next;
  free(p);
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host,
                                                unsigned int flags) {
  if (!address || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *address = (uintptr_t)host; /* of pinned memory */
  pthread_mutex_lock(&vg_lock);
  struct pinned *p = *find((uintptr_t)host, 1);
  if (p) *address = (uintptr_t)p->context->vram + p->offset + ((uintptr_t)host - p->page);
  return vg_leave(CUDA_SUCCESS);
}
