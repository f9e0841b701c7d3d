// SPDX-License-Identifier: Apache-2.0
//
// The streams a program has made and the devices they are on: that of the thread that made them,
// whatever device is current where they are used.

#include "account.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 256

struct entry {
  hipStream_t stream;
  int device;
  struct entry *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *buckets[BUCKETS];

static struct entry **find(hipStream_t stream) {
  struct entry **at = &buckets[((uintptr_t)stream * 0x9E3779B97F4A7C15u) >> 56];
  while (*at && (*at)->stream != stream)
    at = &(*at)->next;
  return at;
}

static void remember(hipStream_t stream, int device) {
  pthread_mutex_lock(&lock);
  struct entry **at = find(stream);
  if (!*at && (*at = malloc(sizeof **at))) { // without memory it runs unscheduled
    (*at)->stream = stream;
    (*at)->next = NULL;
  }
  if (*at) (*at)->device = device;
  pthread_mutex_unlock(&lock);
}

static void forget(hipStream_t stream) {
  pthread_mutex_lock(&lock);
  struct entry **at = find(stream), *entry = *at;
  if (entry) *at = entry->next;
  pthread_mutex_unlock(&lock);
  free(entry);
}

int xsi_hip_stream_device(hipStream_t stream) {
  pthread_mutex_lock(&lock);
  struct entry *entry = *find(stream);
  int device = entry ? entry->device : -1;
  pthread_mutex_unlock(&lock);
  return device;
}

void xsi_hip_streams_forget(int device) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < BUCKETS; i++)
    for (struct entry **at = &buckets[i]; *at;) {
      struct entry *entry = *at;
      if (entry->device != device) {
        at = &entry->next;
        continue;
      }
      *at = entry->next;
      free(entry);
    }
  pthread_mutex_unlock(&lock);
}

// Another thread may have been in here: its entries are left to themselves.
void xsi_hip_streams_reset(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  xsi_clear_used(buckets, sizeof buckets);
}

void xsi_hip_stream_adopt(hipStream_t stream) {
  int device = xsi_hip_call_real(hipGetStreamDeviceId, stream);
  xsi_work_stream_created((uintptr_t)stream);
  if (device >= 0 && device < XSI_HIP_DEVICES) remember(stream, device);
}

hipError_t xsi_hip_stream_created(hipError_t result, hipStream_t *stream) {
  if (!xsi_hip_enter() || result != XSI_HIP_SUCCESS || !stream || !*stream) return result;
  int saved_errno = errno;
  xsi_hip_stream_adopt(*stream);
  errno = saved_errno;
  return result;
}

void xsi_hip_stream_destroying(hipStream_t stream) {
  if (!xsi_hip_enter() || (uintptr_t)stream <= XSI_WORK_THREAD) return;
  int saved_errno = errno;
  xsi_work_stream_destroying((uintptr_t)stream);
  forget(stream);
  errno = saved_errno;
}
