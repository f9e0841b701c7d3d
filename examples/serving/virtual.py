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


class Weights:
    """Memory that is as large as the weights of a model. A part of it is compared after each batch or step."""

    BLOCK, PART = 8 << 20, 64 << 10

    def __init__(self, gpu: Gpu, mib: int, stream: object) -> None:
        self.gpu, self.stream, self.number = gpu, stream, 0
        self.blocks = [gpu.memory(self.BLOCK) for _ in range(mib * (1 << 20) // self.BLOCK)]
        for i, address in enumerate(self.blocks):
            gpu.fill(address, i % 255 + 1, self.BLOCK, stream)
        self.host = gpu.pinned(self.PART) if self.blocks else None

    def right(self) -> bool:
        """True if the next part is as it was."""
        if not self.blocks:
            return True
        turn, i = divmod(self.number, len(self.blocks))
        self.number += 1
        self.gpu.fetch(self.host, self.blocks[i] + turn * self.PART % self.BLOCK, self.PART, self.stream)
        self.gpu.wait(self.stream)
        return self.host.raw == bytes([i % 255 + 1]) * self.PART


class Encoder:
    """All layers run once per batch, the head once per row."""

    platform, datatype = "virtual", "BYTES"

    def __init__(self, most: int, weights_mib: int = 0) -> None:
        self.gpu = open_gpu()
        self.stream = self.gpu.stream()
        self.weights = Weights(self.gpu, weights_mib, self.stream)
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
        if not self.weights.right():
            raise RuntimeError("the weights have changed")
        return [[f"{word:016x}", f"{words[0]:016x}"] for word in words[1:]]


class Training:
    """Steps of long kernels. Up to `depth` steps are in flight, so that the GPU never idles."""

    platform = "virtual"

    def __init__(self, depth: int, weights_mib: int = 0) -> None:
        self.gpu = open_gpu()
        self.stream = self.gpu.stream()
        self.weights = Weights(self.gpu, weights_mib, self.gpu.stream())
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
        return struct.unpack_from("<Q", self.hosts[slot])[0] == self.right and self.weights.right()
