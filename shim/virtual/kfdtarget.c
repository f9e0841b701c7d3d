/* SPDX-License-Identifier: Apache-2.0
 *
 * A test program with queues on the virtual GPU. Starts with one compute queue (and one for
 * copies), and counts every signal of a 1 kHz SIGALRM. Arguments: "late" waits for a line before
 * the runtime starts; "priority N" sets the driver's priority of the queues. Reads commands from
 * standard input, one letter per line, and answers on standard output:
 *   n  one more compute queue: "Q <id>"
 *   w  one kernel of 1 ms on each compute queue: "W"
 *   f  wait until all work is done: "F <checksum>"
 *   r  "R <retired kernels>" without waiting
 *   s  "S <alarms> <merged> <expected> <numbered> <out of order>"
 *   d  destroy the newest queue: "D"
 *   q  quit
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "vkfd.h"

enum { GPU = 63420, RING = 65536, MAX_QUEUES = 64, PERIOD_NS = 1000000 };

static int kfd;
static uint32_t queues[MAX_QUEUES];
static unsigned queue_count;
static uint64_t submitted[MAX_QUEUES], next_address = 0x7f0000000000;
static uint32_t priority = 7;

static timer_t timer;
static struct timespec started;
static volatile sig_atomic_t alarms, merged, numbered, disordered;

static void on_alarm(int signal) {
  (void)signal;
  alarms++;
  merged += timer_getoverrun(timer);
}

static void on_number(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)context;
  if (info->si_value.sival_int != numbered) disordered++;
  numbered++;
}

static void fail(const char *what) {
  printf("FAIL %s: %s\n", what, strerror(errno));
  fflush(stdout);
  _exit(1);
}

static void call(const char *what, unsigned long request, void *arg) {
  int result;
  do
    result = ioctl(kfd, request, arg);
  while (result < 0 && errno == EINTR);
  if (result < 0) fail(what);
}

static void put32(unsigned char *arg, unsigned at, uint32_t v) { memcpy(arg + at, &v, 4); }
static void put64(unsigned char *arg, unsigned at, uint64_t v) { memcpy(arg + at, &v, 8); }

static uint64_t memory(uint64_t bytes) {
  unsigned char alloc[40] = {0}, map[24] = {0};
  uint64_t address = next_address, handle;
  uint32_t gpu = GPU;
  next_address += bytes + RING;
  put64(alloc, 0, address), put64(alloc, 8, bytes), put32(alloc, 32, gpu), put32(alloc, 36, 2);
  call("allocate", 0xC0284B16u, alloc);
  memcpy(&handle, alloc + 16, 8);
  put64(map, 0, handle), put64(map, 8, (uint64_t)(uintptr_t)&gpu), put32(map, 16, 1);
  call("map", 0xC0184B18u, map);
  return address;
}

static uint32_t create(uint32_t type) {
  unsigned char arg[96] = {0};
  uint64_t pointers = memory(4096);
  uint32_t id;
  put64(arg, 0, memory(RING)), put64(arg, 8, pointers), put64(arg, 16, pointers + 8);
  put32(arg, 32, RING), put32(arg, 36, GPU), put32(arg, 40, type), put32(arg, 44, 100);
  put32(arg, 48, priority);
  put64(arg, 72, memory(VK_SAVE_TOTAL)), put32(arg, 80, VK_SAVE_BYTES);
  put32(arg, 84, VK_STACK_BYTES);
  call("create queue", 0xC0604B02u, arg);
  memcpy(&id, arg + 52, 4);
  return id;
}

static void add_queue(void) {
  queues[queue_count] = create(2);
  submitted[queue_count++] = 0;
}

static void start_alarm(void) {
  struct sigaction alarm = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
  struct sigaction number = {.sa_sigaction = on_number, .sa_flags = SA_RESTART | SA_SIGINFO};
  sigaction(SIGALRM, &alarm, NULL);
  sigaction(SIGRTMIN, &number, NULL);
  struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) fail("timer");
  clock_gettime(CLOCK_MONOTONIC, &started);
  struct itimerspec period = {{0, PERIOD_NS}, started};
  period.it_value.tv_nsec += PERIOD_NS;
  if (period.it_value.tv_nsec >= 1000000000) {
    period.it_value.tv_sec++;
    period.it_value.tv_nsec -= 1000000000;
  }
  timer_settime(timer, TIMER_ABSTIME, &period, NULL);
}

static void report(void) {
  struct itimerspec none = {{0, 0}, {0, 0}}, left;
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  sigprocmask(SIG_BLOCK, &alarm, NULL);
  timer_gettime(timer, &left);
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  timer_settime(timer, 0, &none, NULL);
  sigprocmask(SIG_UNBLOCK, &alarm, NULL);
  int64_t ran = (now.tv_sec - started.tv_sec) * 1000000000ll + now.tv_nsec - started.tv_nsec;
  printf("S %d %d %lld %d %d\n", (int)alarms, (int)merged, (long long)(ran / PERIOD_NS),
         (int)numbered, (int)disordered);
}

static uint64_t retired(unsigned i, int wait, uint64_t *checksum) {
  struct vk_retired r = {.queue_id = queues[i], .wait = (uint32_t)wait, .sequence = submitted[i]};
  call("retired", VK_IOC_RETIRED, &r);
  *checksum ^= r.checksum;
  return r.retired;
}

int main(int argc, char **argv) {
  unsigned char arg[16] = {0};
  /* Tests trace this program from a sibling process, which Yama otherwise restricts to root. */
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);
  if (kfd < 0) fail("open");
  if (argc > 1 && strcmp(argv[1], "late") == 0) { /* the runtime starts under the debugger */
    printf("before %d\n", getpid());
    fflush(stdout);
    if (getchar() == EOF) return 1;
  }
  put32(arg, 8, 1);
  call("enable runtime", 0xC0104B25u, arg);
  int render = open("/dev/dri/renderD128", O_RDWR | O_CLOEXEC);
  put32(arg, 0, (uint32_t)render), put32(arg, 4, GPU);
  call("acquire vm", 0x40084B15u, arg);
  if (argc > 2 && strcmp(argv[1], "priority") == 0) priority = (uint32_t)atoi(argv[2]);
  create(1);
  add_queue();
  start_alarm();
  printf("ready %d\n", getpid());
  fflush(stdout);
  char line[64];
  for (;;) {
    ssize_t n = read(0, line, sizeof line);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return 0;
    for (ssize_t at = 0; at < n; at++) {
      uint64_t sum = 0, count = 0;
      switch (line[at]) {
      case 'n': add_queue(), printf("Q %u\n", queues[queue_count - 1]); break;
      case 'w':
        for (unsigned i = 0; i < queue_count; i++) {
          struct vk_submit s = {
              .queue_id = queues[i], .count = 1, .duration_ns = 1000000, .seed = 1};
          call("submit", VK_IOC_SUBMIT, &s);
          submitted[i]++;
        }
        printf("W\n");
        break;
      case 'f':
      case 'r':
        for (unsigned i = 0; i < queue_count; i++)
          count += retired(i, line[at] == 'f', &sum);
        if (line[at] == 'f')
          printf("F %016llx\n", (unsigned long long)sum);
        else
          printf("R %llu\n", (unsigned long long)count);
        break;
      case 's': report(); break;
      case 'd': {
        unsigned char id[8] = {0};
        put32(id, 0, queues[--queue_count]);
        call("destroy", 0xC0084B03u, id);
        printf("D\n");
        break;
      }
      case 'q': return 0;
      default: break;
      }
      fflush(stdout);
    }
  }
}
