// SPDX-License-Identifier: Apache-2.0
//
// GPU occupancy as seen by the kernels: they poll the device clock (%globaltimer, common to all processes). A jump of the
// clock inside a kernel means that the kernel was off the chip.
//
//   truth --kernel-us US       line protocol of the tenant: rate HZ | loop | pause | report | quit
//
//   out: R | I due_ns end_ns | K start end (one per kernel, device time) | O from to (off the chip, inside the kernel of
//        the K line that follows) | P | S kernels finished launched
//
// K and O lines precede the reply to `pause`. A kernel takes US of time on the chip, not counting time off the chip.
#include "common.cuh"

static const uint64_t JUMP_NS = 15000; // longer than any jitter of a clock read, shorter than a context switch
static const unsigned RING = 1u << 16; // kernels between two pauses
static const unsigned JUMPS = 1u << 18;

struct Seen {
  uint64_t start, end;
  uint32_t first_jump, jumps;
};
struct Log {
  uint32_t jumps;
  uint64_t from[JUMPS], to[JUMPS];
  Seen kernels[RING];
};

__device__ static inline uint64_t device_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// Block 0 writes the log. All blocks run equally long, so that the kernel occupies the whole chip.
__global__ void hold(Log *log, uint32_t index, uint64_t work_ns) {
  if (threadIdx.x != 0) return;
  bool writes = blockIdx.x == 0;
  uint64_t last = device_ns(), used = 0;
  Seen *seen = &log->kernels[index];
  uint32_t jumps = writes ? log->jumps : 0;
  if (writes) {
    seen->start = last;
    seen->first_jump = jumps;
  }
  while (used < work_ns) {
    uint64_t now = device_ns();
    if (now - last < JUMP_NS) {
      used += now - last;
    } else if (writes && jumps < JUMPS) {
      log->from[jumps] = last;
      log->to[jumps] = now;
      jumps++;
    }
    last = now;
  }
  if (writes) {
    seen->end = last;
    seen->jumps = jumps - seen->first_jump;
    log->jumps = jumps;
  }
}

static Log *host_log, *device_log;
static uint32_t launched_here;
static uint64_t launched, finished;

static void tell_and_clear() {
  CHECK(cudaDeviceSynchronize());
  for (uint32_t i = 0; i < launched_here; i++) {
    const Seen &k = host_log->kernels[i];
    if (!k.end) continue;
    finished++;
    for (uint32_t j = k.first_jump; j < k.first_jump + k.jumps; j++)
      printf("O %llu %llu\n", (unsigned long long)host_log->from[j], (unsigned long long)host_log->to[j]);
    printf("K %llu %llu\n", (unsigned long long)k.start, (unsigned long long)k.end);
  }
  launched_here = 0;
  memset(host_log, 0, sizeof *host_log);
}

int main(int argc, char **argv) {
  uint64_t work_ns = (uint64_t)(atof(option(argc, argv, "--kernel-us", "90")) * 1000);
  int sms;
  CHECK(cudaSetDevice(0));
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  CHECK(cudaHostAlloc((void **)&host_log, sizeof *host_log, cudaHostAllocMapped));
  CHECK(cudaHostGetDevicePointer((void **)&device_log, host_log, 0));
  memset(host_log, 0, sizeof *host_log);
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaEvent_t ends[2];
  for (auto &e : ends) CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  auto launch = [&] {
    hold<<<(unsigned)sms, 32, 0, stream>>>(device_log, launched_here++, work_ns);
    CHECK(cudaGetLastError());
    launched++;
  };
  launch();
  CHECK(cudaDeviceSynchronize());
  finished += host_log->kernels[0].end != 0;
  launched_here = 0;
  memset(host_log, 0, sizeof *host_log);
  setvbuf(stdout, nullptr, _IOFBF, 1 << 20);
  printf("R\n");
  fflush(stdout);

  std::string mode = "idle";
  double hz = 0;
  uint64_t begin = 0, n = 0;
  while (mode != "quit") {
    int wait = mode == "idle" ? -1 : 0;
    if (mode == "rate") {
      uint64_t due = begin + (uint64_t)(n * 1e9 / hz), now = now_ns();
      if (due > now + 300000) wait = (int)std::min<uint64_t>((due - now) / 1000000, 20);
    }
    for (const std::string &line : read_lines(wait)) {
      if (line == "pause" || line == "quit" || line == "report") {
        tell_and_clear();
        if (line == "pause") printf("P\n"), mode = "idle";
        if (line != "pause") printf("S %llu %llx %llx\n", (unsigned long long)launched, (unsigned long long)finished, (unsigned long long)launched);
        if (line == "quit") mode = "quit";
        fflush(stdout);
      } else if (line == "loop") {
        mode = "loop", n = 0;
      } else if (line.rfind("rate ", 0) == 0) {
        mode = "rate", hz = atof(line.c_str() + 5), begin = now_ns(), n = 1;
      }
    }
    if (launched_here >= RING) mode = "idle"; // full: the harness did not pause in time
    if (mode == "loop") {
      if (n >= 2) CHECK(cudaEventSynchronize(ends[n % 2]));
      launch();
      CHECK(cudaEventRecord(ends[n % 2], stream));
      n++;
    } else if (mode == "rate") {
      uint64_t due = begin + (uint64_t)(n * 1e9 / hz);
      if (due > now_ns() + 300000) continue;
      while (now_ns() < due) {
      }
      launch();
      CHECK(cudaStreamSynchronize(stream));
      printf("I %llu %llu\n", (unsigned long long)due, (unsigned long long)now_ns());
      n++;
    }
  }
  return finished == launched ? 0 : 1;
}
