/* SPDX-License-Identifier: Apache-2.0
 *
 * Lv1: launchers wait at the gate of a queue, unless the daemon has been silent too long.
 */
#ifndef XSCHED_CORE_GATE_H
#define XSCHED_CORE_GATE_H

#include "base.h"
#include "page.h"

void xsi_gate_wait(int index); /* returns when open, or when the daemon has been silent too long */
static inline void xsi_gate_pass(int index) {
  if (XSI_UNLIKELY(__atomic_load_n(&xsi_slot((uint32_t)index)->gate, __ATOMIC_ACQUIRE) ==
                   XSW_GATE_HELD))
    xsi_gate_wait(index);
}

/* 1 while the daemon is not obeyed: not joined, or silent too long. */
extern uint32_t xsi_native;
/* Lv1's limit as the daemon set it; 0 when none is in force. */
static inline uint32_t xsi_in_flight_limit(int index) {
  if (__atomic_load_n(&xsi_native, __ATOMIC_RELAXED) != 0) return 0;
  return __atomic_load_n(&xsi_slot((uint32_t)index)->in_flight, __ATOMIC_RELAXED);
}

/* True while native, or if the heartbeat is too old. From any thread. */
bool xsi_gate_silent(uint64_t now_ns);
/* True if a heartbeat of that time is older than the daemon's limit. */
bool xsi_gate_too_old(uint64_t heartbeat_ns, uint64_t now_ns);
uint64_t xsi_gate_limit_ns(void);
void xsi_gate_set_limit(uint64_t limit_ns);

#endif /* XSCHED_CORE_GATE_H */
