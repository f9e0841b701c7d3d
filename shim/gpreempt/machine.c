// SPDX-License-Identifier: Apache-2.0
//
// Queues of all processes: one handle per process that this program has suspended a queue of. A
// lock serializes the functions, so threads may share them.

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "agent.h"
#include "list.h"

#define EXPORT __attribute__((visibility("default")))

struct attached {
  pid_t pid;
  gpreempt *handle;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool ready;
static pid_t owner;          // a forked child must not use its parent's agents
static struct list attached; // struct attached

EXPORT int gpreempt_poc_init(void) {
  uint32_t version[2];
  int fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? -ENODEV : -errno;
  int result = ioctl(fd, AMDKFD_IOC_GET_VERSION, version) == 0 ? 0 : -errno;
  close(fd);
  if (result == 0 && (version[0] != 1 || version[1] < MIN_MINOR)) result = -ENOTTY;
  pthread_mutex_lock(&lock);
  if (result == 0 && owner != getpid()) {
    free(attached.items); // of the parent, after a fork
    attached = (struct list){0};
    owner = getpid();
  }
  if (result == 0) ready = true;
  pthread_mutex_unlock(&lock);
  return result;
}

static struct attached *at(size_t i) { return (struct attached *)attached.items + i; }

EXPORT void gpreempt_poc_cleanup(void) {
  pthread_mutex_lock(&lock);
  if (owner == getpid())
    for (size_t i = 0; i < attached.count; i++)
      gpreempt_detach(at(i)->handle);
  free(attached.items);
  attached = (struct list){0};
  ready = false;
  pthread_mutex_unlock(&lock);
}

// Locks, if the library is initialized in this process.
static int enter(void) {
  pthread_mutex_lock(&lock);
  if (ready && owner == getpid()) return 0;
  pthread_mutex_unlock(&lock);
  return -EPERM;
}

static int leave(int result) {
  pthread_mutex_unlock(&lock);
  return result;
}

// ---- processes ---------------------------------------------------------------------

static gpreempt *handle_of(pid_t pid) {
  for (size_t i = 0; i < attached.count; i++)
    if (at(i)->pid == pid) return at(i)->handle;
  return NULL;
}

static void forget(pid_t pid) {
  for (size_t i = 0; i < attached.count; i++) {
    if (at(i)->pid != pid) continue;
    gpreempt_detach(at(i)->handle);
    *at(i) = *at(--attached.count);
    return;
  }
}

static int attach(pid_t pid, gpreempt **handle) {
  struct attached new = {.pid = pid};
  if ((*handle = handle_of(pid)) != NULL) return 0;
  int result = gpreempt_attach(&new.handle, pid);
  if (result < 0) return result;
  if (!list_add(&attached, &new, sizeof new)) {
    gpreempt_detach(new.handle);
    return -ENOMEM;
  }
  *handle = new.handle;
  return 0;
}

// Adds what a debugger sees: the true ring, the kind of packets, and the state.
static void add_debugged(struct list *queues) {
  static gpreempt_queue seen[GPREEMPT_MAX_QUEUES];
  for (size_t i = attached.count; i-- > 0;) {
    int count = gpreempt_list(at(i)->handle, seen, GPREEMPT_MAX_QUEUES);
    if (count == -ESRCH) { // it has ended
      forget(at(i)->pid);
      continue;
    }
    for (size_t k = 0; k < queues->count; k++) {
      gpreempt_queue_info_t *queue = (gpreempt_queue_info_t *)queues->items + k;
      if (queue->process_id != at(i)->pid) continue;
      for (int j = 0; j < count && j < GPREEMPT_MAX_QUEUES; j++) {
        if (seen[j].id != queue->kfd_id) continue;
        queue->queue_address = seen[j].ring;
        queue->type = seen[j].type;
        queue->is_active = seen[j].suspended == 0;
      }
    }
  }
}

// ---- lists -------------------------------------------------------------------------

// Lists the queues for which wanted is true.
static int find(gpreempt_queue_info_t **out, uint32_t *count,
                bool (*wanted)(const gpreempt_queue_info_t *, const void *), const void *what) {
  if (out == NULL || count == NULL) return -EINVAL;
  *out = NULL, *count = 0;
  struct list queues = {0};
  int result = enter();
  if (result != 0) return result;
  result = queues_read(&queues);
  if (result == 0) add_debugged(&queues);
  if (leave(result) != 0) {
    free(queues.items);
    return result;
  }
  gpreempt_queue_info_t *all = queues.items;
  for (size_t i = 0; i < queues.count; i++)
    if (wanted(&all[i], what)) all[(*count)++] = all[i];
  *out = all;
  return 0;
}

static bool any(const gpreempt_queue_info_t *queue, const void *what) {
  (void)queue, (void)what;
  return true;
}

EXPORT int gpreempt_get_all_queues(gpreempt_queue_info_t **queues, uint32_t *num_queues) {
  return find(queues, num_queues, any, NULL);
}

static bool of_process(const gpreempt_queue_info_t *queue, const void *what) {
  return queue->process_id == *(const pid_t *)what;
}

EXPORT int gpreempt_find_queues_by_process(pid_t pid, gpreempt_queue_info_t **queues,
                                           uint32_t *num_queues) {
  int result = find(queues, num_queues, any, NULL);
  if (result != 0) return result;
  // The host's pid comes first; a container's must be unique.
  pid_t process = 0;
  for (uint32_t i = 0; i < *num_queues && process != pid; i++) {
    pid_t candidate = (*queues)[i].process_id;
    if (candidate == pid) {
      process = pid, result = 0;
    } else if (candidate != process && process_has_pid(candidate, pid)) {
      result = process == 0 ? 0 : -ENOTUNIQ;
      process = candidate;
    }
  }
  uint32_t count = 0;
  for (uint32_t i = 0; i < *num_queues; i++)
    if (of_process(&(*queues)[i], &process)) (*queues)[count++] = (*queues)[i];
  *num_queues = count;
  if (result == 0) return 0;
  gpreempt_free_queue_info(*queues);
  *queues = NULL, *num_queues = 0;
  return result;
}

static bool in_range(const gpreempt_queue_info_t *queue, const void *what) {
  const uint32_t *range = what;
  return queue->priority != GPREEMPT_PRIORITY_UNKNOWN && queue->priority >= range[0] &&
         queue->priority <= range[1];
}

EXPORT int gpreempt_find_queues_by_priority(uint32_t min_priority, uint32_t max_priority,
                                            gpreempt_queue_info_t **queues, uint32_t *num_queues) {
  const uint32_t range[] = {min_priority, max_priority};
  return find(queues, num_queues, in_range, range);
}

static bool tagged(const gpreempt_queue_info_t *queue, const void *what) {
  return strcmp(queue->tag, what) == 0;
}

EXPORT int gpreempt_find_queues_by_tag(const char *tag, gpreempt_queue_info_t **queues,
                                       uint32_t *num_queues) {
  return tag == NULL ? -EINVAL : find(queues, num_queues, tagged, tag);
}

static bool classed(const gpreempt_queue_info_t *queue, const void *what) {
  return queue->queue_class == *(const enum gpreempt_class *)what;
}

EXPORT int gpreempt_find_queues_by_class(enum gpreempt_class queue_class,
                                         gpreempt_queue_info_t **queues, uint32_t *num_queues) {
  return find(queues, num_queues, classed, &queue_class);
}

EXPORT void gpreempt_free_queue_info(gpreempt_queue_info_t *queues) { free(queues); }

static bool numbered(const gpreempt_queue_info_t *queue, const void *what) {
  uint32_t id = *(const uint32_t *)what;
  return queue->queue_id == id || queue->kfd_id == id;
}

EXPORT int gpreempt_get_queue_status(uint32_t queue_id, gpreempt_queue_info_t *queue) {
  gpreempt_queue_info_t *found;
  uint32_t count;
  if (queue == NULL) return -EINVAL;
  int result = find(&found, &count, numbered, &queue_id);
  if (result != 0) return result;
  if (count == 1) *queue = *found;
  gpreempt_free_queue_info(found);
  return count == 1 ? 0 : count == 0 ? -ENOENT : -ENOTUNIQ;
}

// ---- suspend and resume ------------------------------------------------------------

// Finds the process of a queue that has only the driver's id.
static int resolve(uint32_t *id, const struct list *queues) {
  unsigned found = 0;
  uint32_t wanted = *id;
  if (wanted >> KFD_ID_BITS != 0) return 0;
  for (size_t i = 0; i < queues->count; i++) {
    const gpreempt_queue_info_t *queue = (const gpreempt_queue_info_t *)queues->items + i;
    if (queue->kfd_id != wanted || queue->process_id == getpid()) continue;
    *id = queue->queue_id;
    found++;
  }
  return found == 1 ? 0 : found == 0 ? -ENOENT : -ENOTUNIQ;
}

static int by_process(const void *left, const void *right) {
  const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
  return (a > b) - (a < b);
}

// Changes queues of one process, in one request. changed receives those that had the other state.
static int change_process(pid_t pid, const uint32_t *ids, unsigned count, bool suspend,
                          uint32_t grace_us, struct list *changed) {
  uint32_t local[GPREEMPT_MAX_QUEUES];
  uint8_t outcomes[GPREEMPT_MAX_QUEUES];
  static gpreempt_queue seen[GPREEMPT_MAX_QUEUES];
  gpreempt *handle = handle_of(pid);
  if (count > GPREEMPT_MAX_QUEUES) return -E2BIG;
  if (handle == NULL && !suspend) { // this program has suspended nothing there
    for (unsigned i = 0; i < count; i++)
      if (!queue_exists(pid, ids[i] & ((1u << KFD_ID_BITS) - 1))) return -ENOENT;
    return 0;
  }
  int result = attach(pid, &handle);
  if (result < 0) return result;
  int known = gpreempt_list(handle, seen, GPREEMPT_MAX_QUEUES);
  if (known == -ESRCH && suspend) { // of an earlier process with this pid
    forget(pid);
    result = attach(pid, &handle);
    if (result < 0) return result;
    known = gpreempt_list(handle, seen, GPREEMPT_MAX_QUEUES);
  }
  if (known < 0) return known;
  unsigned n = 0;
  int missing = 0;
  for (unsigned i = 0; i < count; i++) {
    uint32_t id = ids[i] & ((1u << KFD_ID_BITS) - 1);
    int k = 0;
    while (k < known && seen[k].id != id)
      k++;
    if (k == known) {
      if (suspend) return -ENOENT;
      missing = -ENOENT; // the others are resumed
      continue;
    }
    // With the older firmware scheduler even a change of nothing interrupts the whole GPU.
    if ((seen[k].suspended != 0) != suspend) local[n++] = id;
  }
  if (n == 0) return missing;
  result = suspend ? gpreempt_suspend(handle, local, n, grace_us, outcomes)
                   : gpreempt_resume(handle, local, n, outcomes);
  if (result < 0) return result;
  result = missing;
  for (unsigned i = 0; i < n; i++) {
    uint32_t id = (uint32_t)pid << KFD_ID_BITS | local[i];
    // After a failure the driver may stop the queue later, so it is undone, too.
    if (outcomes[i] != GPREEMPT_INVALID && !list_add(changed, &id, sizeof id)) result = -ENOMEM;
    if (outcomes[i] == GPREEMPT_INVALID) result = -ENOENT;
    if (outcomes[i] == GPREEMPT_FAILED) result = -EIO;
  }
  return result;
}

// Changes sorted ids process by process. The first failure ends a suspend. A resume goes on: nobody
// stays suspended because another process has ended.
static int change_sorted(const uint32_t *ids, unsigned count, bool suspend, uint32_t grace_us,
                         struct list *changed) {
  int failure = 0;
  for (unsigned from = 0, to; from < count; from = to) {
    pid_t pid = (pid_t)(ids[from] >> KFD_ID_BITS);
    for (to = from + 1; to < count && (pid_t)(ids[to] >> KFD_ID_BITS) == pid;)
      to++;
    int result = change_process(pid, ids + from, to - from, suspend, grace_us, changed);
    if (result == -ESRCH) forget(pid); // it has ended
    // The end of a process must not hide that another one stays suspended.
    if (failure == 0 || (result != 0 && (failure == -ESRCH || failure == -ENOENT)))
      failure = result;
    if (failure != 0 && suspend) break;
  }
  return failure;
}

static int change(const uint32_t *given, uint32_t count, bool suspend, uint32_t grace_us) {
  if (count == 0) return 0;
  if (given == NULL) return -EINVAL;
  int result = enter();
  if (result != 0) return result;
  uint32_t *ids = malloc(count * sizeof *ids);
  struct list queues = {0}, changed = {0}, undone = {0};
  bool bare = false;
  for (uint32_t i = 0; ids != NULL && i < count; i++) {
    ids[i] = given[i];
    bare = bare || given[i] >> KFD_ID_BITS == 0;
  }
  result = ids == NULL ? -ENOMEM : bare ? queues_read(&queues) : 0;
  uint32_t found = 0;
  int missing = 0; // of a resume, which goes on with the others
  for (uint32_t i = 0; result == 0 && i < count; i++) {
    int failure = resolve(&ids[i], &queues);
    if (failure == 0)
      ids[found++] = ids[i];
    else if (suspend)
      result = failure;
    else
      missing = failure;
  }
  if (result == 0 && found > 0) {
    qsort(ids, found, sizeof *ids, by_process);
    uint32_t unique = 1;
    for (uint32_t i = 1; i < found; i++)
      if (ids[i] != ids[unique - 1]) ids[unique++] = ids[i];
    result = change_sorted(ids, unique, suspend, grace_us, &changed);
    if (result != 0 && suspend) // all or nothing
      (void)change_sorted(changed.items, (unsigned)changed.count, false, grace_us, &undone);
  }
  free(ids);
  free(queues.items);
  free(changed.items);
  free(undone.items);
  return leave(result != 0 ? result : missing);
}

EXPORT int gpreempt_suspend_queues(const uint32_t *queue_ids, uint32_t num_queues,
                                   uint32_t grace_period_us) {
  return change(queue_ids, num_queues, true, grace_period_us);
}

EXPORT int gpreempt_resume_queues(const uint32_t *queue_ids, uint32_t num_queues) {
  return change(queue_ids, num_queues, false, GPREEMPT_GRACE_DEFAULT);
}
