/* SPDX-License-Identifier: Apache-2.0
 *
 * What a hooked library gives to dlsym and dlvsym: the number of a hooked name, or -1, and the
 * answer for it, with version NULL for dlsym. */
#ifndef XSCHED_DL_H
#define XSCHED_DL_H

int xsi_cu_find(const char *symbol);
void *xsi_cu_resolve(unsigned slot, void *handle, const char *version);
int xsi_hip_find(const char *symbol);
void *xsi_hip_resolve(unsigned slot, void *handle, const char *version);

#endif /* XSCHED_DL_H */
