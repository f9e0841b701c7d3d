// SPDX-License-Identifier: Apache-2.0
//
// Options from the environment, read once at load: reading later would race with the application's
// setenv.

#include "options.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "environment.h"
#include "hint_fields.h"
#include "hints_gen.h"
#include "log.h"

struct xsi_options xsi_options = {.automatic = true, .scheduler = XSW_SCHEDULER_GLOBAL};

#define PATH_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)
#define SOCKET_NAME "xsched.sock"
#define UNITS_MAX 255 // of priorities and percent; larger ranges are of counts and times
#define CLIENT_DIRECTORY "/client" // below the daemon's folder; a container may have it alone

// A place that was named is the only one tried: falling back to another daemon would surprise.
static bool place_named;
static char named_socket[PATH_BYTES], named_directory[PATH_BYTES], runtime_directory[PATH_BYTES];

bool xsi_option_text(const char *name, char *value, size_t bytes) {
  int length = xsi_environment(name, value, bytes);
  if (length == -E2BIG)
    xsi_log(XSI_ERROR, "%s is too long and ignored; at most %zu characters", name, bytes - 1);
  return length >= 0;
}

// False: the variable is unset, or invalid, which is logged.
static bool number_option(const char *name, long minimum, long maximum, long *value) {
  char text[32];
  if (!xsi_option_text(name, text, sizeof text) || text[0] == 0) return false;
  if (xsi_parse_decimal(text, minimum, maximum, value)) return true;
  xsi_log(XSI_ERROR, "%s=%s is ignored; give a number from %ld to %ld", name, text, minimum,
          maximum);
  return false;
}

static bool same_word(const char *text, const char *word) { return strcasecmp(text, word) == 0; }

// ON and OFF as upstream spells them, and what people write instead.
static bool switch_option(const char *name, bool otherwise) {
  char text[16];
  if (!xsi_option_text(name, text, sizeof text) || text[0] == 0) return otherwise;
  if (same_word(text, "ON") || same_word(text, "1") || same_word(text, "true")) return true;
  if (same_word(text, "OFF") || same_word(text, "0") || same_word(text, "false")) return false;
  xsi_log(XSI_ERROR, "%s=%s is ignored; give ON or OFF", name, text);
  return otherwise;
}

// As in upstream's library, a known policy is that of a private scheduler, whatever XSCHED_SCHEDULER
// says. A daemon that is named has its own.
static bool policy_option(void) {
  char *policy = xsi_options.policy;
  if (!xsi_option_text("XSCHED_POLICY", policy, sizeof xsi_options.policy)) policy[0] = 0;
  if (policy[0] == 0) return false;
#define KNOWN(name)                                                                                \
  if (same_word(policy, name)) return !place_named;
  XSI_POLICIES(KNOWN)
#undef KNOWN
  xsi_log(XSI_ERROR, "XSCHED_POLICY=%s is ignored; `xsched policy` lists the known ones", policy);
  policy[0] = 0;
  return false;
}

static void scheduler_option(void) {
  static const struct {
    const char *name;
    uint32_t scheduler;
  } known[] = {
      {"GLB", XSW_SCHEDULER_GLOBAL}, {"LCL", XSW_SCHEDULER_LOCAL}, {"APP", XSW_SCHEDULER_APP}};
  char text[16];
  const char *name = "XSCHED_SCHEDULER";
  if (!xsi_option_text(name, text, sizeof text) &&
      !xsi_option_text(name = "XSCHED_SCHED", text, sizeof text))
    return;
  for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
    if (same_word(text, known[i].name)) {
      xsi_options.scheduler = known[i].scheduler;
      return;
    }
  if (text[0] != 0) xsi_log(XSI_ERROR, "%s=%s is ignored; give GLB, LCL or APP", name, text);
}

static void granularity_option(void) {
  char text[16];
  if (!xsi_option_text("XSCHED_GRANULARITY", text, sizeof text) || text[0] == 0) return;
  xsi_options.per_stream = same_word(text, "queue");
  if (!xsi_options.per_stream && !same_word(text, "process"))
    xsi_log(XSI_ERROR, "XSCHED_GRANULARITY=%s is ignored; give process or queue", text);
}

// ---- hints: one variable a field of the table ----------------------------------------------------

// A decimal fraction of at most two digits, in hundredths.
static bool parse_percentile(const char *text, long minimum, long maximum, long *value) {
  char whole[16];
  const char *point = strchr(text, '.');
  size_t length = point == NULL ? strlen(text) : (size_t)(point - text);
  long percent, part = 0;
  if (length == 0 || length >= sizeof whole) return false;
  memcpy(whole, text, length);
  whole[length] = 0;
  if (!xsi_parse_decimal(whole, 0, 100, &percent)) return false;
  if (point != NULL) {
    size_t digits = strlen(point + 1);
    if (digits < 1 || digits > 2 || !xsi_parse_decimal(point + 1, 0, 99, &part)) return false;
    if (digits == 1) part *= 10;
  }
  *value = percent * 100 + part;
  return *value >= minimum && *value <= maximum;
}

// A whole number of bytes, or of a larger unit.
static bool parse_bytes(char *text, long minimum, long maximum, long *value) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
  size_t length = strlen(text);
  unsigned shift = 0;
  for (unsigned i = 0; i < sizeof units / sizeof *units; i++)
    if (length > 3 && strcmp(text + length - 3, units[i]) == 0) shift = 10 * (i + 1);
  if (shift != 0) text[length - 3] = 0;
  if (!xsi_parse_decimal(text, 0, maximum >> shift, value)) return false;
  *value <<= shift;
  return *value == 0 || *value >= minimum;
}

// Upstream takes any positive number of launches, deadlines or microseconds.
static bool clamped_option(const char *name, long least, long most, long *value) {
  char text[32];
  long given;
  if (!xsi_option_text(name, text, sizeof text) || !xsi_parse_decimal(text, 1, LONG_MAX, &given) ||
      (given >= least && given <= most))
    return number_option(name, least, most, value);
  *value = given < least ? least : most;
  xsi_log(XSI_WARN, "%s=%s is set to %ld; the range is %ld to %ld", name, text, *value, least,
          most);
  return true;
}

static bool hint_value(const char *name, enum xsi_hint_kind kind, long least, long most,
                       long *value) {
  char text[32];
  if (!xsi_option_text(name, text, sizeof text) || text[0] == 0) return false;
  *value = 0;
  switch (kind) {
  case XSI_HINT_SWITCH: // of queue and process for the granularity, read before
    if (strcmp(name, "XSCHED_GRANULARITY") == 0) {
      *value = xsi_options.per_stream ? 1 : 0;
      return xsi_options.per_stream || same_word(text, "process");
    }
    *value = switch_option(name, false) ? 1 : 0;
    return *value == 1 || switch_option(name, true) == false;
  case XSI_HINT_LEVEL:
    if (same_word(text, "auto") || xsi_parse_decimal(text, XSW_LEVEL_BLOCK, most, value))
      return true;
    xsi_log(XSI_ERROR, "%s=%s is ignored; give auto, 1, 2 or 3", name, text);
    return false;
  case XSI_HINT_BYTES:
    if (parse_bytes(text, least, most, value)) return true;
    xsi_log(XSI_ERROR, "%s=%s is ignored; give bytes, or a number with KiB, MiB, GiB or TiB", name,
            text);
    return false;
  case XSI_HINT_PERCENTILE:
    if (parse_percentile(text, least, most, value)) return true;
    xsi_log(XSI_ERROR, "%s=%s is ignored; give a percentile from 1 to 99.99", name, text);
    return false;
  default:
    if (xsi_parse_decimal(text, 0, 0, value)) return true;
    return kind == XSI_HINT_TIME || most > UNITS_MAX ? clamped_option(name, least, most, value)
                                                     : number_option(name, least, most, value);
  }
}

// US:LAX:CRITICAL, as one variable; the plain form is the table's.
static bool laxity_triple(const char *name, struct xsw_hint *hint) {
  char text[64];
  if (!xsi_option_text(name, text, sizeof text) || strchr(text, ':') == NULL) return false;
  long laxity, lax, critical;
  char *first = strchr(text, ':'), *second = strchr(first + 1, ':');
  *first = 0;
  if (second != NULL) *second = 0;
  if (second == NULL || !xsi_parse_decimal(text, 0, XSI_HINT_LAXITY_US_MAX, &laxity) ||
      !xsi_parse_decimal(first + 1, XSW_PRIORITY_MIN, XSW_PRIORITY_MAX, &lax) ||
      !xsi_parse_decimal(second + 1, XSW_PRIORITY_MIN, XSW_PRIORITY_MAX, &critical)) {
    xsi_log(XSI_ERROR, "%s is ignored; give microseconds, or US:LAX_PRIORITY:CRITICAL_PRIORITY",
            name);
    return true;
  }
  hint->laxity_us = laxity;
  hint->lax_priority = lax;
  hint->critical_priority = critical;
  hint->said |= XSW_HINT_LAXITY;
  return true;
}

static void hint_options(void) {
  struct xsw_hint *hint = &xsi_options.hint;
  long value;
#define READ(field, bit, variable, kind, least, most)                                              \
  if (strcmp(variable, "XSCHED_AUTO_XQUEUE_LAXITY") == 0 && laxity_triple(variable, hint)) {       \
  } else if (hint_value(variable, kind, least, most, &value)) {                                    \
    if ((bit) == XSW_HINT_LAXITY && (hint->said & XSW_HINT_LAXITY) == 0) { /* unless said */       \
      hint->lax_priority = hint->priority;                                                         \
      hint->critical_priority = XSW_PRIORITY_MAX;                                                  \
    }                                                                                              \
    hint->field = value;                                                                           \
    hint->said |= (bit);                                                                           \
  }
#define READ_NAME(field, bit, variable, kind, least, most)                                         \
  if (xsi_option_text(variable, hint->field, sizeof hint->field) && hint->field[0] != 0) {         \
    if (xsi_hint_sound(hint))                                                                      \
      hint->said |= (bit);                                                                         \
    else                                                                                           \
      hint->field[0] = 0;                                                                          \
  }
  XSI_HINT_FIELDS(READ, READ_NAME)
#undef READ
#undef READ_NAME
  // The name before upstream's was adopted.
  if ((hint->said & XSW_HINT_K) == 0 &&
      hint_value("XSCHED_K", XSI_HINT_NUMBER, 0, XSI_HINT_K_MAX, &value)) {
    hint->k = value;
    hint->said |= XSW_HINT_K;
  }
}

void xsi_options_init(void) {
  char text[8];
  const char *disable = secure_getenv("XSCHED_DISABLE");
  if (disable != NULL) {
    snprintf(text, sizeof text, "%s", disable);
    xsi_options.disabled = text[0] != 0 && strcmp(text, "0") != 0;
  }
  if (xsi_options.disabled) return;
  xsi_options.automatic = switch_option("XSCHED_AUTO_XQUEUE", true);
  granularity_option();
  place_named = secure_getenv("XSCHED_SOCKET") != NULL || secure_getenv("XSCHED_DIR") != NULL;
  if (policy_option())
    xsi_options.scheduler = XSW_SCHEDULER_LOCAL;
  else
    scheduler_option();
  hint_options();
  if (!xsi_option_text("XSCHED_SOCKET", named_socket, sizeof named_socket))
    xsi_option_text("XSCHED_DIR", named_directory, sizeof named_directory);
  xsi_option_text("XDG_RUNTIME_DIR", runtime_directory, sizeof runtime_directory);
}

bool xsi_place_named(void) { return place_named; }

static bool in_directory(char *path, const char *directory, const char *below, bool clients) {
  int length = snprintf(path, PATH_BYTES, "%s%s%s/" SOCKET_NAME, directory, below,
                        clients ? CLIENT_DIRECTORY : "");
  return length > 0 && (size_t)length < PATH_BYTES;
}

// In /tmp anybody may have made the directory first.
static bool only_ours(const char *directory) {
  struct statx found;
  return syscall(SYS_statx, AT_FDCWD, directory, AT_SYMLINK_NOFOLLOW,
                 STATX_TYPE | STATX_MODE | STATX_UID, &found) == 0 &&
         S_ISDIR(found.stx_mode) && found.stx_uid == geteuid() && (found.stx_mode & 0777) == 0700;
}

static bool socket_at(unsigned index, char *path) {
  bool clients = index % 2 != 0;
  if (place_named) {
    if (named_socket[0] != 0) {
      memcpy(path, named_socket, PATH_BYTES);
      return index == 0;
    }
    return named_directory[0] != 0 && index < 2 && in_directory(path, named_directory, "", clients);
  }
  char directory[64];
  switch (index / 2) {
  case 0:
    return geteuid() != 0 && runtime_directory[0] != 0 &&
           in_directory(path, runtime_directory, "/xsched", clients);
  case 1:
    snprintf(directory, sizeof directory, "/tmp/xsched-%u", (unsigned)geteuid());
    return geteuid() != 0 && only_ours(directory) && in_directory(path, directory, "", clients);
  default: return in_directory(path, "/run/xsched", "", clients);
  }
}

int xsi_socket_candidate(unsigned index, const char *directory, struct sockaddr_un *address) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  if (index > 5) return -ENOENT; // three folders, two places in each
  bool there = directory == NULL
                   ? socket_at(index, address->sun_path)
                   : index == 0 && in_directory(address->sun_path, directory, "", false);
  // An empty path is a place that is none here: the caller tries the next one.
  if (!there) address->sun_path[0] = 0;
  return 0;
}
