/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's own descriptors: close-on-exec, and above the numbers that applications count on. None of
 * these functions is a cancellation point.
 */
#ifndef XSCHED_CORE_FD_H
#define XSCHED_CORE_FD_H

#include "base.h"

int xsi_fd_raise(int fd);     /* takes fd over and returns its new number */
int xsi_fd_duplicate(int fd); /* the number of a copy, or -errno */
void xsi_fd_close(int *fd);   /* closes if open, sets -1 */

#endif /* XSCHED_CORE_FD_H */
