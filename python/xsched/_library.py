# SPDX-License-Identifier: Apache-2.0
"""Binding of the C library."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Optional

from .hints_gen import CHint

API_VERSION = 2


class CQueue(ctypes.Structure):
    """struct xs_queue_info."""

    _fields_ = [
        ("index", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("pci_domain", ctypes.c_uint32),
        ("pci_bus_slot", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("busy", ctypes.c_uint32),
        ("held", ctypes.c_uint32),
        ("rsv", ctypes.c_uint32),
        ("submitted", ctypes.c_uint64),
    ]


class Library:
    """The functions of the library, with their types."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self.handle = handle
        self.api_version = handle.xs_api_version
        self.api_version.restype = ctypes.c_uint32
        self.api_version.argtypes = []
        version = int(self.api_version())
        if version < API_VERSION:
            raise ImportError(
                f"libxsched.so has API version {version}, this package needs {API_VERSION}: "
                "install both from one release"
            )
        self.hint_set = handle.xs_hint_set
        self.hint_set.restype = ctypes.c_int
        self.hint_set.argtypes = [ctypes.c_uint64, ctypes.POINTER(CHint)]
        self.queue_hint = handle.xs_queue_hint
        self.queue_hint.restype = ctypes.c_int
        self.queue_hint.argtypes = [ctypes.c_uint32, ctypes.POINTER(CHint)]
        self.request_begin = handle.xs_request_begin
        self.request_begin.restype = ctypes.c_uint64
        self.request_begin.argtypes = [ctypes.c_char_p]
        self.request_end = handle.xs_request_end
        self.request_end.restype = None
        self.request_end.argtypes = [ctypes.c_uint64]
        self.queues = handle.xs_queues
        self.queues.restype = ctypes.c_uint32
        self.queues.argtypes = [ctypes.POINTER(CQueue), ctypes.c_uint32]
        self.available = handle.xs_available
        self.available.restype = ctypes.c_int
        self.available.argtypes = []
        self.scheduler = handle.xs_scheduler
        self.scheduler.restype = ctypes.c_int
        self.scheduler.argtypes = []
        self.set_scheduler = handle.XHintSetScheduler
        self.set_scheduler.restype = ctypes.c_int
        self.set_scheduler.argtypes = [ctypes.c_int, ctypes.c_int]


_lock = threading.Lock()
_searched = False
_found: Optional[Library] = None


def _open() -> Optional[Library]:
    named = os.environ.get("XSCHED_LIB")
    if named:
        # An explicitly selected library must load; do not fall back to none.
        return Library(ctypes.CDLL(named))
    process = ctypes.CDLL(None)  # preloaded symbols are global
    if not hasattr(process, "xs_api_version"):
        return None
    return Library(process)


def library() -> Optional[Library]:
    """Returns the library of this process, or None. The search runs once."""
    global _searched, _found
    if not _searched:
        with _lock:
            if not _searched:
                _found = _open()
                _searched = True
    return _found


# Where upstream's programs expect its library, unless it is preloaded. A machine without development
# files has the first name alone.
_LINKED = (f"libxsched.so.{API_VERSION}", "libxsched.so", "libpreempt.so")
_BUNDLED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", _LINKED[0])
_looked = False


def library_path() -> Optional[str]:
    """Returns the path of the library that this package contains, or None."""
    return _BUNDLED if os.path.exists(_BUNDLED) else None


def linked() -> Optional[Library]:
    """Returns the library of this process and loads it if the package or the system has it, or None.

    A library that is loaded here schedules only queues that the program creates.
    """
    global _found, _looked
    if library() is None and not _looked:
        with _lock:
            for name in (_BUNDLED, *_LINKED):
                if _found is not None or _looked:
                    break
                try:
                    _found = Library(ctypes.CDLL(name))
                except (OSError, AttributeError, ImportError):
                    continue  # not there, upstream's own, or an older one
            _looked = True
    return _found
