// SPDX-License-Identifier: Apache-2.0
//
// Lv1: a launcher sleeps on the gate's word. It looks at the heartbeat itself, so it leaves even if
// the helper thread is stuck in the driver.

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "parts.h"

enum { STEP_NS = 20000000 };

void xsi_gate_wait(int index) {
  if (index < 0 || index >= XSW_MAX_QUEUES || xsi_in_helper_thread()) return;
  int saved = errno;
  uint32_t *gate = &xsi_slot((uint32_t)index)->gate;
  const struct timespec step = {.tv_nsec = STEP_NS};
  uint64_t start = xsi_now_ns(), now = start;
  bool waited = false;
  for (;;) {
    uint32_t value = __atomic_load_n(gate, __ATOMIC_ACQUIRE);
    if (value == XSW_GATE_OPEN || xsi_liveness_silent(now)) break;
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
