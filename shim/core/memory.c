// SPDX-License-Identifier: Apache-2.0
//
// A lock of its own guards everything here; no call of a driver is made under it.

#include "memory.h"

#include <stdlib.h>
#include <string.h>

#include "lock.h"
#include "log.h"
#include "options.h"
#include "page.h"

struct xsi_memory_entry {
  struct xsi_memory_entry *next; // of its bucket, of a list, or of the free ones
  uint64_t key, bytes;
  uint64_t handle; // of a mapped range
  uintptr_t context;
  uint32_t references; // of a handle: the program's, and mappings
  enum xsi_memory_kind kind;
  int device;
  int fixed; // as in a claim
};

enum { BUCKETS = 4096 };

static XSI_FORK_STATE struct xsi_lock lock;
static XSI_FORK_STATE struct xsi_memory_entry **buckets; // [BUCKETS], from the first allocation on
static XSI_FORK_STATE struct xsi_memory_entry *free_entries;
// What the page says of each device, or will.
static XSI_FORK_STATE struct xsw_memory_device devices[XSW_MEMORY_DEVICES];
static XSI_FORK_STATE uint64_t daemon_quota; // the last one; 0: none yet

void xsi_memory_lock(void) { xsi_lock_take(&lock); }
void xsi_memory_unlock(void) { xsi_lock_give(&lock); }

// ---- the page --------------------------------------------------------------------------------

typedef uint64_t __attribute__((may_alias)) word;
enum {
  WORDS = sizeof *devices / sizeof(word),
  KNOWN = offsetof(struct xsw_memory_device, known) / sizeof(word)
};

static void publish(unsigned at) {
  const word *from = (const word *)&devices[at];
  word *to = (word *)&xsi_page_memory()->devices[at];
  if (!devices[at].known) return;
  for (unsigned i = 0; i < WORDS; i++)
    if (i != KNOWN) __atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
  __atomic_store_n(&to[KNOWN], from[KNOWN], __ATOMIC_RELEASE);
}

void xsi_memory_publish(void) {
  xsi_memory_lock();
  for (unsigned i = 0; i < XSW_MEMORY_DEVICES; i++) {
    devices[i].order = 0; // the new page has had none yet
    publish(i);
  }
  xsi_memory_unlock();
}

static uint64_t quota(void) {
  uint64_t said = __atomic_load_n(&xsi_header()->memory_quota, __ATOMIC_RELAXED);
  if (said != 0) daemon_quota = said;
  if (daemon_quota != 0) return daemon_quota;
  int64_t own = xsi_options.hint.memory;
  return own > 0 ? (uint64_t)own : XSW_MEMORY_NO_QUOTA;
}

void xsi_memory_remember(void) {
  xsi_memory_lock();
  (void)quota();
  xsi_memory_unlock();
}

// ---- the account -----------------------------------------------------------------------------

static int find_device(struct xsi_memory_place place, bool make) {
  for (int i = 0; i < XSW_MEMORY_DEVICES; i++) {
    if (!devices[i].known && make) {
      devices[i].known = 1;
      devices[i].pci_domain = place.pci_domain;
      devices[i].pci_bus_slot = place.pci_bus_slot;
    }
    if (!devices[i].known) return -1;
    if (devices[i].pci_domain == place.pci_domain && devices[i].pci_bus_slot == place.pci_bus_slot)
      return i;
  }
  return -1;
}

static void uncount(int device, uint64_t bytes) {
  if (device < 0) return;
  devices[device].used -= bytes;
  publish((unsigned)device);
}

bool xsi_memory_claim(struct xsi_memory_claim *claim, struct xsi_memory_place place,
                      uint64_t bytes) {
  *claim = (struct xsi_memory_claim){-1, bytes, XSW_FIXED_NOT_ASKED};
  xsi_memory_lock();
  if (!buckets) buckets = calloc(BUCKETS, sizeof *buckets);
  int device = buckets ? find_device(place, true) : -1;
  bool fits = true;
  if (device >= 0) {
    uint64_t limit = quota(), used = devices[device].used;
    fits = bytes <= limit && used <= limit - bytes;
    if (fits) {
      devices[device].used += bytes;
      claim->device = device;
    } else {
      devices[device].refused++;
    }
    publish((unsigned)device);
  }
  xsi_memory_unlock();
  return fits;
}

void xsi_memory_grow(struct xsi_memory_claim *claim, uint64_t bytes) {
  if (claim->device < 0 || bytes <= claim->bytes) return;
  xsi_memory_lock();
  devices[claim->device].used += bytes - claim->bytes;
  claim->bytes = bytes;
  publish((unsigned)claim->device);
  xsi_memory_unlock();
}

struct xsw_memory_device *xsi_memory_edit(struct xsi_memory_place place) {
  xsi_memory_lock();
  int device = find_device(place, true);
  if (device >= 0) return &devices[device];
  xsi_memory_unlock();
  return NULL;
}

void xsi_memory_edited(const struct xsw_memory_device *entry) {
  publish((unsigned)(entry - devices));
  xsi_memory_unlock();
}

int xsi_memory_index(struct xsi_memory_place place) {
  xsi_memory_lock();
  int device = find_device(place, false);
  xsi_memory_unlock();
  return device;
}

void xsi_memory_count_fixed(struct xsi_memory_place place, enum xsw_fixed why, int64_t bytes) {
  struct xsw_memory_device *entry = xsi_memory_edit(place);
  if (!entry) return;
  entry->fixed[why] += (uint64_t)bytes;
  xsi_memory_edited(entry);
}

// ---- the table -------------------------------------------------------------------------------

static struct xsi_memory_entry **bucket_of(enum xsi_memory_kind kind, uint64_t key) {
  uint64_t mixed = (key ^ (uint64_t)kind << 60) * 0x9E3779B97F4A7C15ull;
  return &buckets[mixed >> 52];
}

static struct xsi_memory_entry **find(enum xsi_memory_kind kind, uint64_t key) {
  static struct xsi_memory_entry *nothing;
  if (!buckets) return &nothing;
  struct xsi_memory_entry **at = bucket_of(kind, key);
  while (*at && ((*at)->key != key || (*at)->kind != kind))
    at = &(*at)->next;
  return at;
}

static void recycle(struct xsi_memory_entry *entry) {
  entry->next = free_entries;
  free_entries = entry;
}

static struct xsi_memory_entry *take_out(struct xsi_memory_entry **at) {
  struct xsi_memory_entry *entry = *at;
  *at = entry->next;
  entry->next = NULL;
  return entry;
}

static void count_fixed(const struct xsi_memory_entry *entry, bool more) {
  if (entry->device < 0 || entry->fixed < 0) return;
  devices[entry->device].fixed[entry->fixed] += more ? entry->bytes : -entry->bytes;
}

// A reference of a handle goes; the last one frees the memory.
static void unreference(uint64_t handle) {
  struct xsi_memory_entry **at = find(XSI_MEMORY_HANDLE, handle);
  if (!*at || --(*at)->references > 0) return;
  count_fixed(*at, false);
  uncount((*at)->device, (*at)->bytes);
  recycle(take_out(at));
}

static void forget(struct xsi_memory_entry *entry) {
  count_fixed(entry, false);
  if (entry->kind == XSI_MEMORY_MAPPED)
    unreference(entry->handle);
  else
    uncount(entry->device, entry->bytes);
  recycle(entry);
}

// An entry of the same key is of memory whose end we did not see.
static void put_in(struct xsi_memory_entry *entry) {
  struct xsi_memory_entry **at = find(entry->kind, entry->key);
  if (*at) forget(take_out(at));
  at = bucket_of(entry->kind, entry->key);
  entry->next = *at;
  *at = entry;
}

static struct xsi_memory_entry *new_entry(enum xsi_memory_kind kind, uint64_t key, uint64_t bytes) {
  struct xsi_memory_entry *entry = free_entries;
  if (entry)
    free_entries = entry->next;
  else if ((entry = malloc(sizeof *entry)) == NULL)
    return NULL;
  *entry = (struct xsi_memory_entry){.key = key,
                                     .bytes = bytes,
                                     .references = 1,
                                     .kind = kind,
                                     .device = -1,
                                     .fixed = XSI_MEMORY_MOVABLE};
  return entry;
}

void xsi_memory_settle(const struct xsi_memory_claim *claim, bool taken, enum xsi_memory_kind kind,
                       uint64_t key, uintptr_t context) {
  if (claim->device < 0) return;
  xsi_memory_lock();
  struct xsi_memory_entry *entry = taken ? new_entry(kind, key, claim->bytes) : NULL;
  if (entry) {
    entry->device = claim->device;
    entry->fixed = claim->fixed;
    entry->context = context;
    count_fixed(entry, true);
    publish((unsigned)claim->device);
    put_in(entry);
  } else {
    uncount(claim->device, claim->bytes);
  }
  xsi_memory_unlock();
}

struct xsi_memory_entry *xsi_memory_detach(enum xsi_memory_kind kind, uint64_t key) {
  xsi_memory_lock();
  struct xsi_memory_entry **at = find(kind, key);
  struct xsi_memory_entry *entry = *at ? take_out(at) : NULL;
  xsi_memory_unlock();
  return entry;
}

void xsi_memory_detached(struct xsi_memory_entry *entry, bool freed) {
  if (!entry) return;
  xsi_memory_lock();
  if (freed)
    forget(entry);
  else
    put_in(entry);
  xsi_memory_unlock();
}

void xsi_memory_release(struct xsi_memory_release *release, uint64_t handle) {
  *release = (struct xsi_memory_release){NULL, false};
  xsi_memory_lock();
  struct xsi_memory_entry **at = find(XSI_MEMORY_HANDLE, handle);
  if (*at) {
    release->entry = *at;
    release->last = --(*at)->references == 0;
    if (release->last) take_out(at);
  }
  xsi_memory_unlock();
}

void xsi_memory_released(const struct xsi_memory_release *release, bool freed) {
  if (!release->entry || (freed && !release->last)) return;
  xsi_memory_lock();
  if (freed) {
    forget(release->entry);
  } else {
    release->entry->references++;
    if (release->last) put_in(release->entry);
  }
  xsi_memory_unlock();
}

void xsi_memory_retained(uint64_t handle) {
  xsi_memory_lock();
  struct xsi_memory_entry **at = find(XSI_MEMORY_HANDLE, handle);
  if (*at) (*at)->references++;
  xsi_memory_unlock();
}

void xsi_memory_mapped(uint64_t address, uint64_t bytes, uint64_t handle) {
  xsi_memory_lock();
  struct xsi_memory_entry **memory = find(XSI_MEMORY_HANDLE, handle);
  struct xsi_memory_entry *entry = *memory ? new_entry(XSI_MEMORY_MAPPED, address, bytes) : NULL;
  if (entry) {
    (*memory)->references++;
    entry->handle = handle;
    put_in(entry);
  }
  xsi_memory_unlock();
}

struct xsi_memory_entry *xsi_memory_unmap(uint64_t address, uint64_t bytes) {
  struct xsi_memory_entry *list = NULL;
  uint64_t end = address + bytes;
  xsi_memory_lock();
  for (struct xsi_memory_entry **at; address < end; address += list->bytes) {
    at = find(XSI_MEMORY_MAPPED, address);
    if (!*at || (*at)->bytes == 0) break;
    struct xsi_memory_entry *entry = take_out(at);
    entry->next = list;
    list = entry;
  }
  xsi_memory_unlock();
  return list;
}

void xsi_memory_unmapped(struct xsi_memory_entry *list, bool freed) {
  if (!list) return;
  xsi_memory_lock();
  while (list) {
    struct xsi_memory_entry *entry = list;
    list = entry->next;
    if (freed)
      forget(entry);
    else
      put_in(entry);
  }
  xsi_memory_unlock();
}

void xsi_memory_drop_context(uintptr_t context) {
  if (context == 0) return;
  xsi_memory_lock();
  for (unsigned i = 0; buckets && i < BUCKETS; i++)
    for (struct xsi_memory_entry **at = &buckets[i]; *at;) {
      if ((*at)->context == context)
        forget(take_out(at));
      else
        at = &(*at)->next;
    }
  xsi_memory_unlock();
}

// ---- answers ---------------------------------------------------------------------------------

void xsi_memory_answer(struct xsi_memory_place place, size_t *free_bytes, size_t *total) {
  xsi_memory_lock();
  uint64_t limit = quota();
  int device = find_device(place, false);
  uint64_t used = device < 0 ? 0 : devices[device].used;
  xsi_memory_unlock();
  uint64_t room = used < limit ? limit - used : 0;
  if (free_bytes && *free_bytes > room) *free_bytes = room;
  if (total && *total > limit) *total = limit;
}

uint64_t xsi_memory_used(struct xsi_memory_place place) {
  xsi_memory_lock();
  int device = find_device(place, false);
  uint64_t used = device < 0 ? 0 : devices[device].used;
  xsi_memory_unlock();
  return used;
}

// The child has none of its parent's memory. It keeps the quota. It leaves the table, whose pages it would copy.
void xsi_memory_reset(void) {
  buckets = NULL;
  free_entries = NULL;
  for (unsigned i = 0; i < XSW_MEMORY_DEVICES; i++)
    if (devices[i].known) memset(&devices[i], 0, sizeof devices[i]);
}
