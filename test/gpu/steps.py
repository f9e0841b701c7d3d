#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Covers the ways in which PyTorch uses a GPU. The program does not use XSched.

Prints `H section hash...` or `X section error` for every section. Around profiled sections it prints `C name begin|end`
and waits for a line, then `N name launches kernels` with the counts of torch.profiler. The harness runs it with and
without the shim: hashes must be equal, and launches must equal the shim's count between begin and end.
"""
import hashlib
import os
import sys
import threading
import time
import traceback

out_fd = os.dup(1)


def say(*words):
    os.write(out_fd, (" ".join(str(w) for w in words) + "\n").encode())


def forked(queue):
    """First use of the GPU in a child process."""
    try:
        import torch
        torch.manual_seed(3)
        x = torch.randn(512, 512).cuda()
        queue.put(digest(x @ x))
    except Exception as e:
        queue.put("error: %s" % e)


def digest(*tensors):
    import torch
    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()[:16]


def multiprocess(method):
    import torch.multiprocessing as mp
    ctx = mp.get_context(method)
    queue = ctx.Queue()
    children = [ctx.Process(target=forked, args=(queue,)) for _ in range(2)]
    for c in children:
        c.start()
    found = [queue.get(timeout=80) for _ in children]
    for c in children:
        c.join(20)
        if c.is_alive():
            c.kill()
            raise RuntimeError("a child did not exit")
    if any(f.startswith("error") for f in found) or any(c.exitcode for c in children):
        raise RuntimeError("%s, exit codes %s" % (found, [c.exitcode for c in children]))
    return found


def tensor_ops(torch):
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    y = torch.sin(x) * 2 + torch.sqrt(x + 1)
    z = y.view(1024, 1024).t().contiguous().cumsum(1)
    return [digest(y, z, z.sort(1).values, (x > 100).nonzero())]


def matmul(torch):
    a, b = torch.randn(2048, 2048, device="cuda"), torch.randn(2048, 2048, device="cuda")
    half = a.bfloat16() @ b.bfloat16()
    return [digest(a @ b), digest(half), digest(torch.bmm(a.view(8, 256, 2048), b.view(8, 2048, 256)))]


def convolution(torch):
    x, w = torch.randn(16, 64, 56, 56, device="cuda"), torch.randn(128, 64, 3, 3, device="cuda")
    return [digest(torch.nn.functional.conv2d(x, w, padding=1))]


def small_model(torch):
    """A few training steps: forward, backward, optimiser."""
    nn = torch.nn
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.GELU(), nn.Linear(256, 10)).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(128, 256, device="cuda"), torch.randint(0, 10, (128,), device="cuda")
    for _ in range(20):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
    return [digest(*model.parameters())]


def resnet(torch):
    import torchvision
    model = torchvision.models.resnet18(weights=None).cuda().eval()
    x = torch.randn(4, 3, 224, 224, device="cuda")
    with torch.no_grad():
        return [digest(model(x))]


def graph(torch):
    x = torch.randn(1024, 1024, device="cuda") / 32
    y = x.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            y.copy_(torch.tanh(y @ x))
    torch.cuda.current_stream().wait_stream(side)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(10):
            y.copy_(torch.tanh(y @ x))
    for _ in range(20):
        g.replay()
    torch.cuda.synchronize()
    return [digest(y)]


def compiled(torch):
    def f(a, b):
        return torch.nn.functional.gelu(a * 2 + b).sum(1) + torch.cos(b).mean(1)
    a, b = torch.randn(512, 1024, device="cuda"), torch.randn(512, 1024, device="cuda")
    fast = torch.compile(f)
    for _ in range(3):
        y = fast(a, b)
    return [digest(y)]


try:
    import triton
    import triton.language as tl

    @triton.jit
    def triton_add(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < n
        tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)
except ImportError:
    triton = None


def triton_run(torch, times=10):
    x, y = torch.randn(1 << 16, device="cuda"), torch.randn(1 << 16, device="cuda")
    out = torch.empty_like(x)
    for _ in range(times):
        triton_add[(64,)](x, y, out, x.numel(), BLOCK=1024)
    if not torch.equal(out, x + y):
        raise RuntimeError("the Triton kernel computed something else")
    return [digest(out)]


def multi_stream(torch):
    streams = [torch.cuda.Stream(priority=-(i % 2)) for i in range(8)]
    xs = [torch.randn(512, 512, device="cuda") / 23 for _ in streams]
    torch.cuda.synchronize()
    out = []
    for s, x in zip(streams, xs):
        with torch.cuda.stream(s):
            y = x
            for _ in range(30):
                y = torch.tanh(y @ x)
            out.append(y)
    torch.cuda.synchronize()
    return [digest(*out)]


def multi_thread(torch):
    xs = [torch.randn(512, 512, device="cuda") / 23 for _ in range(4)]
    torch.cuda.synchronize()
    out = [None] * 4

    def body(i):
        y = xs[i]
        for _ in range(30):
            y = torch.tanh(y @ xs[i])
        torch.cuda.current_stream().synchronize()
        out[i] = y
    threads = [threading.Thread(target=body, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return [digest(*out)]


class Numbers:
    def __len__(self):
        return 256

    def __getitem__(self, i):
        import torch
        return torch.full((64,), float(i))


def dataloader(torch):
    """Workers fork after the parent created a context."""
    w = torch.randn(64, 64, device="cuda")
    found = []
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=64, num_workers=2, pin_memory=True, timeout=60):
        found.append(digest(batch.cuda(non_blocking=True) @ w))
    return found


def profiled(torch):
    """Sections under torch.profiler, whose launches must equal the shim's count."""
    import torchvision
    from torch.profiler import ProfilerActivity, profile
    model = torchvision.models.resnet18(weights=None).cuda().eval()
    x = torch.randn(1, 3, 224, 224, device="cuda")
    a = torch.randn(1024, 1024, device="cuda")
    y = torch.empty_like(a)
    g = torch.cuda.CUDAGraph()
    torch.tanh(a @ a)
    torch.cuda.synchronize()
    with torch.cuda.graph(g):
        y.copy_(torch.tanh(a @ a))

    def resnet_part():
        with torch.no_grad():
            for _ in range(5):
                model(x)

    def ops_part():
        z = a
        for _ in range(50):
            z = torch.tanh(z @ a).mul_(0.03)

    def graph_part():
        for _ in range(10):
            g.replay()

    parts = {"resnet18": resnet_part, "ops": ops_part, "graph": graph_part}
    if triton:
        parts["triton"] = lambda: triton_run(torch)
    for part in parts.values():
        part()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]):  # initializes CUPTI
        torch.cuda.synchronize()
    calls = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cudaGraphLaunch",
             "cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch")
    for name, part in parts.items():
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
            checkpoint(name, "begin")
            part()
            torch.cuda.synchronize()
            checkpoint(name, "end")
        launches, kernels, seen = 0, 0, {}
        for e in prof.events():
            base = e.name.split("_v")[0].removesuffix("_ptsz")
            if base in calls:
                launches += 1
                seen[base] = seen.get(base, 0) + 1
            elif "CUDA" in str(e.device_type) and not e.name.startswith(("Memcpy", "Memset", "Activity", "ProfilerStep")):
                kernels += 1
        say("N", name, launches, kernels, ",".join("%s=%d" % kv for kv in sorted(seen.items())) or "-")


def checkpoint(name, where):
    say("C", name, where)
    if not sys.stdin.readline():
        raise SystemExit(1)


def section(name, f, *args):
    start = time.monotonic()
    try:
        found = f(*args)
        say("H", name, *(found or ["-"]))
    except Exception as e:
        traceback.print_exc()
        say("X", name, type(e).__name__, str(e).replace("\n", " ")[:200])
    say("T", name, "%.2f" % (time.monotonic() - start))


def main():
    os.dup2(2, 1)
    say("R")
    section("fork_before_CUDA", multiprocess, "fork")
    import torch
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    for name, f in (("step 1 tensor ops", tensor_ops), ("step 2 matmul", matmul), ("step 3 convolution", convolution),
                    ("step 4 small model", small_model), ("step 5 ResNet-18", resnet), ("CUDA graph", graph),
                    ("several streams", multi_stream), ("several threads", multi_thread), ("DataLoader workers", dataloader)):
        torch.manual_seed(11)
        section(name.replace(" ", "_"), f, torch)
    section("spawn", multiprocess, "spawn")
    if triton:
        torch.manual_seed(11)
        section("Triton_kernel", triton_run, torch)
    torch.manual_seed(11)
    section("torch.compile", compiled, torch)
    section("profiled", profiled, torch)
    say("P")
    sys.stdin.readline()


if __name__ == "__main__":
    main()
