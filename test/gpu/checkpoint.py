# SPDX-License-Identifier: Apache-2.0
"""Checkpoint and restore by the driver's API, from another process: the program goes on with bit-equal results."""
import os
import sys
import time

from nvml import Nvml, xids
from processes import Failed, now_ns
from rig import HERE
from scene import check, ended_well
from situations import asleep

LOCK_MS, CALL_S = 10000, 40
STEPS = (("lock", 1), ("checkpoint", 2), ("restore", 1), ("unlock", 0))  # and the state that each must leave
CYCLES = 2


def nvidia_files(pid):
    """{device file: open descriptors} of a process."""
    found = {}
    try:
        for fd in os.listdir("/proc/%d/fd" % pid):
            try:
                name = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            except OSError:
                continue
            if name.startswith("/dev/nvidia"):
                found[name[5:]] = found.get(name[5:], 0) + 1
    except OSError:
        pass
    return found


class Checkpoints:
    def __init__(self, rig):
        self.rig, self.rows, self.checks, self.nvml = rig, [], [], Nvml()
        self.sums, self.launches, self.control = {}, {}, None

    def controller(self):
        if self.control is None or not self.control.alive():
            argv = [self.rig.helper("control")] if self.rig.virtual else [sys.executable, os.path.join(HERE, "control.py")]
            self.control = self.rig.worker("control", argv, role="low3").ready(30)
        return self.control

    def call(self, action, w, row, limit_ms=LOCK_MS):
        """Returns (code, state); (None, None) if the call did not return."""
        words = [action, str(w.pid)] + ([str(limit_ms)] if action == "lock" else [])
        try:
            code, state, ms = self.controller().ask(" ".join(words), "K", CALL_S)
        except Failed:
            row[action] = "no answer: " + asleep(w.pid)
            self.control.close()
            return None, None
        row[action] = "%s, state %s, %s ms" % (code, state, ms)
        return int(code), int(state)

    def cycle(self, w, row):
        """One checkpoint of a running program. Returns what went wrong."""
        w.tell("loop")
        time.sleep(0.5)
        full = self.nvml.used_mib()
        for action, wanted in STEPS:
            code, state = self.call(action, w, row)
            daemon = self.rig.daemon
            row[action + "_files"] = {"program": nvidia_files(w.pid), "daemon": nvidia_files(daemon.pid) if daemon else {}}
            if code != 0 or state != wanted or not w.alive():
                return ["%s: result %s, state %s, %s" % (action, code, state, "alive" if w.alive() else "exit %s" % w.p.poll())]
            if action == "lock" and not w.wait_stopped():
                return ["the program runs on while it is locked"]
            if action == "checkpoint":
                time.sleep(0.5)  # both sides notice that the files are gone
                row["files_later"] = {"program": nvidia_files(w.pid), "daemon": nvidia_files(daemon.pid) if daemon else {}}
                row["freed_mib"] = None if full is None else round(full - self.nvml.used_mib())
        ms = w.runs_again(now_ns(), 10)
        row["runs_after_ms"] = ms and round(ms, 1)
        return [] if ms is not None else ["no progress after the restore: " + (w.why() if w.ended else asleep(w.pid))]

    def scheduled_again(self, w):
        """After a restore the program can be suspended and resumed, as before."""
        self.rig.joined([w])
        self.rig.cli("suspend", w.pid)
        if not w.wait_stopped():
            return ["`xsched suspend` has no effect after the restore"]
        t = now_ns()
        self.rig.cli("resume", w.pid)
        return [] if w.runs_again(t, 3) is not None else ["no progress after `xsched resume`"]

    def variant(self, name, start, joined=False):
        """Checkpoints one program CYCLES times."""
        bad, row = [], {}
        w = None
        try:
            w = start()
            w.ready(90)
            if joined:
                self.rig.joined([w])
            for n in range(1, CYCLES + 1):
                row = {"variant": name, "cycle": n}
                self.rows.append(row)
                bad = self.cycle(w, row)
                if not bad and joined:
                    bad = self.scheduled_again(w)
                if bad:
                    break
            if joined and not bad:
                self.launches[name] = self.rig.list()[w.pid]["counters"]["launches"]
        except (Failed, OSError, KeyError) as e:
            bad = [str(e)[:300]]
        if w is not None:
            good = w.quit(30)
            row["exit"] = w.p.poll()
            if not bad:
                self.sums[name] = good
        self.checks.append(check(name, bad, "%d cycles, runs again after %s ms" % (CYCLES, row.get("runs_after_ms"))))
        return not bad

    def suspended(self):
        """A lock waits for the program's work, so a suspended program can't be locked. It must survive the attempt."""
        name, row, bad = "locked while suspended", {"variant": "locked while suspended", "cycle": 1}, []
        self.rows.append(row)
        w = None
        try:
            w = self.spin(name, 0).ready(30)
            self.rig.joined([w])
            w.tell("loop")
            time.sleep(0.3)
            self.rig.cli("suspend", w.pid)
            w.wait_stopped()
            code, state = self.call("lock", w, row, 1000)
            self.rig.cli("resume", w.pid)
            if state == 1:
                self.call("unlock", w, row)
            if w.runs_again(now_ns(), 5) is None:
                bad = ["no progress after `xsched resume`; lock: %s, state %s" % (code, state)]
        except (Failed, OSError, KeyError) as e:
            bad = [str(e)[:300]]
        if w is not None:
            self.sums[name] = w.quit(30)
        self.checks.append(check(name, bad, "lock: %s" % row.get("lock")))

    def spin(self, name, priority, env=None, traced=False):
        env = dict(env or {})
        trace = os.path.join(self.rig.helpers, "rmtrace.so")
        if traced and not self.rig.virtual and os.path.exists(trace):
            env.update(LD_PRELOAD=trace, XSCHED_RMTRACE=os.path.join(self.rig.logs, "rmtrace-%s.log" % name.replace(" ", "-")))
        return self.rig.spin(name.replace(" ", "-"), 2000, priority, env=env, role="low1", limit_s=120)

    def run(self):
        rig = self.rig
        self.controller()  # fails where the driver lacks the API
        before = xids()
        if rig.virtual:
            rig.start_daemon()  # which is the GPU
        plain = self.variant("without XSched", lambda: self.spin("plain", None, traced=True))
        self.variant("shim disabled", lambda: self.spin("disabled", 0, {"XSCHED_DISABLE": "1"}))
        self.variant("shim without a daemon", lambda: self.spin("native", 0, {"XSCHED_SOCKET": os.path.join(rig.tmp, "none")}))
        rig.start_daemon()
        rig.mode("off")
        self.variant("daemon in mode off", lambda: self.spin("off", 0), joined=True)
        rig.mode("live")
        self.variant("daemon in mode live", lambda: self.spin("live", 0, traced=True), joined=True)
        self.suspended()
        if not rig.virtual:
            self.variant("PyTorch without XSched", lambda: rig.torch("torch-plain", ["resnet18:1"], role="low1"))
            self.variant("PyTorch in mode live", lambda: rig.torch("torch-live", ["resnet18:1"], 0, role="low2"), joined=True)
        after = xids()
        if before is not None and after is not None:
            self.checks.append(check("no GPU error (Xid)", after[len(before):]))
        self.checks.append(ended_well(self.sums))
        proof = [check("the driver can checkpoint a program without XSched", [] if plain else [self.checks[0]["detail"]]),
                 check("shim intercepts", [n for n, v in self.launches.items() if not v], "launches %s" % self.launches)]
        return {"rows": {"checkpoints": self.rows}, "checks": self.checks, "proof": proof}


def checkpoint(rig):
    return Checkpoints(rig).run()
