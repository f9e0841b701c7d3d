# SPDX-License-Identifier: Apache-2.0
"""What the hardware's switch away from a job's kernel costs a request, by job.

The service is a decode step of an LLM as a CUDA graph. Its latency beside a job has two additional parts. The GPU leaves the
job's kernel before the service's first kernel starts, and the step itself may run slower, for example at a lower clock.
TorchBackend.parts_us separates them. The daemon does not act on these requests, so both parts are the hardware's.
"""
import threading
import time

import inference
from nvml import Nvml
from processes import Failed
from scene import check, ended_well, slices_fit

SERVICE = "llm-graph"
# job, process, model
CASES = [("GPT-2 training", "low1", "gpt2:8"), ("tiny kernels", "low1", "tiny:1000"), ("FFTs", "low1", "fft"),
         ("matrix products of 2048, PyTorch", "low1", "matmul:2048"), ("matrix products of 8192, PyTorch", "low1", "matmul:8192"),
         ("prefill", "low2", "prefill:4"), ("matrix products of 8192, JAX", "low3", "matmul:8192"), ("20 ms kernels", "spin", None)]
SPIN = dict(inference.SPIN, **{"matmul:2048": "spin:30x8"})
WARM_S, REQUESTS = 0.6, 200
FEW = 0.05  # requests that may meet a suspension: the results are medians


class Sampler(threading.Thread):
    """Reads clock, power and throttle reasons every 20 ms until it is stopped."""

    def __init__(self, nvml):
        super().__init__(daemon=True)
        self.nvml, self.rows, self.done = nvml, [], threading.Event()

    def run(self):
        while not self.done.wait(0.02):
            self.rows.append(self.nvml.clocks())

    def stop(self):
        self.done.set()
        self.join(2)
        rows = [r for r in self.rows if r]
        if not rows:
            return {}
        mid = sorted(rows)[len(rows) // 2]
        return {"sm_mhz": mid[0], "power_w": round(sorted(r[1] for r in rows)[len(rows) // 2]),
                "throttled": hex(max((r[2] for r in rows), key=[r[2] for r in rows].count))}


def case(rig, nvml, high, low, label):
    """Measures the service beside low, or alone. Returns the row and what was wrong."""
    rig.mode("live" if low else "off")
    if low:
        low.tell("loop")
        high.tell("jitter 100 warm")
        time.sleep(WARM_S)
        high.pause()
    before, clocks, requests = rig.stats(), Sampler(nvml), max(int(REQUESTS * rig.scale), 20)
    clocks.start()
    step, rest = (float(us) / 1000 for us in high.ask("parts %d" % requests, "H", 60))
    row, after = dict({"job": label}, **clocks.stop()), rig.stats()
    bad = []
    if low:
        procs = rig.list()
        found = {w.name: [q["slice_us"] for q in procs.get(w.pid, {}).get("queues", [])] for w in (high, low)}
        if not slices_fit("live", found, high.name):
            bad.append("%s: timeslices %s" % (label, found))
        low.pause()
    row.update(step_p50_ms=round(step, 3), rest_p50_ms=round(rest, 3), suspends=after["suspends"] - before["suspends"])
    if row["suspends"] > FEW * requests:
        bad.append("%s: %d suspensions in %d requests" % (label, row["suspends"], requests))
    return row, bad


def switch(rig):
    """The parts of a request's latency beside each job, under timeslices."""
    real = SPIN.get if rig.virtual else lambda model: model
    rig.start_daemon()
    rig.mode("off")
    lows, models = {"spin": rig.spin("spin", 20000, 0).ready(30)}, {}  # calibrates its kernel, so it must be alone
    for _, process, model in CASES:
        if model:
            models.setdefault(process, []).append(real(model))
    high = rig.torch("high", [real(SERVICE)], 10, role="high")
    lows.update({p: rig.torch(p, some, 0, backend=inference.BACKENDS.get(p, "torch")) for p, some in models.items()})
    for w in [high] + list(lows.values()):
        w.ready(200)
    rig.joined([high] + list(lows.values()))
    high.tell("jitter 100 warm")
    time.sleep(WARM_S)
    high.pause()
    nvml = Nvml()
    rows, wrong, notes = [], [], []
    alone, bad = case(rig, nvml, high, None, "none")
    rows.append(alone)
    wrong += bad
    for label, process, model in CASES:
        low = lows[process]
        try:
            if model:
                low.use(real(model))
            row, bad = case(rig, nvml, high, low, label)
        except Failed as e:
            notes.append("%s: not measured: %s" % (label, e))
            continue
        rows.append(row)
        wrong += bad
    for row in rows[1:]:
        row["step_slower_ms"] = round(row["step_p50_ms"] - alone["step_p50_ms"], 3)
        row["switch_ms"] = round(row["rest_p50_ms"] - alone["rest_p50_ms"], 3)
    proof = [check("timeslices of XSched, hardly a suspension", wrong, "beside %d jobs" % (len(rows) - 1)), ended_well(rig.end([high] + list(lows.values())))]
    return {"rows": {"switch": rows}, "requests": max(int(REQUESTS * rig.scale), 20), "proof": proof, "notes": notes}
