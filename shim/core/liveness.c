// SPDX-License-Identifier: Apache-2.0
//
// Fail open. The daemon is obeyed only while its heartbeat is recent and its lease valid. Otherwise the
// process runs natively until the next heartbeat, and the drivers undo everything the daemon did.

#include "liveness.h"

#include "gate.h"
#include "log.h"
#include "page.h"
#include "queue.h"

enum { CHECK_PERIOD_NS = 25000000, REPEAT_NS = 1000000000, RETRY_NS = 100000000 };
#define LIMIT_MAX_NS 10000000000u

static uint64_t joined_ns; // counts as a first heartbeat
static uint64_t recovered_epoch, recoveries, repeat_ns;
static bool failed; // the last recovery

static uint64_t load(const uint64_t *field) { return __atomic_load_n(field, __ATOMIC_ACQUIRE); }

void xsi_liveness_join(uint64_t now) {
  uint64_t limit = load(&xsi_header()->heartbeat_limit_ns);
  if (limit < XSW_HEARTBEAT_PERIOD_NS || limit > LIMIT_MAX_NS) limit = XSW_HEARTBEAT_LIMIT_NS;
  xsi_gate_set_limit(limit);
  joined_ns = now;
  recovered_epoch = 0; // epochs are the session's own
  failed = false;
  __atomic_store_n(&xsi_header()->recoveries, recoveries, __ATOMIC_RELEASE);
  __atomic_store_n(&xsi_native, 0, __ATOMIC_RELEASE);
}

void xsi_liveness_leave(void) {
  __atomic_store_n(&xsi_native, 1, __ATOMIC_RELEASE);
  xsi_queue_wake_held();
}

bool xsi_liveness_check(uint64_t now, uint64_t *next_ns) {
  const struct xsw_header *header = xsi_header();
  uint64_t heartbeat = load(&header->heartbeat_ns);
  uint64_t deadline = load(&header->lease_deadline_ns);
  uint64_t epoch = load(&header->lease_epoch);
  if (heartbeat < joined_ns) heartbeat = joined_ns;
  bool expired = xsi_gate_too_old(heartbeat, now) || (deadline != 0 && now > deadline);
  bool was_native = __atomic_load_n(&xsi_native, __ATOMIC_RELAXED) != 0;

  uint64_t next = now + CHECK_PERIOD_NS;
  uint64_t limit = heartbeat + xsi_gate_limit_ns() + 1;
  if (!expired && limit < next) next = limit;
  if (!expired && deadline != 0 && deadline + 1 < next) next = deadline + 1;
  *next_ns = next;

  if (!expired) {
    if (was_native) {
      xsi_log(XSI_INFO, "the daemon is back");
      __atomic_store_n(&xsi_native, 0, __ATOMIC_RELEASE);
    }
    return false;
  }
  if (!was_native) {
    xsi_log(XSI_WARN, "no sign of the daemon for %llu ms: running natively",
            (unsigned long long)((now - (heartbeat < now ? heartbeat : now)) / 1000000));
    xsi_liveness_leave();
  } else if ((epoch <= recovered_epoch || failed) && now < repeat_ns) {
    return false;
  }
  // Repeated while it lasts: an operation of a half-stuck daemon may land after ours.
  repeat_ns = now + REPEAT_NS;
  return true;
}

uint64_t xsi_liveness_epoch(void) { return load(&xsi_header()->lease_epoch); }

void xsi_liveness_recovered(uint64_t epoch, bool first) {
  recovered_epoch = epoch;
  failed = false;
  if (first) recoveries++;
  // The count first: a reader that sees the epoch sees it counted.
  __atomic_store_n(&xsi_header()->recoveries, recoveries, __ATOMIC_RELEASE);
  __atomic_store_n(&xsi_header()->recovered_epoch, epoch, __ATOMIC_RELEASE);
}

void xsi_liveness_failed(uint64_t now) {
  failed = true;
  repeat_ns = now + RETRY_NS;
}

void xsi_liveness_reset(void) {
  failed = false;
  xsi_native = 1;
  xsi_gate_set_limit(XSW_HEARTBEAT_LIMIT_NS);
  joined_ns = recovered_epoch = recoveries = repeat_ns = 0;
}
