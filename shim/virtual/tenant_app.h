/* SPDX-License-Identifier: Apache-2.0
 *
 * Two tenants that are one application and schedule themselves (XSCHED_SCHEDULER=APP): before a
 * request the urgent one has the other suspend its stream, and resume it afterwards.
 */
#ifndef XSCHED_VIRTUAL_TENANT_APP_H
#define XSCHED_VIRTUAL_TENANT_APP_H

#include <stdbool.h>
#include <stdint.h>

/* peer is a socket to the other tenant, stream the one whose launches are held. Without the
 * library, or when somebody else schedules this process, it returns what is missing. */
const char *app_begin(int peer, bool urgent, void *stream);
/* Around a request of the urgent one; nothing in anybody else. */
void app_request(bool begins);
/* What the library counted in this process's queues. */
uint64_t app_submitted(void);
/* The nth time this tenant was suspended; false: there were fewer. */
bool app_suspended(unsigned n, uint64_t *from_ns, uint64_t *to_ns);

#endif /* XSCHED_VIRTUAL_TENANT_APP_H */
