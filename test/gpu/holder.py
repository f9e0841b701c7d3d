#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that holds device memory and proves that its content is right, whatever moves it meanwhile. Line protocol:

    in:  alloc UNITS | loop | pause | check | quit
    out: R, then A MS ERROR | I BEGIN END for each iteration | P | C ITERATIONS WRONG BYTES | S ITERATIONS EXPECTED GOT

A unit is --unit bytes. Each case keeps a state that repeats after PERIOD iterations. It records what the state is after each of them
before the first move, so every iteration can be checked, and each reads and writes all of its memory."""
import argparse
import ctypes
import os
import select
import struct
import sys
import threading
import time

PERIOD = 8
KEYS = [0x11111111, 0x2468ACE0, 0x0F0F0F0F, 0x13579BDF, 0x77777777, 0x01234567, 0x3C3C3C3C]
KEYS.append(0)
for key in KEYS[:-1]:
    KEYS[-1] ^= key  # all together change nothing


class Torch:
    """Blocks of memory that each iteration changes, and products of matrices that must stay as they are."""

    def __init__(self, unit, block_units, matrix=4096):
        import torch
        self.torch, self.unit, self.block_units, self.matrix = torch, unit, block_units, matrix
        torch.manual_seed(1)
        torch.zeros(1, device="cuda")
        self.blocks, self.weights, self.sums, self.wrong_tensor = [], [], [], None

    def alloc(self, units):
        words = self.block_units * self.unit // 4
        for _ in range(units // self.block_units):
            self.blocks.append(self.torch.empty(words, dtype=self.torch.int32, device="cuda"))
        self.torch.cuda.synchronize()

    def start(self):
        torch = self.torch
        for i, b in enumerate(self.blocks):
            torch.manual_seed(i)
            b.random_()
        for _ in range(2):
            self.weights.append(torch.randn(self.matrix, self.matrix, device="cuda", dtype=torch.bfloat16))
        self.product = self.multiply()
        self.wrong_tensor = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.sums = []
        for n in range(PERIOD):
            self.sums.append(self.digest())
            self.change(n)
        torch.cuda.synchronize()

    def multiply(self):
        y = self.weights[0] @ self.weights[1]
        return y @ self.weights[0]

    def change(self, n):
        for b in self.blocks:
            b.bitwise_xor_(KEYS[n % PERIOD])

    def digest(self):
        """Sums of the rows of every block."""
        return [b.view(256, -1).sum(1, dtype=self.torch.int64).cpu() for b in self.blocks]

    def step(self, n):
        self.change(n)
        self.wrong_tensor += (self.multiply() != self.product).any()
        self.torch.cuda.synchronize()

    def wrong(self, n):
        """How many blocks and products are not what they were before."""
        want, have = self.sums[n % PERIOD], self.digest()
        return sum(not self.torch.equal(a, b) for a, b in zip(want, have)) + int(self.wrong_tensor.item())

    def used(self):
        return self.torch.cuda.memory_allocated()


class Churn(Torch):
    """Besides, allocates and frees memory of many sizes in every iteration."""
    SIZES = [3 << 10, 1 << 20, 5 << 20, 33 << 20, 64 << 20, 130 << 20]

    def step(self, n):
        torch = self.torch
        kept = []
        for i, size in enumerate(self.SIZES):
            t = torch.full((size // 4,), n % 1000 + i, dtype=torch.int32, device="cuda")
            kept.append((t, (n % 1000 + i) * (size // 4)))
        for t, total in kept:
            self.wrong_tensor += t.sum(dtype=torch.int64) != total
        del kept
        if n % 4 == 0:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # gives the memory to the driver
        super().step(n)


class Graphs(Torch):
    """The iterations are graphs: their addresses were captured."""

    def start(self):
        torch = self.torch
        super().start()
        self.graphs = []
        for n in range(PERIOD):
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                self.change(n)
                self.wrong_tensor += (self.multiply() != self.product).any()
            self.graphs.append(g)
        torch.cuda.synchronize()

    def step(self, n):
        self.graphs[n % PERIOD].replay()
        self.torch.cuda.synchronize()


class Threads(Torch):
    """Four threads with a stream each change a part of the blocks."""
    COUNT = 4

    def start(self):
        super().start()
        self.streams = [self.torch.cuda.Stream() for _ in range(self.COUNT)]

    def step(self, n):
        def part(i):
            with self.torch.cuda.stream(self.streams[i]):
                for b in self.blocks[i::self.COUNT]:
                    b.bitwise_xor_(KEYS[n % PERIOD])
                self.streams[i].synchronize()
        threads = [threading.Thread(target=part, args=(i,)) for i in range(self.COUNT)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.wrong_tensor += (self.multiply() != self.product).any()
        self.torch.cuda.synchronize()


class Triton(Torch):
    """The change is a kernel of Triton."""

    def start(self):
        import triton
        import triton.language as tl

        @triton.jit
        def change(data, words, key, BLOCK: tl.constexpr):
            at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            mask = at < words
            tl.store(data + at, tl.load(data + at, mask=mask) ^ key, mask=mask)
        self.kernel = change
        super().start()

    def change(self, n):
        for b in self.blocks:
            self.kernel[((b.numel() + 1023) // 1024,)](b, b.numel(), KEYS[n % PERIOD], BLOCK=1024)


class Ipc(Torch):
    """Another process reads a block that this one exports."""

    def start(self):
        super().start()
        import torch.multiprocessing as mp
        context = mp.get_context("spawn")
        self.ask, self.answer = context.SimpleQueue(), context.SimpleQueue()
        self.shared = self.torch.arange(1 << 20, dtype=self.torch.int64, device="cuda")
        self.child = context.Process(target=read_shared, args=(self.ask, self.answer), daemon=True)
        self.child.start()
        self.ask.put(self.shared)

    def step(self, n):
        super().step(n)
        if n % 16 == 0:
            self.ask.put(n)
            words = 1 << 20
            self.wrong_tensor += int(self.answer.get() != words * (words - 1) // 2)


def read_shared(ask, answer):
    shared = ask.get()
    while True:
        ask.get()
        answer.put(int(shared.sum().item()))


class Jax:
    def __init__(self, unit, block_units):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
        import jax.numpy as jnp
        if jax.devices()[0].platform == "cpu":
            raise RuntimeError("JAX found no GPU")
        self.jax, self.jnp, self.unit, self.block_units, self.bad, self.units = jax, jnp, unit, block_units, 0, 0

    def alloc(self, units):
        self.units = units

    def start(self):
        jax, jnp = self.jax, self.jnp
        words = self.block_units * self.unit // 4
        self.change = jax.jit(lambda x, key: x ^ key, donate_argnums=0)
        self.sum = jax.jit(lambda x: jnp.sum(x.reshape(256, -1), axis=1, dtype=jnp.int32))  # wraps
        self.blocks = [(jax.lax.iota(jnp.int32, words) * 2654435 + i) for i in range(max(1, self.units // self.block_units))]
        self.sums = []
        for n in range(PERIOD):
            self.sums.append(self.digest())
            self.step(n)

    def digest(self):
        return [tuple(int(v) for v in self.sum(b)) for b in self.blocks]

    def step(self, n):
        self.blocks = [self.change(b, self.jnp.int32(KEYS[n % PERIOD])) for b in self.blocks]
        for b in self.blocks:
            b.block_until_ready()

    def wrong(self, n):
        return sum(a != b for a, b in zip(self.sums[n % PERIOD], self.digest()))

    def used(self):
        return sum(b.nbytes for b in self.blocks)


class Cupy:
    def __init__(self, unit, block_units):
        import cupy
        self.cupy, self.unit, self.block_units, self.units = cupy, unit, block_units, 0
        cupy.zeros(1)

    def alloc(self, units):
        self.units = units

    def start(self):
        cupy = self.cupy
        words = self.block_units * self.unit // 4
        self.blocks = [cupy.arange(words, dtype=cupy.int32) * 2654435 + i for i in range(max(1, self.units // self.block_units))]
        self.sums = []
        for n in range(PERIOD):
            self.sums.append(self.digest())
            self.step(n)

    def digest(self):
        return [tuple(self.cupy.sum(b.reshape(256, -1), axis=1, dtype=self.cupy.int64).get()) for b in self.blocks]

    def step(self, n):
        for b in self.blocks:
            b ^= self.cupy.int32(KEYS[n % PERIOD])
        self.cupy.cuda.Stream.null.synchronize()

    wrong = Jax.wrong
    used = Jax.used


class Virtual:
    """Without PyTorch: kernels of the virtual GPU, which fold their number into a word of each block."""
    KERNEL_US = 20

    def __init__(self, unit, block_units):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.unit, self.block_units, self.blocks, self.seen, self.words = unit, block_units, [], 0, []
        context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), b".visible .entry xs_spin()")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"xs_spin")
        self.function = function

    def call(self, name, *args):
        code = getattr(self.cuda, name)(*args)
        if code:
            raise MemoryError("%s: %d" % (name, code)) if code == 2 else RuntimeError("%s: %d" % (name, code))

    def alloc(self, units):
        for _ in range(units // self.block_units):
            address = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.block_units * self.unit))
            self.blocks.append(address)

    def start(self):
        for i, b in enumerate(self.blocks):
            self.call("cuMemsetD32_v2", b, ctypes.c_uint32(i * 7 + 1), ctypes.c_size_t(self.block_units * self.unit // 4))
        self.call("cuCtxSynchronize")
        self.words = [(i * 7 + 1) << 32 | (i * 7 + 1) for i in range(len(self.blocks))]
        self.seen = 0

    def step(self, n):
        for i, b in enumerate(self.blocks):
            us, seed = ctypes.c_uint32(self.KERNEL_US), ctypes.c_uint32((n + i) & 0xFFFF)
            arguments = (ctypes.c_void_p * 3)(ctypes.cast(ctypes.byref(b), ctypes.c_void_p), ctypes.cast(ctypes.byref(us), ctypes.c_void_p),
                                              ctypes.cast(ctypes.byref(seed), ctypes.c_void_p))
            self.call("cuLaunchKernel", self.function, 8, 1, 1, 32, 1, 1, 0, None, arguments, None)
        self.call("cuCtxSynchronize")

    def fold(self, word, seed):
        for block in range(self.KERNEL_US // 10):
            word ^= seed << 32 | block
            word = (word << 23 | word >> 41) & (1 << 64) - 1
            word = (word * 0x9E3779B97F4A7C15 + 1) & (1 << 64) - 1
        return word

    def wrong(self, n):
        bad, size = 0, self.block_units * self.unit
        buffer = ctypes.create_string_buffer(size)
        for i, b in enumerate(self.blocks):
            for k in range(self.seen, n):
                self.words[i] = self.fold(self.words[i], (k + i) & 0xFFFF)
            self.call("cuMemcpyDtoH_v2", buffer, b, ctypes.c_size_t(size))
            filled = i * 7 + 1
            want = struct.pack("<QQ", self.words[i], (filled << 32 | filled) + n) + struct.pack("<I", filled) * (size // 4 - 4)
            bad += buffer.raw != want
        self.seen = n
        return bad

    def used(self):
        return len(self.blocks) * self.block_units * self.unit


CASES = {"torch": Torch, "churn": Churn, "graphs": Graphs, "threads": Threads, "triton": Triton, "ipc": Ipc, "jax": Jax, "cupy": Cupy,
         "virtual": Virtual}


class Holder:
    def __init__(self, case, out_fd):
        self.case, self.out, self.buffer, self.mode, self.n, self.bad, self.started = case, out_fd, b"", "pause", 0, 0, False

    def say(self, text):
        os.write(self.out, (text + "\n").encode())

    def commands(self, wait):
        if select.select([0], [], [], None if wait else 0)[0]:
            data = os.read(0, 4096)
            if not data:
                self.mode = "quit"
            self.buffer += data
        while b"\n" in self.buffer:
            line, self.buffer = self.buffer.split(b"\n", 1)
            self.command(line.decode().split())

    def command(self, words):
        if words[0] == "alloc":
            begun, error = time.monotonic(), "-"
            try:
                self.case.alloc(int(words[1]))
            except Exception as e:  # out of memory has a different type in each framework
                error = type(e).__name__
            took = (time.monotonic() - begun) * 1000
            if error == "-":
                self.case.start()
                self.n = 0
            self.say("A %.2f %s" % (took, error))
        elif words[0] == "check":
            self.check()
            self.say("C %d %d %d" % (self.n, self.bad, self.case.used()))
        elif words[0] == "step":
            self.iterate()
        elif words[0] in ("loop", "pause", "quit"):
            self.mode = words[0]
            if self.mode == "pause":
                self.say("P")

    def check(self):
        self.bad += self.case.wrong(self.n)

    def iterate(self):
        begun = time.monotonic_ns()
        self.case.step(self.n)
        self.n += 1
        self.say("I %d %d" % (begun, time.monotonic_ns()))

    def run(self):
        self.say("R")
        while self.mode != "quit":
            self.commands(self.mode == "pause")
            if self.mode == "loop":
                self.iterate()
        self.check()
        self.say("S %d 0 %d" % (self.n, self.bad))
        return 1 if self.bad else 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--case", choices=sorted(CASES), default="torch")
    p.add_argument("--unit", type=int, default=1 << 30)
    p.add_argument("--block", type=int, default=1, help="units of a block")
    a = p.parse_args()
    out_fd = os.dup(1)
    os.dup2(2, 1)  # keeps output of libraries out of the protocol
    try:
        return Holder(CASES[a.case](a.unit, a.block), out_fd).run()
    except BrokenPipeError:
        return 1
    except Exception as e:  # the harness reports E lines
        os.write(out_fd, ("E %s: %s\n" % (type(e).__name__, str(e).replace("\n", " ")[:300])).encode())
        raise


if __name__ == "__main__":
    sys.exit(main())
