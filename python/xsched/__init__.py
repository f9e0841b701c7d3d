# SPDX-License-Identifier: Apache-2.0
"""What a program can say to XSched, the preemptive GPU scheduler, while it runs.

Run it with ``xsched run -- python program.py``. Without the library every call checks its
arguments and does nothing.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, List, Optional, Type, TypeVar, cast

from . import enums_gen as _numbers
from ._library import CHint, CQueue, library
from .enums_gen import HintField, Level, Policy, QueueKind, Result, Scheduler

__all__ = [
    "HardwareError",
    "Level",
    "NotAllowedError",
    "NotFoundError",
    "NotSupportedError",
    "Policy",
    "Queue",
    "QueueKind",
    "Result",
    "Scheduler",
    "XSchedError",
    "XSchedValueError",
    "available",
    "hint",
    "queues",
    "request",
    "scheduler",
    "set_scheduler",
]

_MAX_TIME_US = 10**12
_MAX_LAUNCHES = 1 << 20
_MAX_K = 1024
_MAX_GANG_BYTES = 63
_MAX_POLICY_BYTES = 31


class XSchedError(Exception):
    """A call of the library failed; ``result`` says how."""

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
    """There is no such thing."""


class NotAllowedError(XSchedError):
    """It is not allowed."""


class NotSupportedError(XSchedError):
    """It can't be had here."""


_ERRORS = {
    Result.ERROR_HARDWARE: HardwareError,
    Result.ERROR_NOT_FOUND: NotFoundError,
    Result.ERROR_NOT_ALLOWED: NotAllowedError,
    Result.ERROR_NOT_SUPPORTED: NotSupportedError,
}


def _check(code: int, what: str) -> None:
    if code == Result.SUCCESS:
        return
    try:
        result = Result(code)
    except ValueError:
        result = Result.ERROR_UNKNOWN
    if result == Result.ERROR_INVALID_VALUE:
        raise XSchedValueError(what)
    raise _ERRORS.get(result, XSchedError)(f"{what}: {result.name.lower()}", result)


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    if not low <= value <= high:
        raise XSchedValueError(f"{name} {value} is not in {low}..{high}")
    return value


def _name(name: str, value: Any, most: int) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    encoded = value.encode()
    if len(encoded) > most or b"\0" in encoded:
        raise XSchedValueError(f"{name} has more than {most} bytes, or a NUL")
    return encoded


def available() -> bool:
    """Whether a daemon schedules this process now."""
    lib = library()
    return lib is not None and bool(lib.available())


def scheduler() -> Scheduler:
    """Who schedules this process; ``Scheduler.UNKNOWN`` without the library."""
    lib = library()
    return Scheduler.UNKNOWN if lib is None else Scheduler(lib.scheduler())


def set_scheduler(who: Scheduler, policy: Policy = Policy.UNKNOWN) -> None:
    """Chooses who schedules this process: the daemon, or the program itself.

    ``Scheduler.LOCAL``, and with it a policy, needs ``xsched run --local``.
    """
    who, policy = Scheduler(who), Policy(policy)
    lib = library()
    if lib is not None:
        _check(lib.set_scheduler(who, policy), f"scheduler {who.name} with policy {policy.name}")


def hint(
    *,
    priority: Optional[int] = None,
    utilization: Optional[int] = None,
    timeslice_us: Optional[int] = None,
    deadline_us: Optional[int] = None,
    laxity_us: Optional[int] = None,
    lax_priority: int = _numbers.PRIORITY_DEFAULT,
    critical_priority: int = _numbers.PRIORITY_MAX,
    k: Optional[int] = None,
    window_active: Optional[bool] = None,
    slo_ms: Optional[float] = None,
    slo_percentile: Optional[float] = None,
    gang: Optional[str] = None,
    per_queue: Optional[bool] = None,
    in_flight: Optional[int] = None,
    batch: Optional[int] = None,
    policy: Optional[str] = None,
) -> None:
    """Says something about this process; what is left out stays as it is.

    All of it is taken or, with an exception, none. Whether the user may have a priority above 0
    is the daemon's decision: ``xsched list`` shows what was granted.
    """
    said = HintField(0)
    c = CHint(bytes=ctypes.sizeof(CHint))
    if priority is not None:
        said |= HintField.PRIORITY
        c.priority = _integer(
            "priority", priority, _numbers.PRIORITY_NO_EXECUTE, _numbers.PRIORITY_MAX
        )
    if utilization is not None:
        said |= HintField.UTILIZATION
        c.utilization = _integer("utilization", utilization, 0, _numbers.UTILIZATION_MAX)
    if timeslice_us is not None:
        said |= HintField.TIMESLICE
        if timeslice_us != 0:
            _integer("timeslice_us", timeslice_us, _numbers.TIMESLICE_MIN, _numbers.TIMESLICE_MAX)
        c.timeslice_us = timeslice_us
    if deadline_us is not None:
        said |= HintField.DEADLINE
        c.deadline_us = _integer("deadline_us", deadline_us, 0, _MAX_TIME_US)
    if laxity_us is not None:
        said |= HintField.LAXITY
        low, high = _numbers.PRIORITY_NO_EXECUTE, _numbers.PRIORITY_MAX
        c.laxity_us = _integer("laxity_us", laxity_us, 0, _MAX_TIME_US)
        c.lax_priority = _integer("lax_priority", lax_priority, low, high)
        c.critical_priority = _integer("critical_priority", critical_priority, low, high)
    if k is not None:
        said |= HintField.K
        c.k = _integer("k", k, 0, _MAX_K)
    if window_active is not None:
        said |= HintField.WINDOW_ACTIVE
        c.window_active = 1 if window_active else 0
    if slo_ms is not None:
        said |= HintField.SLO
        c.slo_us = _integer("slo_ms", round(slo_ms * 1000), 0, _MAX_TIME_US)
        if slo_percentile is not None:
            c.slo_percentile = _integer("slo_percentile", round(slo_percentile * 100), 100, 9999)
    elif slo_percentile is not None:
        raise XSchedValueError("slo_percentile needs slo_ms")
    if gang is not None:
        said |= HintField.GANG
        c.gang = _name("gang", gang, _MAX_GANG_BYTES)
    if per_queue is not None:
        said |= HintField.PER_QUEUE
        c.per_queue = 1 if per_queue else 0
    if in_flight is not None or batch is not None:
        said |= HintField.LIMITS
        c.in_flight = _integer("in_flight", in_flight or 0, 0, _MAX_LAUNCHES)
        c.batch = _integer("batch", batch or 0, 0, _MAX_LAUNCHES)
    if policy is not None:
        said |= HintField.POLICY
        c.policy = _name("policy", policy, _MAX_POLICY_BYTES)
    if not said:
        raise TypeError("hint() needs at least one thing to say")
    c.said = int(said)
    lib = library()
    if lib is not None:
        _check(lib.hint_set(0, ctypes.byref(c)), "hint")


_F = TypeVar("_F", bound=Callable[..., Any])


class request:  # noqa: N801 - used as a function is
    """Marks a request, for the SLO policy: a context manager and a decorator.

    Up to 16 names and 1024 requests at once; what is beyond is not marked.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name or "\0" in name:
            raise XSchedValueError("a request needs a name")
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
    """A context, or a stream, that is scheduled."""

    index: int
    kind: QueueKind
    device: str  # PCI address
    priority: int  # of the stream, added to the process's
    busy: bool
    held: bool  # by the scheduler's gate, now
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
    """The queues of this process; none without the library."""
    lib = library()
    if lib is None:
        return []
    room = max(int(lib.queues(None, 0)) + 8, 8)  # some may come in between
    found = (CQueue * room)()
    count = min(int(lib.queues(found, room)), room)
    return [_queue(found[i]) for i in range(count)]
