# SPDX-License-Identifier: Apache-2.0
"""steps.py's protocol over kernels of the virtual GPU."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from virtual import SpinBackend


def say(line):
    os.write(1, (line + "\n").encode())


say("R")
b = SpinBackend(["spin:100"])
say("H step_1_tensor_ops 0011223344556677")
say("C ops begin")
sys.stdin.readline()
for _ in range(25):
    b.step()
b.sync()
say("C ops end")
sys.stdin.readline()
say("N ops 25 25 cuLaunchKernel=25")
say("H profiled -")
say("P")
sys.stdin.readline()
