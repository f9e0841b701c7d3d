// SPDX-License-Identifier: Apache-2.0
//
// The next definition of what we interpose: another preloaded library's if there is one behind us,
// else libc's. Found once; nothing here can come back to our own exports.

#include "real.h"

#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "elf.h"

typedef void *(*dlsym_function)(void *handle, const char *name);
typedef void *(*dlvsym_function)(void *handle, const char *name, const char *version);
typedef int (*ioctl_function)(int fd, unsigned long request, ...);

// Never null, so that no hook has to ask.
static void *no_dlsym(void *handle, const char *name) {
  (void)handle, (void)name;
  return NULL;
}
static void *no_dlvsym(void *handle, const char *name, const char *version) {
  (void)handle, (void)name, (void)version;
  return NULL;
}

void *(*xsi_real_dlsym)(void *handle, const char *name) = no_dlsym;
void *(*xsi_real_dlvsym)(void *handle, const char *name, const char *version) = no_dlvsym;
int (*xsi_next_ioctl)(int fd, unsigned long request, ...);

void xsi_real_find_dlsym(void) {
  static uint32_t found;
  if (__atomic_load_n(&found, __ATOMIC_ACQUIRE) != 0) return;
  // Two threads that get here at once store the same addresses.
  dlvsym_function libc_dlvsym = (dlvsym_function)xsi_elf_libc_function("dlvsym");
  if (libc_dlvsym == NULL) { // another C library than glibc
    dlsym_function only = (dlsym_function)xsi_elf_libc_function("dlsym");
    if (only != NULL) __atomic_store_n(&xsi_real_dlsym, only, __ATOMIC_RELEASE);
    return;
  }
  // RTLD_NEXT is relative to the caller of the real function, which is this library.
  dlsym_function next_dlsym = (dlsym_function)libc_dlvsym(RTLD_NEXT, "dlsym", XSI_GLIBC_BASE);
  dlvsym_function next_dlvsym = (dlvsym_function)libc_dlvsym(RTLD_NEXT, "dlvsym", XSI_GLIBC_BASE);
  if (next_dlsym == NULL) next_dlsym = (dlsym_function)xsi_elf_libc_function("dlsym");
  if (next_dlvsym == NULL) next_dlvsym = libc_dlvsym;
  __atomic_store_n(&xsi_real_dlvsym, next_dlvsym, __ATOMIC_RELEASE);
  if (next_dlsym == NULL) return;
  __atomic_store_n(&xsi_real_dlsym, next_dlsym, __ATOMIC_RELEASE);
  __atomic_store_n(&found, 1, __ATOMIC_RELEASE);
}

void xsi_real_init(void) {
  xsi_real_find_dlsym();
  if (__atomic_load_n(&xsi_next_ioctl, __ATOMIC_ACQUIRE) != NULL) return;
  ioctl_function next_ioctl = (ioctl_function)xsi_real_dlsym(RTLD_NEXT, "ioctl");
  __atomic_store_n(&xsi_next_ioctl, next_ioctl, __ATOMIC_RELEASE);
}

int xsi_real_ioctl(int fd, unsigned long request, void *argument) {
  ioctl_function next = __atomic_load_n(&xsi_next_ioctl, __ATOMIC_ACQUIRE);
  if (XSI_UNLIKELY(next == NULL)) {
    xsi_real_init();
    next = __atomic_load_n(&xsi_next_ioctl, __ATOMIC_ACQUIRE);
    if (next == NULL) return (int)syscall(SYS_ioctl, fd, request, argument);
  }
  return next(fd, request, argument);
}
