# SPDX-License-Identifier: Apache-2.0
"""Hints, request markers and queue state of XSched, the preemptive GPU scheduler.

Start the program with ``xsched run -- python program.py``. Without the library, every call checks
its arguments and does nothing.

``XSched`` and the names with ``X`` are upstream XSched's interface, with ``xsched.cuda`` and
``xsched.hip``.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import math
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Type, TypeVar, Union, cast

from . import enums_gen as _numbers
from ._library import CQueue, library, library_path
from ._upstream import (
    NO_DEADLINE,
    NO_LAXITY,
    TIMESLICE_UNLIMITED,
    Deadline,
    HwCommandHandle,
    HwQueueHandle,
    Laxity,
    Priority,
    Timeslice,
    Utilization,
    XDevice,
    XDeviceId,
    XQueueHandle,
    XSched,
)
from .enums_gen import (
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    PRIORITY_MIN,
    PRIORITY_NO_EXECUTE,
    TIMESLICE_DEFAULT,
    TIMESLICE_MAX,
    TIMESLICE_MIN,
    UTILIZATION_DEFAULT,
    UTILIZATION_MAX,
    UTILIZATION_MIN,
    Level,
    Policy,
    QueueKind,
    Result,
    Scheduler,
)
from .hints_gen import FIELDS, POLICIES, CHint, HintField, Hints
from .upstream_gen import (
    XDeviceType,
    XPlatform,
    XPolicyType,
    XPreemptLevel,
    XQueueCreateFlag,
    XQueueFeature,
    XQueueResumeFlag,
    XQueueState,
    XQueueSuspendFlag,
    XResult,
    XSchedulerType,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "Deadline",
    "HardwareError",
    "HwCommandHandle",
    "HwQueueHandle",
    "Laxity",
    "Level",
    "NO_DEADLINE",
    "NO_LAXITY",
    "NotAllowedError",
    "NotFoundError",
    "NotSupportedError",
    "PRIORITY_DEFAULT",
    "PRIORITY_MAX",
    "PRIORITY_MIN",
    "PRIORITY_NO_EXECUTE",
    "Policy",
    "Priority",
    "Queue",
    "QueueKind",
    "Result",
    "Scheduler",
    "TIMESLICE_DEFAULT",
    "TIMESLICE_MAX",
    "TIMESLICE_MIN",
    "TIMESLICE_UNLIMITED",
    "Timeslice",
    "UTILIZATION_DEFAULT",
    "UTILIZATION_MAX",
    "UTILIZATION_MIN",
    "Utilization",
    "XDevice",
    "XDeviceId",
    "XDeviceType",
    "XPlatform",
    "XPolicyType",
    "XPreemptLevel",
    "XQueueCreateFlag",
    "XQueueFeature",
    "XQueueHandle",
    "XQueueResumeFlag",
    "XQueueState",
    "XQueueSuspendFlag",
    "XResult",
    "XSched",
    "XSchedError",
    "XSchedValueError",
    "XSchedulerType",
    "available",
    "hint",
    "library_path",
    "queues",
    "request",
    "scheduler",
    "set_scheduler",
]

_MAX_POLICY_BYTES = 31


class XSchedError(Exception):
    """A call of the library failed with the code ``result``."""

    def __init__(self, message: str, result: Result = Result.ERROR_UNKNOWN) -> None:
        super().__init__(message)
        self.result = result


class XSchedValueError(XSchedError, ValueError):
    """A value is out of range."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Result.ERROR_INVALID_VALUE)


class HardwareError(XSchedError):
    """The driver reported an error."""


class NotFoundError(XSchedError):
    """The queue or other object does not exist."""


class NotAllowedError(XSchedError):
    """The caller lacks permission."""


class NotSupportedError(XSchedError):
    """This platform or configuration does not support the operation."""


_ERRORS = {
    Result.ERROR_HARDWARE: HardwareError,
    Result.ERROR_NOT_FOUND: NotFoundError,
    Result.ERROR_NOT_ALLOWED: NotAllowedError,
    Result.ERROR_NOT_SUPPORTED: NotSupportedError,
}


def _check(code: int, operation: str) -> None:
    if code == Result.SUCCESS:
        return
    try:
        result = Result(code)
    except ValueError:
        result = Result.ERROR_UNKNOWN
    if result == Result.ERROR_INVALID_VALUE:
        raise XSchedValueError(operation)
    raise _ERRORS.get(result, XSchedError)(f"{operation}: {result.name.lower()}", result)


def _value(name: str, value: Any) -> Any:
    """Converts a hint to its C form and checks its range."""
    field = FIELDS[name]
    if field.kind == "switch":
        return 1 if value else 0
    if field.kind == "name":
        return _name(name, value, field.most)
    if field.kind == "percentile":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number, not {type(value).__name__}")
        value = round(value * 100) if math.isfinite(value) else -1
    elif isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    if value != 0 and not field.least <= value <= field.most:
        unit = 100 if field.kind == "percentile" else 1
        raise XSchedValueError(
            f"{name} {value / unit if unit > 1 else value} is not in "
            f"{field.least / unit if unit > 1 else field.least}.."
            f"{field.most / unit if unit > 1 else field.most}"
        )
    return value


def _name(name: str, value: Any, most: int) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    encoded = value.encode()
    if len(encoded) > most or any(byte < 0x20 or byte == 0x7F for byte in encoded):
        raise XSchedValueError(f"{name} has more than {most} bytes, or a control character")
    return encoded


def available() -> bool:
    """Tells whether a daemon schedules this process.

    Before the first GPU work, with which the library connects, it tells whether a daemon answers.
    """
    lib = library()
    return lib is not None and bool(lib.available())


def scheduler() -> Scheduler:
    """Returns the scheduler of this process; ``Scheduler.UNKNOWN`` without the library."""
    lib = library()
    return Scheduler.UNKNOWN if lib is None else Scheduler(lib.scheduler())


def set_scheduler(who: Scheduler, policy: Policy = Policy.UNKNOWN) -> None:
    """Selects the scheduler of this process: the daemon, or the program itself.

    ``Scheduler.LOCAL``, and with it a policy, needs ``xsched run --local``.
    """
    who, policy = Scheduler(who), Policy(policy)
    lib = library()
    if lib is not None:
        _check(lib.set_scheduler(who, policy), f"scheduler {who.name} with policy {policy.name}")


def hint(
    *,
    slo_ms: Optional[float] = None,
    policy: Optional[str] = None,
    queue: Union["Queue", int, None] = None,
    **hints: Unpack[Hints],
) -> None:
    """Sets hints of this process, or of one of its queues (from ``queues()``, or its index).

    The keyword arguments are those of ``hints_gen.Hints``; ``slo_ms`` is ``slo_us`` in
    milliseconds. Omitted hints keep their value. 0, or an empty name, restores the default. The
    call sets all values, or raises an exception and sets none.

    The daemon decides whether a user may have a priority above 0. ``xsched list`` shows the
    effective value.
    """
    values: Dict[str, Any] = {name: value for name, value in hints.items() if value is not None}
    unknown = [name for name in values if name not in FIELDS]
    if unknown:
        raise TypeError(f"hint() got an unexpected keyword argument {unknown[0]!r}")
    if slo_ms is not None:
        values["slo_us"] = _microseconds("slo_ms", slo_ms)
    if "laxity_us" in values:
        values.setdefault("lax_priority", _numbers.PRIORITY_DEFAULT)
        values.setdefault("critical_priority", _numbers.PRIORITY_MAX)
    elif "lax_priority" in values or "critical_priority" in values:
        raise XSchedValueError("lax_priority and critical_priority need laxity_us")
    if "slo_percentile" in values and "slo_us" not in values:
        raise XSchedValueError("slo_percentile needs slo_ms")
    said = HintField(0)
    c = CHint(bytes=ctypes.sizeof(CHint))
    for name, value in values.items():
        said |= FIELDS[name].bit
        setattr(c, name, _value(name, value))
    if policy is not None:
        encoded = _name("policy", policy, _MAX_POLICY_BYTES)
        if policy and policy.upper() not in POLICIES:
            raise XSchedValueError(f"unknown policy {policy!r}; use {', '.join(sorted(POLICIES))}")
        said |= HintField.POLICY
        c.policy = encoded
    if not said:
        raise TypeError("hint() needs at least one hint")
    c.said = int(said)
    index = queue.index if isinstance(queue, Queue) else queue
    if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
        raise TypeError(f"queue must be a Queue or its index, not {type(queue).__name__}")
    lib = library()
    if lib is None:
        return
    if index is None:
        _check(lib.hint_set(0, ctypes.byref(c)), "hint")
    elif 0 <= index < 1 << 32:
        _check(lib.queue_hint(index, ctypes.byref(c)), f"hint for queue {index}")
    else:
        raise NotFoundError(f"no queue {index}", Result.ERROR_NOT_FOUND)


def _microseconds(name: str, milliseconds: Any) -> int:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(milliseconds).__name__}")
    if not math.isfinite(milliseconds):
        raise XSchedValueError(f"{name} {milliseconds} is not finite")
    return round(milliseconds * 1000)


_F = TypeVar("_F", bound=Callable[..., Any])


class request:  # noqa: N801 - used like a function
    """Marks a request for the SLO policy; a context manager and a decorator.

    At most 16 names and 1024 concurrent requests are marked; others pass unmeasured.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name or "\0" in name:
            raise XSchedValueError("a request needs a name without NUL")
        self._name = name.encode()
        self._open: List[int] = []

    def __enter__(self) -> "request":
        lib = library()
        self._open.append(0 if lib is None else int(lib.request_begin(self._name)))
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        number = self._open.pop()
        lib = library()
        if lib is not None and number != 0:
            lib.request_end(number)

    def __call__(self, function: _F) -> _F:
        name = self._name.decode()
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaiting(*args: Any, **kwargs: Any) -> Any:
                with request(name):
                    return await function(*args, **kwargs)

            return cast(_F, awaiting)

        @functools.wraps(function)
        def calling(*args: Any, **kwargs: Any) -> Any:
            with request(name):
                return function(*args, **kwargs)

        return cast(_F, calling)


@dataclass(frozen=True)
class Queue:
    """A scheduled context or stream."""

    index: int
    kind: QueueKind
    device: str  # PCI address
    priority: int  # of the stream, relative to the process
    busy: bool
    held: bool  # launches wait at the gate
    submitted: int


def _queue(c: CQueue) -> Queue:
    slot = c.pci_bus_slot
    return Queue(
        index=c.index,
        kind=QueueKind(c.kind),
        device=f"{c.pci_domain:04x}:{slot >> 8 & 0xFF:02x}:{slot >> 3 & 0x1F:02x}.{slot & 7}",
        priority=c.priority,
        busy=bool(c.busy),
        held=bool(c.held),
        submitted=c.submitted,
    )


def queues() -> List[Queue]:
    """Returns the queues of this process; none without the library."""
    lib = library()
    if lib is None:
        return []
    room = max(int(lib.queues(None, 0)) + 8, 8)  # queues may appear between the two calls
    found = (CQueue * room)()
    count = min(int(lib.queues(found, room)), room)
    return [_queue(found[i]) for i in range(count)]
