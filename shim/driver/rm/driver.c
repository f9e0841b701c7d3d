// SPDX-License-Identifier: Apache-2.0

#include "core/driver.h"
#include "rm.h"

// Number, type and size of the requests: frame buffers and others have the type, too.
static bool claims(int fd, unsigned long request) {
  (void)fd;
  switch ((uint32_t)request) {
  case NV_ESC_RM_ALLOC_32:
  case NV_ESC_RM_ALLOC_48:
  case NV_ESC_RM_CONTROL:
  case NV_ESC_RM_FREE: return true;
  default: return false;
  }
}

extern const struct xsi_driver xsi_rm_driver;
const struct xsi_driver xsi_rm_driver = {
    .name = "rm",
    .claims = claims,
    .ioctl = xsi_rm_ioctl,
    .lock = xsi_rm_lock,
    .unlock = xsi_rm_unlock,
    .reset = xsi_rm_reset,
    .tell = xsi_rm_tell,
    .due_ns = xsi_rm_due_ns,
    .prepare = xsi_rm_learn,
    .next_frame = xsi_rm_next_frame,
    .sent = xsi_rm_release,
    .overflowed = xsi_rm_overflowed,
    .recover = xsi_rm_recover,
};
