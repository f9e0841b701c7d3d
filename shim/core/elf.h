/* SPDX-License-Identifier: Apache-2.0 */
#ifndef XSCHED_CORE_ELF_H
#define XSCHED_CORE_ELF_H

#include "base.h"

/* A function of libc, found without calling any other function. */
void *xsi_elf_libc_function(const char *name);

#endif /* XSCHED_CORE_ELF_H */
