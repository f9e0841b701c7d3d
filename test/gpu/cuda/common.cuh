/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the helpers: error checks, the clock, a kernel of a given duration, and commands from standard input. The
 * helpers are plain CUDA programs and do not use XSched. */
#pragma once
#include <cuda_runtime.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#define CHECK(call)                                                                             \
  do {                                                                                          \
    cudaError_t code_ = (call);                                                                 \
    if (code_ != cudaSuccess) {                                                                 \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code_)); \
      printf("E %s %s\n", #call, cudaGetErrorName(code_));                                      \
      fflush(stdout);                                                                           \
      _exit(2);                                                                                 \
    }                                                                                           \
  } while (0)

static inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void sleep_until(uint64_t when) {
  timespec t = {(time_t)(when / 1000000000u), (long)(when % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) != 0) {
  }
}

/* Spins by arithmetic, not by a clock: a clock advances while the kernel is off the chip. */
__global__ void spin(uint64_t *out, uint32_t iterations) {
  uint64_t x = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
  for (uint32_t i = 0; i < iterations; i++) x = x * 6364136223846793005ull + 1442695040888963407ull;
  if (x == 42) *out = x; /* never true; prevents removal of the loop */
}

/* Returns the iterations with which a launch of this shape takes about us microseconds. */
static inline uint32_t calibrate(uint64_t *out, unsigned grid, unsigned threads, double us) {
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a));
  CHECK(cudaEventCreate(&b));
  uint32_t work = 2000;
  for (int round = 0; round < 10; round++) {
    float best = 1e9f;
    for (int i = 0; i < 3; i++) {
      float ms;
      CHECK(cudaEventRecord(a));
      spin<<<grid, threads>>>(out, work);
      CHECK(cudaGetLastError());
      CHECK(cudaEventRecord(b));
      CHECK(cudaEventSynchronize(b));
      CHECK(cudaEventElapsedTime(&ms, a, b));
      best = std::min(best, ms);
    }
    double factor = us / 1000 / std::max(best, 0.002f);
    if (factor > 0.97 && factor < 1.03) break;
    work = (uint32_t)std::max(1.0, work * std::min(factor, 20.0));
  }
  CHECK(cudaEventDestroy(a));
  CHECK(cudaEventDestroy(b));
  return work;
}

static inline const char *option(int argc, char **argv, const char *name, const char *otherwise) {
  for (int i = 1; i + 1 < argc; i++)
    if (strcmp(argv[i], name) == 0) return argv[i + 1];
  return otherwise;
}

/* Returns lines of standard input; waits up to timeout_ms (-1: no limit). End of input becomes "quit". */
static inline std::vector<std::string> read_lines(int timeout_ms) {
  static std::string rest;
  std::vector<std::string> out;
  pollfd in = {STDIN_FILENO, POLLIN, 0};
  if (poll(&in, 1, timeout_ms) > 0) {
    char bytes[4096];
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    if (n <= 0) return {"quit"};
    rest.append(bytes, (size_t)n);
    for (size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1))
      out.push_back(rest.substr(0, end));
  }
  return out;
}

static inline double median_of(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
