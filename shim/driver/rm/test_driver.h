/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for the kernel driver behind ioctl: grants what is asked, keeps timeslices, and
 * records the controls it is sent.
 */
#ifndef XSCHED_TEST_DRIVER_H
#define XSCHED_TEST_DRIVER_H

#include <stdarg.h>
#include <sys/ioctl.h>

#include "core/test_support.h"
#include "rm.h"

struct test_control {
  int fd;
  struct rm_control call;
  unsigned char params[536];
};

static struct test_driver {
  pthread_mutex_t lock;
  struct test_control controls[4096];
  unsigned count;
  uint64_t slice_us;         /* what GET_TIMESLICE answers */
  uint32_t next_handle;      /* given where the caller leaves the choice */
  uint32_t refuse_channel;   /* FIFO_DISABLE_CHANNELS naming it fails */
  uint32_t gpu_status;       /* of GPU_GET_ID */
  uint32_t slice_status;     /* of SET_TIMESLICE */
  uint32_t status;           /* of everything, for tests of failure */
  int error;                 /* ioctl itself fails */
  void (*during_free)(void); /* what "another thread" does before a free has returned */
} test_driver = {.lock = PTHREAD_MUTEX_INITIALIZER, .slice_us = 2048, .next_handle = 0xc1d00010};

/* The helper thread calls the driver, too. */
#define test_knob(field) __atomic_load_n(&test_driver.field, __ATOMIC_ACQUIRE)
#define test_turn(field, value) __atomic_store_n(&test_driver.field, value, __ATOMIC_RELEASE)

static uint32_t test_driver_control(int fd, struct rm_control *call) {
  struct test_control *record = NULL;
  uint32_t status = test_knob(status);
  pthread_mutex_lock(&test_driver.lock);
  if (test_driver.count < 4096) record = &test_driver.controls[test_driver.count++];
  if (record != NULL) {
    record->fd = fd;
    record->call = *call;
    CHECK(call->params_bytes <= sizeof record->params);
    if (call->params != 0)
      memcpy(record->params, (const void *)(uintptr_t)call->params, call->params_bytes);
  }
  if (call->command == NVA06C_CTRL_CMD_GET_TIMESLICE)
    *(uint64_t *)(uintptr_t)call->params = test_knob(slice_us);
  if (call->command == NVA06C_CTRL_CMD_SET_TIMESLICE && status == 0)
    status = test_knob(slice_status);
  if (call->command == NV2080_CTRL_CMD_GPU_GET_ID) { /* subdevice 0x11: bus 0x11, device 1 */
    uint32_t id = (call->object & 0xff) << 8 | (call->object == 0x21 ? 0 : 1);
    *(uint32_t *)(uintptr_t)call->params = id;
    if (status == 0) status = test_knob(gpu_status);
  }
  if (call->command == NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS && test_knob(refuse_channel) != 0) {
    const struct rm_disable_channels *params = (const void *)(uintptr_t)call->params;
    for (uint32_t i = 0; i < params->count; i++)
      if (params->channels[i] == test_knob(refuse_channel)) status = 0x57;
  }
  pthread_mutex_unlock(&test_driver.lock);
  return status;
}

static int test_driver_ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  if (test_knob(error) != 0) {
    errno = test_knob(error);
    return -1;
  }
  struct rm_alloc *alloc = argument;
  switch ((uint32_t)request) {
  case NV_ESC_RM_ALLOC_32:
  case NV_ESC_RM_ALLOC_48:
    if (alloc->object == 0)
      alloc->object = __atomic_fetch_add(&test_driver.next_handle, 1, __ATOMIC_RELAXED);
    if ((uint32_t)request == NV_ESC_RM_ALLOC_32)
      ((struct rm_alloc_32 *)argument)->status = test_knob(status);
    else
      ((struct rm_alloc_48 *)argument)->status = test_knob(status);
    return 0;
  case NV_ESC_RM_FREE:
    ((struct rm_free *)argument)->status = test_knob(status);
    if (test_driver.during_free != NULL) test_driver.during_free();
    return 0;
  case NV_ESC_RM_CONTROL:
    ((struct rm_control *)argument)->status = test_driver_control(fd, argument);
    return 0;
  default: return (int)(uintptr_t)argument; // anything else: to see that it came through
  }
}

__attribute__((unused)) static void test_driver_install(void) {
  __atomic_store_n(&xsi_next_ioctl, test_driver_ioctl, __ATOMIC_RELEASE);
}

/* ---- what an application asks --------------------------------------------------- */

__attribute__((unused)) static uint32_t test_alloc(int fd, uint32_t root, uint32_t parent,
                                                   uint32_t object, uint32_t object_class) {
  struct rm_alloc_48 call = {.common = {root, parent, object, object_class, 0}, .status = 99};
  CHECK(ioctl(fd, NV_ESC_RM_ALLOC_48, &call) == 0);
  return call.common.object;
}
__attribute__((unused)) static void test_free(int fd, uint32_t root, uint32_t object) {
  struct rm_free call = {.root = root, .object = object, .status = 99};
  CHECK(ioctl(fd, NV_ESC_RM_FREE, &call) == 0);
}
__attribute__((unused)) static void test_control(int fd, uint32_t client, uint32_t object,
                                                 uint32_t command, void *params, uint32_t bytes) {
  struct rm_control call = {.client = client,
                            .object = object,
                            .command = command,
                            .params = (uint64_t)(uintptr_t)params,
                            .params_bytes = bytes,
                            .status = 99};
  CHECK(ioctl(fd, NV_ESC_RM_CONTROL, &call) == 0 && call.status == test_knob(status));
}
__attribute__((unused)) static void test_set_timeslice(int fd, uint32_t client, uint32_t group,
                                                       uint64_t us) {
  test_control(fd, client, group, NVA06C_CTRL_CMD_SET_TIMESLICE, &us, sizeof us);
}

#endif /* XSCHED_TEST_DRIVER_H */
