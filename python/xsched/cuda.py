# SPDX-License-Identifier: Apache-2.0
"""Upstream XSched's Python interface to CUDA streams."""

from __future__ import annotations

import ctypes
from typing import Tuple

from ._upstream import HwQueueHandle, made
from .upstream_gen import XResult

CUstream = int


class XSchedCuda:
    """Hardware queues of CUDA streams. A stream is an address; 0 is the default stream."""

    @staticmethod
    def CudaQueueCreate(stream: CUstream) -> Tuple[XResult, HwQueueHandle]:
        return made("CudaQueueCreate", ctypes.c_void_p(stream))

    @staticmethod
    def CudaQueueGet(stream: CUstream) -> Tuple[XResult, HwQueueHandle]:
        return made("CudaQueueGet", ctypes.c_void_p(stream))
