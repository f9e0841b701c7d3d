// SPDX-License-Identifier: Apache-2.0
//
// fork from a process whose threads work on every lock of ours, 200 times: the child is clean, its
// locks work, and the parent notices nothing. Some children use a GPU themselves; posix_spawn runs
// beside it all.

#include <spawn.h>
#include <sys/ioctl.h>

#include "driver/rm/rm.h"
#include "test_support.h"

enum { FORKS = 200, LOADS = 4 };

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;
static uint32_t stop, registered_locked, child_reset;

// ---- a driver that grants everything --------------------------------------------

static int grant(int fd, unsigned long request, ...) {
  (void)fd, (void)request;
  return 0;
}

static void rm_alloc(int fd, uint32_t root, uint32_t parent, uint32_t object,
                     uint32_t object_class) {
  struct rm_alloc_48 call = {.common = {root, parent, object, object_class, 0}};
  CHECK(ioctl(fd, NV_ESC_RM_ALLOC_48, &call) == 0);
}
static void rm_free(int fd, uint32_t root, uint32_t object) {
  struct rm_free call = {.root = root, .object = object};
  CHECK(ioctl(fd, NV_ESC_RM_FREE, &call) == 0);
}

static void *load(void *argument) {
  uint32_t number = (uint32_t)(uintptr_t)argument, client = 0xc1d00001 + number;
  int device = open("/dev/null", O_RDWR | O_CLOEXEC);
  while (__atomic_load_n(&stop, __ATOMIC_ACQUIRE) == 0) {
    int queue = xsi_queue_open(0, number, 0);
    CHECK(queue >= 0);
    rm_alloc(device, 0, 0, client, 0x41);
    rm_alloc(device, client, client, 2, NV01_DEVICE_0);
    rm_alloc(device, client, 2, 4, KEPLER_CHANNEL_GROUP_A);
    for (int i = 0; i < 20; i++) {
      test_set_busy(queue, true);
      xsi_count(launches, 1);
      test_set_busy(queue, false);
      xsi_counters_publish();
    }
    rm_free(device, client, client);
    xsi_queue_close(queue);
  }
  close(device);
  return NULL;
}

// ---- what the layer above registers ---------------------------------------------

static pthread_mutex_t above = PTHREAD_MUTEX_INITIALIZER;
static void lock_above(void) {
  pthread_mutex_lock(&above);
  registered_locked++;
}
static void unlock_above(void) {
  registered_locked--;
  pthread_mutex_unlock(&above);
}
static void reset_above(void) { child_reset++; }

static bool theirs[4096]; // descriptors of the process before ours came

static bool is_ours(int fd) { return fd >= 100 && fd < 4096 && !theirs[fd]; }

static void child(unsigned number, pid_t parent) {
  alarm(30);
  CHECK(child_reset == 1 && registered_locked == 0);
  CHECK(getppid() == parent && !xsi_page_joined());
  for (int fd = 0; fd < 4096; fd++)
    CHECK(!is_ours(fd) || fcntl(fd, F_GETFD) < 0);
  CHECK(xsi_rm_table.oldest == RM_NONE);
  CHECK(xsi_header()->magic == 0 && xsi_slot(0)->generation == 0);
  struct xsi_counters total;
  xsi_counters_sum(&total);
  CHECK(total.launches == 0);
  CHECK(xsi_rm_find_client(0xc1d00001) == NULL);
  xsi_rm_recover(NULL); // nothing of the parent's is touched: there is nothing
  if (number % 10 == 0) {
    // It uses a GPU itself: a session of its own.
    CHECK(test_count_helpers() == 0);
    CHECK(xsi_queue_open(0, 1, 0) == 0);
    xsi_count(launches, 7);
    EVENTUALLY(xsi_page_joined());
    EVENTUALLY(xsi_header()->launches == 7);
    CHECK(xsi_header()->session_id == 1000);
  }
  _exit(0);
}

// A child gets zeros for a table, its own child as well, and the parent keeps the table.
static void forgets(void) {
  static XSI_FORK_TABLE unsigned char table[2 * XSI_FORK_PAGE];
  if (!xsi_forget_in_child(table, sizeof table)) {
    puts("the kernel can't clear memory at a fork: not tested");
    return;
  }
  pid_t first = getpid();
  for (int generation = 0; generation < 3; generation++) {
    CHECK(table[0] == 0 && table[XSI_FORK_PAGE] == 0 && table[sizeof table - 1] == 0);
    memset(table, 1, sizeof table);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) continue;
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(table[0] == 1 && table[sizeof table - 1] == 1);
    if (getpid() == first) return;
    _exit(0);
  }
  _exit(0);
}

static void spawn(void) {
  char *arguments[] = {"true", NULL}, *environment[] = {NULL};
  pid_t pid;
  int status;
  CHECK(posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environment) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

// Answers a child that joins, on a listener of its own.
static void serve_child(pid_t pid) {
  struct test_daemon other = *d;
  test_daemon_accept(&other);
  CHECK(other.hello.pid == (uint32_t)pid);
  test_daemon_welcome(&other, 1000);
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  CHECK(test_header(&other)->launches == 7 && test_slot(&other, 0)->generation == 1);
  test_daemon_hang_up(&other);
  test_daemon_drop_page(&other);
}

int main(void) {
  test_daemon_place(d);
  xsi_options_init(); // the constructor ran before the socket was named
  alarm(60);
  forgets();
  __atomic_store_n(&xsi_next_ioctl, grant, __ATOMIC_RELEASE);
  xsi_at_fork_locks(lock_above, unlock_above);
  xsi_at_fork_child(reset_above);
  test_daemon_listen(d);
  for (int fd = 0; fd < 4096; fd++)
    theirs[fd] = fcntl(fd, F_GETFD) >= 0;
  CHECK(xsi_queue_open(0, 0, 0) == 0);
  test_session_start(d, 1);
  test_heart_start(d);
  pthread_t threads[LOADS];
  for (uintptr_t i = 0; i < LOADS; i++)
    CHECK(pthread_create(&threads[i], NULL, load, (void *)i) == 0);
  test_sleep_ms(20);
  uint64_t recoveries = test_header(d)->recoveries;
  pid_t parent = getpid();
  for (unsigned i = 0; i < FORKS; i++) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) child(i, parent);
    char event[4096];
    while (recv(d->socket, event, sizeof event, MSG_DONTWAIT) > 0)
      continue; // keeps the parent's session going
    int status;
    if (i % 10 == 0)
      serve_child(pid);
    else
      CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    if (i % 20 == 0) spawn();
    CHECK(child_reset == 0 && registered_locked == 0);
  }
  CHECK(xsi_page_joined() && test_header(d)->session_id == 1);
  CHECK(test_header(d)->recoveries == recoveries); // the parent's session lived through it all
  __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
  for (int i = 0; i < LOADS; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  test_heart_stop(d);
  test_daemon_remove(d);
  puts("ok fork");
  return 0;
}
