// SPDX-License-Identifier: Apache-2.0
//
// fork: no lock is copied while another thread holds it, and the child starts as if freshly loaded.
// It keeps no descriptor and no mapping of the parent's session, so it can neither ring the
// parent's doorbell nor touch the parent's channels. vfork and posix_spawn run no handlers and need
// none: such a child only execs.

#include <errno.h>
#include <pthread.h>
#include <stddef.h>

#include "driver/kfd/kfd.h"
#include "parts.h"

enum { MAX_REGISTERED = 8 };

static struct {
  void (*lock)(void);
  void (*unlock)(void);
} locks[MAX_REGISTERED];
static void (*resets[MAX_REGISTERED])(void);
static unsigned lock_count, reset_count;

// Lock order: whatever is above the core first.
static const struct {
  void (*lock)(void);
  void (*unlock)(void);
} own_locks[] = {
    {xsi_helper_lock, xsi_helper_unlock},
    {xsi_session_lock, xsi_session_unlock},
    {xsi_request_lock, xsi_request_unlock},
    {xsi_queue_lock, xsi_queue_unlock},
    {xsi_rm_lock, xsi_rm_unlock},
    {xsi_kfd_lock, xsi_kfd_unlock},
    {xsi_counters_lock, xsi_counters_unlock},
};
enum { OWN_LOCKS = sizeof own_locks / sizeof *own_locks };

void xsi_at_fork_locks(void (*lock)(void), void (*unlock)(void)) {
  if (lock_count == MAX_REGISTERED) return;
  locks[lock_count].lock = lock;
  locks[lock_count++].unlock = unlock;
}

void xsi_at_fork_child(void (*reset)(void)) {
  // Two runtimes can start in two threads at once.
  unsigned at = __atomic_fetch_add(&reset_count, 1, __ATOMIC_RELAXED);
  if (at < MAX_REGISTERED) __atomic_store_n(&resets[at], reset, __ATOMIC_RELEASE);
}

static void before(void) {
  int saved = errno;
  for (unsigned i = 0; i < lock_count; i++)
    locks[i].lock();
  for (unsigned i = 0; i < OWN_LOCKS; i++)
    if (own_locks[i].lock != NULL) own_locks[i].lock();
  errno = saved;
}

static void unlock_all(void) {
  for (unsigned i = OWN_LOCKS; i-- > 0;)
    if (own_locks[i].unlock != NULL) own_locks[i].unlock();
  for (unsigned i = lock_count; i-- > 0;)
    locks[i].unlock();
}

static void in_parent(void) {
  int saved = errno;
  unlock_all();
  errno = saved;
}

static void in_child(void) {
  int saved = errno;
  unlock_all();
  xsi_session_reset(); // not joined: nothing below rings or publishes
  xsi_liveness_reset();
  xsi_page_leave(); // the mapping is the parent's session
  xsi_doorbell_reset();
  xsi_helper_reset();
  xsi_queue_reset();
  xsi_hint_reset();
  xsi_request_reset();
  xsi_rm_reset();
  if (xsi_kfd_reset != NULL) xsi_kfd_reset();
  xsi_counters_reset();
  for (unsigned i = 0; i < MAX_REGISTERED; i++)
    if (resets[i]) resets[i]();
  errno = saved;
}

void xsi_fork_init(void) { pthread_atfork(before, in_parent, in_child); }
