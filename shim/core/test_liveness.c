// SPDX-License-Identifier: Apache-2.0
//
// The daemon may replace a lease at any time. While the helper looks at it: the deadline of the old
// lease must not end the new one, or the daemon would resume a program that it had just suspended,
// and begin again. While the drivers recover: they may undo the new one, and the daemon must know.

#include <sched.h>

#include "liveness.h"
#include "page.h"
#include "test_support.h"

enum { ROUNDS = 30000, STOP = UINT32_MAX };
#define LIMIT_NS 3000000000u // where both threads share one core, a round takes a timeslice
#define NOW 1000000000000u
#define OVER 1
#define LATER (2 * (uint64_t)NOW)

static uint64_t *epoch, *deadline;
static unsigned slot;            // of the lease, as in xsi_recovery
static uint32_t asked, answered; // rounds

static uint64_t load(const uint64_t *field) { return __atomic_load_n(field, __ATOMIC_ACQUIRE); }
static void store(uint64_t *field, uint64_t value) {
  __atomic_store_n(field, value, __ATOMIC_RELEASE);
}
static void lease(uint64_t number, uint64_t until) { // in the daemon's order
  store(deadline, until);
  store(epoch, number);
}

// Answers a lease that is over with a new one.
static void *renew(void *argument) {
  (void)argument;
  for (uint32_t round = 0; round != STOP;) {
    uint32_t next = __atomic_load_n(&asked, __ATOMIC_ACQUIRE);
    if (next == round) {
      sched_yield();
      continue;
    }
    round = next;
    if (round != STOP) lease(2 * (uint64_t)round, LATER);
    __atomic_store_n(&answered, round, __ATOMIC_RELEASE);
  }
  return NULL;
}

// True if the drivers are to be recovered, from a lease that is over: those have odd epochs.
static bool check(uint64_t now, struct xsi_recovery *recovery) {
  uint64_t next;
  if (!xsi_liveness_check(now, &next, recovery)) return false;
  CHECK(recovery->all == (slot == XSW_MAX_LEASES) && recovery->epochs[slot] % 2 == 1);
  return true;
}

static void replaced_while_checked(void) {
  xsi_liveness_join(NOW);
  asked = answered = 0;
  pthread_t daemon;
  CHECK(pthread_create(&daemon, NULL, renew, NULL) == 0);
  struct xsi_recovery recovery;
  const uint64_t limit = xsi_now_ns() + LIMIT_NS;
  for (uint32_t round = 1; round <= ROUNDS && xsi_now_ns() < limit; round++) {
    lease(2 * (uint64_t)round - 1, OVER);
    CHECK(check(NOW, &recovery));
    xsi_liveness_recovered(&recovery);
    __atomic_store_n(&asked, round, __ATOMIC_RELEASE);
    while (__atomic_load_n(&answered, __ATOMIC_ACQUIRE) < round)
      CHECK(!check(NOW, &recovery)); // what was recovered is not due again
    CHECK(!check(NOW, &recovery));
    CHECK(xsi_liveness_valid(slot == XSW_MAX_LEASES ? 0 : slot + 1, NOW));
  }
  __atomic_store_n(&asked, (uint32_t)STOP, __ATOMIC_RELEASE);
  CHECK(pthread_join(daemon, NULL) == 0);
  lease(0, 0);
}

// A repetition reports the epoch of the recovery before. So what began meanwhile is counted.
static void replaced_while_recovered(void) {
  xsi_liveness_join(NOW);
  struct xsi_recovery recovery;
  lease(1, OVER);
  CHECK(check(NOW, &recovery) && recovery.first);
  xsi_liveness_recovered(&recovery);
  const uint64_t *count = &xsi_header()->recoveries, before = load(count),
                 again = 2 * (uint64_t)NOW;
  store(&xsi_header()->heartbeat_ns, again);
  CHECK(check(again, &recovery) && !recovery.first);
  xsi_liveness_recovered(&recovery);
  CHECK(load(count) == before); // nothing new
  store(&xsi_header()->heartbeat_ns, again + NOW);
  CHECK(check(again + NOW, &recovery) && !recovery.first);
  lease(2, 2 * again);
  xsi_liveness_recovered(&recovery);
  CHECK(load(count) == before + 1);
  CHECK(!check(again + NOW, &recovery));
  lease(0, 0);
}

static void leases_of(unsigned which, uint64_t *of_epoch, uint64_t *of_deadline) {
  slot = which, epoch = of_epoch, deadline = of_deadline;
  store(&xsi_header()->heartbeat_ns, NOW);
  replaced_while_checked();
  replaced_while_recovered();
}

int main(void) {
  alarm(60);
  struct xsw_leases *leases = (struct xsw_leases *)(void *)(xsi_page + XSW_LEASES_OFFSET);
  leases_of(XSW_MAX_LEASES, &xsi_header()->lease_epoch, &xsi_header()->lease_deadline_ns);
  leases_of(2, &leases->entries[2].epoch, &leases->entries[2].deadline_ns);
  printf("ok core-liveness\n");
  return 0;
}
