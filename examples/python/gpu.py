# SPDX-License-Identifier: Apache-2.0
"""A minimal binding of the CUDA driver API through ctypes."""

import ctypes


class Gpu:
    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        module, self._kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self._memory = ctypes.c_uint64()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"xs_spin")
        self._call("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(64))

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    def launch(self, microseconds: int) -> None:
        us, seed = ctypes.c_uint32(microseconds), ctypes.c_uint32(1)
        addresses = [ctypes.addressof(v) for v in (self._memory, us, seed)]
        values = (ctypes.c_void_p * 3)(*addresses)
        self._call("cuLaunchKernel", self._kernel, 1, 1, 1, 1, 1, 1, 0, None, values, None)

    def wait(self) -> None:
        self._call("cuCtxSynchronize")


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
