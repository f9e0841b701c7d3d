// SPDX-License-Identifier: Apache-2.0
//
// A preloaded library that has nothing to do with us, and asks the linker as such libraries do.
// What it is told must be the same with the shim and without, before and behind it. -DMEDDLER makes
// another one: it interposes dlsym and cuLaunchKernel itself.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define BASE "GLIBC_2.2.5"
#else
#define BASE "GLIBC_2.17"
#endif

#ifdef MEDDLER

static int depth;

void *dlsym(void *handle, const char *name) {
  static void *(*next)(void *, const char *);
  if (!next) next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", BASE);
  if (++depth > 100) abort(); // found itself, or us, or both in turn
  void *found = next(handle, name);
  depth--;
  return found;
}

int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g,
                   unsigned h, void *stream, void **i, void **j) {
  static int (*next)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     void *, void **, void **);
  if (!next) *(void **)&next = dlsym(RTLD_NEXT, "cuLaunchKernel");
  if (++depth > 100) abort();
  int result = next ? next(f, a, b, c, d, e, g, h, stream, i, j) : 500;
  depth--;
  return result;
}

#else

static void tell(const char *how, const char *name, void *address) {
  Dl_info info;
  const char *error = dlerror();
  if (!address)
    printf("%s %s: none (%s)\n", how, name, error ? strrchr(error, ':') : "no error");
  else if (dladdr(address, &info))
    printf("%s %s: %s in %s\n", how, name, info.dli_sname ? info.dli_sname : "?",
           strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname);
}

int unrelated_answer(void);
int unrelated_answer(void) { return 42; }

// Interposed, so that "next" means something.
char *getenv(const char *name) {
  static char *(*next)(const char *);
  if (!next) *(void **)&next = dlsym(RTLD_NEXT, "getenv");
  return next(name);
}

__attribute__((constructor)) static void ask(void) {
  if (!getenv("UNRELATED_ASKS")) return;
  static const char *const names[] = {"getenv",
                                      "puts",
                                      "cuInit",
                                      "cuda_is_not_this",
                                      "pthread_create",
                                      "curl_easy_init",
                                      "unrelated_answer",
                                      "cu",
                                      "c",
                                      "",
                                      "environ"};
  for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
    dlerror();
    tell("next", names[i], dlsym(RTLD_NEXT, names[i]));
    tell("default", names[i], dlsym(RTLD_DEFAULT, names[i]));
    tell("next, versioned", names[i], dlvsym(RTLD_NEXT, names[i], BASE));
    tell("default, versioned", names[i], dlvsym(RTLD_DEFAULT, names[i], BASE));
  }
  tell("next, versioned", "dlsym", dlvsym(RTLD_NEXT, "dlsym", BASE));
  tell("default", "cuLaunchKernel", dlsym(RTLD_DEFAULT, "cuLaunchKernel")); // no driver is loaded
  void *libc = dlopen("libc.so.6", RTLD_NOW);
  tell("libc", "getenv", dlsym(libc, "getenv"));
  tell("libc", "cuLaunchKernel", dlsym(libc, "cuLaunchKernel"));
  void *self = dlopen(NULL, RTLD_NOW);
  tell("program", "cuLaunchKernel", dlsym(self, "cuLaunchKernel"));
  fflush(stdout);
}

#endif
