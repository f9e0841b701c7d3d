// SPDX-License-Identifier: Apache-2.0
//
// Maps the application's events to a stream and a mark.

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fork.h"
#include "work_internal.h"

#define SHARDS 64
#define BUCKETS 64

struct entry {
  uintptr_t event;
  struct xsi_work_stream *stream; /* NULL: stands for nothing now */
  uint64_t mark;
  struct entry *next;
};

struct shard {
  pthread_mutex_t lock;
  struct entry *buckets[BUCKETS];
  struct entry *spare;
};
#define PAGES                                                                                      \
  ((sizeof(struct shard[SHARDS]) + sizeof(uint64_t) + XSI_FORK_PAGE - 1) / XSI_FORK_PAGE)
static union {
  struct {
    struct shard of[SHARDS];
    uint64_t mark; // 0 in a child: the kernel has forgotten the tables
  };
  char pages[PAGES * XSI_FORK_PAGE];
} shards XSI_FORK_TABLE = {.of = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}}};
static bool forgets;

static struct entry **find(struct shard **shard, uintptr_t event) {
  uint64_t mix = (uint64_t)event * 0x9E3779B97F4A7C15u;
  *shard = &shards.of[mix >> 58];
  struct entry **at = &(*shard)->buckets[mix >> 52 & (BUCKETS - 1)];
  pthread_mutex_lock(&(*shard)->lock);
  while (*at && (*at)->event != event)
    at = &(*at)->next;
  return at;
}

void xsi_work_event_forget(uintptr_t event, bool destroyed) {
  struct shard *shard;
  struct entry **at = find(&shard, event);
  struct entry *entry = *at;
  if (entry && destroyed) {
    *at = entry->next;
    entry->next = shard->spare;
    shard->spare = entry;
  } else if (entry) {
    entry->stream = NULL;
  }
  pthread_mutex_unlock(&shard->lock);
}

void xsi_work_event_recorded(uintptr_t event, struct xsi_work_stream *stream, uint64_t mark) {
  int saved_errno = errno;
  struct shard *shard;
  struct entry **at = find(&shard, event);
  struct entry *entry = *at;
  if (!entry) {
    if ((entry = shard->spare))
      shard->spare = entry->next;
    else
      entry = malloc(sizeof *entry);
    if (entry) {
      entry->event = event;
      entry->next = NULL;
      *at = entry;
    }
  }
  if (entry) { // without memory the watcher finds the end of the work
    entry->stream = stream;
    entry->mark = mark;
  }
  pthread_mutex_unlock(&shard->lock);
  errno = saved_errno;
}

bool xsi_work_event_find(uintptr_t event, struct xsi_work_stream **stream, uint64_t *mark) {
  struct shard *shard;
  struct entry *entry = *find(&shard, event);
  bool known = entry && entry->stream;
  if (known) {
    *stream = entry->stream;
    *mark = entry->mark;
  }
  pthread_mutex_unlock(&shard->lock);
  return known;
}

void xsi_work_event_look(struct xsi_work_standing *standing, uintptr_t event, bool waiting) {
  standing->known = xsi_work_event_find(event, &standing->stream, &standing->mark);
  if (standing->known && waiting) {
    xsi_work_fed(standing->stream);
    __atomic_fetch_add(&standing->stream->syncing, 1, __ATOMIC_SEQ_CST);
  }
}

void xsi_work_event_conclude(const struct xsi_work_standing *before, uintptr_t event, bool waited,
                             bool over) {
  if (!before->known) return;
  if (waited) __atomic_fetch_sub(&before->stream->syncing, 1, __ATOMIC_SEQ_CST);
  if (!over) return;
  struct xsi_work_standing now;
  xsi_work_event_look(&now, event, false);
  if (now.known && now.stream == before->stream && now.mark == before->mark)
    xsi_work_complete(now.stream, now.mark, false);
}

// An unlocked mutex is all zeros.
void xsi_work_events_start(void) {
  shards.mark = 1;
  forgets = xsi_forget_in_child(&shards, sizeof shards);
}

// The mark shows that the advice still holds: a restored checkpoint may have lost it.
bool xsi_work_events_reset(void) {
  bool forgotten = forgets && shards.mark == 0;
  if (!forgotten) xsi_clear_used(&shards, sizeof shards);
  shards.mark = 1;
  return forgotten;
}
