// SPDX-License-Identifier: Apache-2.0

#include "test_fake.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

int failures;
struct noted_queue noted[NOTED_QUEUES];
int noted_room = NOTED_QUEUES;
uint32_t noted_gates, noted_rings;
uint64_t test_now_ns;

struct xsi_options xsi_options = {.automatic = true};
__attribute__((constructor)) static void name_no_library(void) {
  strcpy(xsi_cu_library_name, "libcuda-not-there.so.1");
}
int xsi_log_threshold = -1;
static unsigned char page[XSW_PAGE_BYTES] __attribute__((aligned(4096)));
unsigned char *xsi_page = page;
bool xsi_page_joined(void) { return true; }
uint32_t xsi_session_undecided;
uint32_t xsi_native; /* tests set it: the daemon is silent */
_Thread_local struct xsi_thread xsi_thread __attribute__((tls_model("initial-exec")));
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct xsi_counters *blocks[64];
static int block_count;
static void (*child_resets[16])(void);
static int reset_count;
static void (*before_fork)(void);

static void *no_dlsym(void *handle, const char *name) {
  (void)handle, (void)name;
  return NULL;
}
static void *no_dlvsym(void *handle, const char *name, const char *version) {
  (void)handle, (void)name, (void)version;
  return NULL;
}
int (*xsi_next_ioctl)(int fd, unsigned long request, ...);
void *(*xsi_real_dlsym)(void *, const char *) = no_dlsym;
void *(*xsi_real_dlvsym)(void *, const char *, const char *) = no_dlvsym;

void xsi_init(void) {}
bool xsi_option_text(const char *name, char *value, size_t bytes) {
  (void)name, (void)value, (void)bytes;
  return false;
}
void xsi_log_write(enum xsi_log_level level, const char *format, ...) { (void)level, (void)format; }

uint64_t xsi_now_ns(void) {
  if (test_now_ns) return test_now_ns;
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int xsi_queue_open(uint32_t pci_domain, uint32_t pci_bus_slot, int32_t priority) {
  CHECK(pci_domain == 0 && (pci_bus_slot & ~7u) == (0x3bu << 8 | 1u << 3) && priority == 0);
  pthread_mutex_lock(&lock);
  int found = -ENOSPC;
  for (int i = 0; i < noted_room && found < 0; i++)
    if (!noted[i].open) found = i;
  if (found >= 0) {
    noted[found].open = 1;
    noted[found].tally = (struct xsi_tally){0};
    noted[found].function = (int)(pci_bus_slot & 7);
  }
  pthread_mutex_unlock(&lock);
  return found;
}

int xsi_queue_open_stream(uint32_t pci_domain, uint32_t pci_bus_slot, int32_t priority) {
  int found = xsi_queue_open(pci_domain, pci_bus_slot, 0);
  if (found >= 0) noted[found].priority = priority;
  return found;
}

void xsi_queue_close(int index) {
  pthread_mutex_lock(&lock);
  CHECK(noted[index].open && !noted[index].busy);
  noted[index].open = 0;
  pthread_mutex_unlock(&lock);
}

static void count_streams(int index, int by) {
  struct noted_queue *queue = &noted[index];
  int before = queue->streams;
  queue->streams += by;
  CHECK(queue->open && queue->streams >= 0);
  if (before != 0 && queue->streams != 0) return;
  __atomic_store_n(&queue->busy, queue->streams != 0, __ATOMIC_SEQ_CST);
  queue->changes++;
}

bool xsi_queue_enter(int index) {
  pthread_mutex_lock(&lock);
  count_streams(index, 1);
  pthread_mutex_unlock(&lock);
  return false;
}

bool xsi_queue_leave(int index, struct xsi_tally since) {
  pthread_mutex_lock(&lock);
  noted[index].tally.submitted += since.submitted;
  noted[index].tally.launches += since.launches;
  noted[index].tally.copies += since.copies;
  count_streams(index, -1);
  pthread_mutex_unlock(&lock);
  return false;
}

void xsi_queue_changed(int index) { (void)index; }
void xsi_doorbell_ring(void) { noted_rings++; }

bool xsi_gate_silent(uint64_t now) {
  (void)now;
  return __atomic_load_n(&xsi_native, __ATOMIC_ACQUIRE) != 0;
}

void xsi_hint_process(const struct xsw_hint *hint, const char *policy) { (void)hint, (void)policy; }

void xsi_gate_wait(int index) {
  noted_gates++;
  __atomic_store_n(&xsi_slot((uint32_t)index)->gate, XSW_GATE_OPEN, __ATOMIC_RELEASE);
}

void xsi_counters_enlist(void) {
  pthread_mutex_lock(&lock);
  if (block_count < 64) blocks[block_count++] = &xsi_thread.counters;
  xsi_thread.counters.listed = true;
  pthread_mutex_unlock(&lock);
}

// Only while the threads it sums are still there.
uint64_t counted(size_t offset) {
  uint64_t sum = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < block_count; i++)
    sum += __atomic_load_n((uint64_t *)(void *)((char *)blocks[i] + offset), __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lock);
  return sum;
}

// As on a kernel that can't: the resets clear the tables.
bool xsi_forget_in_child(void *table, size_t bytes) {
  (void)table, (void)bytes;
  return false;
}
void xsi_at_fork_locks(void (*lock)(void), void (*unlock)(void)) {
  (void)unlock, before_fork = lock;
}
void xsi_at_fork_child(void (*reset)(void)) { child_resets[reset_count++] = reset; }
void noted_fork(void) {
  if (before_fork) before_fork();
  for (int i = 0; i < reset_count; i++)
    child_resets[i]();
  memset(noted, 0, sizeof noted);
}
