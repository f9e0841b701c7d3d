/* SPDX-License-Identifier: Apache-2.0
 *
 * The next definition of each function of libc that the library interposes.
 */
#ifndef XSCHED_CORE_REAL_H
#define XSCHED_CORE_REAL_H

#include "base.h"

void xsi_real_init(void);
int xsi_real_ioctl(int fd, unsigned long request, void *argument);
/* Where that goes. Found by xsi_real_init unless it is set; tests put a double here. */
extern int (*xsi_next_ioctl)(int fd, unsigned long request, ...);

/* Our own ioctl, also where another definition comes first; NULL in tests without it. */
extern int xsi_hook_ioctl(int fd, unsigned long request, ...)
    __attribute__((weak, visibility("hidden")));

/* Never null. The first dlsym of a process calls xsi_real_find_dlsym and nothing more: a sanitizer
 * asks before libc is usable. */
extern void *(*xsi_real_dlsym)(void *handle, const char *name);
extern void *(*xsi_real_dlvsym)(void *handle, const char *name, const char *version);
void xsi_real_find_dlsym(void);

#endif /* XSCHED_CORE_REAL_H */
