// SPDX-License-Identifier: Apache-2.0

#include "core/driver.h"
#include "rm.h"

static bool claims(int fd, unsigned long request) {
  (void)fd;
  return (request >> 8 & 0xff) == 'F';
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
