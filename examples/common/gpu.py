# SPDX-License-Identifier: Apache-2.0
"""A small binding of the CUDA driver API through ctypes."""

from __future__ import annotations

import ctypes


class Gpu:
    """A context on the first GPU. Create it in the thread that uses it."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        name = ctypes.create_string_buffer(128)
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDeviceGetName", name, len(name), device)
        self._call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"xs_spin")
        self.name, self.launches = name.value.decode(), 0
        self._default = self.memory(64)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {'out of GPU memory' if code == 2 else code}")

    def _made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call(name, ctypes.byref(handle), *arguments)
        return handle

    def stream(self) -> ctypes.c_void_p:
        return self._made("cuStreamCreate", 1)  # does not wait for the default stream

    def event(self) -> ctypes.c_void_p:
        return self._made("cuEventCreate", 2)  # without a timestamp

    def memory(self, size: int) -> int:
        return self._made("cuMemAlloc_v2", ctypes.c_size_t(size)).value

    def pinned(self, size: int) -> ctypes.Array:
        """Page-locked host memory: a copy into it does not block the caller."""
        address = self._made("cuMemAllocHost_v2", ctypes.c_size_t(size))
        return (ctypes.c_char * size).from_address(address.value)

    def launch(self, microseconds: int, seed: int = 1, out: int | None = None, stream: object = None) -> None:
        """Runs a kernel. The virtual GPU folds the seed into the 16 bytes at out."""
        memory = ctypes.c_uint64(self._default if out is None else out)
        us, seed = ctypes.c_uint32(microseconds), ctypes.c_uint32(seed)
        values = (ctypes.c_void_p * 3)(*[ctypes.addressof(v) for v in (memory, us, seed)])
        self._call("cuLaunchKernel", self._kernel, 1, 1, 1, 1, 1, 1, 0, stream, values, None)
        self.launches += 1

    def zero(self, address: int, size: int, stream: object) -> None:
        self.fill(address, 0, size, stream)

    def fill(self, address: int, value: int, size: int, stream: object) -> None:
        self._call("cuMemsetD8Async", ctypes.c_uint64(address), value, ctypes.c_size_t(size), stream)

    def fetch(self, host: ctypes.Array, address: int, size: int, stream: object) -> None:
        self._call("cuMemcpyDtoHAsync_v2", host, ctypes.c_uint64(address), ctypes.c_size_t(size), stream)

    def record(self, event: ctypes.c_void_p, stream: object) -> None:
        self._call("cuEventRecord", event, stream)

    def wait_event(self, event: ctypes.c_void_p) -> None:
        self._call("cuEventSynchronize", event)

    def wait(self, stream: object = None) -> None:
        if stream is None:
            self._call("cuCtxSynchronize")
        else:
            self._call("cuStreamSynchronize", stream)


# Spins on the GPU's clock until the time has passed; the virtual GPU recognizes the kernel's name.
_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry xs_spin(.param .u64 p_out, .param .u32 p_us, .param .u32 p_seed) {
  .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %d<5>;
  ld.param.u32 %r1, [p_us]; mul.wide.u32 %d1, %r1, 1000;
  mov.u64 %d2, %globaltimer;
LOOP:
  mov.u64 %d3, %globaltimer; sub.u64 %d4, %d3, %d2;
  setp.lt.u64 %p1, %d4, %d1; @%p1 bra LOOP;
  ret;
}
"""
