// SPDX-License-Identifier: Apache-2.0
//
// Queries of the program, and marks of its requests.

#include "api.h"

#include "core/hint.h"
#include "core/init.h"
#include "core/options.h"
#include "core/private.h"
#include "core/queue.h"
#include "core/request.h"
#include "core/session.h"

XSI_EXPORT uint64_t xs_request_begin(const char *name) {
  xsi_init();
  return name == NULL || xsi_options.disabled ? 0 : xsi_request_begin(name);
}

XSI_EXPORT void xs_request_end(uint64_t request) {
  if (request != 0) xsi_request_end(request);
}

XSI_EXPORT uint32_t xs_queues(xs_queue_info *list, uint32_t room) {
  uint32_t count = 0;
  struct xsi_queue_info found;
  xsi_init();
  for (uint32_t i = 0; i < XSW_MAX_QUEUES; i++) {
    if (!xsi_queue_describe(i, &found)) continue;
    if (list != NULL && count < room)
      list[count] = (xs_queue_info){.index = i,
                                    .kind = found.kind,
                                    .pci_domain = found.pci_domain,
                                    .pci_bus_slot = found.pci_bus_slot,
                                    .priority = found.priority,
                                    .busy = found.busy,
                                    .held = found.held,
                                    .submitted = found.submitted};
    count++;
  }
  return count;
}

XSI_EXPORT int xs_available(void) {
  xsi_init();
  if (xsi_joined()) return 1;
  // Without a queue there is no session yet: the answer is whether one would begin.
  if (xsi_options.disabled || xsi_scheduler() == XSW_SCHEDULER_APP || xsi_private_wanted() ||
      xsi_queue_any())
    return 0;
  return xsi_daemon_listens() ? 1 : 0;
}

XSI_EXPORT int xs_scheduler(void) {
  xsi_init();
  return (int)xsi_scheduler();
}

XSI_EXPORT uint32_t xs_api_version(void) { return XS_API_VERSION; }
