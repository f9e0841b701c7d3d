// SPDX-License-Identifier: Apache-2.0
//
// ioctl, interposed. A request of a registered driver goes through that driver, any other to the next
// definition of ioctl: one question per driver.

#include <stdarg.h>

#include "core/driver.h"
#include "core/init.h"
#include "core/options.h"
#include "core/real.h"

XSI_EXPORT int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  xsi_for_each_driver(driver) {
    if (!driver->claims(fd, request)) continue;
    xsi_init();
    if (argument == NULL || xsi_options.disabled) break;
    return driver->ioctl(fd, request, argument);
  }
  return xsi_real_ioctl(fd, request, argument);
}
extern __typeof__(ioctl) xsi_hook_ioctl __attribute__((visibility("hidden"), alias("ioctl")));
