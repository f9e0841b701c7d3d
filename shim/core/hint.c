// SPDX-License-Identifier: Apache-2.0
//
// What the program says about itself, from the environment and while it runs. Our copy is the
// truth: HELLO carries all of it, and a HINT frame what has changed since. Only changes are sent,
// so that what somebody else has said meanwhile (xsched hint) stays.

#include <string.h>

#include "hints_gen.h"
#include "parts.h"

// Under the queue lock.
static struct xsw_hint process, untold;
static char policy[XSW_POLICY_BYTES];
static uint32_t due, scheduler; // atomic

static void copy_name(char *to, const char *from, unsigned room) {
  memset(to, 0, room);
  memcpy(to, from, strnlen(from, room - 1));
}

void xsi_hint_merge(struct xsw_hint *into, const struct xsw_hint *said) {
#define TAKE(field, bit, variable, kind, least, most)                                              \
  if ((said->said & (bit)) != 0) into->field = said->field;
#define TAKE_NAME(field, bit, variable, kind, least, most)                                         \
  if ((said->said & (bit)) != 0) copy_name(into->field, said->field, sizeof into->field);
  XSI_HINT_FIELDS(TAKE, TAKE_NAME)
#undef TAKE
#undef TAKE_NAME
  into->said |= said->said;
}

static bool in_range(int64_t value, int64_t least, int64_t most) {
  return value == 0 || (value >= least && value <= most);
}

// Names are shown to people: no control characters.
static bool is_name(const char *text, size_t most) {
  size_t length = strnlen(text, most + 1);
  for (size_t i = 0; i < length; i++)
    if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) return false;
  return length <= most;
}

bool xsi_hint_sound(const struct xsw_hint *hint) {
  // What is above INT64_MAX becomes negative, and no field but the priorities may be that.
#define CHECK_RANGE(field, bit, variable, kind, least, most)                                       \
  if (!in_range((int64_t)hint->field, least, most)) return false;
#define CHECK_NAME(field, bit, variable, kind, least, most)                                        \
  if (!is_name(hint->field, most)) return false;
  XSI_HINT_FIELDS(CHECK_RANGE, CHECK_NAME)
#undef CHECK_RANGE
#undef CHECK_NAME
  return true;
}

void xsi_hint_init(void) {
  process = xsi_options.hint;
  copy_name(policy, xsi_options.policy, sizeof policy);
  __atomic_store_n(&scheduler, xsi_options.scheduler, __ATOMIC_RELEASE);
}

uint32_t xsi_scheduler(void) { return __atomic_load_n(&scheduler, __ATOMIC_ACQUIRE); }

void xsi_set_scheduler(uint32_t chosen) {
  __atomic_store_n(&scheduler, chosen, __ATOMIC_RELEASE);
  if (chosen != XSW_SCHEDULER_APP && xsi_queue_any()) xsi_helper_start();
  xsi_helper_wake();
}

bool xsi_joined(void) {
  return xsi_session_joined() && __atomic_load_n(&xsi_native, __ATOMIC_RELAXED) == 0;
}

bool xsi_hint_due(void) { return __atomic_load_n(&due, __ATOMIC_ACQUIRE) != 0; }
void xsi_hint_mark_due(void) { __atomic_store_n(&due, 1, __ATOMIC_RELEASE); }

void xsi_hint_process(const struct xsw_hint *hint, const char *wished) {
  xsi_queue_lock();
  xsi_hint_merge(&process, hint);
  xsi_hint_merge(&untold, hint);
  if (wished != NULL) {
    copy_name(policy, wished, sizeof policy);
    untold.said |= XSW_HINT_POLICY;
  }
  process.said &= ~(uint32_t)XSW_HINT_POLICY; // HELLO has a field of its own for it
  xsi_hint_mark_due();
  xsi_queue_unlock();
  xsi_helper_wake();
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
  // Before looking: what is said from here on is due again.
  __atomic_store_n(&due, 0, __ATOMIC_RELEASE);
  bool found = untold.said != 0;
  if (found) {
    frame->queue = XSW_QUEUE_ALL;
    frame->hint = untold;
    memcpy(frame->policy, policy, sizeof frame->policy);
    memset(&untold, 0, sizeof untold);
  } else {
    found = xsi_queue_next_hint(frame);
  }
  if (found) xsi_hint_mark_due(); // there may be more
  xsi_queue_unlock();
  return found;
}

void xsi_hint_reset(void) {
  memset(&untold, 0, sizeof untold);
  due = 0;
}
