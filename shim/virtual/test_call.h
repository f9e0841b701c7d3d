/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of the stand-in and checks of their results, for the tests of its interface.
 */
#ifndef XSCHED_VIRTUAL_TEST_CALL_H
#define XSCHED_VIRTUAL_TEST_CALL_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *handle;
static void *library;
static int failures;
static const char *test;

static int (*find(const char *name))() {
  int (*function)() = (int (*)())dlsym(library, name);
  if (!function) {
    printf("FAIL %s: no %s\n", test, name);
    exit(1);
  }
  return function;
}
#define CU(name, ...) find(#name)(__VA_ARGS__)
#define IS(want, call)                                                                             \
  do {                                                                                             \
    int got_ = (call);                                                                             \
    if (got_ != (want)) {                                                                          \
      printf("FAIL %s: line %d: %s is %d\n", test, __LINE__, #call, got_);                         \
      failures++;                                                                                  \
    }                                                                                              \
  } while (0)
#define OK(call) IS(0, call)
#define TRUE(condition) IS(1, (condition) ? 1 : 0)

#endif /* XSCHED_VIRTUAL_TEST_CALL_H */
