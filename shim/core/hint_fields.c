// SPDX-License-Identifier: Apache-2.0

#include "hint_fields.h"

#include <string.h>

#include "hints_gen.h"

void xsi_hint_copy_name(char *to, const char *from, size_t room) {
  memset(to, 0, room);
  memcpy(to, from, strnlen(from, room - 1));
}

void xsi_hint_merge(struct xsw_hint *into, const struct xsw_hint *said) {
#define TAKE(field, bit, variable, kind, least, most)                                              \
  if ((said->said & (bit)) != 0) into->field = said->field;
#define TAKE_NAME(field, bit, variable, kind, least, most)                                         \
  if ((said->said & (bit)) != 0) xsi_hint_copy_name(into->field, said->field, sizeof into->field);
  XSI_HINT_FIELDS(TAKE, TAKE_NAME)
#undef TAKE
#undef TAKE_NAME
  into->said |= said->said;
}

static bool in_range(int64_t value, int64_t least, int64_t most) {
  return value == 0 || (value >= least && value <= most);
}

// Names are shown to people: no control characters.
static bool is_name(const char *text, size_t most) {
  size_t length = strnlen(text, most + 1);
  for (size_t i = 0; i < length; i++)
    if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) return false;
  return length <= most;
}

bool xsi_hint_sound(const struct xsw_hint *hint) {
  // A value above INT64_MAX becomes negative, which only priorities may be.
#define CHECK_RANGE(field, bit, variable, kind, least, most)                                       \
  if (!in_range((int64_t)hint->field, least, most)) return false;
#define CHECK_NAME(field, bit, variable, kind, least, most)                                        \
  if (!is_name(hint->field, most)) return false;
  XSI_HINT_FIELDS(CHECK_RANGE, CHECK_NAME)
#undef CHECK_RANGE
#undef CHECK_NAME
  return true;
}
