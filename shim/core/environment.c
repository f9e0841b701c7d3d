// SPDX-License-Identifier: Apache-2.0

#include "environment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int xsi_environment(const char *name, char *value, size_t bytes) {
  const char *found = secure_getenv(name);
  if (found == NULL) return -ENOENT;
  size_t length = strlen(found);
  if (length >= bytes) return -E2BIG;
  memcpy(value, found, length + 1);
  return (int)length;
}

bool xsi_parse_decimal(const char *text, long minimum, long maximum, long *value) {
  bool negative = *text == '-';
  if (negative) text++;
  if (*text == 0) return false;
  long number = 0;
  for (; *text != 0; text++) {
    if (*text < '0' || *text > '9' || __builtin_mul_overflow(number, 10L, &number) ||
        __builtin_add_overflow(number, (long)(*text - '0'), &number))
      return false;
  }
  if (negative) number = -number;
  if (number < minimum || number > maximum) return false;
  *value = number;
  return true;
}
