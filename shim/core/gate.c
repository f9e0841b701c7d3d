// SPDX-License-Identifier: Apache-2.0
//
// Lv1: a launcher sleeps on the gate's word. It looks at the heartbeat itself, so it leaves even if
// the helper thread is stuck in the driver.

#include "gate.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "counters.h"
#include "wake.h"

enum { STEP_NS = 20000000 };

XSI_FORK_STATE uint32_t xsi_native = 1;
static XSI_FORK_STATE uint64_t limit_ns = XSW_HEARTBEAT_LIMIT_NS; // of this session

uint64_t xsi_gate_limit_ns(void) { return __atomic_load_n(&limit_ns, __ATOMIC_RELAXED); }
void xsi_gate_set_limit(uint64_t limit) { __atomic_store_n(&limit_ns, limit, __ATOMIC_RELAXED); }

// A heartbeat from the future beyond the limit is no better than none.
bool xsi_gate_too_old(uint64_t heartbeat, uint64_t now) {
  uint64_t age = heartbeat <= now ? now - heartbeat : heartbeat - now;
  return age > xsi_gate_limit_ns();
}

bool xsi_gate_silent(uint64_t now) {
  return __atomic_load_n(&xsi_native, __ATOMIC_ACQUIRE) != 0 ||
         xsi_gate_too_old(__atomic_load_n(&xsi_header()->heartbeat_ns, __ATOMIC_ACQUIRE), now);
}

void xsi_gate_wait(int index) {
  if (index < 0 || index >= XSW_MAX_QUEUES || xsi_wake_is_helper()) return;
  int saved = errno;
  uint32_t *gate = &xsi_slot((uint32_t)index)->gate;
  const struct timespec step = {.tv_nsec = STEP_NS};
  uint64_t start = xsi_now_ns(), now = start;
  bool waited = false;
  for (;;) {
    uint32_t value = __atomic_load_n(gate, __ATOMIC_ACQUIRE);
    if (value != XSW_GATE_HELD || xsi_gate_silent(now)) break;
    // Not FUTEX_PRIVATE: the daemon wakes us from its own mapping.
    syscall(SYS_futex, gate, FUTEX_WAIT, value, &step, NULL, 0);
    waited = true;
    now = xsi_now_ns();
  }
  if (waited) {
    xsi_count(gate_waits, 1);
    xsi_count(gate_wait_ns, now - start);
  }
  errno = saved;
}
