# SPDX-License-Identifier: Apache-2.0
"""A program for upstream's Python interface, on the virtual GPU and without a library.

This file is the test and, under `xsched run`, the tested program.
"""

import ctypes
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import xsched
from xsched import (
    XPolicyType,
    XPreemptLevel,
    XQueueCreateFlag,
    XQueueResumeFlag,
    XQueueState,
    XQueueSuspendFlag,
    XResult,
    XSched,
    XSchedulerType,
    _library,
)
from xsched.cuda import XSchedCuda
from xsched.hip import XSchedHip

from . import cuda, test_virtual

OK = XResult.kXSchedSuccess

# The methods and their parameters in XSched 1.2.0.
UPSTREAM = {
    "XQueueCreate": "hwq level flags",
    "XQueueDestroy": "xq",
    "XQueueGet": "hwq",
    "XQueueSetPreemptLevel": "xq level",
    "XQueueSetLaunchConfig": "xq threshold batch_size",
    "XQueueSubmit": "xq hw_cmd",
    "XQueueWait": "xq hw_cmd",
    "XQueueWaitAll": "xq",
    "XQueueQuery": "xq",
    "XQueueSuspend": "xq flags",
    "XQueueResume": "xq flags",
    "XQueueProfileHwCommandCount": "xq",
    "HwQueueDestroy": "hwq",
    "HwQueueLaunch": "hwq hw_cmd",
    "HwQueueSynchronize": "hwq",
    "HwCommandDestroy": "hw_cmd",
    "XHintSetScheduler": "scheduler policy",
    "XHintPriority": "xq prio",
    "XHintUtilization": "xq util",
    "XHintTimeslice": "ts_us",
    "XHintLaxity": "xq lax_us lax_prio crit_prio",
    "XHintDeadline": "xq ddl_us",
    "XHintKDeadline": "k",
}


# ---- the program ---------------------------------------------------------------------


def must(result: XResult) -> None:
    assert result == OK, repr(result)


def get(pair: tuple) -> int:
    must(pair[0])
    return pair[1]


def queues(gpu: cuda.Cuda) -> None:
    stream = gpu.stream()
    hwq = get(XSchedCuda.CudaQueueCreate(stream))
    assert get(XSchedCuda.CudaQueueGet(stream)) == hwq
    none = XQueueCreateFlag.kQueueCreateFlagNone
    xq = get(XSched.XQueueCreate(hwq, XPreemptLevel.kPreemptLevelBlock, none))
    assert get(XSched.XQueueGet(hwq)) == xq
    must(XSched.XQueueSetPreemptLevel(xq, XPreemptLevel.kPreemptLevelBlock))
    must(XSched.XQueueSetLaunchConfig(xq, 16, 8))
    assert get(XSched.XQueueQuery(xq)) == XQueueState.kQueueStateIdle

    def launch(of: int) -> int:
        assert of == hwq
        gpu.check("cuCtxSetCurrent", gpu.context)  # of this thread
        gpu.launch(200, stream)
        return OK

    command = get(XSched.HwCommandCreateCallback(launch))
    must(XSched.XQueueSubmit(xq, command))
    must(XSched.XQueueWait(xq, command))
    must(XSched.HwQueueLaunch(hwq, command))
    must(XSched.HwQueueSynchronize(hwq))

    # A suspended queue holds a submit until it is resumed.
    must(XSched.XQueueSuspend(xq, XQueueSuspendFlag.kQueueSuspendFlagSyncHwQueue))
    results: list = []
    submit = threading.Thread(target=lambda: results.append(XSched.XQueueSubmit(xq, command)))
    submit.start()
    submit.join(0.05)
    assert submit.is_alive() and get(XSched.XQueueProfileHwCommandCount(xq)) == 1
    dropped = XSched.XQueueResume(xq, XQueueResumeFlag.kQueueResumeFlagDropCommands)
    assert dropped == XResult.kXSchedErrorNotSupported, dropped
    must(XSched.XQueueResume(xq, XQueueResumeFlag.kQueueResumeFlagNone))
    submit.join()
    assert results == [OK], results
    must(XSched.XQueueWaitAll(xq))
    assert get(XSched.XQueueProfileHwCommandCount(xq)) == 2

    must(XSched.XHintPriority(xq, 7))
    must(XSched.XHintUtilization(xq, 60))
    must(XSched.XHintDeadline(xq, 9000))
    must(XSched.XHintLaxity(xq, 3000, 1, 9))
    must(XSched.XHintTimeslice(4000))
    must(XSched.XHintKDeadline(3))
    assert XSched.XHintPriority(xq, 256) == XResult.kXSchedErrorInvalidValue
    assert XSched.XHintPriority(xq + 1, 1) == XResult.kXSchedErrorNotFound
    must(XSched.XHintSetScheduler(XSchedulerType.kSchedulerGlobal, XPolicyType.kPolicyUnknown))
    test_virtual.say(step="hinted")

    # An exception in a command is an error, and nothing goes through C.
    bad = get(XSched.HwCommandCreateCallback(lambda unused: 1 // 0))
    assert XSched.XQueueSubmit(xq, bad) == XResult.kXSchedErrorUnknown
    for made in (command, bad):
        must(XSched.HwCommandDestroy(made))
    must(XSched.XQueueDestroy(xq))
    must(XSched.HwQueueDestroy(hwq))
    assert XSched.XQueueDestroy(xq) == XResult.kXSchedErrorNotFound


def hip() -> None:
    runtime = ctypes.CDLL("libamdhip64.so.6")
    stream = ctypes.c_void_p()
    assert runtime.hipStreamCreate(ctypes.byref(stream)) == 0
    hwq = get(XSchedHip.HipQueueCreate(stream.value))
    xq = get(XSched.XQueueCreate(hwq, XPreemptLevel.kPreemptLevelBlock, 0))
    must(XSched.XHintPriority(xq, 8))
    assert cuda.eventually(xsched.available), "no daemon"
    test_virtual.say(step="hip")
    must(XSched.XQueueDestroy(xq))
    must(XSched.HwQueueDestroy(hwq))
    assert runtime.hipStreamDestroy(stream) == 0
    print("done", flush=True)


# ---- the tests -----------------------------------------------------------------------


def stream_hints(world: test_virtual.World, child: test_virtual.Child) -> dict:
    """Returns the hints of the program's stream, as the daemon has them."""
    for queue in world.known(child.process.pid).get("queues", []):
        if queue["stream"]:
            return queue["hints"]
    return {}


class UpstreamHip(test_virtual.World):
    serve_arguments = ["--platform", "amd"]

    def test_queue(self) -> None:
        with test_virtual.Child(self.env, "hip", module="tests.test_upstream") as child:
            self.assertEqual(child.read(), {"step": "hip"})
            self.assertTrue(
                cuda.eventually(lambda: stream_hints(self, child).get("priority") == 8),
                self.known(child.process.pid),
            )
            child.go_on()
            child.end(self)


class Upstream(test_virtual.World):
    def test_queues(self) -> None:
        with test_virtual.Child(self.env, "queues", module="tests.test_upstream") as child:
            self.assertEqual(child.read(), {"step": "hinted"})

            def hints() -> dict:
                return stream_hints(self, child)

            names = "priority utilization deadline_us laxity_us lax_priority critical_priority"
            want = [7, 60, 9000, 3000, 1, 9]
            self.assertTrue(
                cuda.eventually(lambda: [hints().get(n) for n in names.split()] == want), hints()
            )
            process = self.known(child.process.pid)["hints"]
            self.assertEqual((process["timeslice_us"], process["k"]), (4000, 3))
            child.go_on()
            child.end(self)


class Names(unittest.TestCase):
    def test_methods(self) -> None:
        for name, parameters in UPSTREAM.items():
            with self.subTest(name):
                found = inspect.signature(getattr(XSched, name)).parameters
                self.assertEqual(list(found), parameters.split())
        self.assertEqual(xsched.XQueueFeature.kQueueFeatureSyncSuspend, 16)
        self.assertEqual(xsched.XPlatform.kPlatformLevelZero, 7)
        self.assertEqual((xsched.NO_LAXITY, xsched.TIMESLICE_UNLIMITED), (-1, 2**64 - 1))
        for name in xsched.__all__:
            self.assertTrue(hasattr(xsched, name), name)

    def test_alone(self) -> None:
        if _library.linked() is not None:
            self.skipTest("libxsched is loaded")
        refused = XResult.kXSchedErrorNotSupported
        for name, parameters in UPSTREAM.items():
            with self.subTest(name):
                result = getattr(XSched, name)(*[1] * len(parameters.split()))
                self.assertEqual(result[0] if isinstance(result, tuple) else result, refused)
        for made in (XSchedCuda.CudaQueueCreate, XSchedCuda.CudaQueueGet, XSchedHip.HipQueueCreate):
            self.assertEqual(made(0), (refused, 0))

    def test_linked(self) -> None:
        """Without `xsched run`, the library is found where the loader finds it, by its SONAME alone."""
        built = os.path.join(test_virtual.built("build", "libxsched.so", self), "libxsched.so")
        library = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, library)
        os.symlink(built, os.path.join(library, f"libxsched.so.{_library.API_VERSION}"))
        program = "from xsched import *; print(int(XSched.XHintPriority(0, 5)), int(XSched.XQueueDestroy(9)))"
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env={**test_virtual.clean_environment(), "LD_LIBRARY_PATH": library},
            cwd=test_virtual.PACKAGE,
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual((ran.stdout, ran.stderr), ("0 3\n", ""))


if __name__ == "__main__":
    if sys.argv[1] == "hip":
        hip()
    else:
        test_virtual.program(queues)
