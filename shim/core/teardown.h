/* SPDX-License-Identifier: Apache-2.0
 *
 * Times in which the library must not call the runtime from a thread of its own.
 *
 * A checkpoint takes the device memory of a process away and brings it back later. The runtime holds
 * the application's calls back, but not every query: cuStreamQuery then reads memory that is gone
 * (H200, driver 580.159.04: the process dies). The kernel driver's part sees it begin and end.
 */
#ifndef XSCHED_CORE_TEARDOWN_H
#define XSCHED_CORE_TEARDOWN_H

#include "base.h"

extern uint64_t xsi_teardown_until_ns; /* atomic; UINT64_MAX: until the memory is back */

static inline uint64_t xsi_teardown_until(void) {
  return __atomic_load_n(&xsi_teardown_until_ns, __ATOMIC_ACQUIRE);
}
static inline void xsi_teardown_set(uint64_t until_ns) {
  __atomic_store_n(&xsi_teardown_until_ns, until_ns, __ATOMIC_RELEASE);
}

/* The runtime's thread that takes the memory away; 0: unknown. */
void xsi_teardown_set_thread(int thread);
int xsi_teardown_thread(void);

/* Around a question to the runtime; false: none may be asked now, and there is no end to tell. */
bool xsi_teardown_ask(void);
void xsi_teardown_asked(void);
/* No question begins from here on. Waits a little for those under way. */
void xsi_teardown_begin(uint64_t now_ns, uint64_t until_ns);
void xsi_teardown_reset(void); /* in the child of a fork */

#endif /* XSCHED_CORE_TEARDOWN_H */
