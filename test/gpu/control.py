#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calls the checkpoint API of the CUDA driver on another process. Line protocol:

    in:  lock PID TIMEOUT_MS | checkpoint PID | restore PID | unlock PID
    out: R, then K CODE STATE MS after each call

CODE is the CUresult and STATE the CUprocessState afterwards (0 running, 1 locked, 2 checkpointed, 3 failed, -1 unknown).
"""
import ctypes
import sys
import time

NAMES = {"lock": "cuCheckpointProcessLock", "checkpoint": "cuCheckpointProcessCheckpoint",
         "restore": "cuCheckpointProcessRestore", "unlock": "cuCheckpointProcessUnlock"}


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    missing = [n for n in list(NAMES.values()) + ["cuCheckpointProcessGetState"] if not hasattr(cuda, n)]
    code = cuda.cuInit(0)
    if missing or code:
        say("E " + ("the driver lacks " + ", ".join(missing) if missing else "cuInit: %d" % code))
        return 1
    say("R")
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] not in NAMES:
            break
        pid = ctypes.c_int(int(words[1]))
        # Each of the argument structures is 64 bytes and must be zero but for the lock's time limit.
        arguments = (ctypes.c_uint32 * 32)()
        if words[0] == "lock":
            arguments[0] = int(words[2])
        begun = time.monotonic_ns()
        code = getattr(cuda, NAMES[words[0]])(pid, ctypes.byref(arguments))
        took = (time.monotonic_ns() - begun) / 1e6
        state = ctypes.c_int(-1)
        if cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state)):
            state.value = -1
        say("K %d %d %.1f" % (code, state.value, took))
    return 0


if __name__ == "__main__":
    sys.exit(main())
