// SPDX-License-Identifier: Apache-2.0

#include "thread.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>

// glibc takes the thread-local storage of all libraries from the stack.
static int add_tls(struct dl_phdr_info *object, size_t size, void *total) {
  (void)size;
  for (unsigned i = 0; i < object->dlpi_phnum; i++)
    if (object->dlpi_phdr[i].p_type == PT_TLS)
      *(size_t *)total += object->dlpi_phdr[i].p_memsz + object->dlpi_phdr[i].p_align;
  return 0;
}

int xsi_thread_start(size_t stack, void *(*run)(void *)) {
  dl_iterate_phdr(add_tls, &stack);
  stack = (stack + 0xffff) & ~(size_t)0xffff;
  pthread_attr_t attributes;
  int result = pthread_attr_init(&attributes);
  if (result != 0) return -result;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, stack);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); // inherited: no window in which a signal lands in it
  pthread_t thread;
  result = pthread_create(&thread, &attributes, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return -result;
}
