/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the library's own: detached, with all signals blocked.
 */
#ifndef XSCHED_CORE_THREAD_H
#define XSCHED_CORE_THREAD_H

#include "base.h"

/* Starts one with so many bytes of stack in addition to what glibc takes from it; 0 or -errno. The
 * limit that the program runs under (RLIMIT_STACK) would be the default: too little or far too much. */
int xsi_thread_start(size_t stack, void *(*run)(void *));

#endif /* XSCHED_CORE_THREAD_H */
