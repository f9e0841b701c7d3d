// SPDX-License-Identifier: Apache-2.0
//
// Two streams of one process: short requests at a fixed rate on one, long kernels back to back on the other.
//
//   streams --priority 0|1 --seconds N     1: the first stream has the highest priority, the other the lowest
//
// Prints one JSON line: latencies of the requests in microseconds and long kernels per second.
#include <atomic>
#include <thread>

#include "common.cuh"

int main(int argc, char **argv) {
  bool priority = atoi(option(argc, argv, "--priority", "1")) != 0;
  double seconds = atof(option(argc, argv, "--seconds", "3"));
  int least, greatest, sms;
  uint64_t *out;
  CHECK(cudaSetDevice(0));
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  CHECK(cudaMalloc(&out, sizeof *out));
  cudaStream_t high, low;
  CHECK(cudaStreamCreateWithPriority(&high, cudaStreamNonBlocking, priority ? greatest : least));
  CHECK(cudaStreamCreateWithPriority(&low, cudaStreamNonBlocking, least));
  // The long kernel has many short blocks, so that the hardware can schedule the other stream between them.
  unsigned short_grid = (unsigned)sms * 4, long_grid = (unsigned)sms * 8 * 25;
  uint32_t short_work = calibrate(out, short_grid, 256, 90), long_work = calibrate(out, long_grid, 256, 5000);

  std::atomic<bool> stop{false};
  std::atomic<long> done{0};
  std::thread looper([&] {
    CHECK(cudaSetDevice(0));
    cudaEvent_t ends[2];
    for (auto &e : ends) CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    for (long n = 0; !stop; n++) {
      if (n >= 2) {
        CHECK(cudaEventSynchronize(ends[n % 2]));
        done++;
      }
      spin<<<long_grid, 256, 0, low>>>(out, long_work);
      CHECK(cudaGetLastError());
      CHECK(cudaEventRecord(ends[n % 2], low));
    }
    CHECK(cudaStreamSynchronize(low));
  });
  std::vector<double> us;
  uint64_t begin = now_ns() + 200000000, end = begin + (uint64_t)(seconds * 1e9);
  sleep_until(begin);
  long before = done;
  for (uint64_t n = 1;; n++) {
    uint64_t due = begin + n * 10000000;
    if (due >= end) break;
    sleep_until(due);
    spin<<<short_grid, 256, 0, high>>>(out, short_work);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(high));
    us.push_back((now_ns() - due) / 1e3);
  }
  double rate = (done - before) / ((now_ns() - begin) / 1e9);
  stop = true;
  looper.join();
  printf("{\"priority\": %s, \"long_per_s\": %.3f, \"latency_us\": [", priority ? "true" : "false", rate);
  for (size_t i = 0; i < us.size(); i++) printf("%s%.1f", i ? ", " : "", us[i]);
  printf("]}\n");
  return 0;
}
