# SPDX-License-Identifier: Apache-2.0
"""Programs that need more memory together than the GPU has: turns, evictions by hand and on demand, frameworks, and what it costs when
nothing moves. Sizes are in units: 1 GiB on hardware, 1 MiB on the virtual GPU."""
import os
import re
import subprocess
import sys
import threading
import time

from nvml import Nvml
from processes import Failed
from rig import HERE
from scene import check, ended_well
from stats import verdict

GIB, MIB = 1 << 30, 1 << 20
CARD = 141           # units; the virtual GPU gets so many
BIG, PAIR, ASKED = 90, 44, 60
SMALL = 8            # of the smoke variant
TURNS_S, ALONE_S = 60, 6
IDLE_S = 65           # a program of higher priority gives memory after a minute
MOVES = 20
FRAMEWORKS = (("churn", {}, "caching allocator"),
              ("churn", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments"),
              ("torch", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "cudaMallocAsync"),
              ("graphs", {}, "CUDA graphs"), ("threads", {}, "four streams and threads"), ("triton", {}, "Triton kernels"),
              ("ipc", {}, "IPC exporter"), ("jax", {}, "JAX"), ("cupy", {}, "CuPy"))
TARGET_TURNS, TARGET_GBPS, TARGET_SWAP_S, TARGET_COST = 0.85, 45, 1.8, 0.005


class Memory:
    """One daemon and the programs that hold memory."""

    def __init__(self, rig):
        self.rig, self.checks, self.verdicts, self.rows, self.raw, self.sums = rig, [], [], [], {}, {}
        self.unit, self.block = (MIB, 2) if rig.virtual else (GIB, 1)
        self.small, self.started = rig.scale < 0.3, 0
        rig.serve_arguments = ["--host-memory", "2GiB" if rig.virtual else "96GiB"]
        if rig.virtual:
            rig.serve_arguments += ["--device-memory", "%dMiB" % CARD]
        rig.start_daemon()
        rig.mode("live")

    def start(self, name, movable=True, case="torch", priority=0, env=None, limit_s=400):
        argv = [sys.executable, os.path.join(HERE, "holder.py"), "--case", "virtual" if self.rig.virtual else case, "--unit", str(self.unit),
                "--block", str(self.block)]
        self.started += 1
        print("  start %s" % name, flush=True)
        return self.rig.worker(name, argv, priority, env=env, role="low%d" % (self.started % 3 + 1), limit_s=limit_s,
                               options=["--movable"] if movable else [])

    def alloc(self, w, units, timeout=60):
        ms, error = w.ask("alloc %d" % units, "A", timeout)
        if error != "-":
            raise Failed("%s can't allocate %d units: %s" % (w.name, units, error))
        return float(ms)

    def memory(self, w):
        """What the daemon says about the program's memory on the first GPU it uses."""
        found = self.rig.list().get(w.pid, {}).get("memory") or [{}]
        return max(found, key=lambda m: m.get("used_bytes", 0))

    def until(self, w, done, timeout, what):
        limit = time.monotonic() + timeout
        while time.monotonic() < limit:
            m = self.memory(w)
            if done(m):
                return m
            time.sleep(0.01)
        raise Failed("%s: not %s within %g s: %s" % (w.name, what, timeout, self.memory(w)))

    def pinned(self, w, units, timeout):
        """Waits until so much host memory is ready, or no more becomes ready; returns what is."""
        limit, last, since = time.monotonic() + timeout, -1, time.monotonic()
        while time.monotonic() < limit:
            now = self.memory(w).get("pinned_bytes", 0)
            if now >= units * self.unit:
                return now
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > 3:
                return now
            time.sleep(0.1)
        return last

    def check(self, w):
        n, wrong, used = map(int, w.ask("check", "C", 60))
        self.sums[w.name] = wrong == 0 and n > 0
        return n, wrong

    def check_and_end(self, w):
        """Ends the program; its results must be right."""
        n, wrong = self.check(w)
        self.sums[w.name] = w.quit(30) and self.sums[w.name]
        return n, wrong

    def finish(self, *workers):
        """Ends programs that may wait for each other's memory."""
        for w in sorted(workers, key=lambda w: self.memory(w).get("away_bytes", 0)):  # the end of one brings the next one back
            w.pause()
            self.check_and_end(w)

    def end_all(self):
        for p in self.rig.procs:
            if p is not self.rig.daemon and p.alive():
                p.close()

    def move(self, verb, w, timeout=60):
        begun = time.monotonic()
        self.rig.cli(verb, w.pid, timeout=timeout)
        return time.monotonic() - begun

    def figure(self, name, value, unit, note=""):
        self.rows.append({"figure": name, "value": round(value, 4) if isinstance(value, float) else value, "unit": unit, "note": note})
        print("  %-52s %s %s  %s" % (name, self.rows[-1]["value"], unit, note), flush=True)

    def result(self, proof):
        return {"rows": {"memory": self.rows}, "checks": self.checks + [ended_well(self.sums)], "verdicts": self.verdicts, "raw": self.raw,
                "proof": proof}


def rate(w, seconds):
    """Iterations a second of a program that loops."""
    begun = time.monotonic_ns()
    time.sleep(seconds)
    end = time.monotonic_ns()
    return sum(begun <= b and e <= end for b, e in list(w.samples)) / seconds


def fill(m, left):
    """Small programs fit together; this one, which does not move, leaves so many units of the GPU."""
    used = 0 if m.rig.virtual else Nvml().used_mib() / 1024
    w = m.start("filler", movable=False).ready()
    m.alloc(w, int(CARD - 1 - used - left) // m.block * m.block)
    return w


# ---- turns: two programs that don't fit together

def turns(m):
    """Two programs of 90 units take turns on 141; the second one's allocation needs the first one's memory."""
    big = SMALL if m.small else BIG
    alone = m.start("alone", movable=False).ready()
    m.alloc(alone, big)
    alone.tell("loop")
    time.sleep(1)
    base = rate(alone, ALONE_S)
    alone.pause()
    m.check_and_end(alone)
    filler = fill(m, SMALL * 1.7) if m.small else None
    m.figure("one program alone", base, "iterations/s")
    first = m.start("turns-1").ready()
    m.figure("allocation of %d units" % big, m.alloc(first, big), "ms")
    first.tell("loop")
    second = m.start("turns-2").ready()
    m.figure("the same, when another program must leave", m.alloc(second, big, 120), "ms", "nothing is pinned yet")
    second.tell("loop")
    for w in (first, second):
        m.figure("pinned for %s" % w.name, m.pinned(w, big, 75) / m.unit, "units")
    before = {w: m.memory(w) for w in (first, second)}
    begun = time.monotonic()
    seconds = TURNS_S * (0.25 if m.small else min(1, m.rig.scale))
    counts = {w: len(w.samples) for w in (first, second)}
    time.sleep(seconds)
    took = time.monotonic() - begun
    rates = [(len(w.samples) - counts[w]) / took for w in (first, second)]
    moves = sum(m.memory(w).get(k, 0) - before[w].get(k, 0) for w in (first, second) for k in ("moves_out", "moves_back"))
    m.raw["turns"] = {"rates": rates, "alone": base, "moves": moves, "before": list(before.values()), "after": [m.memory(w) for w in (first, second)]}
    kept = sum(rates) / base if base else 0
    m.figure("two programs, of the throughput of one", kept, "part", "%.2f + %.2f iterations/s, %d moves in %.0f s" % (*rates, moves, took))
    if not m.small:
        m.verdicts.append(verdict("two programs of %d units: throughput of one" % big, kept, TARGET_TURNS, False, "part"))
    m.checks.append(check("both programs took turns", [] if moves >= 2 and min(rates) > 0 else ["%d moves, rates %s" % (moves, rates)]))
    m.finish(first, second)
    if filler:
        m.finish(filler)


# ---- by hand

def by_hand(m):
    """Evict and restore one program, then swap two of 44 units at once: 64 for 64 would need 128 GiB of pinned host memory."""
    units = SMALL if m.small else PAIR
    a, b = m.start("hand-1").ready(), m.start("hand-2").ready()
    m.alloc(a, units)
    m.alloc(b, units)
    for w in (a, b):
        w.tell("step")
    for k in range(3):
        for verb in ("evict", "restore"):
            took = m.move(verb, a, 90)
            size = units * m.unit
            m.figure("%s of %d units, %s" % (verb, units, "first time" if k == 0 else "again"), took, "s",
                     "%.1f GB/s; pinned %d units" % (size / took / 1e9, m.memory(a).get("pinned_bytes", 0) // m.unit))
            if k == 2:
                last = m.memory(a).get("move") or {}
                m.raw[verb] = last
                m.verdicts.append(verdict("%s of %d units once pinned" % (verb, units), size / took / 1e9, TARGET_GBPS, False, "GB/s"))
    m.move("evict", a, 90)
    m.move("evict", b, 90)
    m.move("restore", a, 90)
    begun = time.monotonic()
    out, back = (subprocess.Popen([m.rig.xsched, verb, str(w.pid)], env=m.rig.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                 for verb, w in (("evict", a), ("restore", b)))
    errors = [p.communicate(timeout=90)[1] for p in (out, back)]
    took = time.monotonic() - begun
    if out.returncode or back.returncode:
        raise Failed("swap: " + " / ".join(e.strip() for e in errors))
    m.figure("swap of %d for %d units" % (units, units), took, "s", "64 for 64 at this pace: %.2f s" % (took * 64 / units))
    if not m.small:
        m.verdicts.append(verdict("swap, scaled to 64 for 64", took * 64 / units, TARGET_SWAP_S, True, "s"))
    m.move("restore", a, 90)
    for w in (a, b):
        m.check_and_end(w)


# ---- services

def service(m):
    """A service that is idle for a minute gives its memory to a job and answers its next request. Meanwhile the frameworks run."""
    job_units, own, second = (SMALL, SMALL, SMALL // 2) if m.small else (BIG, ASKED, PAIR)
    serving = m.start("service", priority=10).ready()
    m.alloc(serving, own)
    serving.tell("step")
    time.sleep(1)
    idle = time.monotonic()
    frameworks(m)
    filler = fill(m, SMALL // 2) if m.small else None
    time.sleep(max(0, IDLE_S - (time.monotonic() - idle)))
    job = m.start("job").ready()
    m.figure("a job's allocation of %d units that needs an idle service's memory" % job_units, m.alloc(job, job_units, 120), "ms")
    m.figure("what the service gave", m.memory(serving).get("away_bytes", 0) / m.unit, "units")
    job.tell("loop")
    m.pinned(job, second, 20)
    for k in range(3):
        away, seen, begun = m.memory(serving).get("away_bytes", 0), len(serving.samples), time.monotonic()
        serving.tell("step")
        while len(serving.samples) == seen and time.monotonic() - begun < 60:
            time.sleep(0.001)
        took = time.monotonic() - begun
        m.figure("the service's %s answer" % ("first" if k == 0 else "next"), took * 1000, "ms",
                 "%.1f units were away: %.0f ms at 55 GB/s" % (away / m.unit, away / 55e6))
    other = m.start("second-service", priority=10).ready()
    m.figure("another service's allocation of %d units that needs the job's memory" % second, m.alloc(other, second, 90), "ms",
             "%.1f units of the job are away" % (m.memory(job).get("away_bytes", 0) / m.unit))
    m.finish(serving)
    m.finish(other)
    m.finish(job)
    if filler:
        m.finish(filler)


# ---- frameworks

def frameworks(m):
    """Every framework keeps its results over 20 moves. One that has nothing to move is named."""
    units, moved, found = 2, {}, []
    for case, env, label in FRAMEWORKS[:2] if m.rig.virtual else FRAMEWORKS:
        w = m.start(label.replace(" ", "-"), case=case, env=env)
        found.append((w, label))
    ready = []
    for w, label in found:
        try:
            w.ready(60)
            m.alloc(w, units)
            w.tell("loop")
            ready.append((w, label))
        except Failed as e:
            m.figure(label, "not run", "", str(e)[:120])
            w.close()
    limit = time.monotonic() + (20 if m.small else 100)
    for k in range(3 if m.small else MOVES):
        for w, label in ready:
            if time.monotonic() > limit:
                break
            try:
                m.move("evict", w, 20)
                m.move("restore", w, 20)
                moved[label] = k + 1
            except Failed as e:
                moved.setdefault(label, 0)
                m.raw.setdefault("refused", {})[label] = str(e)[:200]
    for w, label in ready:
        memory = m.memory(w)
        w.tell("pause")
        try:
            w.expect("P", 30, 0)
            n, wrong = m.check_and_end(w)
            m.figure(label, moved.get(label, 0), "moves", "%d iterations, %d wrong, movable %.1f of %.1f units" % (
                n, wrong, memory.get("movable_bytes", 0) / m.unit, memory.get("used_bytes", 0) / m.unit))
        except Failed as e:
            m.checks.append(check(label, [str(e)[:200]]))
    short = ["%s: %d moves" % (label, moved.get(label, 0)) for _, label in ready
             if moved.get(label, 0) < (3 if m.small else MOVES) and label not in ("cudaMallocAsync",)]
    m.checks.append(check("%d moves of every framework" % (3 if m.small else MOVES), short, ", ".join(sorted(moved))))


# ---- what it costs when nothing moves

def cost(m):
    """Training and requests with and without --movable, in turn; and 10,000 allocations beside the driver's own."""
    pairs, block_s = (3, 0.4) if m.small else (8, 1.0)
    for case, label in (("torch", "large kernels"), ("churn", "allocations in every iteration")):
        workers = {k: m.start("cost-%s-%s" % (case, k), movable=k == "movable", case=case).ready() for k in ("plain", "movable")}
        for w in workers.values():
            m.alloc(w, 2)
        ratios = []
        for i in range(pairs):
            got = {}
            for k in ("plain", "movable") if i % 2 else ("movable", "plain"):
                w = workers[k]
                w.tell("loop")
                time.sleep(0.1)
                got[k] = rate(w, block_s)
                w.pause()
            ratios.append(got["movable"] / got["plain"] if got["plain"] else 0)
        ratios.sort()
        middle = ratios[len(ratios) // 2]
        m.figure("%s, with --movable" % label, middle, "part", "%d pairs, %.4f to %.4f" % (pairs, ratios[0], ratios[-1]))
        if case == "torch" and not m.small and not m.rig.virtual:
            m.verdicts.append(verdict("cost of --movable, %s" % label, 1 - middle, TARGET_COST, True, "part"))
        for w in workers.values():
            m.check_and_end(w)
    if m.rig.virtual:
        return
    program = m.rig.helper("mapped")
    times = {}
    for k, argv in (("driver", [program, "churn"]), ("movable", [m.rig.xsched, "run", "--movable", "--", program, "churn"])):
        text = subprocess.run(argv, env=m.rig.env, capture_output=True, text=True, timeout=60).stdout
        found = re.search(r"([0-9.]+) s, alloc ([0-9.]+) us, free ([0-9.]+) us", text)
        if found:
            times[k] = list(map(float, found.groups()))
            m.figure("10,000 allocations, %s" % k, times[k][0], "s", text.strip()[-90:])
    if len(times) == 2:
        m.figure("10,000 allocations, movable over the driver's", times["movable"][0] / times["driver"][0], "times")


LIMITS, TOTAL_S = {"hand": 80, "turns": 190, "service": 180, "cost": 80}, 430
PARTS = (("hand", by_hand), ("turns", turns), ("service", service), ("cost", cost))


def wanted():
    names = os.environ.get("XSCHED_MEMORY_PARTS", "")
    return names.split(",") if names else [name for name, _ in PARTS]


def seconds():
    """What the selected parts take, of which each may take up to its limit."""
    return round(0.6 * sum(LIMITS.get(name, 0) for name in wanted()))


def memory(rig):
    m = Memory(rig)
    ran, deadline = [], time.monotonic() + TOTAL_S
    for name, part in PARTS:
        if name not in wanted():
            continue
        begun = time.monotonic()
        limit = min(LIMITS[name], deadline - begun)
        print(" %s, at most %.0f s" % (name, limit), flush=True)
        timer = threading.Timer(limit, m.end_all)  # ends every wait
        timer.daemon = True
        timer.start()
        try:
            part(m)
            ran.append(name)
        except Failed as e:
            m.checks.append(check(name, [str(e)[:300]]))
            print("  FAILED: " + str(e)[:300], flush=True)
        timer.cancel()
        m.end_all()
        print("  %.0f s" % (time.monotonic() - begun), flush=True)
    return m.result([check("programs ran", [] if ran else ["no part was completed"], ", ".join(ran))])
