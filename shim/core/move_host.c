// SPDX-License-Identifier: Apache-2.0
//
// Host memory for what leaves the device. It is anonymous memory of the process, and so counts against its control
// group. A child of a fork does not get it. A slab is a bit map of granules, as pieces may be smaller than a slab; a
// piece may be in several.

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "move_internal.h"

enum { GRANULES = XSI_MOVE_CHUNK / XSI_MOVE_GRANULE };
_Static_assert(GRANULES == 32, "a word has all of them");

struct xsi_slab {
  struct xsi_slab *next;
  struct xsi_arena *arena;
  unsigned char *memory;
  uint32_t used; // a bit per granule
};

static XSI_FORK_STATE struct xsi_lock lock; // of all arenas; the mover pins without it

static void adjust(struct xsi_arena *arena, int64_t pinned, int64_t unused) {
  __atomic_fetch_add(&arena->pinned, (uint64_t)pinned, __ATOMIC_RELAXED);
  __atomic_fetch_add(&arena->unused, (uint64_t)unused, __ATOMIC_RELAXED);
}

// Aligned for huge pages, which are pinned faster.
static unsigned char *map_slab(void) {
  size_t bytes = XSI_MOVE_CHUNK + XSI_MOVE_GRANULE;
  unsigned char *at =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return NULL;
  size_t before = -(uintptr_t)at & (XSI_MOVE_GRANULE - 1);
  if (before > 0) munmap(at, before);
  munmap(at + before + XSI_MOVE_CHUNK, XSI_MOVE_GRANULE - before);
  madvise(at + before, XSI_MOVE_CHUNK, MADV_HUGEPAGE);
  madvise(at + before, XSI_MOVE_CHUNK, MADV_DONTFORK);
  return at + before;
}

int xsi_arena_grow(struct xsi_arena *arena, const struct xsi_move_platform *platform,
                   const struct xsi_move_device *device) {
  struct xsi_slab *slab = calloc(1, sizeof *slab);
  if (slab) slab->memory = map_slab();
  if (!slab || !slab->memory || platform->pin(device, slab->memory, XSI_MOVE_CHUNK) != 0) {
    if (slab && slab->memory) munmap(slab->memory, XSI_MOVE_CHUNK);
    free(slab);
    return -ENOMEM;
  }
  slab->arena = arena;
  xsi_lock_take(&lock);
  slab->next = arena->slabs;
  arena->slabs = slab;
  adjust(arena, XSI_MOVE_CHUNK, XSI_MOVE_CHUNK);
  xsi_lock_give(&lock);
  return 0;
}

bool xsi_arena_shrink(struct xsi_arena *arena, const struct xsi_move_platform *platform,
                      const struct xsi_move_device *device) {
  xsi_lock_take(&lock);
  struct xsi_slab **at = &arena->slabs;
  while (*at && (*at)->used != 0)
    at = &(*at)->next;
  struct xsi_slab *slab = *at;
  if (slab) {
    *at = slab->next;
    adjust(arena, -(int64_t)XSI_MOVE_CHUNK, -(int64_t)XSI_MOVE_CHUNK);
  }
  xsi_lock_give(&lock);
  if (!slab) return false;
  platform->unpin(device, slab->memory);
  munmap(slab->memory, XSI_MOVE_CHUNK);
  free(slab);
  return true;
}

// Under the lock: the first run of unused granules in a slab, at most so many bytes.
static struct xsi_extent *take_run(struct xsi_slab *slab, uint64_t bytes) {
  unsigned first = (unsigned)__builtin_ctz(~slab->used), granules = 0;
  while (first + granules < GRANULES && granules * XSI_MOVE_GRANULE < bytes &&
         (slab->used >> (first + granules) & 1) == 0)
    granules++;
  struct xsi_extent *extent = calloc(1, sizeof *extent);
  if (!extent) return NULL;
  extent->slab = slab;
  extent->memory = slab->memory + first * XSI_MOVE_GRANULE;
  extent->bytes = granules * XSI_MOVE_GRANULE;
  slab->used |= (uint32_t)(((1ull << granules) - 1) << first);
  adjust(slab->arena, 0, -(int64_t)extent->bytes);
  return extent;
}

struct xsi_extent *xsi_arena_take(struct xsi_arena *arena, uint64_t bytes) {
  struct xsi_extent *list = NULL, **end = &list;
  xsi_lock_take(&lock);
  struct xsi_slab *slab = arena->slabs;
  while (slab && bytes > 0) {
    if (slab->used == UINT32_MAX) {
      slab = slab->next;
      continue;
    }
    struct xsi_extent *extent = take_run(slab, bytes);
    if (!extent) break;
    *end = extent;
    end = &extent->next;
    bytes -= extent->bytes < bytes ? extent->bytes : bytes;
  }
  xsi_lock_give(&lock);
  if (bytes == 0) return list;
  xsi_arena_give(list);
  return NULL;
}

void xsi_arena_give(struct xsi_extent *list) {
  xsi_lock_take(&lock);
  while (list) {
    struct xsi_extent *extent = list;
    struct xsi_slab *slab = extent->slab;
    uint64_t first = (uint64_t)(extent->memory - slab->memory) / XSI_MOVE_GRANULE;
    uint64_t granules = extent->bytes / XSI_MOVE_GRANULE;
    slab->used &= ~(uint32_t)(((1ull << granules) - 1) << first);
    adjust(slab->arena, 0, (int64_t)extent->bytes);
    list = extent->next;
    free(extent);
  }
  xsi_lock_give(&lock);
}

void xsi_arena_reset(void) { lock = (struct xsi_lock){0}; }
