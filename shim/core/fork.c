// SPDX-License-Identifier: Apache-2.0
//
// fork: no lock is copied while another thread holds it, and the child starts as if freshly loaded.
// It keeps no descriptor and no mapping of the parent's session, so it can neither ring the
// parent's doorbell nor touch the parent's channels. vfork and posix_spawn run no handlers and need
// none: such a child only execs.

#include "fork.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "counters.h"
#include "doorbell.h"
#include "driver.h"
#include "elf.h"
#include "helper.h"
#include "hint.h"
#include "liveness.h"
#include "memory.h"
#include "page.h"
#include "private.h"
#include "queue.h"
#include "request.h"
#include "session.h"
#include "wake.h"

enum { MAX_REGISTERED = 16 };

struct lock {
  void (*lock)(void);
  void (*unlock)(void);
};

static struct lock registered[MAX_REGISTERED];
static void (*resets[MAX_REGISTERED])(void);
static unsigned lock_count, reset_count;
static XSI_FORK_STATE unsigned locked; // registered locks that the fork under way has taken

// In lock order; the drivers' come between these and the counters'.
static const struct lock own_locks[] = {
    {xsi_helper_lock, xsi_helper_unlock},   {xsi_session_lock, xsi_session_unlock},
    {xsi_request_lock, xsi_request_unlock}, {xsi_queue_lock, xsi_queue_unlock},
    {xsi_memory_lock, xsi_memory_unlock},
};
enum { OWN_LOCKS = sizeof own_locks / sizeof *own_locks };

// Called once, by the API. A fork that began before takes none of these locks and gives none back.
void xsi_at_fork_locks(void (*lock)(void), void (*unlock)(void)) {
  if (lock_count == MAX_REGISTERED) return;
  registered[lock_count] = (struct lock){lock, unlock};
  __atomic_store_n(&lock_count, lock_count + 1, __ATOMIC_RELEASE);
}

void xsi_at_fork_child(void (*reset)(void)) {
  // Two runtimes can start in two threads at once.
  unsigned at = __atomic_fetch_add(&reset_count, 1, __ATOMIC_RELAXED);
  if (at < MAX_REGISTERED) __atomic_store_n(&resets[at], reset, __ATOMIC_RELEASE);
}

bool xsi_forget_in_child(void *table, size_t bytes) {
#ifdef MADV_WIPEONFORK
  // The kernel rounds up: with larger pages it would also forget what follows the table.
  long page = sysconf(_SC_PAGESIZE);
  if (page <= 0 || bytes % (size_t)page != 0) return false;
  int saved = errno;
  bool done = madvise(table, bytes, MADV_WIPEONFORK) == 0; // EINVAL before Linux 4.14
  errno = saved;
  return done;
#else
  (void)table, (void)bytes;
  return false;
#endif
}

// What is above the core first.
static void before(void) {
  int saved = errno;
  unsigned count = __atomic_load_n(&lock_count, __ATOMIC_ACQUIRE);
  for (unsigned i = 0; i < count; i++)
    registered[i].lock();
  for (unsigned i = 0; i < OWN_LOCKS; i++)
    own_locks[i].lock();
  locked = count; // only now: another thread's fork may have been under way
  xsi_for_each_driver(driver)
    driver->lock();
  xsi_counters_lock();
  errno = saved;
}

static void unlock_all(void) {
  unsigned count = locked; // which the next fork changes as soon as it has the locks
  xsi_counters_unlock();
  xsi_for_each_driver(driver)
    driver->unlock();
  for (unsigned i = OWN_LOCKS; i-- > 0;)
    own_locks[i].unlock();
  for (unsigned i = count; i-- > 0;)
    registered[i].unlock();
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
  xsi_private_reset();
  xsi_liveness_reset();
  xsi_page_leave_in_child(); // the mapping is the parent's session
  xsi_doorbell_reset();
  xsi_helper_reset();
  xsi_wake_reset();
  xsi_queue_reset();
  xsi_hint_reset();
  xsi_request_reset();
  xsi_memory_reset();
  xsi_for_each_driver(driver)
    driver->reset();
  xsi_counters_reset();
  for (unsigned i = 0; i < MAX_REGISTERED; i++)
    if (resets[i]) resets[i]();
  errno = saved;
}

void xsi_fork_init(void) { xsi_elf_at_fork(before, in_parent, in_child); }
