/* SPDX-License-Identifier: Apache-2.0
 *
 * hipGetProcAddress: like the real one, it looks up exported names through the loader.
 */
#include <dlfcn.h>
#include <string.h>

#include "hip.h"
#include "symver.h"

VG_OLD_SYMBOL(dlsym);
VG_OLD_SYMBOL(dlopen);
VG_OLD_SYMBOL(dlclose);
VG_OLD_SYMBOL(dladdr);

#define PER_THREAD 2
#define OLDEST 1000

VG_EXPORT hipError_t hipGetProcAddress(const char *symbol, void **function, int version,
                                       uint64_t flags, int *status) {
  Dl_info own;
  if (!symbol || !*symbol || !function || version < OLDEST)
    return hip_said(CUDA_ERROR_INVALID_VALUE);
  *function = NULL;
  void *library =
      dladdr((void *)hip_enter, &own) ? dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  if (library && flags & PER_THREAD && strlen(symbol) < 96) {
    char spt[104];
    strcpy(spt, symbol);
    *function = dlsym(library, strcat(spt, "_spt"));
  }
  if (library && !*function) *function = dlsym(library, symbol);
  if (library) dlclose(library);
  if (status) *status = *function ? 0 : 1;
  return hip_said(*function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}
