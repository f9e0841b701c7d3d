#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs suites and writes the results. Called by run.sh; see README.md."""
import argparse
import copy
import json
import os
import platform
import subprocess
import sys
import tarfile
import threading
import time
import traceback

import checkpoint
import checks
import copies
import faults
import firsttoken
import grids
import guides
import inference
import memory
import pairs
import report
import serving
import situations
import stopcost
import stops
import strategies
import switch
import tables
import truth
import upgrade
import uploads
import watch
from processes import Failed
from rig import Rig, ROOT

# name -> (function, seconds at full length). The suites of pairs.MODELS share one pair of processes.
SUITES = {
    "micro": (pairs.micro, 120),
    "truth": (truth.truth, 50),
    "strategy": (pairs.strategy, 60),
    "strategies": (strategies.strategies, 220),
    "stops": (stops.stops, 45),
    "switch": (switch.switch, 60),
    "copies": (copies.copies, 10),
    "uploads": (uploads.uploads, 110),
    "stopcost": (stopcost.stopcost, 60),
    "correctness": (checks.correctness, 50),
    "attach": (checks.attach, 30),
    "faults": (faults.faults, 50),
    "checkpoint": (checkpoint.checkpoint, 110),
    "upgrade": (upgrade.upgrade, 30),
    "watch": (watch.watch, 60),
    "memory": (memory.memory, memory.seconds()),
    "starts": (situations.starts, 20),
    "situations": (situations.situations, 25),
    "guides": (guides.guides, 90),
    "share": (pairs.share, 40),
    "overhead": (checks.overhead, 90),
    "streams": (checks.streams, 60),
    "steps": (checks.steps, 100),
    "batched": (checks.batched, 110),
    "tenants": (pairs.tenants, 165),
    "eight": (pairs.eight, 150),
    "grids": (grids.grids, 170),
    "serving": (serving.serving, 140),
    "first-token": (firsttoken.first_token, firsttoken.seconds()),
    "submission": (firsttoken.submission, firsttoken.seconds(firsttoken.SHORT_ROUNDS, firsttoken.SHORT_S)),
}
ORDER = list(SUITES) + list(pairs.MODELS) + list(inference.SUITES)


def machine(virtual):
    def out(*argv):
        try:
            return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return ""
    query = "name,driver_version,clocks.sm,clocks.max.sm,persistence_mode,mig.mode.current,compute_mode"
    m = {"device": "virtual GPU" if virtual else out("nvidia-smi", "--query-gpu=" + query, "--format=csv,noheader"),
         "cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(),
         "load": os.getloadavg()[0], "clock": clock(), "started_unix": int(time.time())}
    try:
        with open("/proc/cpuinfo") as f:
            m["cpu"] = next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    text = out(os.path.join(ROOT, "bin", "xsched"), "version", "--json")
    try:
        m["xsched"] = json.loads(text)
    except ValueError:
        m["xsched"] = text
    return m


def clock():
    """The clock source of the kernel: it decides the cost of a timestamp."""
    try:
        with open("/sys/devices/system/clocksource/clocksource0/current_clocksource") as f:
            return f.read().strip()
    except OSError:
        return ""


def concluded(r, seconds):
    """Derives the status of a suite from its error, proof, verdicts and checks."""
    r.setdefault("seconds", seconds)
    r["seconds"] = round(r["seconds"], 1)
    proof = list(r.get("proof", []))
    for s in r.get("scenarios", []):
        proof += s["proof"]
    lost = [p for p in proof if not p["ok"]]
    verdicts = list(r.get("verdicts", [])) + [v for s in r.get("scenarios", []) for v in s["verdicts"]]
    bad_checks = [c for c in r.get("checks", []) if not c["ok"]]
    if r.get("error"):
        r["status"], r["why"] = "FAILED", r["error"]
    elif not proof or lost:
        r["status"] = "FAILED"
        r["why"] = "no proof: " + ("; ".join("%s: %s" % (p["name"], p["detail"]) for p in lost) or "no evidence")
    elif bad_checks or not all(v["ok"] for v in verdicts):
        r["status"] = "MISSED"
        r["why"] = "; ".join(["%s: %s" % (c["name"], c["detail"]) for c in bad_checks]
                             + [tables.verdict_text(v) for v in verdicts if not v["ok"]])
    else:
        r["status"], r["why"] = "OK", ""
    return r


class Run:
    def __init__(self, a):
        self.a, self.started = a, time.monotonic()
        os.makedirs(a.out, exist_ok=True)
        self.rig = Rig(a.out, virtual=a.virtual, quick=a.scale, seed=a.seed, mps=not a.no_mps, only=a.only)
        self.results = {"machine": machine(a.virtual), "command": " ".join(["test/gpu/run.sh"] + sys.argv[1:]),
                        "scale": a.scale, "seed": a.seed, "suites": {}}

    def left(self):
        return self.a.budget - (time.monotonic() - self.started)

    def add(self, name, r, seconds):
        self.results["suites"][name] = concluded(r, seconds)
        print("%-12s %-10s %5.1f s  %s" % (name, r["status"], r["seconds"], r["why"][:400]), flush=True)
        if r.get("incomplete"):
            print("%-12s NOT COMPLETE: %s" % (name, r["incomplete"]), flush=True)
        self.write()

    def write(self):
        path = os.path.join(self.a.out, "results.json")
        with open(path + ".part", "w") as f:
            json.dump(self.results, f, separators=(",", ":"))
        os.replace(path + ".part", path)

    def keep(self, found):
        """Writes intermediate results, in case the run is killed."""
        for name, r in found.items():
            self.results["suites"][name] = concluded(copy.deepcopy(r), 0)
        self.write()

    def skip(self, name, why):
        self.results["suites"][name] = {"status": "SKIPPED", "why": why, "seconds": 0}
        print("%-12s SKIPPED    %s" % (name, why), flush=True)

    def guarded(self, f, limit_s):
        """Returns the result of a suite or its error, and ends its processes. After limit_s it kills them, which fails the
        suite."""
        def cut():
            for p in list(self.rig.procs):
                p.kill()
        timer = threading.Timer(limit_s, cut)
        timer.daemon = True
        timer.start()
        try:
            return f()
        except Failed as e:
            return {"error": str(e)}
        except Exception as e:
            traceback.print_exc()
            return {"error": "%s: %s" % (type(e).__name__, e)}
        finally:
            timer.cancel()
            for p in self.rig.procs:
                if p is not self.rig.daemon and p.alive():
                    p.close()
            self.rig.stop_daemon()

    def suites(self, names):
        for name in [n for n in names if n in SUITES]:
            f, need = SUITES[name]
            if self.left() < need * self.a.scale:
                self.skip(name, "%.0f s left, needs %.0f s" % (self.left(), need * self.a.scale))
                continue
            start = time.monotonic()
            r = self.guarded(lambda: f(self.rig), max(240, need + 60))
            self.add(name, r, time.monotonic() - start)
        mps = not self.a.no_mps and not self.a.virtual
        chosen, room = [], self.left() - pairs.LOAD_S * (2 if mps else 1)
        for name in [n for n in names if n in pairs.MODELS]:
            need = pairs.model_seconds(name, mps, self.a.scale)
            if room < need:
                self.skip(name, "%.0f s left, needs %.0f s" % (room, need))
            else:
                chosen.append(name)
                room -= need
        if chosen:
            start = time.monotonic()
            found = self.guarded(lambda: pairs.models(self.rig, chosen, mps, self.keep),
                                 240 * len(chosen))
            if "error" in found:
                found = {n: {"error": found["error"]} for n in chosen}
            for n in chosen:
                self.add(n, found[n], (time.monotonic() - start) / len(chosen))
        self.inference([n for n in names if n in inference.SUITES], mps)

    def inference(self, names, mps):
        """The suites llm, short and eager share one set of processes."""
        rows = [r for r in inference.ALL if not self.a.only or inference.named(r, self.a.only)]
        names = [n for n in names if any(r.suite == n for r in rows)]
        if not names:
            return
        start, left = time.monotonic(), self.left()
        if not inference.plan(names, left, self.a.only, mps, self.a.scale)[0]:
            for n in names:
                self.skip(n, "%.0f s left, no pair fits" % left)
            return
        found = self.guarded(lambda: inference.measure(self.rig, names, left, self.a.only, mps, self.keep), left + 20)
        if "error" in found:
            found = {n: {"error": found["error"]} for n in names}
        for n in names:
            self.add(n, found[n], (time.monotonic() - start) / len(names))

    def close(self):
        self.results["seconds"] = round(time.monotonic() - self.started, 1)
        self.rig.stop_daemon()
        for p in self.rig.procs:
            p.log.close()
        try:
            with tarfile.open(os.path.join(self.a.out, "logs.tar.gz"), "w:gz") as t:
                t.add(self.rig.logs, "logs", filter=lambda i: i if i.size < 8 << 20 else None)
        except OSError as e:
            print("logs:", e)
        self.write()
        self.rig.close()
        merged = report.merge([self.results])
        with open(os.path.join(self.a.out, "report.md"), "w") as f:
            f.write(report.page(merged, pictures=False))
        print(report.summary(merged))


def arguments(argv=None):
    """Parses and checks the command line."""
    p = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    p.add_argument("out", metavar="OUT_DIR")
    p.add_argument("suites", nargs="*", metavar="SUITE", help="default: all of %s" % ", ".join(ORDER))
    p.add_argument("--quick", action="store_true", help="half the blocks")
    p.add_argument("--scale", type=float, default=1.0, help="fraction of the blocks (default 1)")
    p.add_argument("--budget", type=float, default=1380, help="time limit in seconds; suites that do not fit are skipped (default 1380)")
    p.add_argument("--only", type=lambda text: [w for w in text.split(",") if w], default=[], metavar="PAIRS",
                   help="of llm, short, eager and strategies, only pairs whose name begins so, comma-separated: llm-cpu,bert,llm/jax,strategy/bert12")
    p.add_argument("--seed", type=int, default=1, help="seed of the block order")
    p.add_argument("--no-mps", action="store_true", help="skip the comparison with MPS")
    p.add_argument("--virtual", action="store_true", help="use the virtual GPU, to test the suites that need no CUDA program")
    a = p.parse_intermixed_args(argv)
    a.scale = a.scale * (0.5 if a.quick else 1)
    unknown = [s for s in a.suites if s not in ORDER]
    if unknown:
        p.error("unknown suite %s; known: %s" % (", ".join(unknown), ", ".join(ORDER)))
    a.suites = a.suites or ([n for n in inference.SUITES] if a.only else ORDER)
    a.suites = [n for n in a.suites if n != "strategies" or any(strategies.chosen(p, a.only) for p in strategies.PAIRS)]
    known = [inference.key(r) for r in inference.ALL if r.suite in a.suites] + (list(strategies.PAIRS) if "strategies" in a.suites else [])
    wrong = [w for w in a.only if not any(k.startswith(w) for k in known)]
    if wrong:
        p.error("--only %s: no such pair; known: %s" % (",".join(wrong), ", ".join(known) or "none in these suites"))
    return a


def main():
    run = Run(arguments())
    try:
        run.suites(run.a.suites)
    finally:
        run.close()
    return 0 if all(s["status"] in ("OK", "SKIPPED") for s in run.results["suites"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
