// SPDX-License-Identifier: Apache-2.0
//
// Four kinds of work with bit-exact results, to be preempted as often as possible: a matrix product on the tensor
// cores, a CUDA graph, a cooperative launch with grid-wide barriers, and managed memory. Line protocol of the tenant:
//
//   correct [--mb N]     allocates N MiB more, to observe their release
//   in:  loop | pause | report | quit
//   out: H kind digest | R | I start end | P | S rounds got expected
//
// A digest is a sum over all words mixed with their index: exact in any order of addition.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <mma.h>

#include "common.cuh"

namespace cg = cooperative_groups;
using namespace nvcuda;

enum { KINDS = 4, N = 4096, WORDS = 1 << 22, MANAGED = 1 << 18 };
static const char *const kinds[KINDS] = {"matmul", "graph", "cooperative", "managed"};

__host__ __device__ static inline uint64_t mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9E3779B97F4A7C15ull;
  return x ^ (x >> 29);
}

__global__ void digest(const uint32_t *words, size_t n, unsigned long long *sum) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  unsigned long long s = 0;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) s += mix(words[i] ^ (i << 20));
  atomicAdd(sum, s);
}

__global__ void fill_bf16(__nv_bfloat16 *x, size_t n, uint32_t seed) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
    x[i] = __float2bfloat16((float)(mix(i + ((uint64_t)seed << 40)) % 2001) / 1000.0f - 1.0f);
}
__global__ void fill_words(uint32_t *x, size_t n, uint32_t seed) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) x[i] = (uint32_t)mix(i * 31 + seed);
}

/* One warp, one 16x16 tile. */
__global__ void matmul(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c) {
  int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, row = warp / (N / 16) * 16, col = warp % (N / 16) * 16;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  for (int k = 0; k < N; k += 16) {
    wmma::load_matrix_sync(fa, a + (size_t)row * N + k, N);
    wmma::load_matrix_sync(fb, b + (size_t)k * N + col, N);
    wmma::mma_sync(fc, fa, fb, fc);
  }
  wmma::store_matrix_sync(c + (size_t)row * N + col, fc, N, wmma::mem_row_major);
}

__global__ void stir(uint32_t *x, size_t n, uint32_t rounds) {
  size_t stride = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    uint32_t v = x[i];
    for (uint32_t r = 0; r < rounds; r++) v = v * 1664525u + 1013904223u;
    x[i] = v;
  }
}

/* Every step reads values that other blocks wrote in the previous step. */
__global__ void exchange(uint32_t *a, uint32_t *b, size_t n, int steps) {
  cg::grid_group grid = cg::this_grid();
  size_t stride = (size_t)gridDim.x * blockDim.x, first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (int s = 0; s < steps; s++) {
    for (size_t i = first; i < n; i += stride) b[i] = a[(i * 7 + 12345 + s) & (n - 1)] * 1664525u + a[i] + s;
    grid.sync();
    uint32_t *t = a;
    a = b;
    b = t;
  }
}

static __nv_bfloat16 *ma, *mb;
static float *mc;
static uint32_t *wa, *wb, *managed;
static unsigned long long *sum;
static cudaStream_t stream;
static cudaGraphExec_t graph;
static int cooperative_grid;

static uint64_t digest_of(const void *words, size_t n) {
  unsigned long long out;
  CHECK(cudaMemsetAsync(sum, 0, sizeof *sum, stream));
  digest<<<528, 256, 0, stream>>>((const uint32_t *)words, n, sum);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpyAsync(&out, sum, sizeof out, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  return out;
}

static void set_up(size_t more_mb) {
  int device = 0, per_sm = 0;
  cudaDeviceProp prop;
  CHECK(cudaSetDevice(device));
  CHECK(cudaGetDeviceProperties(&prop, device));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&ma, sizeof *ma * N * N));
  CHECK(cudaMalloc(&mb, sizeof *mb * N * N));
  CHECK(cudaMalloc(&mc, sizeof *mc * N * N));
  CHECK(cudaMalloc(&wa, sizeof *wa * WORDS));
  CHECK(cudaMalloc(&wb, sizeof *wb * WORDS));
  CHECK(cudaMalloc(&sum, sizeof *sum));
  CHECK(cudaMallocManaged(&managed, sizeof *managed * MANAGED));
  if (more_mb) {
    void *more;
    CHECK(cudaMalloc(&more, more_mb << 20));
    CHECK(cudaMemset(more, 1, more_mb << 20));
  }
  fill_bf16<<<1024, 256, 0, stream>>>(ma, (size_t)N * N, 1);
  fill_bf16<<<1024, 256, 0, stream>>>(mb, (size_t)N * N, 2);
  CHECK(cudaGetLastError());
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, exchange, 256, 0));
  cooperative_grid = prop.multiProcessorCount * std::max(std::min(per_sm, 4), 1);
  CHECK(cudaStreamSynchronize(stream));
  cudaGraph_t recorded;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 20; i++) stir<<<528, 256, 0, stream>>>(wa, WORDS, 400 + i);
  CHECK(cudaStreamEndCapture(stream, &recorded));
  CHECK(cudaGraphInstantiate(&graph, recorded, 0));
  CHECK(cudaGraphDestroy(recorded));
}

/* One round of one kind of work, always from the same initial state. */
static uint64_t run(int kind) {
  switch (kind) {
  case 0:
    CHECK(cudaMemsetAsync(mc, 0xff, sizeof *mc * N * N, stream));
    matmul<<<N / 16 * (N / 16) / 8, 256, 0, stream>>>(ma, mb, mc);
    CHECK(cudaGetLastError());
    return digest_of(mc, (size_t)N * N);
  case 1:
    fill_words<<<528, 256, 0, stream>>>(wa, WORDS, 3);
    CHECK(cudaGetLastError());
    CHECK(cudaGraphLaunch(graph, stream));
    return digest_of(wa, WORDS);
  case 2: {
    fill_words<<<528, 256, 0, stream>>>(wa, WORDS, 4);
    CHECK(cudaGetLastError());
    size_t n = WORDS;
    int steps = 100;
    void *args[] = {&wa, &wb, &n, &steps};
    CHECK(cudaLaunchCooperativeKernel((void *)exchange, dim3(cooperative_grid), dim3(256), args, 0, stream));
    return digest_of(wa, WORDS) ^ mix(digest_of(wb, WORDS));
  }
  default: { /* written by the host, updated by the GPU, read by the host */
    uint64_t h = 0;
    for (int step = 0; step < 3; step++) {
      for (size_t i = 0; i < MANAGED; i++) managed[i] = (uint32_t)mix(i + h);
      stir<<<528, 256, 0, stream>>>(managed, MANAGED, 20000);
      CHECK(cudaGetLastError());
      CHECK(cudaStreamSynchronize(stream));
      for (size_t i = 0; i < MANAGED; i++) h += mix(managed[i] ^ ((uint64_t)i << 20));
    }
    return h;
  }
  }
}

int main(int argc, char **argv) {
  set_up((size_t)atoll(option(argc, argv, "--mb", "0")));
  uint64_t want[KINDS], expected = 0, rounds = 0, bad[KINDS] = {};
  for (int k = 0; k < KINDS; k++) {
    want[k] = run(k);
    if (run(k) != want[k]) {
      printf("E %s differs by itself\n", kinds[k]);
      return 2;
    }
    expected ^= mix(want[k] + (uint64_t)k);
    printf("H %s %016llx\n", kinds[k], (unsigned long long)want[k]);
  }
  printf("R\n");
  fflush(stdout);
  auto report = [&] {
    uint64_t got = expected;
    for (int k = 0; k < KINDS; k++) {
      got ^= bad[k];
      if (bad[k]) printf("B %s %llu\n", kinds[k], (unsigned long long)bad[k]);
    }
    printf("S %llu %016llx %016llx\n", (unsigned long long)rounds, (unsigned long long)got, (unsigned long long)expected);
    fflush(stdout);
    return got == expected;
  };
  bool looping = false;
  for (;;) {
    for (const std::string &line : read_lines(looping ? 0 : -1)) {
      if (line == "loop") looping = true;
      else if (line == "pause") {
        looping = false;
        printf("P\n");
        fflush(stdout);
      } else if (line == "report") report();
      else if (line == "quit") return report() ? 0 : 1;
    }
    if (!looping) continue;
    int k = (int)(rounds % KINDS);
    uint64_t start = now_ns();
    if (run(k) != want[k]) bad[k] += 1;
    rounds++;
    printf("I %llu %llu\n", (unsigned long long)start, (unsigned long long)now_ns());
    fflush(stdout);
  }
}
