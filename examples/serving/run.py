# SPDX-License-Identifier: Apache-2.0
"""Measures a model server alone, beside a training job, and beside it under XSched.

One server, one job and one daemon run all the time. Blocks of load alternate between the modes, so
that drift of the machine affects all of them. The table appears only with proof; see proof.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import backend
import load
import proof
from processes import Failed, Process, World, get, wait_for

# mode -> argument of `xsched mode`, server under load, job runs
MODES = {"alone": ("off", True, False), "native": ("off", True, True), "xsched": ("live", True, True), "job alone": ("off", False, True)}
TITLES = {"alone": "alone", "native": "native", "xsched": "XSched"}
SETTLE_S = 0.3  # the mode takes effect
LOOK_S = 0.1  # between looks at the device


@dataclass
class Block:
    mode: str
    start_ns: int = 0
    end_ns: int = 0
    samples: list[load.Sample] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)  # changes of the daemon's counters
    protection: list[dict] = field(default_factory=list)  # of the server, at the end
    slices: list[dict[str, int]] = field(default_factory=list)  # timeslices set by XSched, in us
    device: list[dict[str, int]] = field(default_factory=list)  # timeslices in force, by the virtual GPU's own record
    preempted: int | None = None  # kernels of the job stopped midway, by the virtual GPU's own record


class Example:
    def __init__(self, world: World, a: argparse.Namespace) -> None:
        self.world, self.a = world, a
        self.blocks: list[Block] = []
        self.job = world.program(["--priority", "-10"], "job.py")
        self.server = world.program([], "server.py", "--port", "0")
        self.url = f"http://127.0.0.1:{json.loads(self.server.expect('{'))['port']}"
        wait_for("the server is ready", lambda: get(self.url + "/v2/health/ready")[0] == 200 or self.gone())
        self.job.expect("ready")
        self.check = load.Checker(get(self.url + "/v2/models/encoder")[1]["platform"])
        self.state = "paused"

    def gone(self) -> bool:
        if self.server.p.poll() is not None:
            raise Failed(f"the server exited with code {self.server.p.returncode}")
        return False

    def set_job(self, runs: bool) -> None:
        if runs != (self.state == "run"):
            self.job.tell("run" if runs else "pause")
            self.state = "run" if runs else self.job.expect("paused")

    def counters(self) -> dict[str, int]:
        s = self.world.cli("list", "--stats", "--json")
        return {k: s[k] for k in ("suspends", "resumes", "gate_holds", "timeslice_sets", "device_errors")}

    def both(self) -> tuple[tuple[str, Process], ...]:
        return ("server", self.server), ("job", self.job)

    def slices(self) -> dict[str, int]:
        found = self.world.processes()
        return {name: max((q["slice_us"] for q in found.get(p.pid, {}).get("queues", [])), default=0) for name, p in self.both()}

    def device_slices(self) -> list[dict[str, int]]:
        device = self.world.device()
        return [{name: device.get(p.pid, {}).get("slice_ns", 0) // 1000 for name, p in self.both()}] if device else []

    def set_mode(self, xmode: str) -> None:
        """Sets the mode of the daemon and waits until it is in force."""
        self.world.cli("mode", xmode)
        time.sleep(SETTLE_S)

        def off() -> bool:
            before = self.counters()
            restored = not any(self.slices().values()) and not any(d["server"] != d["job"] for d in self.device_slices())
            return restored and self.counters() == before  # no operation is in flight
        if xmode == "off":
            wait_for("mode off", off)

    def warm_up(self) -> None:
        """Both programs run once, and the daemon must know them."""
        load.send(self.url + load.INFER, [0.0] * 16, load.request)
        self.set_job(True)
        wait_for("the job runs", lambda: any(line.startswith("step") for line in self.job.lines))
        self.set_job(False)

        def known() -> bool:
            found = self.world.processes()
            return all(found.get(p.pid, {}).get("queues") for p in (self.server, self.job))
        try:
            wait_for("the daemon knows both programs", known, self.a.join_s)
        except Failed as e:
            raise proof.Missing(f"no interception: {e}") from e

    def block(self, mode: str, turn: int) -> None:
        xmode, served, runs = MODES[mode]
        self.set_job(runs)
        self.set_mode(xmode)
        b, before, device = Block(mode), self.counters(), self.device_preempted()
        b.start_ns = time.monotonic_ns()
        if served:
            # The blocks of a round have equal arrivals.
            arrivals = load.poisson(self.a.rate, self.a.seconds, f"{self.a.seed}-{turn}")
            b.slices.append(self.slices())
            with ThreadPoolExecutor(1) as pool:
                sent = pool.submit(load.send, self.url + load.INFER, arrivals, load.request, self.check)
                while not wait([sent], LOOK_S).done:
                    b.device += self.device_slices()
            b.samples = sent.result()
            b.slices.append(self.slices())
        time.sleep(max(b.start_ns / 1e9 + self.a.seconds - time.monotonic(), 0))
        b.end_ns = time.monotonic_ns()
        b.counted = {k: v - before[k] for k, v in self.counters().items()}
        b.protection = self.world.processes().get(self.server.pid, {}).get("protection", [])
        b.preempted = None if device is None else self.device_preempted() - device
        self.blocks.append(b)

    def device_preempted(self) -> int | None:
        return self.world.device().get(self.job.pid, {}).get("preemptions", 0) if self.world.virtual else None

    def measure(self) -> None:
        for turn in range(self.a.rounds):
            names = list(MODES)
            for mode in names[turn % len(names):] + names[:turn % len(names)]:
                self.block(mode, turn)
        self.set_job(False)
        self.world.cli("mode", "live")

    def launches(self) -> dict[str, tuple[int | None, int, int | None]]:
        """Launches of each program: by itself, by the shim, and by the device. The first and the last may be unknown."""
        own = {"server": get(self.url + "/v2/models/encoder/stats")[1].get("launches"), "job": self.state.split()[3]}
        own["job"] = None if own["job"] == "None" else int(own["job"])

        def read() -> dict[str, tuple[int | None, int, int | None]]:
            shim, device = self.world.processes(), self.world.device()
            return {name: (own[name], shim.get(p.pid, {}).get("counters", {}).get("launches", 0), device.get(p.pid, {}).get("kernels"))
                    for name, p in self.both()}
        if own["server"] is not None:  # the shim publishes its counters once per tick
            try:
                wait_for("the counters agree", lambda: all(len(set(counts)) == 1 for counts in read().values()), 10)
            except Failed:
                pass  # proof.py says what differs
        return read()

    def finish(self) -> proof.Ending:
        launches = self.launches()
        _, steps, wrong, _ = self.state.split()
        code = self.server.end()
        counters = json.loads(self.server.expect("{")) if code == 0 else {}
        self.job.tell("quit")
        return proof.Ending(launches, int(steps), int(wrong), code, self.job.p.wait(60), counters, self.check.checked)


def job_rate(job: Process, blocks: list[Block]) -> float:
    """Steps per second inside the blocks; a step at an edge counts with its part inside."""
    steps = [tuple(map(int, line.split()[1:])) for line in job.lines if line.startswith("step")]
    done = sum(max(min(end, b.end_ns) - max(start, b.start_ns), 0) / max(end - start, 1) for b in blocks for start, end in steps)
    return done / (sum(b.end_ns - b.start_ns for b in blocks) / 1e9)


def results(example: Example) -> dict[str, dict]:
    by_mode = {m: [b for b in example.blocks if b.mode == m] for m in MODES}
    alone, out = job_rate(example.job, by_mode["job alone"]), {}
    for mode in TITLES:
        samples = [s for b in by_mode[mode] for s in b.samples]
        out[mode] = dict(load.summary(samples), kept=job_rate(example.job, by_mode[mode]) / alone if MODES[mode][2] and alone else None,
                         latencies_ms=[round(s.latency_ms, 3) for s in samples if s.status == 200])
    return out


def table(found: dict[str, dict]) -> str:
    def ms(v: float) -> str:
        return "refused" if math.isinf(v) else f"{v:.2f} ms"
    lines = [f"{'':8} {'P50':>10} {'P99':>10} {'requests':>9} {'refused':>8} {'job keeps':>10}"]
    for mode, r in found.items():
        kept = "-" if r["kept"] is None else f"{100 * r['kept']:.0f} %"
        lines.append(f"{TITLES[mode]:8} {ms(r['p50_ms']):>10} {ms(r['p99_ms']):>10} {r['requests']:>9} {r['refused']:>8} {kept:>10}")
    return "\n".join(lines)


def picture(xsched: str, title: str, found: dict[str, dict]) -> str:
    """Drawn by the project's renderer."""
    curves = [{"name": mode, "values": r["latencies_ms"]} for mode, r in found.items() if r["latencies_ms"]]
    page = {"title": title, "blocks": [{"heading": title, "curves": curves}]}
    return subprocess.run([xsched, "render", "--svg"], input=json.dumps(page), stdout=subprocess.PIPE, text=True, check=True).stdout


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="run.sh", description="Measures a model server beside a training job, without and with XSched.")
    p.add_argument("--rate", type=float, default=40, help="requests per second (default 40)")
    p.add_argument("--seconds", type=float, default=4, help="length of a block (default 4)")
    p.add_argument("--rounds", type=int, default=4, help="blocks of each mode (default 4)")
    p.add_argument("--short", action="store_true", help="one round of 1.5 s, as in the tests")
    p.add_argument("--seed", default="1", help="seed of the arrivals")
    p.add_argument("--backend", choices=sorted(backend.NAMES), default=None, help="default: pytorch if it finds a GPU")
    p.add_argument("--svg", metavar="FILE", help="draw the latencies")
    p.add_argument("--json", metavar="FILE", help="write all numbers")
    p.add_argument("--join-s", type=float, default=20, help="time for the programs to join the daemon (default 20)")
    a = p.parse_args()
    a.rounds, a.seconds = (1, 1.5) if a.short else (a.rounds, a.seconds)
    a.backend = a.backend or backend.detect()
    if a.rate <= 0 or a.seconds <= 0 or a.rounds < 1:
        p.error("--rate, --seconds and --rounds must be positive")
    return a


def main() -> int:
    a = arguments()
    world = None
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -15)  # other programs of the machine must not decide the latencies
    except OSError:
        pass  # needs a privilege
    try:
        world = World(a.backend)
        example = Example(world, a)
        example.warm_up()
        example.measure()
        evidence = proof.collect(example.blocks, example.finish(), world.virtual)
        found = results(example)
    except proof.Missing as e:
        print(f"serving: no comparison: {e}", file=sys.stderr)
        return 1
    except (Failed, OSError, subprocess.SubprocessError) as e:
        print(f"serving: {e}", file=sys.stderr)
        return 1
    finally:
        if world:
            world.close()
    where = "virtual GPU" if world.virtual else "GPU"
    print(f"{where}, {a.rate:g} requests/s, {a.rounds} x {a.seconds:g} s per mode, {os.cpu_count()} CPUs\n\n{table(found)}\n")
    for line in evidence:
        print("proof:", line)
    for mode, r in found.items():
        if late := load.lateness(r):
            print(f"serving: warning: {TITLES[mode]}: {late}", file=sys.stderr)
    if a.svg:
        with open(a.svg, "w") as f:
            f.write(picture(world.xsched, f"Latency of the server ({where})", found))
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"backend": a.backend, "rate": a.rate, "modes": found, "proof": evidence,
                       "protection": [b.protection for b in example.blocks if b.mode == "xsched"]}, f)
    return 0


if __name__ == "__main__":
    sys.exit(main())
