# SPDX-License-Identifier: Apache-2.0
"""Upstream XSched's Python interface: its classes, methods and types, on this library.

Methods return an XResult, or a tuple of an XResult and a value, and raise nothing. Without a library
every method returns kXSchedErrorNotSupported; start the program with ``xsched run``.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, Tuple

from ._library import linked
from .upstream_gen import (
    XPolicyType,
    XPreemptLevel,
    XQueueState,
    XResult,
    XSchedulerType,
)

XDevice = int
XDeviceId = int
XQueueHandle = int
HwQueueHandle = int
HwCommandHandle = int
Priority = int
Utilization = int
Timeslice = int
Laxity = int
Deadline = int

TIMESLICE_UNLIMITED = 0xFFFFFFFFFFFFFFFF
NO_LAXITY = -1
NO_DEADLINE = -1

_handle = ctypes.c_uint64
_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)


def call(name: str, *arguments: Any) -> XResult:
    """Calls a function of the library; kXSchedErrorNotSupported if there is none."""
    lib = linked()
    if lib is None or not hasattr(lib.handle, name):
        return XResult.kXSchedErrorNotSupported
    try:
        return XResult(getattr(lib.handle, name)(*arguments))  # a C int, as is XResult
    except ValueError:
        return XResult.kXSchedErrorUnknown


def made(name: str, *arguments: Any) -> Tuple[XResult, int]:
    """Calls a function that stores a handle through its first argument."""
    handle = _handle()
    return call(name, ctypes.byref(handle), *arguments), handle.value


def _signed(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def _number(value: int) -> ctypes.c_int32:
    return ctypes.c_int32(value)


# Callbacks of commands: C keeps only their addresses.
_launches: Dict[int, Any] = {}


class XSched:
    """Upstream's functions."""

    @staticmethod
    def XQueueCreate(
        hwq: HwQueueHandle, level: XPreemptLevel, flags: int
    ) -> Tuple[XResult, XQueueHandle]:
        return made("XQueueCreate", _handle(hwq), _signed(level), _signed(flags))

    @staticmethod
    def XQueueDestroy(xq: XQueueHandle) -> XResult:
        return call("XQueueDestroy", _handle(xq))

    @staticmethod
    def XQueueGet(hwq: HwQueueHandle) -> Tuple[XResult, XQueueHandle]:
        return made("XQueueGet", _handle(hwq))

    @staticmethod
    def XQueueSetPreemptLevel(xq: XQueueHandle, level: XPreemptLevel) -> XResult:
        return call("XQueueSetPreemptLevel", _handle(xq), _signed(level))

    @staticmethod
    def XQueueSetLaunchConfig(xq: XQueueHandle, threshold: int, batch_size: int) -> XResult:
        return call("XQueueSetLaunchConfig", _handle(xq), _signed(threshold), _signed(batch_size))

    @staticmethod
    def XQueueSubmit(xq: XQueueHandle, hw_cmd: HwCommandHandle) -> XResult:
        return call("XQueueSubmit", _handle(xq), _handle(hw_cmd))

    @staticmethod
    def XQueueWait(xq: XQueueHandle, hw_cmd: HwCommandHandle) -> XResult:
        return call("XQueueWait", _handle(xq), _handle(hw_cmd))

    @staticmethod
    def XQueueWaitAll(xq: XQueueHandle) -> XResult:
        return call("XQueueWaitAll", _handle(xq))

    @staticmethod
    def XQueueQuery(xq: XQueueHandle) -> Tuple[XResult, XQueueState]:
        state = ctypes.c_int(0)
        result = call("XQueueQuery", _handle(xq), ctypes.byref(state))
        return result, XQueueState(state.value)

    @staticmethod
    def XQueueSuspend(xq: XQueueHandle, flags: int) -> XResult:
        return call("XQueueSuspend", _handle(xq), _signed(flags))

    @staticmethod
    def XQueueResume(xq: XQueueHandle, flags: int) -> XResult:
        return call("XQueueResume", _handle(xq), _signed(flags))

    @staticmethod
    def XQueueProfileHwCommandCount(xq: XQueueHandle) -> Tuple[XResult, int]:
        count = ctypes.c_int64(0)
        result = call("XQueueProfileHwCommandCount", _handle(xq), ctypes.byref(count))
        return result, count.value

    @staticmethod
    def HwQueueDestroy(hwq: HwQueueHandle) -> XResult:
        return call("HwQueueDestroy", _handle(hwq))

    @staticmethod
    def HwQueueLaunch(hwq: HwQueueHandle, hw_cmd: HwCommandHandle) -> XResult:
        return call("HwQueueLaunch", _handle(hwq), _handle(hw_cmd))

    @staticmethod
    def HwQueueSynchronize(hwq: HwQueueHandle) -> XResult:
        return call("HwQueueSynchronize", _handle(hwq))

    @staticmethod
    def HwCommandCreateCallback(
        launch: Callable[[HwQueueHandle], int],
    ) -> Tuple[XResult, HwCommandHandle]:
        """Makes a command that calls a function in the thread that submits it.

        Upstream has this function in C only. The function returns an XResult; an exception in it
        counts as kXSchedErrorUnknown.
        """

        def run(hwq: int, unused: Any) -> int:
            try:
                return int(launch(hwq))
            except Exception:  # C can't pass it on
                return int(XResult.kXSchedErrorUnknown)

        callback = _Launch(run)
        result, command = made("HwCommandCreateCallback", callback, None)
        if result == XResult.kXSchedSuccess:
            _launches[command] = callback
        return result, command

    @staticmethod
    def HwCommandDestroy(hw_cmd: HwCommandHandle) -> XResult:
        result = call("HwCommandDestroy", _handle(hw_cmd))
        if result == XResult.kXSchedSuccess:
            _launches.pop(hw_cmd, None)
        return result

    @staticmethod
    def XHintSetScheduler(scheduler: XSchedulerType, policy: XPolicyType) -> XResult:
        return call("XHintSetScheduler", _number(scheduler), _number(policy))

    @staticmethod
    def XHintPriority(xq: XQueueHandle, prio: Priority) -> XResult:
        return call("XHintPriority", _handle(xq), _number(prio))

    @staticmethod
    def XHintUtilization(xq: XQueueHandle, util: Utilization) -> XResult:
        return call("XHintUtilization", _handle(xq), _number(util))

    @staticmethod
    def XHintTimeslice(ts_us: Timeslice) -> XResult:
        return call("XHintTimeslice", _signed(ts_us))

    @staticmethod
    def XHintLaxity(
        xq: XQueueHandle, lax_us: Laxity, lax_prio: Priority, crit_prio: Priority
    ) -> XResult:
        return call(
            "XHintLaxity", _handle(xq), _signed(lax_us), _number(lax_prio), _number(crit_prio)
        )

    @staticmethod
    def XHintDeadline(xq: XQueueHandle, ddl_us: Deadline) -> XResult:
        return call("XHintDeadline", _handle(xq), _signed(ddl_us))

    @staticmethod
    def XHintKDeadline(k: int) -> XResult:
        return call("XHintKDeadline", ctypes.c_size_t(k))
