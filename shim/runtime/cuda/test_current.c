// SPDX-License-Identifier: Apache-2.0
//
// Whose work a launch into a default stream is, without asking the driver every time.

#include "test_fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t asked_for(int launches) {
  uint64_t before = fake_asked_current;
  for (int i = 0; i < launches; i++)
    CHECK(launch(NULL) == 0);
  return fake_asked_current - before;
}

static void *another_thread(void *context) {
  CHECK(xsi_cu_call_real(cuCtxPushCurrent_v2, context) == 0);
  CHECK(asked_for(640) <= 11);
  return NULL;
}

// ---- primary contexts of two devices: had for the asking, seen when used --------------------

static CUcontext primary_of[2];

static CUresult fake_retain(CUcontext *context, CUdevice_v1 device) {
  *context = primary_of[device];
  return 0;
}

static CUresult make_current(CUcontext context) {
  return xsi_cu_call_real(cuCtxPushCurrent_v2, context);
}

// Uses the second device, and only a few times.
static void *briefly(void *context) {
  CHECK(make_current(context) == 0);
  CHECK(launch(NULL) == 0 && noted[1].busy && !noted[0].busy);
  CHECK(cuCtxSynchronize() == 0 && !noted[1].busy);
  return NULL;
}

// In processes of their own: each begins with a belief.
static int test_new_thread(void) {
  fake_install();
  fake_context();
  CHECK(launch(NULL) == 0 && noted[0].busy);
  CHECK(cuCtxSynchronize() == 0 && !noted[0].busy);
  CUcontext first = xsi_cu_current(), unseen = (CUcontext)fake_unseen_context();
  CHECK(make_current(first) == 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, briefly, unseen) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  return failures != 0;
}

static int test_primaries(void) {
  fake_install();
  __atomic_store_n(&xsi_cu_real[XSI_CU_cuDevicePrimaryCtxRetain], (void *)fake_retain,
                   __ATOMIC_RELEASE);
  CUcontext context;
  for (int i = 0; i < 2; i++)
    primary_of[i] = (CUcontext)fake_unseen_context();
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0 && make_current(context) == 0);
  CHECK(launch(NULL) == 0 && noted[0].busy);
  CHECK(asked_for(600) <= 11);
  // A wait for the second device's says nothing of the first one's work.
  CHECK(cuDevicePrimaryCtxRetain(&context, 1) == 0 && make_current(context) == 0);
  CHECK(cuCtxSynchronize() == 0 && noted[0].busy);
  CHECK(launch(NULL) == 0 && noted[1].busy);
  CHECK(make_current(primary_of[0]) == 0 && cuCtxSynchronize() == 0);
  CHECK(!noted[0].busy && noted[1].busy);
  return failures != 0;
}

// Contexts of other makes: each is the current one of its thread from then on.
static CUresult fake_graphics(CUcontext *context, unsigned flags, CUdevice_v1 device) {
  (void)flags, (void)device;
  *context = (CUcontext)fake_unseen_context();
  return 0;
}
static CUresult fake_of_green(CUcontext *context, CUgreenCtx green) {
  (void)green;
  *context = primary_of[1];
  return 0;
}
static CUresult fake_attach(CUcontext *context, unsigned flags) {
  (void)flags;
  *context = primary_of[1];
  return 0;
}

static CUresult by_opengl(CUcontext *context) { return cuGLCtxCreate_v2(context, 0, 0); }
static CUresult by_opengl_before(CUcontext *context) { return cuGLCtxCreate(context, 0, 0); }
static CUresult by_video(CUcontext *context) { return cuVDPAUCtxCreate_v2(context, 0, 0, 0, NULL); }
static CUresult by_video_before(CUcontext *context) {
  return cuVDPAUCtxCreate(context, 0, 0, 0, NULL);
}
static CUresult by_green(CUcontext *context) { return cuCtxFromGreenCtx(context, NULL); }
static CUresult by_attach(CUcontext *context) { return cuCtxAttach(context, 0); }
static CUresult (*by_way)(CUcontext *);

static int test_other_makes(void) {
  fake_install();
  xsi_cu_real[XSI_CU_cuGLCtxCreate] = xsi_cu_real[XSI_CU_cuGLCtxCreate_v2] = (void *)fake_graphics;
  xsi_cu_real[XSI_CU_cuVDPAUCtxCreate] = xsi_cu_real[XSI_CU_cuVDPAUCtxCreate_v2] =
      (void *)fake_graphics;
  xsi_cu_real[XSI_CU_cuCtxFromGreenCtx] = (void *)fake_of_green;
  xsi_cu_real[XSI_CU_cuCtxAttach] = (void *)fake_attach;
  primary_of[1] = (CUcontext)fake_unseen_context();
  CUcontext first = (CUcontext)fake_context(), context;
  CHECK(launch(NULL) == 0 && noted[0].busy);
  CHECK(asked_for(10) <= 1); // one context: nobody asks
  CHECK(by_way(&context) == 0 && context != first && make_current(context) == 0);
  CHECK(launch(NULL) == 0 && noted[1].busy); // at once
  CHECK(cuCtxSynchronize() == 0 && !noted[1].busy && noted[0].busy);
  return failures != 0;
}

static void alone(int (*test)(void)) {
  pid_t child = fork();
  if (child == 0) {
    int failed = test();
    fflush(stdout);
    _exit(failed);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
  xsi_work_watch_by_thread = false;
  alone(test_new_thread);
  alone(test_primaries);
  static CUresult (*const ways[])(CUcontext *) = {by_opengl,       by_opengl_before, by_video,
                                                  by_video_before, by_green,         by_attach};
  for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
    by_way = ways[i];
    alone(test_other_makes);
  }
  fake_install();
  struct fake_context *first = fake_context();
  CHECK(launch(NULL) == 0 && noted[0].busy);
  CHECK(asked_for(640) <= 10); // one context: it is the current one
  CHECK(cuCtxSynchronize() == 0 && !noted[0].busy);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, another_thread, first) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(cuCtxSynchronize() == 0 && !noted[0].busy);

  // Two: each launch is its own context's.
  struct fake_context *second = fake_context();
  CHECK(launch(NULL) == 0 && noted[1].busy && !noted[0].busy);
  CHECK(asked_for(100) >= 100);
  CHECK(cuCtxSynchronize() == 0 && !noted[1].busy);
  CHECK(cuCtxDestroy_v2((CUcontext)second) == 0);
  free(second);

  // One again.
  CHECK(xsi_cu_call_real(cuCtxPushCurrent_v2, (CUcontext)first) == 0);
  CHECK(launch(NULL) == 0 && noted[0].busy);
  CHECK(asked_for(640) <= 11);
  CHECK(cuCtxSynchronize() == 0 && !noted[0].busy);

  // One that came past our hooks is noticed, and belief is over.
  uint64_t before = noted[0].changes;
  fake_unseen_context();
  CHECK(asked_for(2 * XSI_WORK_BELIEVE) >= XSI_WORK_BELIEVE);
  CHECK(noted[0].changes <= before + 1);
  CHECK(cuCtxSynchronize() == 0);
  CHECK(launch(NULL) == 0 && noted[1].busy);
  CHECK(asked_for(100) >= 100);
  if (failures) return 1;
  printf("ok current\n");
  return 0;
}
