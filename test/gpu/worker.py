#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program controlled through standard input, with the line protocol of the tenant.

  worker.py --name NAME --models resnet18:1[,resnet50:64...] [--depth 2] [--check 4] [--core N]
  in:  rate HZ | poisson HZ [SEED] | onoff HZ ON_MS OFF_MS | loop | pause | report | quit
       use MODEL (answers U) | gputime N (answers G mean_us median_us)
  out: R | I start_ns end_ns [begun_ns submitted_ns done_ns] | P | U model | G .. | S iterations checksum expected | E what

The program does not use XSched. Requests follow an absolute schedule. A latency runs from the scheduled arrival to the
result. begun and submitted mark the start and the end of submission, done the completion by the device clock. Every few
iterations, the GPU compares the output bit by bit with the first one, so lost or repeated work changes the checksum.
The exit code is 0 only if all outputs were equal.
"""
import argparse
import collections
import ctypes
import gc
import hashlib
import os
import random
import select
import sys
import time

FLUSH_NS = 50_000_000
SPIN_S = 0.0003  # busy-wait at the end: wake-up latency varies


class TorchBackend:
    """Models on the GPU."""

    def __init__(self, models):
        import torch
        self.torch = torch
        # Deterministic algorithms: equal work in all modes, equal results in all processes.
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.set_grad_enabled(False)
        self.models, self.refs, self.bads, self.hashes = {}, {}, {}, {}
        for spec in models:
            name, _, batch = spec.partition(":")
            self.models[spec] = self._build(name, int(batch or 1))
            for _ in range(3):
                out = self.models[spec]()
            torch.cuda.synchronize()
            self.refs[spec] = self._bits(out).clone()
            self.bads[spec] = torch.zeros((), dtype=torch.int64, device="cuda")
            self.hashes[spec] = self._hash(out)
        self.use(models[0])

    def _build(self, name, batch):
        torch = self.torch
        torch.manual_seed(7)
        torch.cuda.manual_seed_all(7)
        nn = torch.nn
        if name in ("resnet18", "resnet50"):
            import torchvision
            with torch.device("cuda"):
                model = getattr(torchvision.models, name)(weights=None).eval()
                x = torch.randn(batch, 3, 224, 224)
            return lambda: model(x)
        if name == "encoder":  # attention over 512 tokens, bf16: tensor cores and softmax
            heads, width = 16, 1024
            x = torch.randn(batch, 512, width, device="cuda", dtype=torch.bfloat16)
            layers = [[torch.randn(width, n, device="cuda", dtype=torch.bfloat16) / width ** 0.5
                       for n in (3 * width, width)] for _ in range(6)]

            def encoder():
                y = x
                for qkv, out in layers:
                    q, k, v = (y @ qkv).view(batch, 512, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
                    a = nn.functional.scaled_dot_product_attention(q, k, v)
                    y = nn.functional.layer_norm(y + a.transpose(1, 2).reshape(batch, 512, width) @ out, (width,))
                return y
            return encoder
        if name == "mlp":  # large matrix products, bf16
            width = 8192
            x = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
            weights = [torch.randn(width, width, device="cuda", dtype=torch.bfloat16) / width ** 0.5 for _ in range(4)]

            def mlp():
                y = x
                for w in weights:
                    y = nn.functional.gelu(y @ w)
                return y
            return mlp
        raise ValueError("unknown model " + name)

    def _bits(self, out):
        t = self.torch
        return out.contiguous().view({4: t.int32, 2: t.int16}[out.element_size()])

    def _hash(self, out):
        return hashlib.sha256(self._bits(out).cpu().numpy().tobytes()).hexdigest()[:16]

    def use(self, spec):
        self.spec, self.step = spec, self.models[spec]

    def check(self, out):
        self.bads[self.spec] += (self._bits(out) != self.refs[self.spec]).any()

    def sync(self):
        self.torch.cuda.synchronize()

    def new_event(self):
        return self.torch.cuda.Event()

    def checksums(self):
        """Returns (actual, expected) over all models; they differ if any output differed."""
        got, want = hashlib.sha256(), hashlib.sha256()
        for spec, run in self.models.items():
            bad = int(self.bads[spec].item())
            got.update((self._hash(run()) + (" %d differ" % bad if bad else "")).encode())
            want.update(self.hashes[spec].encode())
        return got.hexdigest()[:16], want.hexdigest()[:16]

    def clock(self):
        return DeviceClock(self.torch)

    def gpu_times_us(self, n):
        """GPU times of single requests, by CUDA events."""
        torch = self.torch
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        times = []
        for _ in range(n):
            a.record()
            self.step()
            b.record()
            b.synchronize()
            times.append(a.elapsed_time(b) * 1000)
            time.sleep(0.005)
        return times


class DeviceClock:
    """Converts event times to CLOCK_MONOTONIC through a reference event of known time. Each schedule takes a new reference,
    which limits drift."""

    def __init__(self, torch):
        self.torch, self.end = torch, torch.cuda.Event(enable_timing=True)
        best = None
        for _ in range(8):
            event = torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            before = time.monotonic_ns()
            event.record()
            event.synchronize()
            after = time.monotonic_ns()
            if best is None or after - before < best[0]:
                best = (after - before, (before + after) // 2, event)
        _, self.reference_ns, self.reference = best

    def mark(self):
        self.end.record()

    def done_ns(self):
        return self.reference_ns + int(self.reference.elapsed_time(self.end) * 1e6)


class SpinBackend:
    """Models are `spin:US`, one kernel of that length on the virtual GPU. Tests the harness without PyTorch."""

    class Event:
        def __init__(self, backend):
            self.backend, self.handle = backend, ctypes.c_void_p()
            backend.call("cuEventCreate", ctypes.byref(self.handle), 2)

        def record(self):
            self.backend.call("cuEventRecord", self.handle, self.backend.stream)

        def synchronize(self):
            self.backend.call("cuEventSynchronize", self.handle)

    def __init__(self, models):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.times = {m: int(m.partition(":")[2]) for m in models}
        self.stream, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, 0)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.call("cuModuleLoadData", ctypes.byref(module), b".visible .entry xs_spin()")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"xs_spin")
        self.function, self.memory = function, ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(16))
        self.use(models[0])

    def call(self, name, *args):
        code = getattr(self.cuda, name)(*args)
        if code:
            raise RuntimeError("%s: %d" % (name, code))

    def use(self, spec):
        self.us = ctypes.c_uint32(self.times[spec])

    def step(self):
        params = (ctypes.c_void_p * 3)(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p)
                                         for v in (self.memory, self.us, ctypes.c_uint32(1))])
        self.call("cuLaunchKernel", self.function, 8, 1, 1, 256, 1, 1, 0, self.stream, params, None)

    def check(self, out):
        pass

    def sync(self):
        self.call("cuStreamSynchronize", self.stream)

    def new_event(self):
        return self.Event(self)

    def checksums(self):
        return "0" * 16, "0" * 16  # the tenant program checks results of spin kernels

    def clock(self):
        return None  # events have no timestamps here

    def gpu_times_us(self, n):
        return [float(self.us.value)] * n


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
    elif kind == "poisson":
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
        if kind in ("rate", "poisson", "onoff"):
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

    def run_arrivals(self):
        if self.core is not None and self.rest:
            keep_core(self.core, self.rest)
        words, clock, begin = self.words, self.backend.clock(), time.monotonic_ns()
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
            begun = time.monotonic_ns()
            out = self.backend.step()
            if clock:
                clock.mark()
            submitted = time.monotonic_ns()
            self.backend.sync()
            end = time.monotonic_ns()
            self.checked(out)  # not part of the latency
            if clock:
                self.say("I %d %d %d %d %d" % (due, end, begun, submitted, clock.done_ns()))
            else:
                self.say("I %d %d" % (due, end))
            if self.commands(0) and (self.mode != "arrivals" or self.words is not words):
                return

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


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--name", default="worker")
    p.add_argument("--models", required=True)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--check", type=int, default=4, help="compare every Nth output; 0: never")
    p.add_argument("--core", type=int, help="core of the main thread during requests")
    p.add_argument("--backend", choices=("torch", "spin"), default="torch")
    a = p.parse_args()
    out_fd = os.dup(1)
    os.dup2(2, 1)  # keeps output of libraries out of the protocol
    try:
        ctypes.CDLL(None).prctl(29, 1000, 0, 0, 0)  # PR_SET_TIMERSLACK
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    except (OSError, AttributeError):
        pass
    try:
        backend = (TorchBackend if a.backend == "torch" else SpinBackend)(a.models.split(","))
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
