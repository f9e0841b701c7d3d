# SPDX-License-Identifier: Apache-2.0
"""Prints the path of the library that the wheel contains, for LD_PRELOAD.

``LD_PRELOAD=$(python -m xsched) python program.py`` needs no ``xsched`` command, as in a container.
"""

import sys

from . import library_path

path = library_path()
if path is None:
    sys.exit("xsched: this installation has no library; install the wheel of a release, or use `xsched run`")
print(path)
