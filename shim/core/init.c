// SPDX-License-Identifier: Apache-2.0
//
// Start and end of the library in a process. Until a queue is opened it has no thread, no socket
// and no descriptor; switched off by XSCHED_DISABLE it only knows the real functions.

#include "init.h"

#include <errno.h>
#include <sched.h>

#include "annotate.h"
#include "clock.h"
#include "counters.h"
#include "driver.h"
#include "elf.h"
#include "fork.h"
#include "helper.h"
#include "hint.h"
#include "log.h"
#include "options.h"
#include "page.h"
#include "private.h"
#include "real.h"
#include "wake.h"

enum { FRESH, RUNNING, DONE };

static int state = FRESH;
static XSI_THREAD bool running_here;

void xsi_init(void) {
  if (XSI_LIKELY(__atomic_load_n(&state, __ATOMIC_ACQUIRE) == DONE)) return;
  if (running_here) return; // something below called a hook of ours: it passes through
  int saved = errno, expected = FRESH;
  if (__atomic_compare_exchange_n(&state, &expected, RUNNING, false, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE)) {
    running_here = true;
    xsi_real_init();
    xsi_annotate_init();
    xsi_clock_init();
    xsi_log_init();
    xsi_options_init();
    if (!xsi_elf_glibc()) xsi_options.disabled = true;
    xsi_hint_init();
    if (!xsi_options.disabled) {
      xsi_private_init();
      xsi_wake_set_start(xsi_helper_start);
      xsi_page_init();
      xsi_counters_init();
      xsi_fork_init();
      xsi_for_each_driver(driver)
        if (driver->read_options != NULL) driver->read_options();
    }
    running_here = false;
    __atomic_store_n(&state, DONE, __ATOMIC_RELEASE);
  } else {
    while (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != DONE)
      sched_yield();
  }
  errno = saved;
}

__attribute__((constructor)) static void load(void) { xsi_init(); }

__attribute__((destructor)) static void unload(void) {
  int saved = errno;
  if (!xsi_options.disabled) xsi_counters_publish_last();
  errno = saved;
}
