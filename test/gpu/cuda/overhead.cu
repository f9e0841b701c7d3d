// SPDX-License-Identifier: Apache-2.0
//
// Costs of driver calls, measured in blocks on demand. Two of these processes, one under the shim, alternate on one core
// and one GPU:
//   block KIND MS   runs KIND for MS; replies "B KIND value count" with the median
//   quit            replies "S blocks sum expected"
// Kinds: task (1 ms of kernels, then synchronize), tiny (empty kernel, then synchronize), launch (ns per launch), copy
// (many of 4 KiB, then synchronize), synccopy (synchronous, 4 KiB), bulk (64 MiB). Unit: us, except launch.
#include <sched.h>

#include "common.cuh"

__global__ void add(const float *a, const float *b, float *c, size_t n) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) c[i] = a[i] + b[i];
}
__global__ void nothing() {}
__global__ void fill(float *x, size_t n, float scale) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) x[i] = (float)(i % 1021) * scale;
}

static const size_t n = 16u << 20, bulk_bytes = 64u << 20;
static const int adds = 20, launches = 1000, copies = 200;
static float *a, *b, *c, *d; /* d is the target of copies */
static char *host;

/* One measurement of a kind; negative for an unknown kind. */
static double measure(const std::string &kind) {
  uint64_t t = now_ns();
  if (kind == "task") {
    for (int k = 0; k < adds; k++) add<<<1024, 256>>>(a, b, c, n);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
  } else if (kind == "tiny") {
    add<<<64, 256>>>(a, b, c, 1u << 16);
    CHECK(cudaDeviceSynchronize());
  } else if (kind == "launch") {
    for (int k = 0; k < launches; k++) nothing<<<1, 32>>>();
    uint64_t launched = now_ns();
    CHECK(cudaDeviceSynchronize());
    return (double)(launched - t) / launches;
  } else if (kind == "copy") {
    for (int k = 0; k < copies; k++)
      CHECK(cudaMemcpyAsync((char *)d + k * 4096, host + k * 4096, 4096, cudaMemcpyHostToDevice, 0));
    CHECK(cudaDeviceSynchronize());
    return (double)(now_ns() - t) / 1e3 / copies;
  } else if (kind == "synccopy") {
    CHECK(cudaMemcpy(d, host, 4096, cudaMemcpyHostToDevice));
  } else if (kind == "bulk") {
    CHECK(cudaMemcpy(host, d, bulk_bytes, cudaMemcpyDeviceToHost));
  } else {
    return -1;
  }
  return (double)(now_ns() - t) / 1e3;
}

/* The first tenth warms up caches and clocks after the other process. */
static void block(const std::string &kind, double ms) {
  std::vector<double> found;
  uint64_t begin = now_ns(), count = begin + (uint64_t)(ms * 1e5), end = begin + (uint64_t)(ms * 1e6);
  for (;;) {
    uint64_t started = now_ns();
    if (started >= end && found.size() >= 3) break;
    double value = measure(kind);
    if (value < 0) break;
    if (started >= count) found.push_back(value);
  }
  printf("B %s %.4f %zu\n", kind.c_str(), median_of(found), found.size());
  fflush(stdout);
}

static bool right() {
  add<<<1024, 256>>>(a, b, c, n);
  std::vector<float> back(1024);
  CHECK(cudaMemcpy(back.data(), c + n - 1024, 1024 * sizeof(float), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < 1024; i++) {
    float x = (float)((n - 1024 + i) % 1021);
    if (back[i] != x * 0.5f + x * 0.25f) return false;
  }
  return true;
}

int main(int argc, char **argv) {
  int core = atoi(option(argc, argv, "--core", "-1"));
  for (float **p : {&a, &b, &c, &d}) CHECK(cudaMalloc(p, n * sizeof(float)));
  CHECK(cudaMallocHost(&host, bulk_bytes));
  memset(host, 1, bulk_bytes);
  fill<<<1024, 256>>>(a, n, 0.5f);
  fill<<<1024, 256>>>(b, n, 0.25f);
  CHECK(cudaDeviceSynchronize());
  if (core >= 0) { // this thread only: threads of the driver use other cores
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) perror("overhead: core");
  }
  printf("R\n");
  fflush(stdout);
  int blocks = 0;
  for (;;)
    for (const std::string &line : read_lines(-1)) {
      char kind[32];
      double ms;
      if (line == "quit") {
        bool ok = right();
        printf("S %d %s right\n", blocks, ok ? "right" : "wrong");
        return ok ? 0 : 1;
      }
      if (sscanf(line.c_str(), "block %31s %lf", kind, &ms) == 2) {
        block(kind, ms);
        blocks++;
      } else {
        printf("E unknown command\n");
        fflush(stdout);
      }
    }
}
