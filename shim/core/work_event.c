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
#define SMALLEST 64 /* entries of a shard: 2 KB */

struct entry {
  uintptr_t event; /* 0: free */
  struct xsi_work_stream *stream;
  uint64_t mark, incarnation;
};

/* An open hash table: an entry is at its place or behind it, with no free one in between. At least a
 * quarter of the entries is free. */
struct shard {
  pthread_mutex_t lock;
  struct entry *entries;
  size_t room, used; /* room is a power of two, or 0 */
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

static uint64_t mix(uintptr_t event) {
  uint64_t value = (uint64_t)event * 0x9E3779B97F4A7C15u;
  return value ^ value >> 32;
}

static struct shard *lock_shard(uintptr_t event) {
  struct shard *shard = &shards.of[mix(event) >> 58];
  pthread_mutex_lock(&shard->lock);
  return shard;
}

// The event's entry, or the free one where it would be. Needs room.
static struct entry *find(const struct shard *shard, uintptr_t event) {
  size_t at = mix(event) & (shard->room - 1);
  while (shard->entries[at].event != 0 && shard->entries[at].event != event)
    at = (at + 1) & (shard->room - 1);
  return &shard->entries[at];
}

// The stream's record may have begun another life: its context was reset, or the stream destroyed.
static bool stands(const struct entry *entry) {
  return entry->incarnation == __atomic_load_n(&entry->stream->incarnation, __ATOMIC_RELAXED);
}

// An event behind work that is known to be over tells nothing new. Programs keep such events for long, and the
// events of a reset context, or of OpenCL, are never reported as destroyed.
static bool pending(const struct entry *entry) {
  return entry->event != 0 && stands(entry) &&
         entry->mark > __atomic_load_n(&entry->stream->completed, __ATOMIC_ACQUIRE);
}

// Moves what is pending into a table with room for twice as much: the cost per record is constant, and
// the memory follows what is in flight. False: no memory.
static bool rebuild(struct shard *shard) {
  size_t count = 0, room = SMALLEST;
  for (size_t i = 0; i < shard->room; i++)
    count += pending(&shard->entries[i]);
  while (room < 2 * (count + 1))
    room *= 2;
  struct entry *entries = calloc(room, sizeof *entries);
  if (!entries) return false;
  struct shard before = *shard;
  shard->entries = entries;
  shard->room = room;
  shard->used = 0;
  for (size_t i = 0; i < before.room; i++) {
    // Some may have completed since they were counted, but none may have begun to be pending.
    if (!pending(&before.entries[i])) continue;
    *find(shard, before.entries[i].event) = before.entries[i];
    shard->used++;
  }
  free(before.entries);
  return true;
}

// Closes the gap: entries behind it move up, except those that are at or behind their place.
static void discard(struct shard *shard, struct entry *entry) {
  size_t gap = (size_t)(entry - shard->entries), last = shard->room - 1;
  for (size_t at = (gap + 1) & last; shard->entries[at].event != 0; at = (at + 1) & last) {
    size_t place = mix(shard->entries[at].event) & last;
    if (((at - place) & last) < ((at - gap) & last)) continue;
    shard->entries[gap] = shard->entries[at];
    gap = at;
  }
  shard->entries[gap].event = 0;
  shard->used--;
}

void xsi_work_event_forget(uintptr_t event) {
  struct shard *shard = lock_shard(event);
  struct entry *entry = shard->room ? find(shard, event) : NULL;
  if (entry && entry->event != 0) discard(shard, entry);
  pthread_mutex_unlock(&shard->lock);
}

void xsi_work_events_forget_all(void) {
  for (int i = 0; i < SHARDS; i++) {
    struct shard *shard = &shards.of[i];
    pthread_mutex_lock(&shard->lock);
    if (shard->used) memset(shard->entries, 0, shard->room * sizeof *shard->entries);
    shard->used = 0;
    pthread_mutex_unlock(&shard->lock);
  }
}

void xsi_work_event_recorded(uintptr_t event, struct xsi_work_stream *stream, uint64_t mark) {
  int saved_errno = errno;
  if (event == 0) return;
  struct shard *shard = lock_shard(event);
  bool full = shard->used >= shard->room - shard->room / 4;
  // Without memory, while one entry is free; then the watcher finds the end of the work.
  if (!full || rebuild(shard) || shard->used + 1 < shard->room) {
    struct entry *entry = find(shard, event);
    shard->used += entry->event == 0;
    uint64_t incarnation = __atomic_load_n(&stream->incarnation, __ATOMIC_RELAXED);
    *entry = (struct entry){event, stream, mark, incarnation};
  }
  pthread_mutex_unlock(&shard->lock);
  errno = saved_errno;
}

bool xsi_work_event_find(uintptr_t event, struct xsi_work_stream **stream, uint64_t *mark) {
  struct shard *shard = lock_shard(event);
  struct entry *entry = shard->room ? find(shard, event) : NULL;
  bool known = entry && entry->event != 0 && stands(entry);
  if (known) {
    *stream = entry->stream;
    *mark = entry->mark;
  }
  pthread_mutex_unlock(&shard->lock);
  return known;
}

size_t xsi_work_events_room(void) {
  size_t room = 0;
  for (int i = 0; i < SHARDS; i++) {
    pthread_mutex_lock(&shards.of[i].lock);
    room += shards.of[i].room;
    pthread_mutex_unlock(&shards.of[i].lock);
  }
  return room;
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
