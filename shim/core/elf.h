/* SPDX-License-Identifier: Apache-2.0 */
#ifndef XSCHED_CORE_ELF_H
#define XSCHED_CORE_ELF_H

#include "base.h"

/* A function of libc; of glibc, found without calling any other function. */
void *xsi_elf_libc_function(const char *name);
/* False: the program has another C library, and the shim does nothing in it. */
bool xsi_elf_glibc(void);
/* What pthread_atfork calls. */
void xsi_elf_at_fork(void (*before)(void), void (*parent)(void), void (*child)(void));

#endif /* XSCHED_CORE_ELF_H */
