// SPDX-License-Identifier: Apache-2.0
//
// Counters: one block in thread-local storage, so that counting is one store to a cache line that no
// other thread writes. The blocks are chained; a thread that ends adds its numbers to those of the threads
// before it.

#include "counters.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "log.h"
#include "page.h"

#define FOR_EACH_COUNTER(do_)                                                                      \
  do_(hooked_calls) do_(launches) do_(copies) do_(syncs) do_(captured) do_(gate_waits)             \
      do_(gate_wait_ns) do_(unhooked)

// With more threads than this, walking them on every idle change would cost more than it shows.
enum { FEW_THREADS = 16, LAST_ROUND = 4 };

XSI_THREAD struct xsi_thread xsi_thread;
static XSI_THREAD unsigned rounds; // how often this thread's end was announced

static XSI_FORK_STATE pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static XSI_FORK_STATE struct xsi_counters *first;
static XSI_FORK_STATE struct xsi_counters ended; // the sum of threads that are gone
static XSI_FORK_STATE unsigned threads;
static pthread_key_t key;
static bool key_made;

void xsi_counters_lock(void) { pthread_mutex_lock(&lock); }
void xsi_counters_unlock(void) { pthread_mutex_unlock(&lock); }

static void link_block(struct xsi_counters *block) {
  block->previous = NULL;
  block->next = first;
  if (first != NULL) first->previous = block;
  first = block;
  __atomic_store_n(&threads, threads + 1, __ATOMIC_RELAXED);
}

static void thread_ends(void *argument) {
  struct xsi_counters *block = argument;
  xsi_counters_lock();
#define MOVE(field)                                                                                \
  ended.field += block->field;                                                                     \
  __atomic_store_n(&block->field, 0, __ATOMIC_RELAXED);
  FOR_EACH_COUNTER(MOVE)
  if (block->previous != NULL)
    block->previous->next = block->next;
  else
    first = block->next;
  if (block->next != NULL) block->next->previous = block->previous;
  __atomic_store_n(&threads, threads - 1, __ATOMIC_RELAXED);
  xsi_counters_unlock();
  // Destructors of others may still launch: they list the block again, and we are called again, but
  // only so often. After that no destructor would unlink it before its memory goes, so it stays out.
  block->listed = ++rounds >= LAST_ROUND;
}

void xsi_counters_init(void) { key_made = pthread_key_create(&key, thread_ends) == 0; }

void xsi_counters_enlist(void) {
  int saved = errno;
  struct xsi_counters *block = &xsi_thread.counters;
  block->listed = true;
  if (key_made && pthread_setspecific(key, block) == 0) {
    xsi_counters_lock();
    link_block(block);
    xsi_counters_unlock();
  } else {
    xsi_log(XSI_WARN, "a thread's calls are not counted: no thread-specific key");
  }
  errno = saved;
}

static void sum(struct xsi_counters *total) {
  *total = ended;
#define ADD(field) total->field += __atomic_load_n(&block->field, __ATOMIC_RELAXED);
  for (struct xsi_counters *block = first; block != NULL; block = block->next) {
    FOR_EACH_COUNTER(ADD)
  }
}

void xsi_counters_sum(struct xsi_counters *total) {
  xsi_counters_lock();
  sum(total);
  xsi_counters_unlock();
}

// In the lock from sum to store, so that an older sum never replaces a newer one.
static void publish_locked(void) {
  struct xsi_counters total;
  struct xsw_header *header = xsi_header();
  sum(&total);
#define PUBLISH(field) __atomic_store_n(&header->field, total.field, __ATOMIC_RELAXED);
  FOR_EACH_COUNTER(PUBLISH)
}

void xsi_counters_publish(void) {
  if (!xsi_page_joined()) return;
  xsi_counters_lock();
  publish_locked();
  xsi_counters_unlock();
}

void xsi_counters_idle(void) {
  if (__atomic_load_n(&threads, __ATOMIC_RELAXED) <= FEW_THREADS) xsi_counters_publish();
}

void xsi_counters_publish_last(void) {
  if (!xsi_page_joined()) return;
  // exit() may have been called by a signal handler above our own critical section.
  const struct timespec pause = {.tv_nsec = 1000000};
  for (int tries = 0; tries < 50; tries++) {
    if (pthread_mutex_trylock(&lock) == 0) {
      publish_locked();
      xsi_counters_unlock();
      return;
    }
    nanosleep(&pause, NULL);
  }
}

void xsi_counters_reset(void) {
  struct xsi_counters *mine = &xsi_thread.counters;
  bool was_listed = mine->listed && rounds < LAST_ROUND;
  memset(mine, 0, sizeof *mine);
  memset(&ended, 0, sizeof ended);
  first = NULL;
  threads = 0;
  if (was_listed) {
    mine->listed = true;
    link_block(mine);
  }
}
