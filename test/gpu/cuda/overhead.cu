// SPDX-License-Identifier: Apache-2.0
//
// What one process pays: 1,000 vector-add tasks, a loop bound by launches, a loop bound by copies. Prints
// one JSON line of medians. Run with and without the shim, alternating.
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

int main(int argc, char **argv) {
  int tasks = atoi(option(argc, argv, "--tasks", "1000"));
  const size_t n = 16u << 20;
  const int adds = 20;
  float *a, *b, *c;
  CHECK(cudaMalloc(&a, n * sizeof(float)));
  CHECK(cudaMalloc(&b, n * sizeof(float)));
  CHECK(cudaMalloc(&c, n * sizeof(float)));
  fill<<<1024, 256>>>(a, n, 0.5f);
  fill<<<1024, 256>>>(b, n, 0.25f);
  CHECK(cudaDeviceSynchronize());
  std::vector<double> task_us, tiny_us, launch_ns, copy_us, bulk_us;

  for (int i = -50; i < tasks; i++) { // about a millisecond of work, then its result is awaited
    uint64_t t = now_ns();
    for (int k = 0; k < adds; k++) add<<<1024, 256>>>(a, b, c, n);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    if (i >= 0) task_us.push_back((now_ns() - t) / 1e3);
  }
  for (int i = -50; i < tasks; i++) { // the smallest task: every one makes the queue busy and idle again
    uint64_t t = now_ns();
    add<<<64, 256>>>(a, b, c, 1u << 16);
    CHECK(cudaDeviceSynchronize());
    if (i >= 0) tiny_us.push_back((now_ns() - t) / 1e3);
  }
  for (int chunk = -5; chunk < 60; chunk++) {
    uint64_t t = now_ns();
    for (int k = 0; k < 1000; k++) nothing<<<1, 32>>>();
    uint64_t launched = now_ns();
    CHECK(cudaDeviceSynchronize());
    if (chunk >= 0) launch_ns.push_back((launched - t) / 1000.0);
  }
  char *host;
  CHECK(cudaMallocHost(&host, 64u << 20));
  memset(host, 1, 64u << 20);
  for (int chunk = -5; chunk < 60; chunk++) {
    uint64_t t = now_ns();
    for (int k = 0; k < 200; k++) CHECK(cudaMemcpyAsync((char *)c + k * 4096, host + k * 4096, 4096, cudaMemcpyHostToDevice, 0));
    CHECK(cudaDeviceSynchronize());
    if (chunk >= 0) copy_us.push_back((now_ns() - t) / 1e3 / 200);
  }
  for (int i = -2; i < 20; i++) {
    uint64_t t = now_ns();
    CHECK(cudaMemcpy(host, c, 64u << 20, cudaMemcpyDeviceToHost));
    if (i >= 0) bulk_us.push_back((now_ns() - t) / 1e3);
  }
  std::vector<float> back(1024);
  CHECK(cudaMemcpy(back.data(), c + n - 1024, 1024 * sizeof(float), cudaMemcpyDeviceToHost));
  bool right = true;
  for (size_t i = 0; i < 1024; i++) {
    float x = (float)((n - 1024 + i) % 1021);
    right = right && back[i] == x * 0.5f + x * 0.25f;
  }
  printf("{\"task_us\": %.3f, \"tiny_task_us\": %.3f, \"launch_ns\": %.2f, \"small_copy_us\": %.4f, "
         "\"bulk_copy_us\": %.2f, \"tasks\": %d, \"right\": %s}\n",
         median_of(task_us), median_of(tiny_us), median_of(launch_ns), median_of(copy_us), median_of(bulk_us), tasks,
         right ? "true" : "false");
  return right ? 0 : 1;
}
