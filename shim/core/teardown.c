// SPDX-License-Identifier: Apache-2.0

#include "teardown.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

enum { STEP_NS = 20000, STEPS = 100 };

XSI_FORK_STATE uint64_t xsi_teardown_until_ns;
static XSI_FORK_STATE uint32_t asking; // questions under way

bool xsi_teardown_ask(void) {
  __atomic_fetch_add(&asking, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&xsi_teardown_until_ns, __ATOMIC_SEQ_CST) <= xsi_now_ns()) return true;
  xsi_teardown_asked();
  return false;
}

static XSI_FORK_STATE int thread_of_runtime;

void xsi_teardown_set_thread(int thread) {
  __atomic_store_n(&thread_of_runtime, thread, __ATOMIC_RELAXED);
}
int xsi_teardown_thread(void) { return __atomic_load_n(&thread_of_runtime, __ATOMIC_RELAXED); }

void xsi_teardown_asked(void) { __atomic_fetch_sub(&asking, 1, __ATOMIC_SEQ_CST); }

// Bounded: a question may wait for a lock that the caller holds, and a thread that was cancelled in one never
// ends it.
void xsi_teardown_begin(uint64_t now, uint64_t until_ns) {
  int saved = errno;
  bool first = xsi_teardown_until() <= now;
  __atomic_store_n(&xsi_teardown_until_ns, until_ns, __ATOMIC_SEQ_CST);
  const struct timespec step = {.tv_nsec = STEP_NS};
  for (int i = 0; first && i < STEPS && __atomic_load_n(&asking, __ATOMIC_SEQ_CST) != 0; i++)
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &step, NULL); // not a cancellation point
  // The time begins after the wait: on a busy machine each step takes as long as others use the core.
  if (first)
    __atomic_compare_exchange_n(&xsi_teardown_until_ns, &(uint64_t){until_ns},
                                until_ns + (xsi_now_ns() - now), false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
  errno = saved;
}

void xsi_teardown_reset(void) {
  xsi_teardown_set(0);
  xsi_teardown_set_thread(0);
  __atomic_store_n(&asking, 0, __ATOMIC_SEQ_CST);
}
