# SPDX-License-Identifier: Apache-2.0
"""A minimal CUDA driver binding for the tests."""

import ctypes
import time


class Cuda:
    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        device = ctypes.c_int()
        self.check("cuDeviceGet", ctypes.byref(device), 0)
        self.context = ctypes.c_void_p()
        self.check("cuCtxCreate_v2", ctypes.byref(self.context), 0, device)
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.check("cuModuleLoadData", ctypes.byref(module), b"// xs_spin")
        self.check("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"xs_spin")
        self.memory = ctypes.c_uint64()
        self.check("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(64))

    def check(self, name: str, *arguments: object) -> None:
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self.check("cuStreamCreate", ctypes.byref(stream), 0)
        return stream.value

    def launch(self, microseconds: int, stream: int = 0) -> None:
        time_us, seed = ctypes.c_uint32(microseconds), ctypes.c_uint32(1)
        values = (ctypes.c_void_p * 3)(
            *[ctypes.addressof(v) for v in (self.memory, time_us, seed)]
        )
        self.check("cuLaunchKernel", self.kernel, 1, 1, 1, 1, 1, 1, 0, ctypes.c_void_p(stream), values, None)

    def wait(self) -> None:
        self.check("cuCtxSynchronize")


def eventually(condition, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return bool(condition())
