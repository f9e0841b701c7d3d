# SPDX-License-Identifier: Apache-2.0
"""Upgrade and downgrade of the daemon under load, with programs of both versions."""
import os
import signal
import time

import targets
from processes import Failed, Proc, now_ns
from rig import ROOT
from scene import check, ended_well
from stats import verdict

SETTLE_S = 1.5  # under one daemon


def previous():
    """The binary of the previous release: XSCHED_PREVIOUS, or what tools/previous builds."""
    path = os.environ.get("XSCHED_PREVIOUS", os.path.join(ROOT, "build", "previous", "bin", "xsched"))
    if not os.access(path, os.X_OK):
        raise Failed("the previous release is missing: build it with tools/previous, or set XSCHED_PREVIOUS")
    return path


class Upgrade:
    """One service of each version and one job of each version run throughout; the daemon changes below them."""

    def __init__(self, rig):
        self.rig, self.rows, self.verdicts, self.checks = rig, [], [], []
        self.binary = {"new": rig.xsched, "old": previous()}

    def start(self, version):
        self.rig.xsched = self.binary[version]
        self.rig.start_daemon()

    def spin(self, name, version, kernel_us, priority, role):
        self.rig.xsched = self.binary[version]
        return self.rig.spin(name, kernel_us, priority, role=role).ready(30)

    def settle(self, version):
        """Runs under a daemon for a while; returns its preemptions of each job."""
        self.rig.joined(self.all)
        before = {w.name: self.rig.preemptions([w]) for w in self.lows}
        time.sleep(SETTLE_S)
        return {w.name: self.rig.preemptions([w]) - before[w.name] for w in self.lows}

    def swap(self, old, new, sig, how):
        t = now_ns()
        self.rig.daemon.signal(sig)
        self.rig.daemon.wait(5)
        self.rig.daemon.close()
        self.rig.daemon = None
        stopped = now_ns()
        gap = max((w.runs_again(stopped, 3) or float("inf")) for w in self.all)
        self.timed("%s to %s, %s: every program runs without a daemon after" % (old, new, how), gap, targets.RESUME_MS)
        self.start(new)
        up = now_ns()
        self.rig.joined(self.all)
        self.timed("%s to %s, %s: all programs rejoined after" % (old, new, how), (now_ns() - up) / 1e6, targets.REJOIN_MS)
        preempted = self.settle(new)
        self.checks.append(check("%s to %s, %s: the %s daemon preempts jobs of both versions" % (old, new, how, new),
                                 ["%s was not preempted" % n for n, c in preempted.items() if not c],
                                 ", ".join("%s %d" % p for p in sorted(preempted.items()))))
        self.timed("%s to %s, %s: longest pause of a job over the change" % (old, new, how), self.pause(t), targets.UPGRADE_PAUSE_MS)

    def pause(self, since_ns):
        """The longest time without a completed iteration of a job."""
        worst = 0
        for w in self.lows:
            ends = [e for _, e in w.samples[-20000:] if e > since_ns - 200_000_000]
            worst = max([worst] + [(b - a) / 1e6 for a, b in zip(ends, ends[1:])])
        return worst

    def timed(self, what, ms, limit):
        ms = None if ms == float("inf") else ms
        self.rows.append({"fault": what, "ms": None if ms is None else round(ms, 1), "limit_ms": limit})
        self.verdicts.append(verdict(what, ms, limit, True, "ms"))

    def device(self):
        """The virtual GPU must outlive the daemon, as a real one does."""
        path = os.path.join(self.rig.dir, "vgpu.sock")
        Proc(self.rig, "vgpu", [self.rig.xsched, "vgpu", "--socket", path], pipe=False)
        limit = time.monotonic() + 5
        while not os.path.exists(path):
            if time.monotonic() > limit:
                raise Failed("the virtual GPU did not start")
            time.sleep(0.01)

    def run(self):
        rig = self.rig
        if rig.virtual:
            self.device()
        self.start("old")
        self.highs = [self.spin("high", "old", 90, 10, "high"), self.spin("high2", "new", 90, 10, "high")]
        self.lows = [self.spin("low1", "old", 2000, 0, "low1"), self.spin("low2", "new", 2000, 0, "low2")]
        self.all = self.highs + self.lows
        rig.joined(self.all)
        for w in self.highs:
            w.tell("rate 50")
        for w in self.lows:
            w.tell("loop")
        first = self.settle("old")
        self.checks.append(check("the old daemon preempts jobs of both versions", ["%s was not preempted" % n for n, c in first.items() if not c],
                                 ", ".join("%s %d" % p for p in sorted(first.items()))))
        for old, new, sig, how in (("old", "new", signal.SIGTERM, "stopped"), ("new", "old", signal.SIGTERM, "stopped"),
                                   ("old", "new", signal.SIGKILL, "killed"), ("new", "old", signal.SIGKILL, "killed")):
            self.swap(old, new, sig, how)
        procs = rig.list()
        launches = {w.name: procs.get(w.pid, {}).get("counters", {}).get("launches", 0) for w in self.all}
        rig.mode("off")
        sums = rig.end(self.all)
        rig.stop_daemon()
        rig.xsched = self.binary["new"]
        self.checks.append(ended_well(sums))
        proof = [check("shim intercepts", ["%s: no launch" % n for n, c in launches.items() if not c], "launches %s" % launches)]
        return {"rows": {"faults": self.rows}, "checks": self.checks, "verdicts": self.verdicts, "proof": proof}


def upgrade(rig):
    try:
        return Upgrade(rig).run()
    finally:
        rig.stop_daemon()
        rig.xsched = os.path.join(ROOT, "bin", "xsched")
