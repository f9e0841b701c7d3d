/* SPDX-License-Identifier: Apache-2.0
 *
 * Binds symbols that glibc 2.34 moved from libdl or libpthread into libc to their old versions, so
 * that the libraries load with glibc 2.28.
 */
#ifndef XSCHED_VIRTUAL_SYMVER_H
#define XSCHED_VIRTUAL_SYMVER_H

#if defined(__x86_64__)
#define VG_OLD_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define VG_OLD_GLIBC "GLIBC_2.17"
#else
#error "unknown architecture"
#endif
#define VG_OLD_SYMBOL(name) __asm__(".symver " #name "," #name "@" VG_OLD_GLIBC)

#endif /* XSCHED_VIRTUAL_SYMVER_H */
