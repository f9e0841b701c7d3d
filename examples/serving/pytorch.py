# SPDX-License-Identifier: Apache-2.0
"""The service and the job in PyTorch. Weights are random; nothing is downloaded."""

from __future__ import annotations

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products
import torch
from torch import nn

LAYERS, WIDTH, HEADS, INNER, VOCABULARY, LENGTH = 12, 768, 12, 3072, 30522, 128
OUTPUTS = 8  # values of an answer
ROWS = 8192  # of a training batch
SIDE, DEPTH = 4096, 4
CYCLE = 8  # steps after which training starts again, so that every loss repeats


def device() -> torch.device:
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(7)
    return torch.device("cuda")


class Weights:
    """Memory that is as large as the weights of a model. A part of it is compared after each batch or step."""

    BLOCK, PART = 8 << 20, 64 << 10

    def __init__(self, mib: int) -> None:
        self.blocks, self.number = [], 0
        for i in range(mib * (1 << 20) // self.BLOCK):
            self.blocks.append(torch.full((self.BLOCK,), i % 255 + 1, dtype=torch.uint8, device="cuda"))

    def right(self) -> bool:
        """True if the next part is as it was."""
        if not self.blocks:
            return True
        turn, i = divmod(self.number, len(self.blocks))
        self.number += 1
        at = turn * self.PART % self.BLOCK
        return bool((self.blocks[i][at:at + self.PART] == i % 255 + 1).all())


class Encoder:
    """An encoder of the size of BERT. Batches are padded to powers of two: with equal shapes, the same
    kernels run, and an answer does not depend on the other rows."""

    platform, datatype, launches = "pytorch", "FP32", None

    def __init__(self, most: int, weights_mib: int = 0) -> None:
        self.device = device()
        self.weights = Weights(weights_mib)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, activation="gelu", batch_first=True)
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        for part in (self.words, self.places, self.body):
            part.to(self.device).eval()
        rows = 1
        while rows <= padded(most):  # loads all kernels
            self.infer([[1]] * rows)
            rows *= 2

    @torch.inference_mode()
    def infer(self, batch: list[list[int]]) -> list[list[float]]:
        rows = [(tokens + [0] * LENGTH)[:LENGTH] for tokens in batch]
        rows += [[0] * LENGTH] * (padded(len(batch)) - len(batch))
        tokens = torch.tensor(rows, device=self.device) % VOCABULARY
        hidden = self.words(tokens) + self.places.weight
        answer = self.body(hidden)[:len(batch), 0, :OUTPUTS].cpu().tolist()
        if not self.weights.right():
            raise RuntimeError("the weights have changed")
        return answer


def padded(rows: int) -> int:
    return 1 << (rows - 1).bit_length()


class Training:
    """Training of a multi-layer perceptron on fixed data. Every CYCLE steps the weights start again."""

    platform, launches = "pytorch", None

    def __init__(self, depth: int, weights_mib: int = 0) -> None:
        self.device = device()
        self.weights = Weights(weights_mib)
        self.net = nn.Sequential(*[part for _ in range(DEPTH) for part in (nn.Linear(SIDE, SIDE), nn.GELU())])
        self.net.to(self.device)
        self.first = [p.detach().clone() for p in self.net.parameters()]
        self.inputs, self.targets = (torch.randn(ROWS, SIDE, device=self.device) for _ in range(2))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.hosts = [torch.empty((), pin_memory=True) for _ in range(depth)]
        self.events = [torch.cuda.Event() for _ in range(depth)]
        self.right: list[float] = []
        for number in range(CYCLE):  # the first cycle is the reference
            self.submit(number)
            self.events[number % depth].synchronize()
            self.right.append(self.hosts[number % depth].item())

    def submit(self, number: int) -> None:
        if number % CYCLE == 0:
            with torch.no_grad():
                for parameter, first in zip(self.net.parameters(), self.first):
                    parameter.copy_(first)
        loss = nn.functional.mse_loss(self.net(self.inputs), self.targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        slot = number % len(self.events)
        self.hosts[slot].copy_(loss.detach(), non_blocking=True)
        self.events[slot].record()

    def finish(self, number: int) -> bool:
        slot = number % len(self.events)
        self.events[slot].synchronize()
        return self.hosts[slot].item() == self.right[number % CYCLE] and self.weights.right()
