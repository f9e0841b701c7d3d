# SPDX-License-Identifier: Apache-2.0
"""The batch job: training steps back to back, controlled through standard input.

  in:  run | pause | quit
  out: ready | step START_NS END_NS | paused STEPS WRONG LAUNCHES

With --run it trains until a signal ends it, and reads no commands.

Times are CLOCK_MONOTONIC. A step whose result is not bit-equal to the first one counts as wrong.
The job knows nothing about XSched.
"""

from __future__ import annotations

import argparse
import select
import sys
import time

import backend

DEPTH = 2  # steps in flight


class Job:
    def __init__(self, model: object) -> None:
        self.model, self.submitted, self.done, self.wrong, self.last = model, 0, 0, 0, 0

    def finish(self) -> None:
        self.wrong += not self.model.finish(self.done)
        self.done += 1
        now = time.monotonic_ns()
        print("step", self.last, now, flush=True)
        self.last = now

    def step(self) -> None:
        if self.submitted - self.done == DEPTH:
            self.finish()
        if self.submitted == self.done:
            self.last = time.monotonic_ns()
        self.model.submit(self.submitted)
        self.submitted += 1

    def pause(self) -> None:
        while self.done < self.submitted:
            self.finish()
        print("paused", self.done, self.wrong, self.model.launches, flush=True)


def main() -> int:
    p = argparse.ArgumentParser(description="A training job.")
    p.add_argument("--backend", choices=sorted(backend.NAMES), default=None, help="default: pytorch if it finds a GPU")
    p.add_argument("--run", action="store_true", help="train at once and read no commands")
    p.add_argument("--weights-mib", type=int, default=0, help="further GPU memory that it holds")
    a = p.parse_args()
    job = Job(backend.load(a.backend or backend.detect()).Training(DEPTH, a.weights_mib))
    print("ready", flush=True)
    while a.run:
        job.step()
    commands, running = open(0, "rb", buffering=0), False  # unbuffered: select must see every line
    while True:
        if not running or select.select([commands], [], [], 0)[0]:
            word = commands.readline().strip()
            if word == b"run":
                running = True
                continue
            running = False
            job.pause()
            if word != b"pause":
                return 1 if job.wrong else 0
        elif running:
            job.step()


if __name__ == "__main__":
    sys.exit(main())
