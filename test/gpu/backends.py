# SPDX-License-Identifier: Apache-2.0
"""What worker.py runs its models on: PyTorch or JAX."""
import hashlib
import os
import sys
import time
import traceback

import models


HASHED = 1 << 20  # elements of an output that enter its hash; larger outputs add a sum over all
PERIOD_S = 0.01   # between two single requests
HOLD_CYCLES = 800_000  # 0.4 ms: longer than the submission of a graph


def every(period_s, n, request):
    """Calls request n times and returns [(result, latency in us)]. It waits busily before each call, like the arrivals."""
    out, due = [], time.monotonic()
    for _ in range(n):
        due = max(due + period_s, time.monotonic())
        time.sleep(max(due - time.monotonic() - 0.0003, 0))
        while time.monotonic() < due:
            pass
        begun = time.monotonic_ns()
        found = request()
        out.append((found, (time.monotonic_ns() - begun) / 1000))
    return out


class TorchBackend:
    """Models on the GPU. Every model returns bit-equal outputs, in a cycle of model.cycle steps."""
    says = "torch"

    def __init__(self, specs, device="cuda"):
        import torch
        self.torch, self.device = torch, device
        # Deterministic algorithms: equal work in all modes, equal results in all processes.
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.set_grad_enabled(False)
        self.models, self.refs, self.bads, self.wrong, self.hashes = {}, {}, {}, {}, {}
        if any(spec.startswith("gpt2") for spec in specs):
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products
        made = models.Maker(torch, device)
        for spec in specs:
            model = self.models[spec] = made.build(spec)
            for _ in range(3):
                model.step()
            self.sync()
            self.hashes[spec] = self._hash(model.audit())
            self.refs[spec] = self._reference(spec, model)
            self.bads[spec] = torch.zeros((), dtype=torch.int64, device=device)
            self.wrong[spec] = 0
        self.use(specs[0])

    def _reference(self, spec, model):
        """Returns the output of each step of the cycle. A step whose output differs between two cycles without a
        neighbour is not checked; the first step must be equal."""
        once, again = [self._cycle(model) for _ in range(2)]
        refs = [a if a is not None and bool((a == b).all()) else None for a, b in zip(once, again)]
        if once[0] is not None and refs[0] is None:
            raise RuntimeError("%s is not deterministic" % spec)
        if None in refs and once[0] is not None:
            print("%s: %d of %d steps are not deterministic and not checked" % (spec, refs.count(None), len(refs)), file=sys.stderr)
        return refs

    def _cycle(self, model):
        out = []
        model.restart()
        for _ in range(model.cycle):
            found = model.step()
            self.sync()
            out.append(None if found is None else self._bits(found).clone())
        return out

    def _bits(self, out):
        t = self.torch
        if out.is_complex():
            out = t.view_as_real(out)
        return out.contiguous().view({8: t.int64, 4: t.int32, 2: t.int16, 1: t.uint8}[out.element_size()])

    def _hash(self, out):
        self.sync()
        bits = self._bits(out).flatten()
        total = b""
        if len(bits) > HASHED:  # a copy to the host would take seconds
            total = b"%d" % int(bits.sum(dtype=self.torch.int64))
            bits = bits[::len(bits) // HASHED]
        return hashlib.sha256(bits.cpu().numpy().tobytes() + total).hexdigest()[:16]

    def use(self, spec):
        self.spec, self.model = spec, self.models[spec]
        self.step, self.serve, self.waits, self.pace = self.model.step, self.model.serve, self.model.waits, self.model.pace

    def check(self, out):
        ref = self.refs[self.spec][self.model.at]
        if out is None or ref is None:
            return
        different = (self._bits(out) != ref).any()
        if out.device.type == "cpu":
            self.wrong[self.spec] += int(different)
        else:
            self.bads[self.spec] += different  # on the GPU, without waiting

    def sync(self):
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def new_event(self):
        return self.torch.cuda.Event() if self.device != "cpu" else Instant()

    def checksums(self):
        """Returns (actual, expected) over all models; they differ if any output differed."""
        got, want = hashlib.sha256(), hashlib.sha256()
        for spec, model in self.models.items():
            bad, last = int(self.bads[spec].item()) + self.wrong[spec], self._hash(model.audit())
            if bad or last != self.hashes[spec]:
                print("%s: %d checked outputs differ, the last one is %s, the first one was %s" % (spec, bad, last, self.hashes[spec]), file=sys.stderr)
            got.update((last + (" %d differ" % bad if bad else "")).encode())
            want.update(self.hashes[spec].encode())
        return got.hexdigest()[:16], want.hexdigest()[:16]

    def clock(self):
        return DeviceClock(self.torch) if self.device != "cpu" and self.model.clocked else None

    def gpu_times_us(self, n):
        """Spans of single requests on the GPU, by CUDA events. A span contains the gaps between kernels."""
        torch, times = self.torch, []
        if self.device == "cpu":
            return [0.0] * n
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(n):
            a.record()
            self.step()
            b.record()
            b.synchronize()
            times.append(a.elapsed_time(b) * 1000)
            time.sleep(0.005)
        return times

    def parts_us(self, n):
        """[(time of the step on the GPU, rest of the latency)] of single requests, 10 ms apart. Two kernels come first. An
        event behind the small one marks that the GPU has switched to this program. The long one runs until the whole step
        is queued, so that the step has no gap in which the CPU submits."""
        torch = self.torch
        if self.device == "cpu":
            return [(0.0, 0.0)] * n
        here, begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        small = torch.zeros(1, device=self.device)
        for _ in range(3):  # loads the kernels
            small.add_(1)
            torch.cuda._sleep(HOLD_CYCLES)
        self.sync()

        def request():
            small.add_(1)
            here.record()
            torch.cuda._sleep(HOLD_CYCLES)
            begin.record()
            self.step()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1000, here.elapsed_time(end) * 1000
        return [(step, latency - on_gpu) for (step, on_gpu), latency in every(PERIOD_S, n, request)]

    def kernel_time_us(self, n):
        """Returns the time with a kernel on the GPU and the number of kernels, per request, by torch.profiler. (0, 0) if
        the profiler gives none. Call it last: the profiler may slow later launches."""
        from torch.profiler import ProfilerActivity, profile
        try:
            kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.device != "cpu" else [])
            for count in (1, n):  # the first one initializes the profiler
                with profile(activities=kinds) as p:
                    for _ in range(count):
                        self.model.request()
                        self.sync()
            found = [(e.time_range.start, e.time_range.end) for e in p.events()
                     if "CUDA" in str(e.device_type) and not e.name.startswith(("Memcpy", "Activity", "ProfilerStep"))]
        except Exception:  # the caller falls back to the span
            traceback.print_exc()
            return 0.0, 0.0
        return covered(found) / n, len(found) / n


def covered(intervals):
    """The length of the union: kernels that overlap count once."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(end - max(start, until), 0)
        until = max(until, end)
    return total


class Instant:
    """An event on the CPU."""

    def record(self):
        pass

    def synchronize(self):
        pass


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


class JaxBackend:
    """Matrix products in JAX. The model is `matmul:WIDTH`."""
    says, waits = "jax", False

    class Event:
        def __init__(self, backend):
            self.backend = backend

        def record(self):
            self.out = self.backend.last

        def synchronize(self):
            self.out.block_until_ready()

    def __init__(self, specs):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
        import jax.numpy as jnp
        if jax.default_backend() not in ("gpu", "cuda"):
            raise RuntimeError("JAX has no GPU here, only %s" % jax.default_backend())
        width = int(specs[0].partition(":")[2])
        keys = jax.random.split(jax.random.PRNGKey(7))
        self.a, self.b = (jax.random.normal(k, (width, width), jnp.bfloat16) for k in keys)
        self.b = self.b / width ** 0.5

        product = jax.jit(jnp.matmul)

        def chain(a, b):
            for _ in range(models.MATMULS):
                a = product(a, b)
            return a

        @jax.jit
        def compare(bad, out, ref):
            return bad + jnp.any(out != ref).astype(jnp.int32)
        self.chain, self.compare, self.bad = chain, compare, jnp.zeros((), jnp.int32)
        self.ref = self.chain(self.a, self.b)
        self.compare(self.bad, self.ref, self.ref).block_until_ready()  # compiles
        self.hash = self._hash(self.ref)
        self.step()

    def _hash(self, out):
        import numpy
        return hashlib.sha256(numpy.asarray(out[::max(len(out) // 256, 1)]).tobytes()).hexdigest()[:16]

    def use(self, spec):
        pass

    def step(self):
        self.last = self.chain(self.a, self.b)
        return self.last

    def check(self, out):
        self.bad = self.compare(self.bad, out, self.ref)

    def sync(self):
        self.last.block_until_ready()
        self.bad.block_until_ready()

    def new_event(self):
        return self.Event(self)

    def clock(self):
        return None

    def checksums(self):
        bad = int(self.bad)
        return self._hash(self.step()) + (" %d differ" % bad if bad else "").replace(" ", "-"), self.hash


def jax_or_torch(specs):
    """JAX, or the same products in PyTorch under a name that says so."""
    try:
        return JaxBackend(specs)
    except Exception as e:
        print("JAX cannot run here (%s: %s); PyTorch multiplies the same matrices" % (type(e).__name__, e), file=sys.stderr)
    backend = TorchBackend(specs)
    backend.says = "torch-matmul"
    return backend


