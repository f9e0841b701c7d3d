// SPDX-License-Identifier: Apache-2.0
//
// The helper may look at a lease while the daemon replaces it: the deadline of the old one must not
// end the new one. The daemon would resume a program that it had just suspended, and begin again.

#include <sched.h>

#include "liveness.h"
#include "page.h"
#include "test_support.h"

enum { ROUNDS = 5000 };
static const uint64_t NOW = 1000000000000, OVER = 1, LATER = NOW + 1000000000000;

static uint64_t *epoch, *deadline;
static unsigned asked, answered; // rounds

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
  for (unsigned round = 1; round <= ROUNDS; round++) {
    while (__atomic_load_n(&asked, __ATOMIC_ACQUIRE) < round)
      sched_yield();
    lease(2 * round, LATER);
    __atomic_store_n(&answered, round, __ATOMIC_RELEASE);
  }
  return NULL;
}

// Every recovery answers an epoch that is over; those are odd. Returns how many there were.
static unsigned check(unsigned slot) {
  uint64_t next;
  struct xsi_recovery recovery;
  if (!xsi_liveness_check(NOW, &next, &recovery)) return 0;
  CHECK(recovery.all == (slot == XSW_MAX_LEASES) && recovery.epochs[slot] % 2 == 1);
  xsi_liveness_recovered(&recovery);
  return 1;
}

static void replaced_while_checked(unsigned slot, uint64_t *of_epoch, uint64_t *of_deadline) {
  epoch = of_epoch, deadline = of_deadline;
  asked = answered = 0;
  xsi_liveness_join(NOW);
  pthread_t daemon;
  CHECK(pthread_create(&daemon, NULL, renew, NULL) == 0);
  for (unsigned round = 1; round <= ROUNDS; round++) {
    lease(2 * round - 1, OVER);
    CHECK(check(slot) == 1);
    __atomic_store_n(&asked, round, __ATOMIC_RELEASE);
    while (__atomic_load_n(&answered, __ATOMIC_ACQUIRE) < round)
      CHECK(check(slot) == 0); // what was recovered is not due again
    CHECK(check(slot) == 0 && xsi_liveness_valid(slot == XSW_MAX_LEASES ? 0 : slot + 1, NOW));
  }
  CHECK(pthread_join(daemon, NULL) == 0);
  lease(0, 0);
}

int main(void) {
  alarm(60);
  struct xsw_leases *leases = (struct xsw_leases *)(void *)(xsi_page + XSW_LEASES_OFFSET);
  store(&xsi_header()->heartbeat_ns, NOW);
  replaced_while_checked(XSW_MAX_LEASES, &xsi_header()->lease_epoch,
                         &xsi_header()->lease_deadline_ns);
  replaced_while_checked(2, &leases->entries[2].epoch, &leases->entries[2].deadline_ns);
  printf("ok core-liveness\n");
  return 0;
}
