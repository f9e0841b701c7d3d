#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that never waits for its work, so that only the shim's watcher finds its end. Line protocol:

    in:  fill | drain | count | destroy | pulse PERIOD_MS | nvml | alloc | quiet | quit
    out: R, then a line with the command's letter: F, T LAUNCHES, C LAUNCHES, D MS, P, N, A, Q; S at the end

It has two contexts. fill launches into the first one without end, until the channel is full and the launch waits in the driver.
destroy ends one idle stream of the second context and says how long that took. pulse launches one kernel per period.
nvml and alloc start a thread that polls NVML, or allocates and frees device memory, and makes no call of a launch.
"""
import ctypes
import sys
import threading
import time

# Every thread iterates x = x * A + C; the virtual GPU knows the kernel by its name.
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry xs_spin(.param .u64 p_out, .param .u32 p_iterations, .param .u32 p_seed) {
  .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %d<4>;
  ld.param.u64 %d1, [p_out]; ld.param.u32 %r1, [p_iterations]; ld.param.u32 %r2, [p_seed];
  cvt.u64.u32 %d2, %r2;
LOOP:
  mad.lo.u64 %d2, %d2, 6364136223846793005, 1442695040888963407;
  sub.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra LOOP;
  cvta.to.global.u64 %d1, %d1; red.global.add.u64 [%d1], %d2; red.global.add.u64 [%d1+8], 1;
  ret;
}
"""
SPARE = 16  # streams of the second context
KERNEL_S = 0.002
POLL_S = 0.5  # as a metrics collector, or an allocator that gives memory back


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Cuda:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)

    def __call__(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError("%s: %d" % (name, code))

    def context(self):
        context = ctypes.c_void_p()
        self("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
        return context

    def stream(self):
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), 1)
        return stream


class Kernel:
    """The spin kernel in the current context."""

    def __init__(self, cuda, iterations=1000):
        self.cuda, module = cuda, ctypes.c_void_p()
        self.function, self.memory = ctypes.c_void_p(), ctypes.c_uint64()
        cuda("cuModuleLoadData", ctypes.byref(module), PTX)
        cuda("cuModuleGetFunction", ctypes.byref(self.function), module, b"xs_spin")
        cuda("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(64))
        self.work, self.seed = ctypes.c_uint32(iterations), ctypes.c_uint32(1)
        self.arguments = (ctypes.c_void_p * 3)(*[ctypes.addressof(v) for v in (self.memory, self.work, self.seed)])

    def launch(self, stream):
        self.cuda("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, stream, self.arguments, None)

    def calibrate(self, stream, seconds):
        """Sets the iterations to about that time."""
        for _ in range(12):
            begun = time.monotonic()
            self.launch(stream)
            self.cuda("cuStreamSynchronize", stream)
            took = time.monotonic() - begun
            if took >= seconds:
                return
            self.work.value = min(int(self.work.value * max(2, min(seconds / max(took, 1e-5), 8))), 1 << 30)


class Program:
    def __init__(self):
        self.cuda = Cuda()
        self.other = self.cuda.context()
        kernel = Kernel(self.cuda)
        self.spare = [self.cuda.stream() for _ in range(SPARE)]
        for stream in self.spare:  # so that they are known and idle
            kernel.launch(stream)
            self.cuda("cuStreamSynchronize", stream)
        self.first = self.cuda.context()
        self.kernel, self.stream = Kernel(self.cuda), self.cuda.stream()
        self.kernel.calibrate(self.stream, KERNEL_S)
        self.launches, self.filling, self.period, self.polling = 0, False, 0.0, None
        for run in (self.fills, self.pulses):
            threading.Thread(target=run, daemon=True).start()

    def fills(self):
        self.cuda("cuCtxSetCurrent", self.first)
        while True:
            if self.filling:
                self.kernel.launch(self.stream)
                self.launches += 1
            else:
                time.sleep(0.005)

    def pulses(self):
        self.cuda("cuCtxSetCurrent", self.first)
        while True:
            period = self.period
            if period:
                self.kernel.launch(self.stream)
                self.launches += 1
            time.sleep(period or 0.005)

    def destroy(self):
        self.cuda("cuCtxSetCurrent", self.other)
        begun = time.monotonic()
        self.cuda("cuStreamDestroy_v2", self.spare.pop())
        return (time.monotonic() - begun) * 1000

    def drain(self):
        self.filling, self.period = False, 0.0
        before = -1
        while before != self.launches:  # the last launch may still wait for room
            before = self.launches
            time.sleep(0.1)
        self.cuda("cuCtxSetCurrent", self.first)
        self.cuda("cuStreamSynchronize", self.stream)
        return self.launches

    def poll(self, what):
        self.polling = what
        threading.Thread(target=self.polls, args=(what,), daemon=True).start()

    def polls(self, what):
        nvml = ctypes.CDLL("libnvidia-ml.so.1") if what == "nvml" else None
        handle, room, memory = ctypes.c_void_p(), ctypes.create_string_buffer(4096), ctypes.c_uint64()
        while self.polling == what:
            if nvml:
                nvml.nvmlInit_v2()
                nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
                nvml.nvmlDeviceGetMemoryInfo(handle, room)
                nvml.nvmlDeviceGetUtilizationRates(handle, room)
                nvml.nvmlShutdown()
            else:
                self.cuda("cuCtxSetCurrent", self.first)
                self.cuda("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(64 << 20))
                self.cuda("cuMemFree_v2", memory)
            time.sleep(POLL_S)

    def obey(self, word, value):
        if word == "fill":
            self.filling = True
            return "F"
        if word == "drain":
            return "T %d" % self.drain()
        if word == "count":
            return "C %d" % self.launches
        if word == "destroy":
            return "D %.3f" % self.destroy()
        if word == "pulse":
            self.period = float(value) / 1000
            return "P"
        if word in ("nvml", "alloc"):
            self.poll(word)
            return word[0].upper()
        if word == "quiet":
            self.polling = None
            return "Q"
        return None


def main():
    try:
        program = Program()
    except (OSError, RuntimeError) as e:
        say("E " + str(e))
        return 1
    say("R")
    for line in sys.stdin:
        words = line.split() + [""]
        answer = program.obey(words[0], words[1])
        if answer is None:
            break
        say(answer)
    program.polling = None
    total = program.drain()
    say("S %d %d %d" % (total, total, total))
    return 0


if __name__ == "__main__":
    sys.exit(main())
