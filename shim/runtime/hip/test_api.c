// SPDX-License-Identifier: Apache-2.0
//
// HIP streams as hardware queues of the public interface: the real core and hooks on the null runtime,
// without a daemon. First a program whose calls bypass the hooks, then one whose calls do not.

#include "core/test_support.h"

#include "core/work_internal.h"
#include "runtime/hip/account.h"

#include "null/null_hip.h"
#include "xsched/hip/hal.h"

static hipError_t launch(hipStream_t stream) {
  return hipModuleLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static XResult submitted(HwQueueHandle hwq, void *calls) {
  CHECK(hwq != 0);
  ++*(int *)calls;
  return kXSchedSuccess;
}

static uint64_t hooked(void) {
  struct xsi_counters total;
  xsi_counters_sum(&total);
  return total.hooked_calls;
}

// The library was opened late: nothing has seen the stream, and the runtime is asked about it.
static void unhooked(void) {
  HwQueueHandle hwq = 0, same = 0, of_default = 0;
  XQueueHandle xq = 0;
  HwCommandHandle command = 0;
  XQueueState state = kQueueStateUnknown;
  int calls = 0;
  hipStream_t stream = (hipStream_t)0x12340;
  CHECK(HipQueueCreate(&hwq, stream) == kXSchedSuccess);
  CHECK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone) == kXSchedSuccess);
  CHECK(HipQueueGet(&same, stream) == kXSchedSuccess && same == hwq);
  CHECK(HwCommandCreateCallback(&command, submitted, &calls) == kXSchedSuccess);
  xsn_busy(true);
  CHECK(XQueueSubmit(xq, command) == kXSchedSuccess && calls == 1);
  CHECK(XQueueQuery(xq, &state) == kXSchedSuccess && state == kQueueStateReady);
  xsn_busy(false);
  CHECK(XQueueWaitAll(xq) == kXSchedSuccess);
  CHECK(XQueueQuery(xq, &state) == kXSchedSuccess && state == kQueueStateIdle);
  CHECK(HipQueueCreate(&of_default, NULL) == kXSchedSuccess && of_default != hwq);
  CHECK(HwCommandDestroy(command) == kXSchedSuccess && XQueueDestroy(xq) == kXSchedSuccess);
  CHECK(HwQueueDestroy(hwq) == kXSchedSuccess && HwQueueDestroy(of_default) == kXSchedSuccess);
  CHECK(hooked() == 0);
}

static void through_hooks(void) {
  HwQueueHandle hwq = 0, of_default = 0, same = 0;
  XQueueHandle xq = 0;
  XQueueState state = kQueueStateUnknown;
  hipStream_t stream = NULL, other = (hipStream_t)0x56780;
  CHECK(hipSetDevice(0) == 0 && hipStreamCreate(&stream) == 0);
  CHECK(HipQueueCreate(NULL, stream) == kXSchedErrorInvalidValue);
  CHECK(HipQueueCreate(&hwq, other) == kXSchedErrorInvalidValue); // no stream of this program
  CHECK(HipQueueGet(NULL, stream) == kXSchedErrorInvalidValue);
  CHECK(HipQueueGet(&same, stream) == kXSchedErrorNotFound);
  CHECK(HipQueueCreate(&hwq, stream) == kXSchedSuccess);
  CHECK(HipQueueCreate(&same, stream) == kXSchedErrorNotAllowed);
  CHECK(HipQueueGet(&same, stream) == kXSchedSuccess && same == hwq);
  CHECK(HipQueueCreate(&of_default, NULL) == kXSchedSuccess && of_default != hwq);
  CHECK(XQueueCreate(&xq, hwq, kPreemptLevelBlock, kQueueCreateFlagNone) == kXSchedSuccess);
  CHECK(XQueueSetPreemptLevel(xq, (int64_t)1 << 32) == kXSchedErrorInvalidValue);
  CHECK(XQueueSetPreemptLevel(xq, kPreemptLevelBlock) == kXSchedSuccess);
  CHECK(HwQueueDestroy(hwq) == kXSchedErrorNotAllowed);
  xsn_busy(true);
  CHECK(launch(stream) == 0);
  CHECK(XQueueQuery(xq, &state) == kXSchedSuccess && state == kQueueStateReady);
  xsn_busy(false);
  CHECK(HwQueueSynchronize(hwq) == kXSchedSuccess);
  CHECK(XQueueQuery(xq, &state) == kXSchedSuccess && state == kQueueStateIdle);
  CHECK(XQueueDestroy(xq) == kXSchedSuccess && HwQueueDestroy(hwq) == kXSchedSuccess);
  CHECK(HwQueueDestroy(of_default) == kXSchedSuccess);
  CHECK(hipStreamDestroy(stream) == 0);
  CHECK(HipQueueCreate(&hwq, stream) == kXSchedErrorInvalidValue); // it is gone
}

int main(void) {
  xsi_work_watch_by_thread = false;
  for (int i = 0; i < XSI_HIP_SLOTS; i++)
    xsi_hip_real[i] = xsn_plain(xsi_hip_symbols[i].name);
  unhooked();
  through_hooks();
  printf("ok hip api\n");
  return 0;
}
