# SPDX-License-Identifier: Apache-2.0
"""A program that creates a context and loads its module on command. The load is internal work of
the driver, which no hook observes."""
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
