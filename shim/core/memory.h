/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory of the process: what its allocations have on each device, and the quota that they must not
 * exceed. A runtime claims bytes before it asks its driver, and settles the claim afterwards. What is freed
 * leaves the table before the driver is asked, and the account after it: the driver may give the same address
 * to another thread at once.
 *
 * The quota is the daemon's, from the page; the last one stays in force when the daemon has gone. Before
 * there is one it is that of the environment. Enforcing it needs nobody else.
 */
#ifndef XSCHED_CORE_MEMORY_H
#define XSCHED_CORE_MEMORY_H

#include "base.h"
#include "xsched/wire.h"

struct xsi_memory_place {
  uint32_t pci_domain, pci_bus_slot; /* as in struct xsw_queue */
};

/* What a key names. */
enum xsi_memory_kind {
  XSI_MEMORY_ADDRESS,
  XSI_MEMORY_HANDLE, /* of memory that is mapped separately; it stays while it is mapped */
  XSI_MEMORY_MAPPED, /* an address range with the memory of a handle */
  XSI_MEMORY_OBJECT, /* an array or an image */
};

/* A size; one that does not fit fits no quota. */
static inline uint64_t xsi_memory_product(uint64_t a, uint64_t b) {
  uint64_t bytes;
  return __builtin_mul_overflow(a, b, &bytes) ? UINT64_MAX : bytes;
}

#define XSI_MEMORY_MOVABLE (-1)
struct xsi_memory_claim {
  int device; /* negative: not accounted for */
  uint64_t bytes;
  int fixed; /* enum xsw_fixed: why it never moves, or XSI_MEMORY_MOVABLE: others count that */
};
/* False: the quota would be exceeded, and nothing is claimed. */
bool xsi_memory_claim(struct xsi_memory_claim *claim, struct xsi_memory_place place,
                      uint64_t bytes);
/* The driver took more than was claimed. It counts, also beyond the quota. */
void xsi_memory_grow(struct xsi_memory_claim *claim, uint64_t bytes);
/* After the driver's call: it took the memory under this key, for a context (0: for none), or refused. */
void xsi_memory_settle(const struct xsi_memory_claim *claim, bool taken, enum xsi_memory_kind kind,
                       uint64_t key, uintptr_t context);

struct xsi_memory_entry;
/* Around the driver's call that frees it; NULL: unknown. */
struct xsi_memory_entry *xsi_memory_detach(enum xsi_memory_kind kind, uint64_t key);
void xsi_memory_detached(struct xsi_memory_entry *entry, bool freed);

/* Handles count their mappings. Around the calls that release a handle and unmap a range; after those that
 * map and retain. */
struct xsi_memory_release {
  struct xsi_memory_entry *entry;
  bool last;
};
void xsi_memory_release(struct xsi_memory_release *release, uint64_t handle);
void xsi_memory_released(const struct xsi_memory_release *release, bool freed);
void xsi_memory_retained(uint64_t handle);
void xsi_memory_mapped(uint64_t address, uint64_t bytes, uint64_t handle);
struct xsi_memory_entry *xsi_memory_unmap(uint64_t address, uint64_t bytes);
void xsi_memory_unmapped(struct xsi_memory_entry *list, bool freed);

/* A context goes, and what was allocated in it. */
void xsi_memory_drop_context(uintptr_t context);

/* Lowers a driver's answers to what the quota leaves; NULL is allowed. */
void xsi_memory_answer(struct xsi_memory_place place, size_t *free_bytes, size_t *total);
uint64_t xsi_memory_used(struct xsi_memory_place place);

/* The figures of a device that movable memory adds. edit takes the lock and returns our copy of the page's entry,
 * edited publishes it and gives the lock back; NULL: the page has no entry left. index: of the entry, or -1. */
struct xsw_memory_device *xsi_memory_edit(struct xsi_memory_place place);
void xsi_memory_edited(const struct xsw_memory_device *entry);
int xsi_memory_index(struct xsi_memory_place place);
/* Bytes that can't leave the device, and why; negative when they go. */
void xsi_memory_count_fixed(struct xsi_memory_place place, enum xsw_fixed why, int64_t bytes);

/* For the session: the page is new; the page goes. For fork. */
void xsi_memory_publish(void);
void xsi_memory_remember(void);
void xsi_memory_lock(void);
void xsi_memory_unlock(void);
void xsi_memory_reset(void);

#endif /* XSCHED_CORE_MEMORY_H */
