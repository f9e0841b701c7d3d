/* SPDX-License-Identifier: Apache-2.0
 *
 * The channels' rings in memory shared with the device, and their fences.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

static struct vg_channel *channel_of(CUcontext context, uint32_t channel) {
  return (void *)(context->control + VG_HEADER_BYTES + (size_t)channel * VG_CHANNEL_BYTES);
}

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t vg_done(CUcontext context, uint32_t channel) {
  return __atomic_load_n(&channel_of(context, channel)->done, __ATOMIC_ACQUIRE);
}

/* Checks for a device error or a dead device. Errors are sticky per context. */
CUresult vg_check(CUcontext context) {
  if (context->broken) return context->broken;
  for (uint32_t i = 0; i < context->channels; i++)
    if (__atomic_load_n(&channel_of(context, i)->error, __ATOMIC_RELAXED))
      return context->broken = CUDA_ERROR_ILLEGAL_ADDRESS;
  return CUDA_SUCCESS;
}

/* Releases the caller's lock while waiting. */
CUresult vg_wait(CUcontext context, uint32_t channel, uint64_t seq) {
  struct vg_channel *c = channel_of(context, channel);
  for (;;) {
    if (vg_done(context, channel) >= seq) return CUDA_SUCCESS;
    CUresult result = vg_check(context);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_unlock(&vg_lock);
    __atomic_fetch_add(&c->waiters, 1, __ATOMIC_SEQ_CST);
    uint32_t seen = __atomic_load_n(&c->done32, __ATOMIC_SEQ_CST);
    long slept = 0;
    if (__atomic_load_n(&c->done, __ATOMIC_SEQ_CST) < seq) {
      struct timespec limit = {0, 100000000};
      slept = syscall(SYS_futex, &c->done32, FUTEX_WAIT, seen, &limit, NULL, 0);
    }
    bool late = slept != 0 && errno == ETIMEDOUT;
    __atomic_fetch_sub(&c->waiters, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&vg_lock);
    if (context->magic != MAGIC_CONTEXT || !context->control)
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (late && vg_done(context, channel) < seq && !vg_rm_alive())
      return context->broken = CUDA_ERROR_UNKNOWN;
  }
}

/* Appends one entry to a channel. */
CUresult vg_append(CUcontext context, uint32_t channel, const struct vg_entry *entry) {
  CUresult result = vg_check(context);
  if (result != CUDA_SUCCESS) return result;
  while (context->put[channel] - vg_done(context, channel) >= VG_RING) {
    vg_kick(context);
    context->crowded++;
    result = vg_wait(context, channel, context->put[channel] - VG_RING + 1);
    context->crowded--;
    pthread_cond_broadcast(&vg_room);
    if (result != CUDA_SUCCESS) return result;
  }
  struct vg_channel *c = channel_of(context, channel);
  struct vg_entry *ring = (void *)((unsigned char *)c + VG_HEADER_BYTES);
  struct vg_entry *slot = &ring[context->put[channel] % VG_RING];
  *slot = *entry;
  slot->submit_ns = now_ns();
  context->put[channel]++;
  __atomic_store_n(&c->put, context->put[channel], __ATOMIC_RELEASE);
  return CUDA_SUCCESS;
}

void vg_kick(CUcontext context) {
  uint64_t one = 1;
  ssize_t written = write(context->doorbell, &one, sizeof one);
  (void)written; /* full: a notification is already pending */
}

/* The first channel is reserved for the legacy stream. */
uint32_t vg_pick_channel(CUcontext context, int *priority) {
  *priority = *priority > 0 ? 0 : *priority < -5 ? -5 : *priority;
  return 1 + (uint32_t)(context->stream_count++ % (VG_CHANNELS - 1));
}
