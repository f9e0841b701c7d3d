/* SPDX-License-Identifier: Apache-2.0
 *
 * The log, written only to the file or descriptor that XSCHED_LOG names.
 */
#ifndef XSCHED_CORE_LOG_H
#define XSCHED_CORE_LOG_H

#include "base.h"

enum xsi_log_level { XSI_ERROR, XSI_WARN, XSI_INFO, XSI_DEBUG };
extern int xsi_log_threshold; /* -1: off, the default */
void xsi_log_init(void);
void xsi_log_write(enum xsi_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define xsi_log(level, ...)                                                                        \
  do {                                                                                             \
    if (XSI_UNLIKELY((int)(level) <= xsi_log_threshold)) xsi_log_write(level, __VA_ARGS__);        \
  } while (0)

#endif /* XSCHED_CORE_LOG_H */
