// SPDX-License-Identifier: Apache-2.0
//
// Hints of the process, from the environment and from the program. The local copy is authoritative:
// HELLO carries all of it, and a HINT frame the changes since. Only changes are sent, so that hints
// set from outside (xsched hint) stay.

#include "hint.h"

#include <string.h>

#include "gate.h"
#include "hint_fields.h"
#include "options.h"
#include "page.h"
#include "queue.h"
#include "wake.h"

// Under the queue lock.
static struct xsw_hint process;
static XSI_FORK_STATE struct xsw_hint untold;
static char policy[XSW_POLICY_BYTES];
static uint32_t scheduler; // atomic

void xsi_hint_init(void) {
  process = xsi_options.hint;
  xsi_hint_copy_name(policy, xsi_options.policy, sizeof policy);
  __atomic_store_n(&scheduler, xsi_options.scheduler, __ATOMIC_RELEASE);
}

uint32_t xsi_scheduler(void) { return __atomic_load_n(&scheduler, __ATOMIC_ACQUIRE); }

void xsi_set_scheduler(uint32_t chosen) {
  __atomic_store_n(&scheduler, chosen, __ATOMIC_RELEASE);
  if (chosen != XSW_SCHEDULER_APP && xsi_queue_any()) xsi_wake_start();
  xsi_wake_helper();
}

bool xsi_joined(void) {
  return xsi_page_joined() && __atomic_load_n(&xsi_native, __ATOMIC_RELAXED) == 0;
}

void xsi_hint_process(const struct xsw_hint *hint, const char *wished) {
  xsi_queue_lock();
  xsi_hint_merge(&process, hint);
  xsi_hint_merge(&untold, hint);
  if (wished != NULL) {
    xsi_hint_copy_name(policy, wished, sizeof policy);
    untold.said |= XSW_HINT_POLICY;
  }
  process.said &= ~(uint32_t)XSW_HINT_POLICY; // HELLO has a field of its own for it
  xsi_queue_set_hints_due(true);
  xsi_queue_unlock();
  xsi_wake_helper();
}

void xsi_hint_hello(struct xsw_hello *hello) {
  xsi_queue_lock();
  hello->hint = process;
  memcpy(hello->policy, policy, sizeof hello->policy);
  memset(&untold, 0, sizeof untold);
  xsi_queue_unlock();
}

bool xsi_hint_next_frame(struct xsw_hint_frame *frame) {
  memset(frame, 0, sizeof *frame);
  xsi_queue_lock();
  // Before looking: a hint set from here on is due again.
  xsi_queue_set_hints_due(false);
  bool found = untold.said != 0;
  if (found) {
    frame->queue = XSW_QUEUE_ALL;
    frame->hint = untold;
    memcpy(frame->policy, policy, sizeof frame->policy);
    memset(&untold, 0, sizeof untold);
  } else {
    found = xsi_queue_next_hint(frame);
  }
  if (found) xsi_queue_set_hints_due(true); // there may be more
  xsi_queue_unlock();
  return found;
}

void xsi_hint_reset(void) { memset(&untold, 0, sizeof untold); }
