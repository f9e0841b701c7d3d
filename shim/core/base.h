/* SPDX-License-Identifier: Apache-2.0
 *
 * What every file of the library may use. The core has five layers (docs/architecture.md); a file includes the
 * headers it needs, from its own layer or a lower one, and a test checks that. The core knows no driver and
 * no runtime: drivers implement driver.h, runtimes call work.h.
 *
 * The library is a guest in the application. No function exits, aborts, prints, installs a signal
 * handler, or changes the errno that the application sees.
 *
 * Lock order: work -> helper -> session -> request -> queue -> memory -> driver -> counters. No lock is held over a
 * call of a driver or a runtime, except the watcher's (work.h).
 */
#ifndef XSCHED_CORE_BASE_H
#define XSCHED_CORE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compat.h"

#define XSI_LIKELY(x) __builtin_expect(!!(x), 1)
#define XSI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define XSI_EXPORT __attribute__((visibility("default")))
/* Thread-local without a call to find it. */
#define XSI_THREAD _Thread_local __attribute__((tls_model("initial-exec")))

/* Small variables that the child of a fork writes. Together, they are on few pages: each page that the
 * child writes is copied, which costs more than the rest of what it does. */
#define XSI_FORK_STATE __attribute__((section("xsi_fork_state")))
/* Tables that the child of a fork empties, on pages of their own: see xsi_forget_in_child. */
#define XSI_FORK_PAGE 4096
#define XSI_FORK_TABLE __attribute__((aligned(XSI_FORK_PAGE)))

/* Zeroes memory in the child of a fork, but stores only where it is not zero: a store copies a page
 * that the child otherwise shares with its parent. */
static inline void xsi_clear_used(void *memory, size_t bytes) {
  uint64_t *word = memory;
  for (size_t i = 0; i < bytes / sizeof *word; i++)
    if (word[i] != 0) word[i] = 0;
}

#endif /* XSCHED_CORE_BASE_H */
