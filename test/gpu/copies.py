# SPDX-License-Identifier: Apache-2.0
"""How long a copy behind a running kernel stays in its call, and whether it is over when the call returns.

The shim asks the driver what a copy waited for. It assumes an answer only for synchronous copies to the host. This
suite measures all of them, with and without XSched, and the cost of the question. As a program
(`copies.py --probe MS ROUNDS`) it prints the measurements of one process.
"""
import ctypes
import json
import os
import subprocess
import sys
import time

KERNEL_MS, ROUNDS, LIMIT_S = 20, 3, 60
SIZES = (4 << 10, 64 << 10, 65 << 10, 1 << 20)
NOT_READY = 600
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry xs_spin(.param .u64 p_out, .param .u32 p_work, .param .u32 p_seed) {
  .reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %d<4>;
  ld.param.u64 %d1, [p_out]; ld.param.u32 %r1, [p_work]; ld.param.u32 %r2, [p_seed];
  cvt.u64.u32 %d2, %r2;
LOOP:
  mad.lo.u64 %d2, %d2, 6364136223846793005, 1442695040888963407;
  sub.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra LOOP;
  cvta.to.global.u64 %d1, %d1;
  st.global.u64 [%d1], %d2;
  ret;
}
"""


class Driver:
    """The CUDA driver by ctypes, one context, one kernel of a given length."""

    def __init__(self, kernel_ms):
        self.lib, self.ms = ctypes.CDLL("libcuda.so.1"), kernel_ms
        context, module, self.function, self.stream = (ctypes.c_void_p() for _ in range(4))
        name = ctypes.create_string_buffer(64)
        self("cuInit", 0)
        self("cuDeviceGetName", name, 64, 0)
        self("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
        self("cuModuleLoadData", ctypes.byref(module), PTX)
        self("cuModuleGetFunction", ctypes.byref(self.function), module, b"xs_spin")
        self("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.device, self.out = self.allocate(1 << 21), self.allocate(4096)
        self.pinned = ctypes.c_void_p()
        self("cuMemHostAlloc", ctypes.byref(self.pinned), ctypes.c_size_t(1 << 21), 0)
        self.pageable = ctypes.create_string_buffer(1 << 21)
        ctypes.memset(self.pageable, 1, 1 << 21)
        self.work = kernel_ms * 1000  # the virtual GPU takes microseconds
        if b"virtual" not in name.value:
            self.calibrate()

    def __call__(self, name, *args):
        result = getattr(self.lib, name)(*args)
        if result:
            raise SystemExit("%s: error %d" % (name, result))

    def allocate(self, size):
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def calibrate(self):
        self.work = 10000
        for _ in range(6):
            self.launch(None)
            begun = time.perf_counter()
            self.launch(None)
            self("cuStreamSynchronize", None)
            took = (time.perf_counter() - begun) / 2
            self.work = max(1, min(int(self.work * self.ms / 1000 / max(took, 1e-6)), 1 << 31))

    def launch(self, stream):
        values = [ctypes.c_uint64(self.out.value), ctypes.c_uint32(self.work), ctypes.c_uint32(7)]
        pointers = (ctypes.c_void_p * 3)(*[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values])
        self("cuLaunchKernel", self.function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)

    def kinds(self):
        """Yields (name, memory, size, stream, call)."""
        lib = self.lib
        for size in SIZES:
            n = ctypes.c_size_t(size)
            for memory, host in (("pageable", self.pageable), ("pinned", self.pinned)):
                for name, to_host, stream in (("HtoD", False, None), ("DtoH", True, None), ("HtoDAsync", False, self.stream), ("DtoHAsync", True, self.stream)):
                    function = getattr(lib, "cuMemcpy%s_v2" % name)
                    args = ((host, self.device) if to_host else (self.device, host)) + (n,) + ((stream,) if "Async" in name else ())
                    yield name, memory, size, stream, (lambda f=function, a=args: f(*a))


def probe(kernel_ms, rounds):
    d = Driver(kernel_ms)
    rows = []
    for name, memory, size, stream, call in d.kinds():
        inside, over, whole = [], 0, []
        for _ in range(rounds):
            d.launch(stream)
            begun = time.perf_counter()
            result = call()
            returned = time.perf_counter()
            answer = d.lib.cuStreamQuery(stream)
            d("cuStreamSynchronize", stream)
            if result or answer not in (0, NOT_READY):
                raise SystemExit("%s of %d bytes: errors %d, %d" % (name, size, result, answer))
            inside.append((returned - begun) * 1e3)
            whole.append((time.perf_counter() - begun) * 1e3)
            over += answer == 0
        inside.sort()
        rows.append({"copy": name, "memory": memory, "bytes": size, "call_ms": round(inside[rounds // 2], 4),
                     "kernel_ms": round(min(whole), 2), "over": over, "of": rounds})
    costs = {}
    kind = ctypes.c_uint(0)
    for memory, host in (("pageable", ctypes.addressof(d.pageable)), ("pinned", d.pinned.value)):
        address, n = ctypes.c_uint64(host), 2000
        for question in (False, True):
            begun = time.perf_counter()
            for _ in range(n):
                if question:
                    d.lib.cuPointerGetAttribute(ctypes.byref(kind), 2, address)
                else:
                    d.lib.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p()))
            costs["%s %s" % (memory, "attribute" if question else "an empty call")] = round((time.perf_counter() - begun) / n * 1e6, 3)
    d("cuStreamSynchronize", d.stream)
    calls = {}
    for name, memory, size, stream, call in d.kinds():
        if size == SIZES[0] and name == "DtoHAsync":
            begun = time.perf_counter()
            for _ in range(500):
                call()
            calls[memory] = round((time.perf_counter() - begun) / 500 * 1e6, 3)
            d("cuStreamSynchronize", stream)
    print(json.dumps({"rows": rows, "question_us": costs, "copy_us": calls}))


def copies(rig):
    """Which copies wait, with and without XSched."""
    from processes import Failed
    from scene import check
    rig.start_daemon()
    rounds = max(round(ROUNDS * rig.scale), 1)
    argv = [sys.executable, os.path.abspath(__file__), "--probe", str(KERNEL_MS), str(rounds)]
    found = {}
    for mode in ("plain", "xsched"):
        env = dict(rig.env, **(rig.plain_env() if mode == "plain" else {}))
        env = {k: v for k, v in env.items() if v is not None}
        r = subprocess.run(argv if mode == "plain" else rig.under(argv, 0), env=env, capture_output=True, text=True, timeout=LIMIT_S)
        if r.returncode:
            raise Failed("%s: %s" % (mode, (r.stderr or r.stdout).strip()[-300:]))
        found[mode] = json.loads(r.stdout.strip().splitlines()[-1])
    rows = []
    for a, b in zip(found["plain"]["rows"], found["xsched"]["rows"]):
        rows.append({"copy": a["copy"], "memory": a["memory"], "bytes": a["bytes"], "call_ms": a["call_ms"], "over_at_return": "%d of %d" % (a["over"], a["of"]),
                     "call_ms_xsched": b["call_ms"], "over_at_return_xsched": "%d of %d" % (b["over"], b["of"])})
    early = ["%s %s %d: %d of %d over" % (r["copy"], r["memory"], r["bytes"], r["over"], r["of"]) for f in found.values() for r in f["rows"]
             if r["copy"] == "DtoH" and r["over"] < r["of"]]
    short = ["%.1f ms" % r["kernel_ms"] for f in found.values() for r in f["rows"] if r["kernel_ms"] < KERNEL_MS * 0.7]
    return {"rows": {"copies": rows}, "raw": found,
            "checks": [check("synchronous copies to the host are over when they return", early, "the shim relies on it")],
            "proof": [check("the kernel outlasts a copy that does not wait", short, "%d ms" % KERNEL_MS)],
            "notes": ["a question about a pointer takes %s us" % json.dumps(found["plain"]["question_us"]),
                      "DtoHAsync of 4 KB takes %s us, under XSched %s us" % (json.dumps(found["plain"]["copy_us"]), json.dumps(found["xsched"]["copy_us"]))]}


if __name__ == "__main__":
    if sys.argv[1:2] != ["--probe"]:
        raise SystemExit("usage: copies.py --probe MS ROUNDS")
    probe(int(sys.argv[2]), int(sys.argv[3]))
