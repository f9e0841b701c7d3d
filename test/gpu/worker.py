#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A PyTorch or JAX program controlled through standard input, with the line protocol of the tenant.

  worker.py --name NAME --models resnet18:1[,resnet50:64...] [--depth 2] [--check 4] [--core N]
  in:  rate HZ | jitter HZ [SEED] | poisson HZ [SEED] | onoff HZ ON_MS OFF_MS | serve HZ [SEED] | loop | pause | report | quit
       use MODEL (answers U) | pace MS (answers M natural_ms paced_ms) | gputime N (answers G mean_us median_us)
       parts N (answers H step_us rest_us, medians)
       kerneltime N (answers K mean_us kernels; 0 0 without a profiler; call it last)
  out: N library | R | I start_ns end_ns [begun_ns submitted_ns done_ns] | T start_ns first_ns end_ns tokens | P | U model
       M .. | G .. | H .. | K .. | S iterations checksum expected | E what

The program does not use XSched. Requests follow an absolute schedule. A latency runs from the scheduled arrival to the
result, with serve to the first token. begun and submitted mark the start and the end of submission, done the completion
by the device clock. Every few iterations, the program compares the output bit by bit with the first one, so lost or
repeated work changes the checksum. The exit code is 0 only if all outputs were equal.
"""
import argparse
import collections
import ctypes
import gc
import os
import random
import select
import sys
import time

import backends
import virtual
from models import TOKENS

FLUSH_NS = 50_000_000
SPIN_S = 0.0003  # busy-wait at the end: wake-up latency varies
JITTER = 0.25    # greatest shift of an arrival, in periods


def arrivals(words):
    """Yields arrival times in seconds after the start, forever."""
    kind, hz = words[0], float(words[1])
    if hz <= 0:
        raise ValueError("rate must be positive")
    if kind == "rate":
        n = 1
        while True:
            yield n / hz
            n += 1
    elif kind == "jitter":  # evenly spread, so that jobs with a fixed period do not meet the same phase
        rng, n = random.Random(words[2] if len(words) > 2 else "1"), 1
        while True:
            yield (n + rng.uniform(-JITTER, JITTER)) / hz
            n += 1
    elif kind in ("poisson", "serve"):
        rng, t = random.Random(words[2] if len(words) > 2 else "1"), 0.0
        while True:
            t += rng.expovariate(hz)
            yield t
    elif kind == "onoff":
        # The pause comes first, so that a block that starts shortly after the schedule cuts no burst.
        on, off = float(words[2]) / 1000, float(words[3]) / 1000
        start = 0.0
        while True:
            for i in range(max(int(on * hz + 1e-9), 1)):
                yield start + off + (i + 1) / hz
            start += on + off
    else:
        raise ValueError("unknown arrivals " + kind)


def token_counts(words):
    """Yields the number of tokens of each request of a serve schedule, forever."""
    rng = random.Random("tokens " + " ".join(words))
    while True:
        yield rng.randint(*TOKENS)


def keep_core(core, rest):
    """Pins the main thread to core and all other threads to the rest. Repeated before every schedule, because new threads
    inherit the core of the main thread."""
    for tid in map(int, os.listdir("/proc/self/task")):
        try:
            had = os.sched_getaffinity(tid)
            wanted = {core} if tid == os.getpid() else had - {core} or rest
            if wanted != had:
                os.sched_setaffinity(tid, wanted)
        except OSError:
            pass  # the thread exited


class Worker:
    def __init__(self, backend, out_fd, depth, check, core=None):
        self.backend, self.out_fd, self.depth, self.every = backend, out_fd, depth, check
        self.core, self.rest = core, os.sched_getaffinity(0) - {core}
        self.mode, self.words, self.count = "idle", None, 0
        self.lines, self.flushed, self.input = [], time.monotonic_ns(), b""
        self.pending, self.last_end = collections.deque(), 0
        self.events = [backend.new_event() for _ in range(depth)]

    def say(self, line, now=False):
        self.lines.append(line)
        if now or time.monotonic_ns() - self.flushed > FLUSH_NS:
            self.flush()

    def flush(self):
        data = ("\n".join(self.lines) + "\n").encode() if self.lines else b""
        while data:
            data = data[os.write(self.out_fd, data):]
        self.lines, self.flushed = [], time.monotonic_ns()

    def commands(self, timeout):
        """Handles commands that arrive within timeout seconds (None: no limit). True if there was input."""
        ready, _, _ = select.select([0], [], [], timeout)
        if not ready:
            return False
        data = os.read(0, 4096)
        if not data:
            self.drain()
            self.mode = "quit"
            return True
        self.input += data
        while b"\n" in self.input and self.mode != "quit":
            line, self.input = self.input.split(b"\n", 1)
            self.command(line.decode().strip())
        return True

    def command(self, line):
        self.drain()
        words = line.split()
        if not words:
            return
        kind = words[0]
        if kind in ("rate", "jitter", "poisson", "onoff", "serve"):
            next(arrivals(words))  # rejects invalid arguments
            self.mode, self.words = "arrivals", words
        elif kind == "loop":
            self.mode, self.last_end = "loop", 0
        elif kind == "pause":
            self.mode = "idle"
            self.backend.sync()
            self.say("P", now=True)
        elif kind == "use":
            self.backend.use(words[1])
            self.backend.step()
            self.backend.sync()
            self.say("U " + words[1], now=True)
        elif kind == "gputime":
            times = sorted(self.backend.gpu_times_us(int(words[1])))
            self.say("G %.1f %.1f" % (sum(times) / len(times), times[len(times) // 2]), now=True)
        elif kind == "parts":
            self.own_core()
            steps, rests = map(sorted, zip(*self.backend.parts_us(int(words[1]))))
            self.say("H %.1f %.1f" % (steps[len(steps) // 2], rests[len(rests) // 2]), now=True)
        elif kind == "pace":
            self.own_core()
            self.say("M %.3f %.3f" % self.backend.pace(float(words[1])), now=True)
        elif kind == "kerneltime":
            self.say("K %.1f %.1f" % self.backend.kernel_time_us(int(words[1])), now=True)
        elif kind == "report":
            self.report()
        elif kind == "quit":
            self.mode = "quit"
        else:
            raise ValueError("unknown command " + line)

    def report(self):
        self.backend.sync()
        got, want = self.backend.checksums()
        self.say("S %d %s %s" % (self.count, got, want), now=True)
        return got == want

    def checked(self, out):
        self.count += 1
        if self.every and self.count % self.every == 0:
            self.backend.check(out)

    # -- requests

    def own_core(self):
        if self.core is not None and self.rest:
            keep_core(self.core, self.rest)

    def run_arrivals(self):
        self.own_core()
        words, clock, begin = self.words, self.backend.clock(), time.monotonic_ns()
        tokens = token_counts(words) if words[0] == "serve" else None
        for offset in arrivals(words):
            due = begin + int(offset * 1e9)
            while True:
                left = (due - time.monotonic_ns()) / 1e9
                if left <= SPIN_S:
                    break
                if self.lines and time.monotonic_ns() - self.flushed > FLUSH_NS:
                    self.flush()
                if self.commands(min(left - SPIN_S, 0.02)) and (self.mode != "arrivals" or self.words is not words):
                    return
            while time.monotonic_ns() < due:
                pass
            if tokens:
                self.serve(due, next(tokens))
            else:
                self.request(due, clock)
            if self.commands(0) and (self.mode != "arrivals" or self.words is not words):
                return

    def request(self, due, clock):
        begun = time.monotonic_ns()
        out = self.backend.step()
        if clock:
            clock.mark()
        submitted = time.monotonic_ns()
        if not self.backend.waits:
            self.backend.sync()
        end = time.monotonic_ns()
        self.checked(out)  # not part of the latency
        if clock:
            self.say("I %d %d %d %d %d" % (due, end, begun, submitted, clock.done_ns()))
        else:
            self.say("I %d %d" % (due, end))

    def serve(self, due, tokens):
        """A request of several tokens. Its latency is the time to the first one, whose output is checked."""
        begun, submitted = time.monotonic_ns(), []
        out = self.backend.serve(0, lambda: submitted.append(time.monotonic_ns()))
        first = time.monotonic_ns()
        for token in range(1, tokens):
            self.backend.serve(token)
        end = time.monotonic_ns()
        self.checked(out)
        self.say("I %d %d %d %d %d" % (due, first, begun, submitted[0], first))
        self.say("T %d %d %d %d" % (due, first, end, tokens))

    # -- back to back, `depth` in flight; an iteration starts when the one before ends

    def land(self):
        start, event = self.pending.popleft()
        event.synchronize()
        end = time.monotonic_ns()
        self.say("I %d %d" % (max(start, self.last_end), end))
        self.last_end = end

    def drain(self):
        while self.pending:
            self.land()

    def run_loop(self):
        n = 0
        while self.mode == "loop":
            if len(self.pending) == self.depth:
                self.land()
            start, event = time.monotonic_ns(), self.events[n % self.depth]
            out = self.backend.step()
            self.checked(out)
            event.record()
            self.pending.append((start, event))
            n += 1
            self.commands(0)

    def run(self):
        if self.backend.says != "torch":
            self.say("N " + self.backend.says)
        self.say("R", now=True)
        while self.mode != "quit":
            if self.mode == "arrivals":
                self.run_arrivals()
            elif self.mode == "loop":
                self.run_loop()
            else:
                self.commands(None)
        self.drain()
        return 0 if self.report() else 1


BACKENDS = {"torch": backends.TorchBackend, "torch-cpu": lambda specs: backends.TorchBackend(specs, "cpu"),  # small models
            "jax": backends.jax_or_torch, "spin": virtual.SpinBackend}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--name", default="worker")
    p.add_argument("--models", required=True)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--check", type=int, default=4, help="compare every Nth output; 0: never")
    p.add_argument("--core", type=int, help="core of the main thread during requests")
    p.add_argument("--backend", choices=sorted(BACKENDS), default="torch")
    a = p.parse_args()
    out_fd = os.dup(1)
    os.dup2(2, 1)  # keeps output of libraries out of the protocol
    try:
        ctypes.CDLL(None).prctl(29, 1000, 0, 0, 0)  # PR_SET_TIMERSLACK
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    except (OSError, AttributeError):
        pass
    try:
        backend = BACKENDS[a.backend](a.models.split(","))
        gc.collect()
        gc.freeze()
        gc.disable()
        return Worker(backend, out_fd, max(a.depth, 1), a.check, a.core).run()
    except BrokenPipeError:
        return 1
    except Exception as e:  # the harness reports E lines
        os.write(out_fd, ("E %s: %s\n" % (type(e).__name__, str(e).replace("\n", " ")[:300])).encode())
        raise


if __name__ == "__main__":
    sys.exit(main())
