/* SPDX-License-Identifier: Apache-2.0
 *
 * The page shared with the daemon. Its address never changes: it holds anonymous zeros until the
 * daemon's memfd replaces them, and again after the session ends.
 */
#ifndef XSCHED_CORE_PAGE_H
#define XSCHED_CORE_PAGE_H

#include "base.h"
#include "xsched/wire.h"

extern unsigned char *xsi_page;

static inline struct xsw_header *xsi_header(void) { return (struct xsw_header *)(void *)xsi_page; }
static inline struct xsw_queue *xsi_slot(uint32_t index) {
  return (struct xsw_queue *)(void *)(xsi_page + XSW_HEADER_BYTES +
                                      (uint64_t)index * XSW_QUEUE_BYTES);
}

static inline struct xsw_progress *xsi_progress(uint32_t index) {
  return (struct xsw_progress *)(void *)(xsi_page + XSW_PROGRESS_OFFSET) + index;
}

static inline struct xsw_memory *xsi_page_memory(void) {
  return (struct xsw_memory *)(void *)(xsi_page + XSW_MEMORY_OFFSET);
}

static inline struct xsw_leases *xsi_page_leases(void) {
  return (struct xsw_leases *)(void *)(xsi_page + XSW_LEASES_OFFSET);
}
/* True while the daemon may have suspended the device. A device without a lease of its own has the
 * shared one. A lease past its deadline suspends nothing: the helper recovers it. */
static inline bool xsi_page_suspended(uint32_t pci_domain, uint32_t pci_bus_slot, uint64_t now_ns) {
  const struct xsw_lease *lease = xsi_page_leases()->entries;
  uint64_t deadline = __atomic_load_n(&xsi_header()->lease_deadline_ns, __ATOMIC_ACQUIRE);
  for (unsigned i = 0; i < XSW_MAX_LEASES; i++, lease++) {
    if (__atomic_load_n(&lease->epoch, __ATOMIC_ACQUIRE) == 0 ||
        __atomic_load_n(&lease->pci_domain, __ATOMIC_RELAXED) != pci_domain ||
        __atomic_load_n(&lease->pci_bus_slot, __ATOMIC_RELAXED) != pci_bus_slot)
      continue;
    deadline = __atomic_load_n(&lease->deadline_ns, __ATOMIC_ACQUIRE);
    break;
  }
  return deadline != 0 && now_ns <= deadline;
}

void xsi_page_init(void);
uint32_t xsi_page_bytes(uint32_t version); /* of a session's page */
/* Both with the queue lock held, so that what is published stays consistent. On an error the page is as it
 * was. */
int xsi_page_join(int memfd, uint64_t session_id, uint32_t version);
int xsi_page_leave(void);
/* In the child of a fork, which must not keep its parent's page. */
void xsi_page_leave_in_child(void);

/* True from when the page shows this process's state to a daemon until the session ends. */
bool xsi_page_joined(void);
void xsi_page_set_joined(bool joined);

/* A thread's sign of life, while a daemon can see it. */
static inline void xsi_page_beat(uint64_t *field, uint64_t now_ns) {
  if (xsi_page_joined()) __atomic_store_n(field, now_ns, __ATOMIC_RELAXED);
}

#endif /* XSCHED_CORE_PAGE_H */
