// SPDX-License-Identifier: Apache-2.0
//
// Small copies to the device: which of them become copies of two rows, and that bytes, return codes and
// accounting are those of the program's own call.

#include <string.h>

#include "test_fake.h"

static struct xsw_queue *slot;
static CUstream stream, second;
static char from[2 * XSI_CU_SMALL], to[2 * XSI_CU_SMALL];

static CUresult upload(size_t bytes, CUstream into) {
  return cuMemcpyHtoDAsync_v2((CUdeviceptr_v2)(uintptr_t)to, from, bytes, into);
}

// Copies and waits. True: by rows.
static bool by_rows(size_t bytes, CUstream into) {
  uint32_t rows = fake_rows, uploads = fake_uploads;
  for (size_t i = 0; i < sizeof from; i++)
    from[i] = (char)(i * 31 + rows + uploads);
  memset(to, 0, sizeof to);
  CHECK(upload(bytes, into) == 0);
  CHECK(fake_rows + fake_uploads == rows + uploads + 1);
  CHECK(memcmp(to, from, bytes) == 0);
  for (size_t i = bytes; i < sizeof to; i++)
    if (to[i] != 0) CHECK(!"bytes beyond the copy changed");
  CHECK(cuStreamSynchronize(into) == 0);
  return fake_rows != rows;
}

static void test_sizes(void) {
  slot->gate = XSW_GATE_BATCH | 5u << XSW_BURST_SHIFT;
  static const size_t rows[] = {2, 4, 6, 1000, 4096, XSI_CU_SMALL};
  for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
    CHECK(by_rows(rows[i], stream));
  CHECK(!by_rows(1, stream) && !by_rows(4095, stream)); // no two equal rows
  CHECK(!by_rows(XSI_CU_SMALL + 2, stream));            // uses a copy engine anyway
}

static void test_only_with_others(void) {
  slot->gate = XSW_GATE_OPEN;
  CHECK(!by_rows(4096, stream));
  slot->gate = XSW_GATE_BATCH;
  CHECK(by_rows(4096, stream));
}

// Behind other work the copy needs no switch of its own. A stream of the legacy kind counts, too.
static void test_only_first(void) {
  slot->gate = XSW_GATE_BATCH;
  CHECK(cuLaunchKernel((CUfunction)0x1000, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) == 0);
  uint32_t rows = fake_rows;
  CHECK(upload(4096, stream) == 0 && fake_rows == rows);
  CHECK(upload(4096, second) == 0 && fake_rows == rows + 1); // another stream, and idle
  CHECK(upload(4096, second) == 0 && fake_rows == rows + 1);
  CHECK(cuStreamSynchronize(stream) == 0 && cuStreamSynchronize(second) == 0);
  CHECK(by_rows(4096, stream) && by_rows(4096, second) && by_rows(4096, NULL));
}

static void test_refused(void) {
  slot->gate = XSW_GATE_BATCH;
  fake_refuses_rows = true;
  CHECK(!by_rows(4096, stream));
  uint64_t submitted = slot->submitted, copies = COUNTED(copies);
  fake_refuses = true;
  CHECK(upload(4096, stream) == XSI_CU_INVALID_VALUE);
  fake_refuses = fake_refuses_rows = false;
  CHECK(slot->submitted == submitted && COUNTED(copies) == copies);
  CHECK(by_rows(4096, stream) && COUNTED(copies) == copies + 1);
}

// A copy of a capture is a node of its graph, which the program may look for.
static void test_captured(void) {
  slot->gate = XSW_GATE_BATCH;
  uint32_t rows = fake_rows;
  CUgraph graph;
  CHECK(cuStreamBeginCapture_v2(stream, XSI_CU_CAPTURE_RELAXED) == 0);
  CHECK(upload(4096, stream) == 0 && fake_rows == rows);
  CHECK(cuStreamEndCapture(stream, &graph) == 0);
  CHECK(by_rows(4096, stream));
}

int main(void) {
  fake_install();
  xsi_work_watch_by_thread = xsi_work_batch_by_thread = false;
  fake_context();
  slot = xsi_slot(0);
  stream = fake_stream();
  second = fake_stream();
  test_sizes();
  test_only_with_others();
  test_only_first();
  test_refused();
  test_captured();
  printf("%s\n", failures ? "FAILED" : "ok");
  return failures != 0;
}
