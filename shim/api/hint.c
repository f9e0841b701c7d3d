// SPDX-License-Identifier: Apache-2.0
//
// Hints: checked here, so that a wrong one is the caller's error at once; carried to the daemon by
// the helper thread.

#include <errno.h>
#include <string.h>

#include "api.h"

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

static bool is_priority(int64_t value) {
  return value >= PRIORITY_NO_EXECUTE && value <= PRIORITY_MAX;
}

static bool is_timeslice(uint64_t us) {
  return us == 0 || (us >= TIMESLICE_MIN && us <= TIMESLICE_MAX);
}

XSI_EXPORT XResult XHintPriority(XQueueHandle xq, Priority prio) {
  if (!is_priority(prio)) return kXSchedErrorInvalidValue;
  struct xsw_hint hint = {.said = XSW_HINT_PRIORITY, .priority = prio};
  return xsi_api_hint(xq, &hint);
}

XSI_EXPORT XResult XHintUtilization(XQueueHandle xq, Utilization util) {
  if (util < UTILIZATION_MIN || util > UTILIZATION_MAX) return kXSchedErrorInvalidValue;
  struct xsw_hint hint = {.said = XSW_HINT_UTILIZATION, .utilization = (uint32_t)util};
  return xsi_api_hint(xq, &hint);
}

XSI_EXPORT XResult XHintTimeslice(Timeslice ts_us) {
  if (ts_us < 0 || !is_timeslice((uint64_t)ts_us)) return kXSchedErrorInvalidValue;
  struct xsw_hint hint = {.said = XSW_HINT_TIMESLICE, .timeslice_us = (uint64_t)ts_us};
  return xsi_api_hint(0, &hint);
}

XSI_EXPORT XResult XHintLaxity(XQueueHandle xq, Laxity lax_us, Priority lax_prio,
                               Priority crit_prio) {
  if (lax_us < NO_LAXITY || lax_us > XSI_HINT_MAX_US || !is_priority(lax_prio) ||
      !is_priority(crit_prio))
    return kXSchedErrorInvalidValue;
  struct xsw_hint hint = {.said = XSW_HINT_LAXITY};
  if (lax_us != NO_LAXITY) {
    hint.laxity_us = (uint64_t)lax_us;
    hint.lax_priority = lax_prio;
    hint.critical_priority = crit_prio;
  }
  return xsi_api_hint(xq, &hint);
}

XSI_EXPORT XResult XHintDeadline(XQueueHandle xq, Deadline ddl_us) {
  if (ddl_us < NO_DEADLINE || ddl_us > XSI_HINT_MAX_US) return kXSchedErrorInvalidValue;
  struct xsw_hint hint = {.said = XSW_HINT_DEADLINE,
                          .deadline_us = ddl_us == NO_DEADLINE ? 0 : (uint64_t)ddl_us};
  return xsi_api_hint(xq, &hint);
}

XSI_EXPORT XResult XHintKDeadline(size_t k) {
  if (k > XSW_MAX_QUEUES) return kXSchedErrorInvalidValue;
  struct xsw_hint hint = {.said = XSW_HINT_K, .k = (uint32_t)k};
  return xsi_api_hint(0, &hint);
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
  // A private daemon is there from the program's start or not at all.
  bool local = xsi_options.scheduler == XSW_SCHEDULER_LOCAL;
  if (scheduler != kSchedulerAppManaged && (scheduler == kSchedulerLocal) != local)
    return kXSchedErrorNotSupported;
  if (scheduler == kSchedulerLocal && name != NULL) {
    struct xsw_hint nothing = {.said = 0};
    xsi_hint_process(&nothing, name);
  } else if (name != NULL) {
    xsi_log(XSI_INFO, "policy %s is not for a program to choose here", name);
  }
  xsi_set_scheduler((uint32_t)scheduler);
  return kXSchedSuccess;
}

// ---- ours ---------------------------------------------------------------------------------------

static bool is_sound(const xs_hint *hint) {
  if (hint->bytes != sizeof *hint || (hint->said & ~(uint32_t)XSW_HINT_ALL) != 0 ||
      (hint->said & XSW_HINT_LEVEL) != 0)
    return false;
  return is_priority(hint->priority) && is_priority(hint->lax_priority) &&
         is_priority(hint->critical_priority) && hint->utilization <= UTILIZATION_MAX &&
         is_timeslice(hint->timeslice_us) && hint->deadline_us <= XSI_HINT_MAX_US &&
         hint->laxity_us <= XSI_HINT_MAX_US && hint->slo_us <= XSI_HINT_MAX_US &&
         (hint->slo_percentile == 0 ||
          (hint->slo_percentile >= 100 && hint->slo_percentile < 10000)) &&
         hint->k <= XSW_MAX_QUEUES && hint->window_active <= 1 && hint->per_queue <= 1 &&
         hint->in_flight <= XSI_HINT_MAX_LAUNCHES && hint->batch <= XSI_HINT_MAX_LAUNCHES &&
         ((hint->said & XSW_HINT_GANG) == 0 ||
          (hint->gang != NULL && strlen(hint->gang) < XSW_GANG_BYTES)) &&
         ((hint->said & XSW_HINT_POLICY) == 0 ||
          (hint->policy != NULL && strlen(hint->policy) < XSW_POLICY_BYTES));
}

XSI_EXPORT XResult xs_hint_set(XQueueHandle xq, const xs_hint *said) {
  if (said == NULL || !is_sound(said)) return kXSchedErrorInvalidValue;
  bool policy = (said->said & XSW_HINT_POLICY) != 0;
  xsi_init();
  if (policy && (xq != 0 || xsi_options.scheduler != XSW_SCHEDULER_LOCAL) && !xsi_options.disabled)
    return kXSchedErrorNotSupported; // the policy is the daemon's, and this one is not ours alone
  struct xsw_hint hint = {
      .said = said->said & ~(uint32_t)XSW_HINT_POLICY,
      .priority = said->priority,
      .in_flight = said->in_flight,
      .batch = said->batch,
      .utilization = said->utilization,
      .timeslice_us = said->timeslice_us,
      .deadline_us = said->deadline_us,
      .laxity_us = said->laxity_us,
      .lax_priority = said->lax_priority,
      .critical_priority = said->critical_priority,
      .k = said->k,
      .window_active = said->window_active,
      .slo_us = said->slo_us,
      .slo_percentile = said->slo_percentile,
      .per_queue = said->per_queue,
  };
  if ((said->said & XSW_HINT_GANG) != 0) memcpy(hint.gang, said->gang, strlen(said->gang) + 1);
  if (policy && !xsi_options.disabled) xsi_hint_process(&hint, said->policy);
  return policy ? kXSchedSuccess : xsi_api_hint(xq, &hint);
}
