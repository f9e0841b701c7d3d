# SPDX-License-Identifier: Apache-2.0
"""The service and the job on the virtual GPU, through the CUDA driver API.

A kernel takes its stated device time and folds its seed into a result word, block by block. Lost,
repeated or reordered work changes the word, so `expected` tells right from wrong answers.
"""

from __future__ import annotations

import functools
import os
import struct
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "common"))
from gpu import Gpu

LAYERS = 12
LAYER_US, ROW_US = 250, 50  # device time of a layer, and of each row of a batch in it
HEAD_US = 10
STEP_KERNELS, KERNEL_US = 5, 4000  # a step of the job
SLOT = 16  # bytes of a result
NAME = "XSched virtual GPU"


def fold(word: int, seed: int, us: int) -> int:
    """The result of one kernel: one turn per block of 10 us."""
    for block in range(max((us + 9) // 10, 1)):
        word ^= seed << 32 | block
        word = (word << 23 | word >> 41) & (1 << 64) - 1
        word = (word * 0x9E3779B97F4A7C15 + 1) & (1 << 64) - 1
    return word


def seed_of(tokens: list[int]) -> int:
    return zlib.crc32(struct.pack(f"<{len(tokens)}q", *tokens))


@functools.lru_cache(None)
def trunk(rows: int) -> int:
    """The result of all layers over a batch."""
    word = 0
    for layer in range(LAYERS):
        word = fold(word, layer + 1, LAYER_US + ROW_US * rows)
    return word


@functools.lru_cache(4096)
def head(seed: int) -> int:
    return fold(0, seed, HEAD_US)


def expected(tokens: list[int], rows: int) -> list[str]:
    """The right answer for tokens in a batch of rows, by the CPU."""
    return [f"{head(seed_of(tokens)):016x}", f"{trunk(rows):016x}"]


def open_gpu() -> Gpu:
    gpu = Gpu()
    if gpu.name != NAME:
        raise RuntimeError(f"{gpu.name} is not the virtual GPU; start the program with `xsched run --virtual`")
    return gpu


class Encoder:
    """All layers run once per batch, the head once per row."""

    platform, datatype = "virtual", "BYTES"

    def __init__(self, most: int) -> None:
        self.gpu = open_gpu()
        self.stream = self.gpu.stream()
        self.slots, self.host = self.gpu.memory(SLOT * (most + 1)), self.gpu.pinned(SLOT * (most + 1))

    @property
    def launches(self) -> int:
        return self.gpu.launches

    def infer(self, batch: list[list[int]]) -> list[list[str]]:
        rows = len(batch)
        self.gpu.zero(self.slots, SLOT * (rows + 1), self.stream)
        for layer in range(LAYERS):
            self.gpu.launch(LAYER_US + ROW_US * rows, layer + 1, self.slots, self.stream)
        for row, tokens in enumerate(batch, 1):
            self.gpu.launch(HEAD_US, seed_of(tokens), self.slots + SLOT * row, self.stream)
        self.gpu.fetch(self.host, self.slots, SLOT * (rows + 1), self.stream)
        self.gpu.wait(self.stream)
        words = [struct.unpack_from("<Q", self.host, SLOT * i)[0] for i in range(rows + 1)]
        return [[f"{word:016x}", f"{words[0]:016x}"] for word in words[1:]]


class Training:
    """Steps of long kernels. Up to `depth` steps are in flight, so that the GPU never idles."""

    platform = "virtual"

    def __init__(self, depth: int) -> None:
        self.gpu = open_gpu()
        self.stream = self.gpu.stream()
        self.slots, self.hosts = self.gpu.memory(SLOT * depth), [self.gpu.pinned(SLOT) for _ in range(depth)]
        self.events = [self.gpu.event() for _ in range(depth)]
        self.right = functools.reduce(lambda word, i: fold(word, i + 1, KERNEL_US), range(STEP_KERNELS), 0)

    @property
    def launches(self) -> int:
        return self.gpu.launches

    def submit(self, number: int) -> None:
        slot = number % len(self.events)
        address = self.slots + SLOT * slot
        self.gpu.zero(address, SLOT, self.stream)
        for i in range(STEP_KERNELS):
            self.gpu.launch(KERNEL_US, i + 1, address, self.stream)
        self.gpu.fetch(self.hosts[slot], address, SLOT, self.stream)
        self.gpu.record(self.events[slot], self.stream)

    def finish(self, number: int) -> bool:
        """Waits for a step. True if its result is right."""
        slot = number % len(self.events)
        self.gpu.wait_event(self.events[slot])
        return struct.unpack_from("<Q", self.hosts[slot])[0] == self.right
