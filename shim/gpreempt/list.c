// SPDX-License-Identifier: Apache-2.0
//
// Lists the queues of all processes from sysfs, and adds what the descriptors and the environment
// say. A process or queue that ends meanwhile is left out.

#include "list.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define SYSFS "/sys/class/kfd/kfd"

enum { PATH_BYTES = 160, ENVIRONMENT_BYTES = 1 << 20, MAX_PRIORITY = 15, UNIT_CLOCKS = 1024 };

bool list_add(struct list *list, const void *item, size_t bytes) {
  if (list->count == list->room) {
    size_t room = list->room ? 2 * list->room : 16;
    void *items = realloc(list->items, room * bytes);
    if (items == NULL) return false;
    list->items = items;
    list->room = room;
  }
  memcpy((char *)list->items + list->count++ * bytes, item, bytes);
  return true;
}

static bool number(const char *text, unsigned long limit, uint32_t *value) {
  char *end;
  if (!isdigit((unsigned char)*text)) return false;
  errno = 0;
  unsigned long v = strtoul(text, &end, 10);
  if (errno != 0 || v > limit || (*end != 0 && *end != '\n')) return false;
  *value = (uint32_t)v;
  return true;
}

static bool read_number(const char *path, uint32_t *value) {
  char text[32];
  FILE *file = fopen(path, "r");
  if (file == NULL) return false;
  bool got = fgets(text, sizeof text, file) != NULL && number(text, UINT32_MAX, value);
  fclose(file);
  return got;
}

// ---- the environment ---------------------------------------------------------------

// The environment a process started with, with a final 0; NULL: not readable.
static char *environment(pid_t pid, size_t *bytes) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NULL;
  char *text = malloc(ENVIRONMENT_BYTES + 1);
  ssize_t got = 0;
  *bytes = 0;
  while (text != NULL && *bytes < ENVIRONMENT_BYTES) {
    got = read(fd, text + *bytes, ENVIRONMENT_BYTES - *bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    *bytes += (size_t)got;
  }
  close(fd);
  if (text != NULL) text[*bytes] = 0;
  return text;
}

static const char *variable(const char *text, size_t bytes, const char *name) {
  size_t length = strlen(name);
  for (const char *at = text; at < text + bytes; at += strlen(at) + 1)
    if (strncmp(at, name, length) == 0 && at[length] == '=') return at + length + 1;
  return NULL;
}

static void read_wishes(pid_t pid, uint32_t *priority, char *tag, size_t tag_bytes) {
  size_t bytes;
  char *text = environment(pid, &bytes);
  if (text == NULL) return;
  const char *value = variable(text, bytes, "AMD_QUEUE_PRIORITY");
  if (value != NULL) (void)number(value, MAX_PRIORITY, priority);
  value = variable(text, bytes, "AMD_QUEUE_TAG");
  if (value != NULL) snprintf(tag, tag_bytes, "%s", value);
  free(text);
}

// ---- queues ------------------------------------------------------------------------

// A queue's descriptor: certain if it is the only one of its size for the only queue of that size.
// If all candidates agree, at least the priority is certain.
static void describe(gpreempt_queue_info_t *queue, const struct list *queues,
                     const struct list *mqds) {
  const struct mqd *found = NULL;
  unsigned candidates = 0, alike = 0;
  bool agree = true;
  if (queue->type != GPREEMPT_COMPUTE) return;
  for (size_t i = 0; i < mqds->count; i++) {
    const struct mqd *m = (const struct mqd *)mqds->items + i;
    if (m->pid != queue->process_id || m->gpu_id != queue->gpu_id ||
        m->ring_bytes != queue->ring_bytes)
      continue;
    agree = agree && (found == NULL || found->priority == m->priority);
    found = m;
    candidates++;
  }
  for (size_t i = 0; i < queues->count; i++) {
    const gpreempt_queue_info_t *q = (const gpreempt_queue_info_t *)queues->items + i;
    alike += q->process_id == queue->process_id && q->gpu_id == queue->gpu_id &&
             q->ring_bytes == queue->ring_bytes && q->type == queue->type;
  }
  // A queue made or destroyed between the two readings makes the numbers differ.
  if (found == NULL || candidates != alike) return;
  if (candidates == 1) queue->queue_address = found->ring;
  if (agree && queue->priority == GPREEMPT_PRIORITY_UNKNOWN && found->priority <= MAX_PRIORITY)
    queue->priority = found->priority;
}

static uint32_t classify(const gpreempt_queue_info_t *queue) {
  if (strncasecmp(queue->tag, "ONLINE", 6) == 0) return GPREEMPT_ONLINE;
  if (strncasecmp(queue->tag, "OFFLINE", 7) == 0) return GPREEMPT_OFFLINE;
  if (queue->priority == GPREEMPT_PRIORITY_UNKNOWN) return GPREEMPT_UNKNOWN;
  return queue->priority >= GPREEMPT_ONLINE_PRIORITY ? GPREEMPT_ONLINE : GPREEMPT_OFFLINE;
}

// The driver's internal enum, which sysfs shows, as the interface's.
static uint32_t interface_type(uint32_t internal) {
  static const uint32_t types[] = {[0] = GPREEMPT_COMPUTE,
                                   [1] = GPREEMPT_SDMA,
                                   [4] = GPREEMPT_SDMA_XGMI,
                                   [5] = GPREEMPT_SDMA_BY_ENGINE};
  return internal < sizeof types / sizeof *types ? types[internal] : internal;
}

static bool read_queue(uint32_t id, gpreempt_queue_info_t *queue) {
  char path[PATH_BYTES];
  uint32_t type = 0;
  uint32_t *const into[] = {&queue->ring_bytes, &type, &queue->gpu_id};
  static const char *const names[] = {"size", "type", "gpuid"};
  for (unsigned i = 0; i < 3; i++) {
    snprintf(path, sizeof path, SYSFS "/proc/%d/queues/%u/%s", queue->process_id, id, names[i]);
    if (!read_number(path, into[i])) return false;
  }
  queue->kfd_id = id;
  queue->type = interface_type(type);
  queue->queue_id = (uint32_t)queue->process_id << KFD_ID_BITS | id;
  return true;
}

static int read_process(pid_t pid, struct list *out) {
  char folder[PATH_BYTES];
  gpreempt_queue_info_t queue = {
      .process_id = pid, .priority = GPREEMPT_PRIORITY_UNKNOWN, .is_active = true};
  snprintf(folder, sizeof folder, SYSFS "/proc/%d/queues", pid);
  DIR *entries = opendir(folder);
  if (entries == NULL) return 0;
  read_wishes(pid, &queue.priority, queue.tag, sizeof queue.tag);
  int error = 0;
  for (struct dirent *e; error == 0 && (e = readdir(entries)) != NULL;) {
    uint32_t id;
    if (!number(e->d_name, (1u << KFD_ID_BITS) - 1, &id) || !read_queue(id, &queue)) continue;
    if (!list_add(out, &queue, sizeof queue)) error = -ENOMEM;
  }
  closedir(entries);
  return error;
}

static int compare(const void *left, const void *right) {
  const gpreempt_queue_info_t *a = left, *b = right;
  return (a->queue_id > b->queue_id) - (a->queue_id < b->queue_id);
}

int queues_read(struct list *out) {
  DIR *processes = opendir(SYSFS "/proc");
  if (processes == NULL) return errno == ENOENT ? -ENODEV : -errno;
  int error = 0;
  for (struct dirent *e; error == 0 && (e = readdir(processes)) != NULL;) {
    uint32_t pid;
    if (number(e->d_name, (1u << (32 - KFD_ID_BITS)) - 1, &pid) && pid > 0)
      error = read_process((pid_t)pid, out);
  }
  closedir(processes);
  if (error != 0) return error;
  struct list mqds = {0};
  if (mqds_read(&mqds) != 0) mqds.count = 0; // without root the driver's priorities are unknown
  for (size_t i = 0; i < out->count; i++) {
    gpreempt_queue_info_t *queue = (gpreempt_queue_info_t *)out->items + i;
    describe(queue, out, &mqds);
    queue->queue_class = classify(queue);
  }
  free(mqds.items);
  if (out->count > 0) qsort(out->items, out->count, sizeof(gpreempt_queue_info_t), compare);
  return 0;
}

bool process_has_pid(pid_t process, pid_t pid) {
  char path[PATH_BYTES], line[256];
  if (process == pid) return true;
  snprintf(path, sizeof path, "/proc/%d/status", process);
  FILE *file = fopen(path, "r");
  if (file == NULL) return false;
  bool has = false;
  while (!has && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, "NSpid:", 6) != 0) continue;
    for (char *at = line + 6, *end; !has; at = end) {
      long value = strtol(at, &end, 10);
      if (end == at) break;
      has = value == pid;
    }
  }
  fclose(file);
  return has;
}

bool queue_exists(pid_t process, uint32_t kfd_id) {
  char path[PATH_BYTES];
  uint32_t bytes;
  snprintf(path, sizeof path, SYSFS "/proc/%d/queues/%u/size", process, kfd_id);
  return read_number(path, &bytes);
}

// ---- the grace period --------------------------------------------------------------

uint32_t highest_clock(void) {
  uint32_t highest = 0;
  for (unsigned node = 0; node < 256; node++) {
    char path[PATH_BYTES], line[128];
    uint32_t mhz;
    snprintf(path, sizeof path, SYSFS "/topology/nodes/%u/properties", node);
    FILE *file = fopen(path, "r");
    if (file == NULL) break;
    while (fgets(line, sizeof line, file) != NULL)
      if (sscanf(line, "max_engine_clk_fcompute %u", &mhz) == 1 && mhz > highest) highest = mhz;
    fclose(file);
  }
  return highest;
}

uint32_t grace_units(uint32_t grace_us, uint32_t mhz) {
  if (grace_us == GPREEMPT_GRACE_DEFAULT || mhz == 0) return GPREEMPT_GRACE_DEFAULT;
  uint64_t units = ((uint64_t)grace_us * mhz + UNIT_CLOCKS - 1) / UNIT_CLOCKS;
  return units < 1 ? 1 : units > GPREEMPT_GRACE_UNITS ? GPREEMPT_GRACE_UNITS : (uint32_t)units;
}
