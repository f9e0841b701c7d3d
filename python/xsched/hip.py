# SPDX-License-Identifier: Apache-2.0
"""Upstream XSched's Python interface to HIP streams."""

from __future__ import annotations

import ctypes
from typing import Tuple

from ._upstream import HwQueueHandle, made
from .upstream_gen import XResult

hipStream_t = int


class XSchedHip:
    """Hardware queues of HIP streams. A stream is an address; 0 is the default stream."""

    @staticmethod
    def HipQueueCreate(stream: hipStream_t) -> Tuple[XResult, HwQueueHandle]:
        return made("HipQueueCreate", ctypes.c_void_p(stream))
