// SPDX-License-Identifier: Apache-2.0
//
// What takes the time in a stop? Stops and enables channels of this process by the control of RM that the daemon uses
// (NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS), in sets of different size, with and without a kernel of this process on the GPU. Times other
// controls for comparison: a question without effect, the timeslice, and the scheduling and preemption of the channel group.
//
//   in:  measure ROUNDS | report | quit
//   out: R | O {groups} | C {case} ... | D | S cases wrong 0
//
// The ioctl of this program learns the handles from what libcuda allocates. Between a stop and the enable that ends it, the program
// calls nothing of the driver but cuStreamQuery. Every case ends with all channels enabled, which a kernel then proves.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "driver.h"

enum { OBJECTS = 4096, ROUNDS = 1000, GROUPS = 16, ENTRIES = 64 };
enum { KERNEL_US = 4000, LONG = 5, HOLD_US = 3 * LONG * KERNEL_US };

struct object {
  int fd;
  uint32_t client, parent, handle, class;
};
static struct object objects[OBJECTS];
static unsigned object_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef int ioctl_function(int, unsigned long, ...);
static ioctl_function *real_ioctl(void) {
  static ioctl_function *real;
  if (!real) *(void **)&real = dlsym(RTLD_NEXT, "ioctl");
  return real;
}

static void note(int fd, unsigned long request, const uint32_t *word) {
  unsigned number = request & 0xff;
  pthread_mutex_lock(&lock);
  if (number == 0x2b && word[_IOC_SIZE(request) == 48 ? 10 : 7] == 0 && object_count < OBJECTS)
    objects[object_count++] = (struct object){fd, word[0], word[1], word[2], word[3]};
  for (unsigned i = 0; number == 0x29 && i < object_count; i++)
    if (objects[i].client == word[0] && objects[i].handle == word[2]) objects[i--] = objects[--object_count];
  pthread_mutex_unlock(&lock);
}

int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  int result = real_ioctl()(fd, request, argument);
  int saved = errno;
  if (result == 0 && argument && _IOC_TYPE(request) == 'F' && _IOC_SIZE(request) >= 16) note(fd, request, argument);
  errno = saved;
  return result;
}

// ---- what there is -------------------------------------------------------------------------------------------

struct group {
  struct object object;
  struct object channels[ENTRIES];
  unsigned count;
  bool compute;
};
static struct group groups[GROUPS];
static unsigned group_count;
static struct object subdevice;

static bool ends_in(uint32_t class, uint32_t byte) { return class <= 0xFFFF && (class & 0xFF) == byte; }

static const struct object *child(const struct object *parent, uint32_t class_end) {
  for (unsigned i = 0; i < object_count; i++)
    if (objects[i].client == parent->client && objects[i].parent == parent->handle && ends_in(objects[i].class, class_end)) return &objects[i];
  return NULL;
}

static void survey(void) {
  for (unsigned i = 0; i < object_count && group_count < GROUPS; i++) {
    if (objects[i].class != 0xA06C) continue;
    struct group *group = &groups[group_count];
    *group = (struct group){.object = objects[i]};
    for (unsigned j = 0; j < object_count && group->count < ENTRIES; j++) {
      if (objects[j].client != objects[i].client || objects[j].parent != objects[i].handle || !ends_in(objects[j].class, 0x6F)) continue;
      group->channels[group->count++] = objects[j];
      if (child(&objects[j], 0xC0)) group->compute = true;
    }
    if (group->count > 0) group_count++;
  }
  for (unsigned i = 0; i < group_count; i++) // the compute group first
    if (groups[i].compute && !groups[0].compute) {
      struct group first = groups[0];
      groups[0] = groups[i];
      groups[i] = first;
    }
  if (group_count == 0 || !groups[0].compute) fail("no channel group with a compute object was seen", (int)object_count);
  for (unsigned i = 0; i < object_count; i++)
    if (objects[i].class == 0x2080 && objects[i].client == groups[0].object.client && objects[i].parent == groups[0].object.parent)
      subdevice = objects[i];
  if (!subdevice.handle) fail("no subdevice was seen", (int)object_count);
  printf("O {\"groups\":[");
  for (unsigned i = 0; i < group_count; i++) printf("%s{\"channels\":%u,\"compute\":%s}", i ? "," : "", groups[i].count, groups[i].compute ? "true" : "false");
  printf("]}\n");
}

// ---- controls ------------------------------------------------------------------------------------------------

struct cost {
  double ms, cpu_ms;
  uint32_t status;
};

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void control(struct cost *cost, uint32_t object, uint32_t command, void *params, uint32_t bytes) {
  struct {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t bytes, status;
  } call = {subdevice.client, object, command, 0, (uint64_t)(uintptr_t)params, bytes, 0};
  _Static_assert(sizeof call == 32, "NVOS54_PARAMETERS");
  double cpu = seconds(CLOCK_THREAD_CPUTIME_ID), wall = seconds(CLOCK_MONOTONIC);
  int result = real_ioctl()(subdevice.fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', 0x2A, 32), &call);
  cost->ms += (seconds(CLOCK_MONOTONIC) - wall) * 1e3;
  cost->cpu_ms += (seconds(CLOCK_THREAD_CPUTIME_ID) - cpu) * 1e3;
  uint32_t status = result != 0 ? 0xE0000000u + (uint32_t)errno : call.status;
  if (status) cost->status = status;
}

struct set {
  unsigned count;
  struct object channels[ENTRIES];
};

static void disable(struct cost *cost, const struct set *set, bool stop, bool only_scheduling) {
  struct {
    uint8_t disable, _rsv0[3];
    uint32_t count;
    uint8_t only_scheduling, rewind, _rsv1[6];
    uint64_t event;
    uint32_t clients[ENTRIES], channels[ENTRIES];
  } p = {.disable = stop, .count = set->count, .only_scheduling = only_scheduling};
  _Static_assert(sizeof p == 536, "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS");
  for (unsigned i = 0; i < set->count; i++) {
    p.clients[i] = set->channels[i].client;
    p.channels[i] = set->channels[i].handle;
  }
  control(cost, subdevice.handle, 0x2080110B, &p, sizeof p);
}

static void schedule(struct cost *cost, bool enable) {
  uint8_t p[3] = {enable, 0, 0};
  control(cost, groups[0].object.handle, 0xA06C0101, p, sizeof p);
}
static void preempt(struct cost *cost, bool wait) {
  struct {
    uint8_t wait, manual_timeout, _rsv[2];
    uint32_t timeout_us;
  } p = {.wait = wait};
  control(cost, groups[0].object.handle, 0xA06C0105, &p, sizeof p);
}

static void add(struct set *set, const struct group *group, unsigned most) {
  for (unsigned i = 0; i < group->count && i < most && set->count < ENTRIES; i++) set->channels[set->count++] = group->channels[i];
}

static struct set everything(void) {
  struct set all = {0};
  for (unsigned i = 0; i < group_count; i++) add(&all, &groups[i], ENTRIES);
  return all;
}

// RM counts stops. A channel whose scheduling alone was stopped may need a full stop before it runs again.
static void restore(void) {
  struct set all = everything();
  struct cost unused = {0};
  disable(&unused, &all, false, false);
  disable(&unused, &all, false, false);
  disable(&unused, &all, true, false);
  disable(&unused, &all, false, false);
  schedule(&unused, true);
}

// ---- cases ---------------------------------------------------------------------------------------------------

enum way { STOP, STOP_SCHEDULING, STOP_AGAIN, ENABLE_RUNNING, ASK, TIMESLICE, PREEMPT, PREEMPT_WAIT, SCHEDULING_THEN_PREEMPT, UNSCHEDULE, UNSCHEDULE_THEN_PREEMPT };

struct test {
  const char *name;
  enum way way;
  unsigned set_count; // one call for each
  struct set sets[GROUPS];
};

static uint32_t kernel_work;
static uint64_t timeslice_us, cases, wrong;

static void each(struct cost *cost, const struct test *t, bool stop, bool only_scheduling) {
  for (unsigned i = 0; i < t->set_count; i++) disable(cost, &t->sets[i], stop, only_scheduling);
}

static void begin(struct cost *cost, const struct test *t) {
  struct cost unused = {0};
  uint64_t us = timeslice_us;
  uint32_t id = 0;
  switch (t->way) {
  case STOP: each(cost, t, true, false); break;
  case STOP_SCHEDULING: each(cost, t, true, true); break;
  case STOP_AGAIN:
    each(&unused, t, true, false);
    each(cost, t, true, false);
    break;
  case ENABLE_RUNNING: each(cost, t, false, false); break;
  case ASK: control(cost, groups[0].object.handle, 0xA06C0106, &id, sizeof id); break;
  case TIMESLICE: control(cost, groups[0].object.handle, 0xA06C0103, &us, sizeof us); break;
  case PREEMPT: preempt(cost, false); break;
  case PREEMPT_WAIT: preempt(cost, true); break;
  case SCHEDULING_THEN_PREEMPT:
    each(cost, t, true, true);
    preempt(cost, true);
    break;
  case UNSCHEDULE: schedule(cost, false); break;
  case UNSCHEDULE_THEN_PREEMPT:
    schedule(cost, false);
    preempt(cost, true);
    break;
  }
}

static void end(struct cost *cost, const struct test *t) {
  struct cost unused = {0};
  switch (t->way) {
  case STOP: each(cost, t, false, false); break;
  case STOP_AGAIN:
    each(cost, t, false, false);
    each(&unused, t, false, false);
    break;
  case STOP_SCHEDULING:
  case SCHEDULING_THEN_PREEMPT:
    each(cost, t, false, false);
    restore();
    break;
  case UNSCHEDULE:
  case UNSCHEDULE_THEN_PREEMPT: schedule(cost, true); break;
  default: break;
  }
}

// Does a kernel outlast a stop that is longer than the kernel? In three tries.
static unsigned delays(const struct test *t) {
  unsigned seen = 0;
  for (int i = 0; i < 3; i++) {
    struct cost unused = {0};
    uint64_t start = now_ns();
    launch(LONG * kernel_work);
    pause_until(start + 400000);
    begin(&unused, t);
    pause_until(start + HOLD_US * 1000ull);
    int answer = cuStreamQuery(gpu.stream);
    end(&unused, t);
    CHECK(cuStreamSynchronize(gpu.stream));
    if (answer != 0 && answer != 600) fail("cuStreamQuery", answer);
    seen += answer == 600; // not ready
  }
  return seen;
}

static void measure(const struct test *t, unsigned rounds, bool busy) {
  static double stop[ROUNDS], stop_cpu[ROUNDS], enable[ROUNDS];
  uint32_t status = 0, end_status = 0;
  unsigned n = 0;
  for (; n < rounds && !status; n++) {
    struct cost begun = {0}, ended = {0};
    if (busy) launch(kernel_work);
    pause_until(now_ns() + 400000);
    begin(&begun, t);
    pause_until(now_ns() + 400000);
    end(&ended, t);
    if (busy) CHECK(cuStreamSynchronize(gpu.stream));
    stop[n] = begun.ms;
    stop_cpu[n] = begun.cpu_ms;
    enable[n] = ended.ms;
    status = begun.status;
    if (ended.status) end_status = ended.status;
  }
  unsigned held = status ? 0 : delays(t), channels = 0;
  for (unsigned i = 0; i < t->set_count; i++) channels += t->sets[i].count;
  restore();
  launch(1);
  CHECK(cuStreamSynchronize(gpu.stream)); // everything runs again
  cases++;
  wrong += end_status != 0;
  printf("C {\"case\":\"%s\",\"busy\":%s,\"channels\":%u,\"calls\":%u,\"n\":%u,\"status\":\"%#x\",\"end_status\":\"%#x\",\"stop_p50_ms\":%.3f,"
         "\"stop_p90_ms\":%.3f,\"stop_p99_ms\":%.3f,\"stop_cpu_p50_ms\":%.3f,\"enable_p50_ms\":%.3f,\"enable_p99_ms\":%.3f,\"stops\":%u,\"of\":3}\n",
         t->name, busy ? "true" : "false", channels, t->set_count, n, status, end_status, percentile(stop, n, 0.5), percentile(stop, n, 0.9),
         percentile(stop, n, 0.99), percentile(stop_cpu, n, 0.5), percentile(enable, n, 0.5), percentile(enable, n, 0.99), held);
  fflush(stdout);
}

static void of_groups(struct test *t, unsigned from, unsigned to, bool together) {
  for (unsigned i = from; i < to && i < group_count; i++) {
    if (!together || t->set_count == 0) t->set_count++;
    add(&t->sets[t->set_count - 1], &groups[i], ENTRIES);
  }
}

static void measure_all(unsigned rounds) {
  static struct test tests[32];
  unsigned n = 0;
  memset(tests, 0, sizeof tests);
#define TEST(title, how) (tests[n].name = title, tests[n].way = how, &tests[n++])
  TEST("ask_the_group", ASK);
  TEST("set_the_timeslice", TIMESLICE);
  static const char *const some[] = {"1_compute_channel", "2_compute_channels", "4_compute_channels"};
  for (unsigned i = 0; i < 3; i++) {
    struct test *t = TEST(some[i], STOP);
    t->set_count = 1;
    add(&t->sets[0], &groups[0], 1u << i);
  }
  of_groups(TEST("compute_group", STOP), 0, 1, true);
  of_groups(TEST("one_copy_group", STOP), 1, 2, true);
  of_groups(TEST("all_copy_groups_together", STOP), 1, group_count, true);
  of_groups(TEST("compute_and_one_copy_group", STOP), 0, 2, true);
  of_groups(TEST("all_groups_together", STOP), 0, group_count, true);
  of_groups(TEST("all_groups_one_by_one", STOP), 0, group_count, false);
  of_groups(TEST("compute_group_stopped_already", STOP_AGAIN), 0, 1, true);
  of_groups(TEST("enable_a_running_group", ENABLE_RUNNING), 0, 1, true);
  struct test *t = TEST("1_compute_channel,_scheduling_only", STOP_SCHEDULING);
  t->set_count = 1;
  add(&t->sets[0], &groups[0], 1);
  of_groups(TEST("compute_group,_scheduling_only", STOP_SCHEDULING), 0, 1, true);
  of_groups(TEST("all_groups_together,_scheduling_only", STOP_SCHEDULING), 0, group_count, true);
  of_groups(TEST("compute_group,_scheduling_only,_then_preempt", SCHEDULING_THEN_PREEMPT), 0, 1, true);
  TEST("preempt", PREEMPT);
  TEST("preempt_and_wait", PREEMPT_WAIT);
  TEST("unschedule_the_group", UNSCHEDULE);
  TEST("unschedule_the_group,_then_preempt", UNSCHEDULE_THEN_PREEMPT);
#undef TEST
  for (unsigned i = 0; i < n; i++) {
    measure(&tests[i], rounds, false);
    measure(&tests[i], rounds, true);
  }
  printf("D\n");
  fflush(stdout);
}

int main(void) {
  alarm(600); // ends by itself; the kernel then frees the channels
  setvbuf(stdout, NULL, _IOLBF, 0);
  start_driver();
  CHECK(cuStreamSynchronize(gpu.stream));
  kernel_work = calibrate(KERNEL_US);
  survey();
  struct cost asked = {0};
  control(&asked, groups[0].object.handle, 0xA06C0104, &timeslice_us, sizeof timeslice_us);
  if (asked.status || !timeslice_us) fail("the timeslice of the compute group is not known", (int)asked.status);
  printf("R\n");
  char line[128];
  while (fgets(line, sizeof line, stdin)) {
    unsigned rounds = 0;
    if (strncmp(line, "quit", 4) == 0) break;
    if (strncmp(line, "report", 6) == 0) {
      printf("S %llu %llu 0\n", (unsigned long long)cases, (unsigned long long)wrong);
    } else if (sscanf(line, "measure %u", &rounds) == 1 && rounds >= 1 && rounds <= ROUNDS) {
      measure_all(rounds);
    } else {
      printf("E unknown command\n");
      return 2;
    }
  }
  restore();
  CHECK(cuCtxDestroy(gpu.context));
  printf("S %llu %llu 0\n", (unsigned long long)cases, (unsigned long long)wrong);
  return wrong != 0;
}
