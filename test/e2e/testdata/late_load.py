# SPDX-License-Identifier: Apache-2.0
"""A program that makes a context and loads its module only when it is told to: the load is work
of the driver's own, which nobody outside the driver sees."""
import ctypes
import sys
import time

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code:
        sys.exit("%s: %d" % (name, code))


call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, 0)
print("R", flush=True)
for line in sys.stdin:
    begun = time.monotonic()
    call("cuModuleLoadData", ctypes.byref(ctypes.c_void_p()), b".visible .entry xs_spin()")
    print("L %.1f" % ((time.monotonic() - begun) * 1000), flush=True)
