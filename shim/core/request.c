// SPDX-License-Identifier: Apache-2.0
//
// Requests that the program marks: when each began and ended, in a ring in the page. Nothing is
// sent and the daemon is rung only every half ring, so that a mark costs a lock and a few stores.

#include "request.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "clock.h"
#include "doorbell.h"
#include "page.h"

enum { OPEN_MAX = 1024, RING_EVERY = XSW_REQUEST_RING / 2 };

static XSI_FORK_STATE pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct open_request {
  uint64_t begin_ns; // 0: free
  uint32_t generation, name;
} open_requests[OPEN_MAX];
static uint32_t used;   // open_requests[0 .. used) were used at least once
static uint32_t search; // where the last free one was found
static char names[XSW_REQUEST_NAMES][XSW_REQUEST_NAME_BYTES];
static uint32_t name_count;
static XSI_FORK_STATE uint64_t begun, finished, untold; // since the page was joined

void xsi_request_lock(void) { pthread_mutex_lock(&lock); }
void xsi_request_unlock(void) { pthread_mutex_unlock(&lock); }

static struct xsw_requests *in_page(void) {
  return (struct xsw_requests *)(void *)(xsi_page + XSW_REQUESTS_OFFSET);
}

static void publish_name(uint32_t index) {
  memcpy(in_page()->names + index * XSW_REQUEST_NAME_BYTES, names[index], XSW_REQUEST_NAME_BYTES);
}

void xsi_request_publish(void) {
  begun = finished = untold = 0;
  for (uint32_t i = 0; i < name_count; i++)
    publish_name(i);
}

// Names that differ only beyond what fits are one.
static int find_name(const char *name) {
  char cut[XSW_REQUEST_NAME_BYTES] = "";
  memcpy(cut, name, strnlen(name, sizeof cut - 1));
  for (uint32_t i = 0; i < name_count; i++)
    if (memcmp(names[i], cut, sizeof cut) == 0) return (int)i;
  if (name_count == XSW_REQUEST_NAMES) return -ENOSPC;
  memcpy(names[name_count], cut, sizeof cut);
  publish_name(name_count);
  return (int)name_count++;
}

static int find_free(void) {
  for (uint32_t i = 0; i < OPEN_MAX; i++) {
    uint32_t at = (search + i) % OPEN_MAX;
    if (open_requests[at].begin_ns == 0) {
      search = at + 1;
      if (search > used) used = search;
      return (int)at;
    }
  }
  return -ENOSPC;
}

uint64_t xsi_request_begin(const char *name) {
  uint64_t request = 0, now = xsi_now_ns();
  xsi_request_lock();
  int known = find_name(name), free = known < 0 ? -ENOSPC : find_free();
  if (free >= 0) {
    struct open_request *open = &open_requests[free];
    open->begin_ns = now;
    open->name = (uint32_t)known;
    open->generation++;
    request = (uint64_t)open->generation << 32 | (uint32_t)(free + 1);
    __atomic_store_n(&in_page()->begun, ++begun, __ATOMIC_RELAXED);
  } else {
    __atomic_store_n(&in_page()->untold, ++untold, __ATOMIC_RELAXED);
  }
  xsi_request_unlock();
  return request;
}

static void note(const struct open_request *open, uint64_t now) {
  struct xsw_request *slot = &in_page()->ring[finished % XSW_REQUEST_RING];
  __atomic_store_n(&slot->sequence, 0, __ATOMIC_RELAXED);
  // Release: a reader that sees a new value also sees the 0.
  __atomic_store_n(&slot->begin_ns, open->begin_ns, __ATOMIC_RELEASE);
  __atomic_store_n(&slot->end_ns, now, __ATOMIC_RELEASE);
  __atomic_store_n(&slot->name, open->name, __ATOMIC_RELEASE);
  finished++;
  __atomic_store_n(&slot->sequence, finished, __ATOMIC_RELEASE);
  __atomic_store_n(&in_page()->finished, finished, __ATOMIC_RELEASE);
}

void xsi_request_end(uint64_t request) {
  uint32_t at = (uint32_t)request - 1;
  if (request == 0 || at >= OPEN_MAX) return;
  uint64_t now = xsi_now_ns();
  bool ring = false;
  xsi_request_lock();
  struct open_request *open = &open_requests[at];
  if (open->begin_ns != 0 && open->generation == request >> 32) {
    note(open, now);
    open->begin_ns = 0;
    ring = finished % RING_EVERY == 0;
  }
  xsi_request_unlock();
  if (ring) xsi_doorbell_ring();
}

// The parent's requests are not the child's; the names stay, they are the program's.
void xsi_request_reset(void) {
  for (uint32_t i = 0; i < used; i++)
    if (open_requests[i].begin_ns != 0) open_requests[i].begin_ns = 0;
  begun = finished = untold = 0;
}
