// SPDX-License-Identifier: Apache-2.0
//
// The table of events: what it answers, what a record costs, and what it keeps.

#include "core/work_internal.h"
#include "test_support.h"

static struct xsi_work_stream streams[2];

static uintptr_t event_at(size_t i) { return 0x7f0000000000u + i * 64; } // as an allocator gives

static void reset(void) {
  memset(streams, 0, sizeof streams);
  xsi_work_events_reset();
}

static bool knows(uintptr_t event, const struct xsi_work_stream *stream, uint64_t mark) {
  struct xsi_work_stream *found = NULL;
  uint64_t at = 0;
  return xsi_work_event_find(event, &found, &at) && found == stream && at == mark;
}

// ---- against a model: records and ends in any order ------------------------------------------

enum { MODEL = 3000, STEPS = 200000 };

static void test_model(void) {
  static struct {
    int stream; // -1: unknown
    uint64_t mark;
  } model[MODEL];
  reset();
  for (int i = 0; i < MODEL; i++)
    model[i].stream = -1;
  uint32_t seed = 7;
  for (uint64_t step = 1; step <= STEPS; step++) {
    seed = seed * 1664525u + 1013904223u;
    int i = (int)((seed >> 8) % MODEL);
    if (seed >> 30 == 0) {
      xsi_work_event_forget(event_at((size_t)i));
      model[i].stream = -1;
    } else {
      model[i].stream = (int)(seed >> 7 & 1);
      model[i].mark = step;
      xsi_work_event_recorded(event_at((size_t)i), &streams[model[i].stream], step);
    }
  }
  struct xsi_work_stream *stream;
  uint64_t mark;
  for (int i = 0; i < MODEL; i++)
    CHECK(model[i].stream < 0
              ? !xsi_work_event_find(event_at((size_t)i), &stream, &mark)
              : knows(event_at((size_t)i), &streams[model[i].stream], model[i].mark));
  CHECK(xsi_work_events_room() <= 8 * MODEL + 64 * 64);
}

// ---- what is over, or was reset, is not kept ---------------------------------------------------

enum { MANY = 1000000 };

static void test_over(void) {
  reset();
  for (size_t i = 0; i < MANY; i++) { // OpenCL: an event a command, and none is ever destroyed
    streams[0].completed = i > 100 ? i - 100 : 0;
    xsi_work_event_recorded(event_at(i), &streams[0], i + 1);
    if (i > 50) CHECK(knows(event_at(i - 50), &streams[0], i - 49));
  }
  CHECK(xsi_work_events_room() <= 64 * 256);
}

static void test_reset_context(void) {
  reset();
  for (size_t i = 0; i < MANY / 10; i++)
    xsi_work_event_recorded(event_at(i), &streams[0], i + 1);
  size_t before = xsi_work_events_room();
  CHECK(before >= MANY / 10 && knows(event_at(0), &streams[0], 1));
  streams[0].incarnation++; // as when its context is reset: no event of it is ever destroyed
  CHECK(!knows(event_at(0), &streams[0], 1));
  for (size_t i = 0; i < MANY / 10; i++) {
    streams[1].completed = i;
    xsi_work_event_recorded(event_at(MANY + i), &streams[1], i + 1);
  }
  CHECK(xsi_work_events_room() < before / 8);
}

// ---- the cost of a record ------------------------------------------------------------------------

enum { FEW = 10000 };

static double record_ns(size_t from, size_t count) {
  uint64_t begun = xsi_now_ns();
  for (size_t i = from; i < from + count; i++)
    xsi_work_event_recorded(event_at(i), &streams[0], i + 1);
  return (double)(xsi_now_ns() - begun) / (double)count;
}

static void test_cost(void) {
  reset();
  double few = record_ns(0, FEW);
  record_ns(FEW, MANY - 2 * FEW);
  double many = record_ns(MANY - FEW, FEW);
  // With a fixed number of buckets it was 200 times as much.
  printf("record: %.0f ns up to %d live events, %.0f ns at %d\n", few, FEW, many, MANY);
  CHECK(many < 20 * few + 200);
  for (size_t i = 0; i < MANY; i += 997)
    CHECK(knows(event_at(i), &streams[0], i + 1));
}

// ---- threads -------------------------------------------------------------------------------------

static void *use(void *argument) {
  struct xsi_work_stream *mine = argument;
  size_t base = mine == &streams[0] ? 0 : 50000;
  for (size_t i = 1; i <= 50000; i++) {
    xsi_work_event_recorded(event_at(base + i), mine, i);
    CHECK(knows(event_at(base + i), mine, i));
    if (i % 3 == 0) xsi_work_event_forget(event_at(base + i));
    if (i % 5 == 0) __atomic_store_n(&mine->completed, i - 3, __ATOMIC_SEQ_CST);
  }
  return NULL;
}

static void test_threads(void) {
  pthread_t threads[2];
  reset();
  for (int i = 0; i < 2; i++)
    CHECK(pthread_create(&threads[i], NULL, use, &streams[i]) == 0);
  for (int i = 0; i < 2; i++)
    CHECK(pthread_join(threads[i], NULL) == 0);
  CHECK(xsi_work_events_room() <= 64 * 512);
}

int main(void) {
  test_model();
  test_over();
  test_reset_context();
  test_cost();
  test_threads();
  printf("ok events\n");
  return 0;
}
