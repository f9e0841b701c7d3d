# SPDX-License-Identifier: Apache-2.0
"""hints.c in Python: reads lines PLACE NAME=VALUE... from standard input."""

import ctypes
import sys

import xsched

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)


device, context = ctypes.c_int(), ctypes.c_void_p()
module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
memory, us, seed = ctypes.c_uint64(), ctypes.c_uint32(100), ctypes.c_uint32(1)
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
call("cuModuleLoadData", ctypes.byref(module), b"// xs_spin")
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"xs_spin")
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(64))
values = (ctypes.c_void_p * 3)(*[ctypes.addressof(v) for v in (memory, us, seed)])
for _ in range(2):  # a stream becomes a queue after its first work
    stream = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, values, None)
    call("cuStreamSynchronize", stream)
print("ready", flush=True)
for line in sys.stdin:
    place, *words = line.split()
    if place == "queues":
        print("queues", *[queue.index for queue in xsched.queues()], flush=True)
        continue
    said = {}
    for word in words:
        name, value = word.split("=")
        if name == "gang":
            said[name] = value
        elif name == "slo_us":
            said["slo_ms"] = int(value) / 1000
        elif name == "slo_percentile":
            said[name] = int(value) / 100
        else:
            said[name] = int(value)
    try:
        xsched.hint(queue=None if place == "process" else int(place), **said)
        print("result 0", flush=True)
    except xsched.XSchedError as error:
        print("result", int(error.result), flush=True)
