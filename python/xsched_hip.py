# SPDX-License-Identifier: Apache-2.0
"""Another name of ``xsched.hip``, with the names of ``xsched``, for programs that import ``xsched_hip``."""

from xsched import *  # noqa: F403
from xsched.hip import XSchedHip as XSchedHip
from xsched.hip import hipStream_t as hipStream_t
