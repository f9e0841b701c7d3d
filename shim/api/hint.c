// SPDX-License-Identifier: Apache-2.0
//
// Hints: checked here, so that a wrong one is the caller's error at once; carried to the daemon by
// the helper thread.

#include "api.h"

#include <errno.h>
#include <string.h>

#include "core/hint.h"
#include "core/hint_fields.h"
#include "core/hints_gen.h"
#include "core/init.h"
#include "core/log.h"
#include "core/options.h"
#include "core/private.h"
#include "core/queue.h"

// The public header, the wire contract and the table of hints say the same.
_Static_assert(XSI_HINT_PRIORITY_MIN == PRIORITY_NO_EXECUTE &&
                   XSI_HINT_PRIORITY_MAX == PRIORITY_MAX &&
                   XSI_HINT_PRIORITY_MIN == XSW_PRIORITY_MIN &&
                   XSI_HINT_PRIORITY_MAX == XSW_PRIORITY_MAX,
               "priorities");
_Static_assert(XSI_HINT_UTILIZATION_MAX == UTILIZATION_MAX, "utilization");
_Static_assert(XSI_HINT_TIMESLICE_US_MIN == TIMESLICE_MIN &&
                   XSI_HINT_TIMESLICE_US_MAX == TIMESLICE_MAX,
               "timeslices");
_Static_assert(XSI_HINT_K_MAX == XSW_MAX_QUEUES && XSI_HINT_GANG_MAX + 1 == XSW_GANG_BYTES,
               "bounds");

XResult xsi_api_hint(XQueueHandle xq, const struct xsw_hint *hint) {
  struct xsi_api_object queue;
  if (xq != 0 && !xsi_api_get(xq, XSI_API_QUEUE, &queue)) return kXSchedErrorNotFound;
  xsi_init();
  if (xsi_options.disabled) return kXSchedSuccess;
  if (xq == 0)
    xsi_hint_process(hint, NULL);
  else if (queue.queue.slot >= 0 && xsi_work_lives(queue.queue.life))
    xsi_queue_hint(queue.queue.slot, hint);
  return kXSchedSuccess;
}

// Says one thing, if it is in range.
static XResult hint_one(XQueueHandle xq, const struct xsw_hint *hint) {
  return xsi_hint_sound(hint) ? xsi_api_hint(xq, hint) : kXSchedErrorInvalidValue;
}

XSI_EXPORT XResult XHintPriority(XQueueHandle xq, Priority prio) {
  struct xsw_hint hint = {.said = XSW_HINT_PRIORITY, .priority = prio};
  return hint_one(xq, &hint);
}

XSI_EXPORT XResult XHintUtilization(XQueueHandle xq, Utilization util) {
  if (util < UTILIZATION_MIN) return kXSchedErrorInvalidValue;
  struct xsw_hint hint = {.said = XSW_HINT_UTILIZATION, .utilization = util};
  return hint_one(xq, &hint);
}

XSI_EXPORT XResult XHintTimeslice(Timeslice ts_us) {
  // Upstream's constant is unsigned, so it arrives as -1.
  struct xsw_hint hint = {.said = XSW_HINT_TIMESLICE,
                          .timeslice_us =
                              ts_us == (Timeslice)TIMESLICE_UNLIMITED ? TIMESLICE_MAX : ts_us};
  return hint_one(0, &hint);
}

XSI_EXPORT XResult XHintLaxity(XQueueHandle xq, Laxity lax_us, Priority lax_prio,
                               Priority crit_prio) {
  struct xsw_hint hint = {.said = XSW_HINT_LAXITY,
                          .laxity_us = lax_us == NO_LAXITY ? 0 : lax_us,
                          .lax_priority = lax_prio,
                          .critical_priority = crit_prio};
  if (!xsi_hint_sound(&hint)) return kXSchedErrorInvalidValue;
  if (lax_us == NO_LAXITY) hint.lax_priority = hint.critical_priority = 0;
  return xsi_api_hint(xq, &hint);
}

XSI_EXPORT XResult XHintDeadline(XQueueHandle xq, Deadline ddl_us) {
  struct xsw_hint hint = {.said = XSW_HINT_DEADLINE,
                          .deadline_us = ddl_us == NO_DEADLINE ? 0 : ddl_us};
  return hint_one(xq, &hint);
}

XSI_EXPORT XResult XHintKDeadline(size_t k) {
  if (k > XSI_HINT_K_MAX) return kXSchedErrorInvalidValue;
  struct xsw_hint hint = {.said = XSW_HINT_K, .k = (int64_t)k};
  return hint_one(0, &hint);
}

// ---- scheduler --------------------------------------------------------------------------------

static const char *policy_name(int policy) {
  static const struct {
    int number;
    const char *name;
  } known[] = {
      {kPolicyHighestPriorityFirst, "HPF"},
      {kPolicyHeterogeneousHighestPriorityFirst, "HHPF"},
      {kPolicyCPUHighestPriorityFirst, "CHPF"},
      {kPolicyUtilizationPartition, "UP"},
      {kPolicyProcessUtilizationPartition, "PUP"},
      {kPolicyStrictProcessUtilizationPartition, "SPUP"},
      {kPolicyKEarliestDeadlineFirst, "KEDF"},
      {kPolicyLaxity, "LAX"},
      {kPolicyActiveWindowFirst, "AWF"},
      {kPolicyCompletelyFairScheduler, "CFS"},
      {kPolicyMultiLevelFeedbackQueue, "MLFQ"},
      {kPolicyFirstInFirstOut, "FIFO"},
      {kPolicyRoundRobin, "RR"},
      {kPolicyEarliestDeadlineFirst, "EDF"},
      {kPolicyServiceLevel, "SLO"},
  };
  for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].number == policy) return known[i].name;
  return NULL;
}

XSI_EXPORT XResult XHintSetScheduler(XSchedulerType scheduler, XPolicyType policy) {
  const char *name = policy_name((int)policy);
  if ((int)scheduler <= kSchedulerUnknown || (int)scheduler >= kSchedulerMax ||
      (name == NULL && policy != kPolicyUnknown))
    return kXSchedErrorInvalidValue;
  xsi_init();
  if (xsi_options.disabled) return kXSchedSuccess;
  // `xsched run --local` names the private daemon where the global one would be.
  bool given = xsi_private_given();
  if (scheduler == kSchedulerGlobal && given) return kXSchedErrorNotSupported;
  if (scheduler == kSchedulerLocal && !given && xsi_private_find() < 0)
    return kXSchedErrorNotSupported;
  xsi_set_scheduler((uint32_t)scheduler);
  if (scheduler == kSchedulerLocal && name != NULL) {
    struct xsw_hint nothing = {.said = 0};
    xsi_hint_process(&nothing, name);
  } else if (name != NULL) {
    xsi_log(XSI_INFO, "policy %s is not for a program to choose here", name);
  }
  return kXSchedSuccess;
}

// ---- ours ---------------------------------------------------------------------------------------

// Converts a hint of the public interface; false if a value is out of range.
static bool to_wire(const xs_hint *said, struct xsw_hint *hint) {
  if (said == NULL || said->bytes != sizeof *said || (said->said & ~(uint32_t)XSW_HINT_ALL) != 0 ||
      (said->said & XSW_HINT_LEVEL) != 0)
    return false;
  *hint = (struct xsw_hint){.said = said->said & ~(uint32_t)XSW_HINT_POLICY};
#define COPY(field, bit) hint->field = said->field;
#define COPY_NAME(field, bit)                                                                      \
  if ((said->said & (bit)) != 0) {                                                                 \
    if (said->field == NULL || strlen(said->field) >= sizeof hint->field) return false;            \
    memcpy(hint->field, said->field, strlen(said->field) + 1);                                     \
  }
  XSI_HINT_API_FIELDS(COPY, COPY_NAME)
#undef COPY
#undef COPY_NAME
  if ((said->said & XSW_HINT_POLICY) != 0 &&
      (said->policy == NULL || strlen(said->policy) >= XSW_POLICY_BYTES))
    return false;
  return xsi_hint_sound(hint);
}

XSI_EXPORT XResult xs_hint_set(XQueueHandle xq, const xs_hint *said) {
  struct xsw_hint hint;
  if (!to_wire(said, &hint)) return kXSchedErrorInvalidValue;
  bool policy = (said->said & XSW_HINT_POLICY) != 0;
  xsi_init();
  if (policy && (xq != 0 || xsi_scheduler() != XSW_SCHEDULER_LOCAL) && !xsi_options.disabled)
    return kXSchedErrorNotSupported; // the policy is the daemon's, and this one is not ours alone
  if (policy && !xsi_options.disabled) xsi_hint_process(&hint, said->policy);
  return policy ? kXSchedSuccess : xsi_api_hint(xq, &hint);
}

XSI_EXPORT XResult xs_queue_hint(uint32_t index, const xs_hint *said) {
  struct xsw_hint hint;
  if (!to_wire(said, &hint)) return kXSchedErrorInvalidValue;
  if ((said->said & (XSW_HINT_POLICY | XSW_HINT_PER_QUEUE)) != 0)
    return kXSchedErrorNotSupported; // those are the process's
  xsi_init();
  if (xsi_options.disabled) return kXSchedSuccess;
  return index < XSW_MAX_QUEUES && xsi_queue_hint((int)index, &hint) == 0 ? kXSchedSuccess
                                                                          : kXSchedErrorNotFound;
}
