// SPDX-License-Identifier: Apache-2.0
//
// Whose work a launch into a default stream is, without asking the driver every time.

#include "test_fake.h"

#include <pthread.h>
#include <stdlib.h>

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

int main(void) {
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
