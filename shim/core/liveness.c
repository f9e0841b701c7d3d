// SPDX-License-Identifier: Apache-2.0
//
// Fail open. The daemon is obeyed only while its heartbeat is recent. Otherwise the process runs
// natively until the next heartbeat, and the drivers undo everything the daemon did. A suspension
// needs a valid lease, too: when the lease of one device ends, that device alone is recovered.

#include "liveness.h"

#include <string.h>

#include "gate.h"
#include "log.h"
#include "page.h"
#include "queue.h"

enum { CHECK_PERIOD_NS = 25000000, REPEAT_NS = 1000000000, RETRY_NS = 100000000 };
#define LIMIT_MAX_NS 10000000000u
// The shared lease; its state stands for the whole process.
enum { SHARED = XSW_MAX_LEASES };

static XSI_FORK_STATE uint64_t joined_ns; // counts as a first heartbeat
static XSI_FORK_STATE uint64_t recoveries, lease_recoveries;
static XSI_FORK_STATE bool first_failed; // the last recovery of all that was not a repetition
static struct {
  uint64_t recovered; // epoch
  uint64_t repeat_ns;
  bool failed; // the last recovery
} leases[XSI_LEASES] XSI_FORK_STATE;

static uint64_t load(const uint64_t *field) { return __atomic_load_n(field, __ATOMIC_ACQUIRE); }
static void store(uint64_t *field, uint64_t value) {
  __atomic_store_n(field, value, __ATOMIC_RELEASE);
}

static uint64_t epoch_of(unsigned i) {
  return load(i == SHARED ? &xsi_header()->lease_epoch : &xsi_page_leases()->entries[i].epoch);
}
static uint64_t deadline_of(unsigned i) {
  return load(i == SHARED ? &xsi_header()->lease_deadline_ns
                          : &xsi_page_leases()->entries[i].deadline_ns);
}

void xsi_liveness_join(uint64_t now) {
  uint64_t limit = load(&xsi_header()->heartbeat_limit_ns);
  if (limit < XSW_HEARTBEAT_PERIOD_NS || limit > LIMIT_MAX_NS) limit = XSW_HEARTBEAT_LIMIT_NS;
  xsi_gate_set_limit(limit);
  joined_ns = now;
  memset(leases, 0, sizeof leases); // epochs are the session's own
  first_failed = false;
  store(&xsi_header()->recoveries, recoveries);
  store(&xsi_header()->lease_recoveries, lease_recoveries);
  __atomic_store_n(&xsi_native, 0, __ATOMIC_RELEASE);
}

void xsi_liveness_leave(void) {
  __atomic_store_n(&xsi_native, 1, __ATOMIC_RELEASE);
  xsi_queue_wake_held();
}

struct xsi_recovery xsi_liveness_all(void) {
  struct xsi_recovery recovery = {.all = true, .first = true};
  for (unsigned i = 0; i < XSI_LEASES; i++)
    recovery.epochs[i] = epoch_of(i);
  return recovery;
}

bool xsi_liveness_any_lease(const struct xsi_recovery *recovery) {
  for (unsigned i = 0; i < XSI_LEASES; i++)
    if (recovery->epochs[i] != 0) return true;
  return false;
}

// A recovery is repeated while its cause lasts: an operation of a half-stuck daemon may land after
// ours.
static bool due(unsigned i, bool newer, uint64_t now) {
  if ((!newer || leases[i].failed) && now < leases[i].repeat_ns) return false;
  leases[i].repeat_ns = now + REPEAT_NS;
  return true;
}

static bool any_newer(const uint64_t *epochs) {
  for (unsigned i = 0; i < XSI_LEASES; i++)
    if (epochs[i] > leases[i].recovered) return true;
  return false;
}

static bool check_all(uint64_t now, uint64_t heartbeat, struct xsi_recovery *recovery) {
  bool was_native = __atomic_load_n(&xsi_native, __ATOMIC_RELAXED) != 0;
  if (!was_native) {
    xsi_log(XSI_WARN, "no sign of the daemon for %llu ms: running natively",
            (unsigned long long)((now - (heartbeat < now ? heartbeat : now)) / 1000000));
    xsi_liveness_leave();
    leases[SHARED].repeat_ns = now + REPEAT_NS;
  } else if (!due(SHARED, any_newer(recovery->epochs), now)) {
    return false;
  }
  recovery->first = !was_native || first_failed;
  return true;
}

// The first lease of a device that ended and is to be recovered now.
static bool check_leases(uint64_t now, uint64_t *next_ns, struct xsi_recovery *recovery) {
  for (unsigned i = 0; i < XSW_MAX_LEASES; i++) {
    uint64_t epoch = recovery->epochs[i], deadline = deadline_of(i);
    if (deadline == 0) continue;
    if (now <= deadline) {
      if (deadline < *next_ns) *next_ns = deadline + 1;
      continue;
    }
    bool newer = epoch > leases[i].recovered;
    if (!due(i, newer, now)) continue;
    const struct xsw_lease *entry = &xsi_page_leases()->entries[i];
    *recovery = (struct xsi_recovery){
        .first = newer,
        .lease = {.number = i + 1,
                  .pci_domain = __atomic_load_n(&entry->pci_domain, __ATOMIC_RELAXED),
                  .pci_bus_slot = __atomic_load_n(&entry->pci_bus_slot, __ATOMIC_RELAXED)},
    };
    recovery->epochs[i] = epoch;
    *next_ns = now; // there may be more
    return true;
  }
  return false;
}

// Epochs are read first, because the daemon writes them last: an old deadline or heartbeat must not
// end a new lease.
bool xsi_liveness_check(uint64_t now, uint64_t *next_ns, struct xsi_recovery *recovery) {
  *recovery = xsi_liveness_all();
  uint64_t heartbeat = load(&xsi_header()->heartbeat_ns), deadline = deadline_of(SHARED);
  if (heartbeat < joined_ns) heartbeat = joined_ns;
  // Until the daemon is back. While it is there, nothing can become overdue sooner than after its limit.
  *next_ns = now + CHECK_PERIOD_NS;
  if (xsi_gate_too_old(heartbeat, now) || (deadline != 0 && now > deadline))
    return check_all(now, heartbeat, recovery);

  uint64_t limit = xsi_gate_limit_ns(), silent = heartbeat + limit + 1;
  *next_ns = now + (limit < XSW_HEARTBEAT_LIMIT_NS ? limit : XSW_HEARTBEAT_LIMIT_NS);
  if (silent < *next_ns) *next_ns = silent;
  if (deadline != 0 && deadline < *next_ns) *next_ns = deadline + 1;
  if (__atomic_load_n(&xsi_native, __ATOMIC_RELAXED) != 0) {
    xsi_log(XSI_INFO, "the daemon is back");
    __atomic_store_n(&xsi_native, 0, __ATOMIC_RELEASE);
  }
  return check_leases(now, next_ns, recovery);
}

// True if the daemon began a lease while the drivers recovered. They may have undone that suspension,
// too, and the epoch of a repeated recovery does not tell the daemon.
static bool replaced(const struct xsi_recovery *recovery) {
  for (unsigned i = 0; i < XSI_LEASES; i++)
    if ((recovery->all || i + 1 == recovery->lease.number) && epoch_of(i) != recovery->epochs[i])
      return true;
  return false;
}

void xsi_liveness_recovered(const struct xsi_recovery *recovery) {
  for (unsigned i = 0; i < XSI_LEASES; i++) {
    if (!recovery->all && recovery->epochs[i] == 0) continue;
    leases[i].recovered = recovery->epochs[i];
    leases[i].failed = false;
  }
  if (recovery->all) first_failed = false;
  // The count first: a reader that sees the epoch sees it counted.
  if ((recovery->all && recovery->first) || replaced(recovery))
    store(&xsi_header()->recoveries, ++recoveries);
  if (!recovery->all && recovery->first) store(&xsi_header()->lease_recoveries, ++lease_recoveries);
  for (unsigned i = 0; i < XSW_MAX_LEASES; i++)
    if (recovery->epochs[i] != 0)
      store(&xsi_page_leases()->recovered_epochs[i], recovery->epochs[i]);
  if (recovery->all) store(&xsi_header()->recovered_epoch, recovery->epochs[SHARED]);
}

void xsi_liveness_failed(const struct xsi_recovery *recovery, uint64_t now) {
  unsigned i = recovery->all ? SHARED : recovery->lease.number - 1;
  leases[i].failed = true;
  leases[i].repeat_ns = now + RETRY_NS;
  if (recovery->all) first_failed = recovery->first;
}

// A lease that was recovered is not valid, whatever its deadline says: the daemon counts that
// suspension as undone.
bool xsi_liveness_valid(uint32_t number, uint64_t now) {
  if (number > XSW_MAX_LEASES) return false;
  unsigned i = number == 0 ? SHARED : number - 1;
  uint64_t deadline = deadline_of(i);
  return deadline != 0 && now <= deadline && epoch_of(i) > leases[i].recovered;
}

void xsi_liveness_reset(void) {
  xsi_native = 1;
  xsi_gate_set_limit(XSW_HEARTBEAT_LIMIT_NS);
  memset(leases, 0, sizeof leases);
  first_failed = false;
  joined_ns = recoveries = lease_recoveries = 0;
}
