/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues: what the daemon schedules.
 */
#ifndef XSCHED_CORE_QUEUE_H
#define XSCHED_CORE_QUEUE_H

#include "base.h"
#include "xsched/wire.h"

/* Opens a queue on a device and starts the helper thread if there is none. Returns the queue's index,
 * -ENOSPC when all are taken (the caller then runs unscheduled), or -ENOSYS when disabled.
 *
 * A device is known by its PCI address. One that has none uses the domain XSW_NO_PCI_DOMAIN and its
 * ordinal in the runtime as bus_slot. */
int xsi_queue_open(uint32_t pci_domain, uint32_t pci_bus_slot, int32_t priority);
/* The same for one stream; its priority is added to the process's. */
int xsi_queue_open_stream(uint32_t pci_domain, uint32_t pci_bus_slot, int32_t priority);
void xsi_queue_close(int index);
/* Work submitted so far: published when the queue goes idle, and lazily. */
struct xsi_tally {
  uint64_t submitted, launches, copies; /* as in struct xsw_queue */
};
/* A queue is busy while one of its streams is. These count a stream that becomes busy, or idle after so much
 * work: one locked instruction on the queue's line, and a lock and a few stores if the queue changes with it. Each
 * caller serializes its own stream. True: the caller has to call xsi_queue_changed, without a lock. */
bool xsi_queue_enter(int index);
bool xsi_queue_leave(int index, struct xsi_tally since);
void xsi_queue_changed(int index); /* rings the doorbell and publishes counters */
void xsi_queue_add(int index, struct xsi_tally since);

struct xsi_queue_info {
  uint32_t kind, pci_domain, pci_bus_slot;
  int32_t priority;
  bool busy, held;
  uint64_t submitted;
};
/* False if no open queue has this index. */
bool xsi_queue_describe(uint32_t index, struct xsi_queue_info *info);
/* Merges a hint into the queue's hints. */
int xsi_queue_hint(int index, const struct xsw_hint *hint);
bool xsi_queue_any(void); /* was any ever opened? */

/* ---- for the session --------------------------------------------------------------- */

void xsi_queue_lock(void);
void xsi_queue_unlock(void);
void xsi_queue_publish_all(void);  /* lock held: every open queue into a page just joined */
bool xsi_queue_tick(void);         /* the lazily published numbers; false: no queue is busy */
void xsi_queue_wake_held(void);    /* every launcher that sleeps at a gate looks again */
void xsi_queue_hints_untold(void); /* lock held: a new session knows none */
/* Lock held: the next hint of a queue that the daemon does not know yet. */
bool xsi_queue_next_hint(struct xsw_hint_frame *frame);
/* Hints are waiting to be sent; set by queues and by the process's own hints. */
bool xsi_queue_hints_due(void);
void xsi_queue_set_hints_due(bool due);
void xsi_queue_reset(void);

#endif /* XSCHED_CORE_QUEUE_H */
