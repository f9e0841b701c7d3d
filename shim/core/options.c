// SPDX-License-Identifier: Apache-2.0
//
// What the environment says, read once at load: reading it later would race with the application's
// setenv.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parts.h"

struct xsi_options xsi_options = {.cuda_library = "libcuda.so.1"};

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
    if (*text < '0' || *text > '9' || number > 1000000000) return false;
    number = number * 10 + (*text - '0');
  }
  if (negative) number = -number;
  if (number < minimum || number > maximum) return false;
  *value = number;
  return true;
}

static long number_option(const char *name, long minimum, long maximum) {
  char text[32];
  long value = 0;
  if (!xsi_environment(name, text, sizeof text) || text[0] == 0) return 0;
  if (!xsi_parse_decimal(text, minimum, maximum, &value))
    xsi_log(XSI_ERROR, "%s=%s is ignored; give a number from %ld to %ld", name, text, minimum,
            maximum);
  return value;
}

static uint32_t level_option(const char *name) {
  char text[32];
  if (!xsi_environment(name, text, sizeof text) || text[0] == 0) return XSW_LEVEL_AUTO;
  long level;
  if (xsi_parse_decimal(text, XSW_LEVEL_BLOCK, XSW_LEVEL_INTERRUPT, &level)) return (uint32_t)level;
  if (strcmp(text, "auto") != 0)
    xsi_log(XSI_ERROR, "%s=%s is ignored; give auto, 1, 2 or 3", name, text);
  return XSW_LEVEL_AUTO;
}

void xsi_options_init(void) {
  char text[8];
  const char *disable = secure_getenv("XSCHED_DISABLE");
  if (disable != NULL) {
    snprintf(text, sizeof text, "%s", disable);
    xsi_options.disabled = text[0] != 0 && strcmp(text, "0") != 0;
  }
  if (xsi_options.disabled) return;
  xsi_options.priority =
      (int32_t)number_option("XSCHED_AUTO_XQUEUE_PRIORITY", XSW_PRIORITY_MIN, XSW_PRIORITY_MAX);
  xsi_options.level = level_option("XSCHED_AUTO_XQUEUE_LEVEL");
  xsi_options.in_flight = (uint32_t)number_option("XSCHED_AUTO_XQUEUE_THRESHOLD", 0, 1 << 20);
  xsi_options.batch = (uint32_t)number_option("XSCHED_AUTO_XQUEUE_BATCH_SIZE", 0, 1 << 20);
  char library[sizeof xsi_options.cuda_library];
  if (xsi_environment("XSCHED_CUDA_LIB", library, sizeof library) && library[0] != 0)
    memcpy(xsi_options.cuda_library, library, sizeof library);

  place_named = secure_getenv("XSCHED_SOCKET") != NULL || secure_getenv("XSCHED_DIR") != NULL;
  if (!xsi_environment("XSCHED_SOCKET", named_socket, sizeof named_socket))
    xsi_environment("XSCHED_DIR", named_directory, sizeof named_directory);
  xsi_environment("XDG_RUNTIME_DIR", runtime_directory, sizeof runtime_directory);
}

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
