// SPDX-License-Identifier: Apache-2.0
//
// CUDA and HIP in one process: contexts, streams, events and captures of the two do not meet, and
// the watcher asks each runtime about its own. Then threads of both at once.

#include "runtime/cuda/test_fake.h"
#include "runtime/hip/account.h"

#include "null/null_hip.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 400

static bool busy(int queue) { return __atomic_load_n(&noted[queue].busy, __ATOMIC_SEQ_CST); }

static hipError_t hip_launch(hipStream_t stream) {
  return hipModuleLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void watch(void) {
  for (int i = 0; i < 4; i++)
    xsi_work_watch(test_now_ns += 20000000);
}

static void test_apart(void) {
  test_now_ns = 1000000000;
  CUstream cuda = fake_stream();
  hipStream_t hip = NULL;
  CHECK(hipSetDevice(0) == 0 && hipStreamCreate(&hip) == 0);
  CHECK(launch(cuda) == 0 && hip_launch(hip) == 0 && busy(0) && busy(1));
  CHECK(hipDeviceSynchronize() == 0 && busy(0) && !busy(1));
  CHECK(hip_launch(hip) == 0 && cuCtxSynchronize() == 0 && !busy(0) && busy(1));
  // One is done and the other is not.
  CHECK(launch(cuda) == 0);
  watch();
  CHECK(busy(0) && !busy(1));
  xsn_busy(true);
  CHECK(hip_launch(hip) == 0 && hip_launch(NULL) == 0);
  fake_finish(cuda);
  watch();
  CHECK(!busy(0) && busy(1));
  xsn_busy(false);
  watch();
  CHECK(!busy(0) && !busy(1));
  // An event of one says nothing of the other.
  CHECK(launch(cuda) == 0 && hip_launch(hip) == 0);
  struct fake_event record = {0};
  CUevent event = (CUevent)&record;
  CHECK(hipEventRecord((hipEvent_t)0x90000, hip) == 0);
  CHECK(cuEventRecord(event, cuda) == 0);
  CHECK(hipEventSynchronize((hipEvent_t)0x90000) == 0 && busy(0) && !busy(1));
  CHECK(cuEventSynchronize(event) == 0 && !busy(0));
  CHECK(hipDeviceReset() == 0);
  CHECK(launch(cuda) == 0 && busy(0) && cuStreamSynchronize(cuda) == 0);
  CHECK(cuStreamDestroy_v2(cuda) == 0);
  test_now_ns = 0;
}

static void *cuda_thread(void *context) {
  (void)context;
  fake_context();
  for (int i = 0; i < ROUNDS; i++) {
    CUstream stream = fake_stream();
    CHECK(launch(stream) == 0 && launch(NULL) == 0);
    if (i % 3) CHECK(cuStreamSynchronize(stream) == 0 && cuCtxSynchronize() == 0);
    fake_finish(stream);
    CHECK(cuStreamDestroy_v2(stream) == 0);
  }
  CHECK(cuCtxSynchronize() == 0);
  return NULL;
}

static void *hip_thread(void *device) {
  CHECK(hipSetDevice((int)(intptr_t)device) == 0);
  for (int i = 0; i < ROUNDS; i++) {
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream) == 0 && hip_launch(stream) == 0 && hip_launch(NULL) == 0);
    CHECK(hipMemcpyAsync_spt(NULL, NULL, 0, 3, NULL) == 0);
    if (i % 3) CHECK(hipStreamSynchronize(stream) == 0 && hipDeviceSynchronize() == 0);
    CHECK(hipStreamDestroy(stream) == 0);
  }
  CHECK(hipDeviceSynchronize() == 0);
  return NULL;
}

static void test_threads(void) {
  pthread_t threads[4];
  xsi_work_watch_by_thread = true;
  for (intptr_t i = 0; i < 4; i++)
    CHECK(pthread_create(&threads[i], NULL, i % 2 ? hip_thread : cuda_thread, (void *)(i / 2)) ==
          0);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  // The watcher ends what nobody waited for.
  int still = 1;
  for (int wait = 0; still && wait < 2000; wait++) {
    still = 0;
    for (int i = 0; i < NOTED_QUEUES; i++)
      still += busy(i);
    struct timespec time = {0, 1000000};
    nanosleep(&time, NULL);
  }
  CHECK(still == 0);
}

// ---- the end of the process ---------------------------------------------------------------------

static int gone, asked;

static hipError_t ask_at_the_end(hipStream_t stream) {
  (void)stream;
  if (__atomic_load_n(&gone, __ATOMIC_SEQ_CST)) _exit(9);
  __atomic_store_n(&asked, 1, __ATOMIC_SEQ_CST);
  return XSI_HIP_NOT_READY;
}

static void pause_ms(long ms) {
  struct timespec time = {0, ms * 1000000};
  nanosleep(&time, NULL);
}

// What a runtime that is loaded after the watcher has started does at exit, first of all.
static void take_hip_down(void) {
  __atomic_store_n(&gone, 1, __ATOMIC_SEQ_CST);
  pause_ms(50);
}

static void end_with_work(void) {
  xsi_work_watch_by_thread = true;
  fake_context();
  CHECK(launch(fake_stream()) == 0); // starts the watcher
  pause_ms(20);
  CHECK(atexit(take_hip_down) == 0);
  xsi_hip_real[XSI_HIP_hipStreamQuery] = (void *)ask_at_the_end;
  hipStream_t stream = NULL;
  CHECK(hipSetDevice(0) == 0 && hipStreamCreate(&stream) == 0 && hip_launch(stream) == 0);
  for (int i = 0; i < 2000 && !__atomic_load_n(&asked, __ATOMIC_SEQ_CST); i++)
    pause_ms(1);
  CHECK(__atomic_load_n(&asked, __ATOMIC_SEQ_CST));
  exit(failures != 0);
}

// The watcher asks a runtime nothing once that runtime's exit handlers have begun.
static void test_exit(void) {
  pid_t child = fork();
  if (child == 0) end_with_work();
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
  xsi_work_watch_by_thread = false;
  fake_install();
  for (int i = 0; i < XSI_HIP_SLOTS; i++)
    xsi_hip_real[i] = xsn_plain(xsi_hip_symbols[i].name);
  test_exit(); // before this process has threads
  fake_context();
  test_apart();
  test_threads();
  if (failures == 0) printf("ok hip and cuda\n");
  return failures != 0;
}
