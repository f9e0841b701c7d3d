# SPDX-License-Identifier: Apache-2.0
"""What worker.py runs on the virtual GPU: spin kernels and copies instead of models."""
import ctypes
import time

from backends import PERIOD_S, every


class SpinBackend:
    """Spin kernels on the virtual GPU. Tests the harness without PyTorch."""
    says, waits = "torch", False

    class Event:
        def __init__(self, backend):
            self.backend, self.handle = backend, ctypes.c_void_p()
            backend.call("cuEventCreate", ctypes.byref(self.handle), 2)

        def record(self):
            self.backend.call("cuEventRecord", self.handle, self.backend.stream)

        def synchronize(self):
            self.backend.call("cuEventSynchronize", self.handle)

    def __init__(self, specs):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.shapes = {s: shape(s) for s in specs}
        self.copied = max((us for s, (us, _, _) in self.shapes.items() if copies_only(s)), default=0)
        self.stream, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, 0)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.call("cuModuleLoadData", ctypes.byref(module), b".visible .entry xs_spin()")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"xs_spin")
        self.function, self.memory = function, ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(max(self.copied, 16)))
        self.host = ctypes.c_void_p()
        if self.copied:
            self.call("cuMemHostAlloc", ctypes.byref(self.host), ctypes.c_size_t(self.copied), 0)
            self.launch(self.arguments(10))  # PyTorch fills its memory with kernels
            self.sync()
        self.use(specs[0])

    def call(self, name, *args):
        code = getattr(self.cuda, name)(*args)
        if code:
            raise RuntimeError("%s: %d" % (name, code))

    def use(self, spec):
        us, self.count, self.gap_us = self.shapes[spec]
        self.us, self.copying = ctypes.c_uint32(us), copies_only(spec)

    def step(self):
        if self.copying:
            for _ in range(self.count):
                self.call("cuMemcpyHtoDAsync_v2", self.memory, self.host, ctypes.c_size_t(self.us.value), self.stream)
            return
        arguments = self.arguments(self.us.value)
        for _ in range(self.count):
            self.launch(arguments)
            until = time.perf_counter_ns() + self.gap_us * 1000
            while self.gap_us and time.perf_counter_ns() < until:
                pass

    def arguments(self, us):
        values = (self.memory, ctypes.c_uint32(us), ctypes.c_uint32(1))
        return (ctypes.c_void_p * 3)(*[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values]), values

    def launch(self, arguments):
        self.call("cuLaunchKernel", self.function, 8, 1, 1, 256, 1, 1, 0, self.stream, arguments[0], None)

    def serve(self, token, submitted=lambda: None):
        self.step()
        submitted()
        self.sync()

    def pace(self, wanted_ms):
        return wanted_ms, wanted_ms

    def check(self, out):
        pass

    def sync(self):
        self.call("cuStreamSynchronize", self.stream)

    def new_event(self):
        return self.Event(self)

    def checksums(self):
        return "0" * 16, "0" * 16  # the tenant program checks results of spin kernels

    def clock(self):
        return None  # events have no timestamps here

    def gpu_times_us(self, n):
        return [float(self.us.value * self.count)] * n

    def parts_us(self, n):
        """No event has a time here: the step takes what it should."""
        step = float(self.us.value * self.count)

        def request():
            self.step()
            self.sync()
        return [(step, latency - step) for _, latency in every(PERIOD_S, n, request)]

    def kernel_time_us(self, n):
        return float(self.us.value * self.count), float(self.count)


def copies_only(spec):
    return spec.startswith("copy:")


def shape(spec):
    """Parses spin:US[xCOUNT[@GAP]]: COUNT kernels of US microseconds, GAP microseconds between the launches. copy:BYTES[xCOUNT] are
    copies from pinned memory instead."""
    us, _, rest = spec.partition(":")[2].partition("x")
    count, _, gap = rest.partition("@")
    return int(us), int(count or 1), int(gap or 0)
