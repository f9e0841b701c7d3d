/* SPDX-License-Identifier: Apache-2.0
 *
 * Options of the whole library, read once from the environment. A runtime reads its own variables with
 * xsi_option_text.
 */
#ifndef XSCHED_CORE_OPTIONS_H
#define XSCHED_CORE_OPTIONS_H

#include <sys/un.h>

#include "base.h"
#include "xsched/wire.h"

struct xsi_options {
  bool disabled;        /* XSCHED_DISABLE=1: every hook is a plain call of the real function */
  bool automatic;       /* XSCHED_AUTO_XQUEUE: each context is a queue; the default */
  bool per_stream;      /* XSCHED_GRANULARITY=queue: each created stream is one, too */
  uint32_t scheduler;   /* enum xsw_scheduler */
  struct xsw_hint hint; /* of the process */
  char policy[XSW_POLICY_BYTES];
};
extern struct xsi_options xsi_options;

void xsi_options_init(void);
/* Copies a variable; false if it is unset or too long, which is logged. */
bool xsi_option_text(const char *name, char *value, size_t bytes);
/* True if the environment names a daemon's socket or directory. */
bool xsi_place_named(void);
/* Where a daemon may listen, in order of preference: 0, or -ENOENT after the last one. An empty path
 * means that this place does not exist here. A directory that is not NULL is the only place. */
int xsi_socket_candidate(unsigned index, const char *directory, struct sockaddr_un *address);

#endif /* XSCHED_CORE_OPTIONS_H */
