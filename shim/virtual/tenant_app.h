/* SPDX-License-Identifier: Apache-2.0
 *
 * Two tenants form an application that schedules itself (XSCHED_SCHEDULER=APP). Before a request,
 * the urgent tenant makes the other suspend its stream, and resume it afterwards.
 */
#ifndef XSCHED_VIRTUAL_TENANT_APP_H
#define XSCHED_VIRTUAL_TENANT_APP_H

#include <stdbool.h>
#include <stdint.h>

/* peer is a socket to the other tenant, stream the one to hold. Without the library, or under
 * another scheduler, the result names the missing part. */
const char *app_begin(int peer, bool urgent, void *stream);
/* Brackets a request of the urgent tenant; no effect in other tenants. */
void app_request(bool begins);
/* Submissions to this process's queues, as counted by the library. */
uint64_t app_submitted(void);
/* The nth suspension of this tenant; false if there were fewer. */
bool app_suspended(unsigned n, uint64_t *from_ns, uint64_t *to_ns);

#endif /* XSCHED_VIRTUAL_TENANT_APP_H */
