/* SPDX-License-Identifier: Apache-2.0
 *
 * Binds what moved between glibc's libraries to the version it had before the move, so that a
 * libxsched.so built on a new distribution loads on any glibc from 2.28 on (as the PyTorch wheels
 * do). On such a glibc these live in libdl.so.2 and libpthread.so.0, hence the library must name
 * both as needed: -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0 (plain -ldl is an empty
 * archive today).
 *
 * Not listed on purpose: dlsym and dlvsym, which the library defines itself and must never call by
 * name. What to avoid altogether: stat/fstat (2.33; use statx), gettid (2.30), strtol, sscanf and
 * their relatives (2.38 redirects them under _GNU_SOURCE).
 */
#ifndef XSCHED_COMPAT_H
#define XSCHED_COMPAT_H

#include <features.h>

#if defined(__x86_64__)
#define XSI_GLIBC_BASE "GLIBC_2.2.5"
#define XSI_GLIBC_2_3_2 "GLIBC_2.3.2"
#define XSI_GLIBC_2_3_3 "GLIBC_2.3.3"
#define XSI_GLIBC_2_3_4 "GLIBC_2.3.4"
#define XSI_GLIBC_2_12 "GLIBC_2.12"
#elif defined(__aarch64__)
#define XSI_GLIBC_BASE "GLIBC_2.17"
#define XSI_GLIBC_2_3_2 "GLIBC_2.17"
#define XSI_GLIBC_2_3_3 "GLIBC_2.17"
#define XSI_GLIBC_2_3_4 "GLIBC_2.17"
#define XSI_GLIBC_2_12 "GLIBC_2.17"
#else
#error "compat.h: symbol versions of this architecture are not known"
#endif

/* The sanitizers replace these functions under their plain names. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define XSI_OLD(symbol, version) __asm__(".symver " #symbol "," #symbol "@" version)

XSI_OLD(dlopen, XSI_GLIBC_BASE);
XSI_OLD(dlclose, XSI_GLIBC_BASE);
XSI_OLD(dlerror, XSI_GLIBC_BASE);
XSI_OLD(dladdr, XSI_GLIBC_BASE);
XSI_OLD(dladdr1, XSI_GLIBC_2_3_3);
XSI_OLD(dlinfo, XSI_GLIBC_2_3_3);
XSI_OLD(dlmopen, XSI_GLIBC_2_3_4);
XSI_OLD(pthread_create, XSI_GLIBC_BASE);
XSI_OLD(pthread_join, XSI_GLIBC_BASE);
XSI_OLD(pthread_detach, XSI_GLIBC_BASE);
XSI_OLD(pthread_once, XSI_GLIBC_BASE);
XSI_OLD(pthread_kill, XSI_GLIBC_BASE);
XSI_OLD(pthread_sigmask, XSI_GLIBC_BASE);
XSI_OLD(pthread_key_create, XSI_GLIBC_BASE);
XSI_OLD(pthread_key_delete, XSI_GLIBC_BASE);
XSI_OLD(pthread_getspecific, XSI_GLIBC_BASE);
XSI_OLD(pthread_setspecific, XSI_GLIBC_BASE);
XSI_OLD(pthread_attr_setstacksize, XSI_GLIBC_BASE);
XSI_OLD(pthread_attr_setguardsize, XSI_GLIBC_BASE);
XSI_OLD(pthread_mutex_trylock, XSI_GLIBC_BASE);
XSI_OLD(pthread_mutex_timedlock, XSI_GLIBC_BASE);
XSI_OLD(pthread_mutexattr_init, XSI_GLIBC_BASE);
XSI_OLD(pthread_mutexattr_destroy, XSI_GLIBC_BASE);
XSI_OLD(pthread_mutexattr_settype, XSI_GLIBC_BASE);
XSI_OLD(pthread_rwlock_init, XSI_GLIBC_BASE);
XSI_OLD(pthread_rwlock_destroy, XSI_GLIBC_BASE);
XSI_OLD(pthread_rwlock_rdlock, XSI_GLIBC_BASE);
XSI_OLD(pthread_rwlock_tryrdlock, XSI_GLIBC_BASE);
XSI_OLD(pthread_rwlock_wrlock, XSI_GLIBC_BASE);
XSI_OLD(pthread_rwlock_trywrlock, XSI_GLIBC_BASE);
XSI_OLD(pthread_rwlock_unlock, XSI_GLIBC_BASE);
XSI_OLD(pthread_setcancelstate, XSI_GLIBC_BASE);
XSI_OLD(pthread_setname_np, XSI_GLIBC_2_12);
XSI_OLD(sem_init, XSI_GLIBC_BASE);
XSI_OLD(sem_post, XSI_GLIBC_BASE);
XSI_OLD(sem_wait, XSI_GLIBC_BASE);
#endif

#endif /* XSCHED_COMPAT_H */
