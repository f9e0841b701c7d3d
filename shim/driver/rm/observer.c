// SPDX-License-Identifier: Apache-2.0
//
// Observes the application's requests: each goes through unchanged, and what the driver granted is
// recorded afterwards.

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/counters.h"
#include "core/fd.h"
#include "core/log.h"
#include "core/real.h"
#include "core/teardown.h"
#include "rm.h"

// Creating a context makes dozens of objects: tell of them together.
enum { GATHER_NS = 2000000 };

// A checkpoint is done by a thread of the driver's. It frees memory object by object, with pauses of up
// to 25 ms, and the root client last. A restore makes everything within a few 100 ms.
enum { FREES_NS = 100000000, RESTORES_NS = 1000000000 };

// Drivers that can't say which thread that is call it "cuda" and 11 digits (H200, 580.159.04:
// cuda00001400006 made all 63 frees of a checkpoint; threads that free memory or poll the device for the
// program inherit its name).
static bool has_name_of_driver(void) {
  char name[16] = "";
  unsigned digits = 0;
  if (prctl(PR_GET_NAME, name, 0, 0, 0) != 0 || strncmp(name, "cuda", 4) != 0) return false;
  while (isxdigit((unsigned char)name[4 + digits]))
    digits++;
  return digits == 11;
}

static bool of_the_driver(void) {
  if (xsi_thread.counters.hooked_calls != 0) return false;
  int known = xsi_teardown_thread(), saved = errno;
  bool is = known != 0 ? syscall(SYS_gettid) == known : has_name_of_driver();
  errno = saved;
  return is;
}

// Before the free: the memory must not go while another thread of ours reads it. A program that has no channels
// yet has nothing that could be asked about: cuInit frees objects, too. Memory may go after the last channel.
static void tears_down(void) {
  uint64_t until = xsi_teardown_until();
  if (until == UINT64_MAX || !of_the_driver()) return;
  uint64_t now = xsi_now_ns(), least = now + FREES_NS;
  if (until > now || xsi_rm_any_group()) // a restore frees objects, too: never shorter than it was
    xsi_teardown_begin(now, until > least ? until : least);
}

// A channel says that the runtime is back, whoever made it. A root client does not: a checkpoint makes some and
// frees them, and libraries that only watch the device make theirs at any time.
static void restores(uint32_t object_class) {
  uint64_t until = xsi_teardown_until();
  if (until == 0) return;
  uint64_t now = xsi_now_ns();
  bool back =
      until == UINT64_MAX ? object_class == KEPLER_CHANNEL_GROUP_A : until > now && of_the_driver();
  if (back) xsi_teardown_set(now + RESTORES_NS);
}

static void on_alloc(int fd, const struct rm_alloc *call) {
  bool root = rm_is_root(call->object_class);
  restores(call->object_class);
  if (!root && !rm_is_tracked(call->object_class)) return;
  xsi_rm_lock();
  if (root) {
    int copy = xsi_fd_duplicate(fd);
    if (copy < 0 || xsi_rm_add_client(call->object, copy) < 0)
      xsi_log(XSI_WARN, "client %#x is not scheduled: %s", call->object,
              copy < 0 ? "no descriptor" : "too many clients");
    xsi_rm_changed(GATHER_NS);
  } else if (xsi_rm_find_client(call->root) != NULL) {
    if (xsi_rm_add_object(call->root, call->parent, call->object, call->object_class) < 0)
      xsi_log(XSI_WARN, "object %#x of client %#x is not known to the daemon: too many",
              call->object, call->root);
    xsi_rm_changed(GATHER_NS);
  }
  xsi_rm_unlock();
}

// newest: the newest serial before the call. After it the handle may name an object of another
// thread's.
static void on_free(const struct rm_free *call, uint64_t newest) {
  xsi_rm_lock();
  bool client = xsi_rm_remove_client(call->object, newest);
  // A client without channels, of a library that only watches the device, survives a checkpoint.
  if (client && of_the_driver() && xsi_teardown_until() > xsi_now_ns() && !xsi_rm_any_group())
    xsi_teardown_set(UINT64_MAX);
  if (client || xsi_rm_remove_object(call->root, call->object, newest)) xsi_rm_changed(0);
  xsi_rm_unlock();
}

static void on_control(const struct rm_control *call) {
  if (call->command == NVA06C_CTRL_CMD_GPFIFO_SCHEDULE) {
    // CUDA sets its timeslice right after this: a daemon told of the group now would be
    // overwritten.
    xsi_rm_lock();
    xsi_rm_postpone(GATHER_NS);
    xsi_rm_unlock();
    return;
  }
  struct rm_timeslice slice;
  if (call->command != NVA06C_CTRL_CMD_SET_TIMESLICE || call->params == 0 ||
      call->params_bytes != sizeof slice)
    return;
  memcpy(&slice, (const void *)(uintptr_t)call->params, sizeof slice);
  xsi_rm_lock();
  struct rm_object *group = xsi_rm_find_object(call->client, call->object);
  if (group != NULL && group->object_class == KEPLER_CHANNEL_GROUP_A) {
    group->slice_known = group->slice_asked = group->slice_own = true;
    group->slice_told = false;
    group->timeslice_us = slice.microseconds;
    xsi_rm_changed(0);
  }
  xsi_rm_unlock();
}

// The structures are read only after the driver accepted them: they are there, in the size the
// request says.
int xsi_rm_ioctl(int fd, unsigned long request, void *argument) {
  union {
    struct rm_alloc_32 alloc_32;
    struct rm_alloc_48 alloc_48;
    struct rm_control control;
    struct rm_free free;
  } call;
  uint64_t newest = 0;
  if ((uint32_t)request == NV_ESC_RM_FREE) {
    tears_down();
    xsi_rm_lock();
    newest = xsi_rm_newest_serial();
    xsi_rm_unlock();
  }
  int result = xsi_real_ioctl(fd, request, argument);
  if (result != 0) return result;
  int saved = errno;
  switch ((uint32_t)request) {
  case NV_ESC_RM_ALLOC_32:
    memcpy(&call.alloc_32, argument, sizeof call.alloc_32);
    if (call.alloc_32.status == 0) on_alloc(fd, &call.alloc_32.common);
    break;
  case NV_ESC_RM_ALLOC_48:
    memcpy(&call.alloc_48, argument, sizeof call.alloc_48);
    if (call.alloc_48.status == 0) on_alloc(fd, &call.alloc_48.common);
    break;
  case NV_ESC_RM_CONTROL:
    memcpy(&call.control, argument, sizeof call.control);
    if (call.control.status == 0) on_control(&call.control);
    break;
  default:
    memcpy(&call.free, argument, sizeof call.free);
    if (call.free.status == 0) on_free(&call.free, newest);
  }
  errno = saved;
  return result;
}
