// SPDX-License-Identifier: Apache-2.0
//
// Recovery, byte by byte: which calls reach the driver, on which file, and when none does.

#include "test_driver.h"

static struct test_daemon daemon_;
static struct test_daemon *const d = &daemon_;
static int device;

static uint32_t word(const struct test_control *control, size_t offset) {
  uint32_t value;
  memcpy(&value, control->params + offset, sizeof value);
  return value;
}

static unsigned counted(void) {
  pthread_mutex_lock(&test_driver.lock);
  unsigned count = test_driver.count;
  pthread_mutex_unlock(&test_driver.lock);
  return count;
}

static uint64_t field(const uint64_t *where) { return __atomic_load_n(where, __ATOMIC_ACQUIRE); }

static void forget_calls(void) {
  pthread_mutex_lock(&test_driver.lock);
  test_driver.count = 0;
  pthread_mutex_unlock(&test_driver.lock);
}

static unsigned recover(void) {
  pthread_mutex_lock(&test_driver.lock);
  test_driver.count = 0;
  pthread_mutex_unlock(&test_driver.lock);
  errno = 66;
  xsi_rm_recover(NULL);
  CHECK(errno == 66);
  return test_driver.count;
}

// Two GPUs: 70 channels in one group on the first, two channels in a group on the second.
static uint32_t make_client(void) {
  uint32_t client = test_alloc(device, 0, 0, 0, 0x41);
  test_alloc(device, client, client, 0x10, NV01_DEVICE_0);
  test_alloc(device, client, 0x10, 0x11, NV20_SUBDEVICE_0);
  test_alloc(device, client, 0x10, 0x12, NV20_SUBDEVICE_0); // a second name of the same
  test_alloc(device, client, client, 0x20, NV01_DEVICE_0);
  test_alloc(device, client, 0x20, 0x21, NV20_SUBDEVICE_0);
  test_alloc(device, client, 0x10, 0x13, KEPLER_CHANNEL_GROUP_A);
  test_alloc(device, client, 0x20, 0x23, KEPLER_CHANNEL_GROUP_A);
  for (uint32_t i = 0; i < 70; i++)
    test_alloc(device, client, 0x13, 0x100 + i, 0xC86F);
  test_alloc(device, client, 0x23, 0x200, 0xC86F);
  test_alloc(device, client, 0x20, 0x201, 0xC86F); // straight below its device
  return client;
}

static void check_call(const struct test_control *control, uint32_t client, uint32_t subdevice,
                       uint32_t first, uint32_t count, unsigned char disable) {
  CHECK(control->call.client == client && control->call.object == subdevice);
  CHECK(control->call.command == 0x2080110B && control->call.flags == 0);
  CHECK(control->call.params_bytes == 536 && control->fd != device && control->fd >= 100);
  static unsigned char want[536];
  memset(want, 0, sizeof want);
  want[0] = disable;
  memcpy(want + 4, &count, 4);
  for (uint32_t i = 0; i < count; i++) {
    uint32_t channel = first + i;
    memcpy(want + 24 + 4 * i, &client, 4);
    memcpy(want + 280 + 4 * i, &channel, 4);
  }
  CHECK(memcmp(want, control->params, sizeof want) == 0);
}

// Enabled twice, then stopped and enabled: four calls that free it whatever was done to it.
#define CALLS 4
#define ALL (3 * CALLS + 2) /* three lists of channels, two timeslices */
static void check_freed(const struct test_control *control, uint32_t client, uint32_t subdevice,
                        uint32_t first, uint32_t count) {
  for (unsigned i = 0; i < CALLS; i++)
    check_call(&control[i], client, subdevice, first, count, i == 2);
}

static void check_slice(const struct test_control *control, uint32_t client, uint32_t group,
                        uint64_t us) {
  CHECK(control->call.client == client && control->call.object == group);
  CHECK(control->call.command == 0xA06C0103 && control->call.params_bytes == 8);
  CHECK(memcmp(control->params, &us, 8) == 0);
}

static void undoes_exactly(void) {
  uint32_t client = make_client();
  CHECK(recover() == 0); // no daemon ever had it: nothing to undo
  test_turn(slice_us, 1500);
  CHECK(xsi_queue_open(0, 0x0100, 0) == 0);
  test_session_start(d, 1);
  test_heart_start(d);
  EVENTUALLY(xsi_rm_due_ns() == UINT64_MAX); // all told
  test_turn(slice_us, 1);                    // now the daemon has set its own
  uint64_t own = 777;
  test_control(device, client, 0x23, NVA06C_CTRL_CMD_SET_TIMESLICE, &own, sizeof own);

  CHECK(recover() == ALL);
  check_freed(&test_driver.controls[0], client, 0x11, 0x100, 64);
  check_freed(&test_driver.controls[CALLS], client, 0x11, 0x140, 6);
  check_freed(&test_driver.controls[2 * CALLS], client, 0x21, 0x200, 2);
  check_slice(&test_driver.controls[ALL - 2], client, 0x13, 1500); // before the daemon came
  check_slice(&test_driver.controls[ALL - 1], client, 0x23, 777);  // what the application chose

  // One channel the driver no longer knows: the other five one by one, at each of the three enables.
  test_turn(refuse_channel, 0x142);
  CHECK(recover() == ALL + 3 * 6);
  check_call(&test_driver.controls[CALLS + 1], client, 0x11, 0x140, 1, 0);
  check_call(&test_driver.controls[CALLS + 6], client, 0x11, 0x145, 1, 0);
  test_turn(refuse_channel, 0);

  test_turn(error, EIO); // the driver is gone: every call fails, nobody minds
  recover();
  CHECK(xsi_rm_recover(NULL) == -EAGAIN);
  test_turn(error, 0);
  test_turn(status, 0x65);
  recover();
  for (unsigned i = 0; i < counted(); i++) // no stop where enabling does not work
    CHECK(test_driver.controls[i].call.command != 0x2080110B ||
          test_driver.controls[i].params[0] == 0);
  CHECK(xsi_rm_recover(NULL) == -EAGAIN);
  test_turn(status, 0);
  CHECK(xsi_rm_recover(NULL) == 0);
  test_turn(slice_status, 0x3); // a tiny timeslice must not stay: tried again
  CHECK(xsi_rm_recover(NULL) == -EAGAIN);
  test_turn(slice_status, 0x1b); // refused for good: trying again would only disturb the program
  CHECK(xsi_rm_recover(NULL) == 0);
  test_turn(slice_status, 0);
  recover();
  CHECK(word(&test_driver.controls[0], 0) == 0);

  // The session's loss does the same by itself.
  pthread_mutex_lock(&test_driver.lock);
  test_driver.count = 0;
  pthread_mutex_unlock(&test_driver.lock);
  test_heart_stop(d);
  test_session_end(d);
  CHECK(test_driver.count == ALL);
  test_free(device, client, client);
  CHECK(recover() == 0);
}

// One device's lease ended: only what is there is undone, and what may be there.
static void undoes_one_device(void) {
  test_turn(slice_us, 2048);
  uint32_t client = make_client();
  test_session_start(d, 6);
  test_heart_start(d);
  EVENTUALLY(xsi_rm_due_ns() == UINT64_MAX);
  forget_calls();
  // The GPU of device 0x20. The driver's number of it has no room for the whole domain.
  __atomic_store_n(&test_leases(d)->entries[3].pci_domain, 0x10000, __ATOMIC_RELAXED);
  test_lease(d, 3, 0x2100, 4, xsi_now_ns());
  EVENTUALLY(field(&test_leases(d)->recovered_epochs[3]) == 4);
  CHECK(counted() == CALLS + 1);
  check_freed(&test_driver.controls[0], client, 0x21, 0x200, 2);
  check_slice(&test_driver.controls[CALLS], client, 0x23, 2048);

  test_lease(d, 3, 0x2100, 4, 0);
  forget_calls();
  test_turn(status, 0x3); // the driver refuses: said not to be recovered, and tried again
  test_lease(d, 7, 0x1108, 1, xsi_now_ns());
  EVENTUALLY(counted() >= 2 * 70);
  CHECK(field(&test_leases(d)->recovered_epochs[7]) == 0);
  test_turn(status, 0);
  EVENTUALLY(field(&test_leases(d)->recovered_epochs[7]) == 1);
  CHECK(field(&test_leases(d)->recovered_epochs[3]) == 4);
  for (unsigned i = 0; i < counted(); i++)
    CHECK(test_driver.controls[i].call.object != 0x21 &&
          test_driver.controls[i].call.object != 0x23);

  // A device whose GPU the driver does not tell counts as any.
  test_turn(gpu_status, 0x56);
  test_alloc(device, client, client, 0x30, NV01_DEVICE_0);
  test_alloc(device, client, 0x30, 0x31, NV20_SUBDEVICE_0);
  test_alloc(device, client, 0x30, 0x300, 0xC86F);
  EVENTUALLY(xsi_rm_due_ns() == UINT64_MAX);
  test_sleep_ms(20);
  test_turn(gpu_status, 0);
  test_lease(d, 7, 0x1108, 1, 0);
  forget_calls();
  test_lease(d, 3, 0x2100, 5, xsi_now_ns());
  EVENTUALLY(field(&test_leases(d)->recovered_epochs[3]) == 5);
  CHECK(counted() == 2 * CALLS + 1);
  check_freed(&test_driver.controls[0], client, 0x21, 0x200, 2);
  check_freed(&test_driver.controls[CALLS], client, 0x31, 0x300, 1);
  test_heart_stop(d);
  test_session_end(d);
  test_free(device, client, client);
}

static void silence_undoes(void) {
  uint32_t client = make_client();
  d->limit_ns = XSW_HEARTBEAT_LIMIT_NS;
  test_session_start(d, 2);
  test_heart_start(d);
  EVENTUALLY(xsi_rm_due_ns() == UINT64_MAX);
  pthread_mutex_lock(&test_driver.lock);
  test_driver.count = 0;
  pthread_mutex_unlock(&test_driver.lock);
  test_heart_stop(d);
  EVENTUALLY(counted() >= ALL);
  test_session_end(d);
  test_free(device, client, client);
}

// A recovery that did not work is not said to be one, and is tried again.
static void failure_is_no_recovery(void) {
  uint32_t client = make_client();
  d->limit_ns = XSW_HEARTBEAT_LIMIT_NS;
  test_session_start(d, 3);
  test_heart_start(d);
  EVENTUALLY(xsi_rm_due_ns() == UINT64_MAX);
  struct xsw_header *header = test_header(d);
  uint64_t before = __atomic_load_n(&header->recoveries, __ATOMIC_ACQUIRE);
  __atomic_store_n(&header->lease_epoch, 5, __ATOMIC_RELEASE);
  test_turn(status, 0x3);
  test_heart_stop(d);
  forget_calls();
  EVENTUALLY(counted() >= 4 * 70); // several tries
  CHECK(__atomic_load_n(&header->recovered_epoch, __ATOMIC_ACQUIRE) == 0);
  test_turn(status, 0);
  EVENTUALLY(__atomic_load_n(&header->recovered_epoch, __ATOMIC_ACQUIRE) == 5);
  CHECK(__atomic_load_n(&header->recoveries, __ATOMIC_ACQUIRE) == before + 1);
  test_heart_start(d);
  EVENTUALLY(__atomic_load_n(&xsi_native, __ATOMIC_ACQUIRE) == 0);

  // The end of a session with a lease: what lands after the recovery is undone by the next.
  test_heart_stop(d);
  forget_calls();
  test_turn(error, EIO);
  test_session_end(d); // fails
  CHECK(counted() == 0);
  test_turn(error, 0);
  EVENTUALLY(counted() == ALL);
  forget_calls();
  EVENTUALLY(counted() == ALL);

  // A new session ends the repeating.
  test_session_start(d, 4);
  test_heart_start(d);
  EVENTUALLY(xsi_rm_due_ns() == UINT64_MAX);
  __atomic_store_n(&test_header(d)->lease_epoch, 1, __ATOMIC_RELEASE);
  forget_calls();
  test_heart_stop(d);
  test_session_end(d);
  CHECK(counted() >= ALL);
  d->limit_ns = 9000000000u;
  test_session_start(d, 5);
  EVENTUALLY(xsi_rm_due_ns() == UINT64_MAX);
  forget_calls();
  test_sleep_ms(1500);
  CHECK(counted() == 0);
  test_session_end(d); // it had no lease
  forget_calls();
  test_sleep_ms(400);
  CHECK(counted() == 0);
  test_free(device, client, client);
}

int main(void) {
  test_daemon_place(d);
  xsi_options_init(); // the constructor ran before the socket was named
  alarm(60);
  xsi_session_retry.first_ms = xsi_session_retry.last_ms = 10;
  test_driver_install();
  device = open("/dev/null", O_RDWR | O_CLOEXEC);
  test_daemon_listen(d);
  undoes_exactly();
  undoes_one_device();
  silence_undoes();
  failure_is_no_recovery();
  test_daemon_remove(d);
  puts("ok recover");
  return 0;
}
