# SPDX-License-Identifier: Apache-2.0
"""Dynamic batching: one thread owns the GPU and takes what has arrived."""

from __future__ import annotations

import collections
import sys
import threading
import time
from concurrent.futures import Future
from typing import Callable


class Refused(Exception):
    """The queue is full, or the server shuts down. The client may try again later."""


class Batcher:
    """Collects requests for one model. `make` runs in the batcher's thread, which owns the context."""

    def __init__(self, make: Callable[[], object], most: int, delay_s: float, queued: int) -> None:
        self._make, self._most, self._delay_s, self._limit = make, most, delay_s, queued
        self._changed = threading.Condition()
        self._waiting: collections.deque[tuple[float, list[int], Future]] = collections.deque()
        self._closed = False
        self.model: object = None
        self.failure: str = ""
        self.answered = self.refused = self.batches = self.largest = 0
        self._thread = threading.Thread(target=self._run, name="batcher")
        self._thread.start()

    def ready(self) -> bool:
        return self.model is not None and not self._closed and not self.failure

    def submit(self, tokens: list[int]) -> Future:
        """Returns the future of (answer, rows of its batch)."""
        with self._changed:
            if not self.ready() or len(self._waiting) >= self._limit:
                self.refused += 1
                raise Refused("the queue is full" if self.ready() else self.failure or "the server does not accept requests")
            future: Future = Future()
            self._waiting.append((time.monotonic(), tokens, future))
            self._changed.notify_all()
            return future

    def close(self) -> None:
        """Refuses new requests and returns when the queued ones are answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _take(self) -> list[tuple[float, list[int], Future]]:
        """The next batch: full, or as large as it is when its first request has waited for the delay. Empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._waiting:
                until = self._waiting[0][0] + self._delay_s
                self._changed.wait_for(lambda: len(self._waiting) >= self._most or self._closed, max(until - time.monotonic(), 0))
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]

    def _run(self) -> None:
        batch: list[tuple[float, list[int], Future]] = []
        try:
            self.model = self._make()
            while batch := self._take():
                answers = self.model.infer([tokens for _, tokens, _ in batch])
                self.batches += 1
                self.answered += len(batch)
                self.largest = max(self.largest, len(batch))
                for (_, _, future), answer in zip(batch, answers):
                    future.set_result((answer, len(batch)))
        except Exception as e:  # a failed context does not recover: the server reports itself as dead
            print(f"server: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
            with self._changed:
                self.failure = f"the model failed: {e}"
                left = batch + list(self._waiting)
                self._waiting.clear()
            for _, _, future in left:
                if not future.done():
                    future.set_exception(Refused(self.failure))
