// SPDX-License-Identifier: Apache-2.0
//
// What the environment says, read once at load: reading it later would race with the application's
// setenv.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parts.h"

struct xsi_options xsi_options = {
    .automatic = true, .scheduler = XSW_SCHEDULER_GLOBAL, .cuda_library = "libcuda.so.1"};

#define PATH_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)
#define SOCKET_NAME "xsched.sock"

// A place that was named is the only one tried: falling back to another daemon would surprise.
static bool place_named;
static char named_socket[PATH_BYTES], named_directory[PATH_BYTES], runtime_directory[PATH_BYTES];

bool xsi_environment(const char *name, char *value, unsigned bytes) {
  const char *found = secure_getenv(name);
  if (found == NULL) return false;
  size_t length = strlen(found);
  if (length >= bytes) {
    xsi_log(XSI_ERROR, "%s is too long and ignored; at most %u characters", name, bytes - 1);
    return false;
  }
  memcpy(value, found, length + 1);
  return true;
}

bool xsi_parse_decimal(const char *text, long minimum, long maximum, long *value) {
  bool negative = *text == '-';
  if (negative) text++;
  if (*text == 0) return false;
  long number = 0;
  for (; *text != 0; text++) {
    if (*text < '0' || *text > '9' || number > 100000000000000) return false;
    number = number * 10 + (*text - '0');
  }
  if (negative) number = -number;
  if (number < minimum || number > maximum) return false;
  *value = number;
  return true;
}

// False: nothing was said, or nothing that can be understood (logged).
static bool number_option(const char *name, long minimum, long maximum, long *value) {
  char text[32];
  if (!xsi_environment(name, text, sizeof text) || text[0] == 0) return false;
  if (xsi_parse_decimal(text, minimum, maximum, value)) return true;
  xsi_log(XSI_ERROR, "%s=%s is ignored; give a number from %ld to %ld", name, text, minimum,
          maximum);
  return false;
}

static bool same_word(const char *text, const char *word) { return strcasecmp(text, word) == 0; }

// ON and OFF as upstream spells them, and what people write instead.
static bool switch_option(const char *name, bool otherwise) {
  char text[16];
  if (!xsi_environment(name, text, sizeof text) || text[0] == 0) return otherwise;
  if (same_word(text, "ON") || same_word(text, "1") || same_word(text, "true")) return true;
  if (same_word(text, "OFF") || same_word(text, "0") || same_word(text, "false")) return false;
  xsi_log(XSI_ERROR, "%s=%s is ignored; give ON or OFF", name, text);
  return otherwise;
}

static void level_option(const char *name, struct xsw_hint *hint) {
  char text[32];
  if (!xsi_environment(name, text, sizeof text) || text[0] == 0) return;
  long level = XSW_LEVEL_AUTO;
  if (!same_word(text, "auto") &&
      !xsi_parse_decimal(text, XSW_LEVEL_BLOCK, XSW_LEVEL_INTERRUPT, &level)) {
    xsi_log(XSI_ERROR, "%s=%s is ignored; give auto, 1, 2 or 3", name, text);
    return;
  }
  hint->level = (uint32_t)level;
  hint->said |= XSW_HINT_LEVEL;
}

static void scheduler_option(void) {
  static const struct {
    const char *name;
    uint32_t scheduler;
  } known[] = {{"GLB", XSW_SCHEDULER_GLOBAL},
               {"LCL", XSW_SCHEDULER_LOCAL},
               {"APP", XSW_SCHEDULER_APP}};
  char text[16];
  if (!xsi_environment("XSCHED_SCHEDULER", text, sizeof text) &&
      !xsi_environment("XSCHED_SCHED", text, sizeof text))
    return;
  for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
    if (same_word(text, known[i].name)) {
      xsi_options.scheduler = known[i].scheduler;
      return;
    }
  if (text[0] != 0) xsi_log(XSI_ERROR, "XSCHED_SCHEDULER=%s is ignored; give GLB, LCL or APP", text);
}

static void granularity_option(void) {
  char text[16];
  if (!xsi_environment("XSCHED_GRANULARITY", text, sizeof text) || text[0] == 0) return;
  xsi_options.per_stream = same_word(text, "queue");
  if (!xsi_options.per_stream && !same_word(text, "process"))
    xsi_log(XSI_ERROR, "XSCHED_GRANULARITY=%s is ignored; give process or queue", text);
}

// US, or US:LAX:CRITICAL with the priorities before and after.
static void laxity_option(const char *name, struct xsw_hint *hint) {
  char text[64];
  if (!xsi_environment(name, text, sizeof text) || text[0] == 0) return;
  long laxity, lax = hint->priority, critical = XSW_PRIORITY_MAX;
  char *first = strchr(text, ':'), *second = first == NULL ? NULL : strchr(first + 1, ':');
  if (first != NULL) *first = 0;
  if (second != NULL) *second = 0;
  if (!xsi_parse_decimal(text, 0, XSI_HINT_MAX_US, &laxity) || (first == NULL) != (second == NULL) ||
      (first != NULL &&
       (!xsi_parse_decimal(first + 1, XSW_PRIORITY_MIN, XSW_PRIORITY_MAX, &lax) ||
        !xsi_parse_decimal(second + 1, XSW_PRIORITY_MIN, XSW_PRIORITY_MAX, &critical)))) {
    xsi_log(XSI_ERROR, "%s is ignored; give microseconds, or US:LAX_PRIORITY:CRITICAL_PRIORITY",
            name);
    return;
  }
  hint->laxity_us = (uint64_t)laxity;
  hint->lax_priority = (int32_t)lax;
  hint->critical_priority = (int32_t)critical;
  hint->said |= XSW_HINT_LAXITY;
}

static void hint_options(void) {
  struct xsw_hint *hint = &xsi_options.hint;
  long value;
  if (number_option("XSCHED_AUTO_XQUEUE_PRIORITY", XSW_PRIORITY_MIN, XSW_PRIORITY_MAX, &value)) {
    hint->priority = (int32_t)value;
    hint->said |= XSW_HINT_PRIORITY;
  }
  level_option("XSCHED_AUTO_XQUEUE_LEVEL", hint);
  if (number_option("XSCHED_AUTO_XQUEUE_THRESHOLD", 0, XSI_HINT_MAX_LAUNCHES, &value)) {
    hint->in_flight = (uint32_t)value;
    hint->said |= XSW_HINT_LIMITS;
  }
  if (number_option("XSCHED_AUTO_XQUEUE_BATCH_SIZE", 0, XSI_HINT_MAX_LAUNCHES, &value)) {
    hint->batch = (uint32_t)value;
    hint->said |= XSW_HINT_LIMITS;
  }
  if (number_option("XSCHED_AUTO_XQUEUE_UTILIZATION", 0, 100, &value)) {
    hint->utilization = (uint32_t)value;
    hint->said |= XSW_HINT_UTILIZATION;
  }
  if (number_option("XSCHED_AUTO_XQUEUE_TIMESLICE", XSI_HINT_MIN_SLICE_US, XSI_HINT_MAX_SLICE_US,
                    &value)) {
    hint->timeslice_us = (uint64_t)value;
    hint->said |= XSW_HINT_TIMESLICE;
  }
  if (number_option("XSCHED_AUTO_XQUEUE_DEADLINE", 0, XSI_HINT_MAX_US, &value)) {
    hint->deadline_us = (uint64_t)value;
    hint->said |= XSW_HINT_DEADLINE;
  }
  laxity_option("XSCHED_AUTO_XQUEUE_LAXITY", hint);
  if (number_option("XSCHED_SLO_US", 0, XSI_HINT_MAX_US, &value)) {
    hint->slo_us = (uint64_t)value;
    hint->said |= XSW_HINT_SLO;
  }
  if (xsi_environment("XSCHED_GANG", hint->gang, sizeof hint->gang) && hint->gang[0] != 0)
    hint->said |= XSW_HINT_GANG;
  if (xsi_options.per_stream) {
    hint->per_queue = 1;
    hint->said |= XSW_HINT_PER_QUEUE;
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
  scheduler_option();
  hint_options();
  if (!xsi_environment("XSCHED_POLICY", xsi_options.policy, sizeof xsi_options.policy))
    xsi_options.policy[0] = 0;
  char library[sizeof xsi_options.cuda_library];
  if (xsi_environment("XSCHED_CUDA_LIB", library, sizeof library) && library[0] != 0)
    memcpy(xsi_options.cuda_library, library, sizeof library);

  place_named = secure_getenv("XSCHED_SOCKET") != NULL || secure_getenv("XSCHED_DIR") != NULL;
  if (!xsi_environment("XSCHED_SOCKET", named_socket, sizeof named_socket))
    xsi_environment("XSCHED_DIR", named_directory, sizeof named_directory);
  xsi_environment("XDG_RUNTIME_DIR", runtime_directory, sizeof runtime_directory);
}

bool xsi_place_named(void) { return place_named; }

static bool in_directory(char *path, const char *directory, const char *below) {
  int length = snprintf(path, PATH_BYTES, "%s%s/" SOCKET_NAME, directory, below);
  return length > 0 && (size_t)length < PATH_BYTES;
}

// In /tmp anybody may have made the directory first.
static bool only_ours(const char *directory) {
  struct statx found;
  return statx(AT_FDCWD, directory, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_MODE | STATX_UID,
               &found) == 0 &&
         S_ISDIR(found.stx_mode) && found.stx_uid == geteuid() && (found.stx_mode & 0777) == 0700;
}

static bool socket_at(unsigned index, char *path) {
  if (place_named) {
    if (index != 0) return false;
    if (named_socket[0] != 0) {
      memcpy(path, named_socket, PATH_BYTES);
      return true;
    }
    return named_directory[0] != 0 && in_directory(path, named_directory, "");
  }
  if (xsi_options.scheduler == XSW_SCHEDULER_LOCAL) return false; // a private one has a name
  char directory[64];
  switch (index) {
  case 0:
    return geteuid() != 0 && runtime_directory[0] != 0 &&
           in_directory(path, runtime_directory, "/xsched");
  case 1:
    snprintf(directory, sizeof directory, "/tmp/xsched-%u", (unsigned)geteuid());
    return geteuid() != 0 && only_ours(directory) && in_directory(path, directory, "");
  default:
    return in_directory(path, "/run/xsched", "");
  }
}

int xsi_socket_candidate(unsigned index, struct sockaddr_un *address) {
  memset(address, 0, sizeof *address);
  address->sun_family = AF_UNIX;
  if (index > 2) return -ENOENT;
  // An empty path is a place that is none here: the caller tries the next one.
  if (!socket_at(index, address->sun_path)) address->sun_path[0] = 0;
  return 0;
}
