# SPDX-License-Identifier: Apache-2.0
"""Fault injection on the real device: killed or stalled daemon, killed tenants, malformed input."""
import os
import random
import signal
import socket
import time

import targets
from nvml import Nvml
from processes import Failed, now_ns
from scene import check, ended_well
from stats import verdict


class Faults:
    def __init__(self, rig):
        self.rig, self.rows, self.verdicts, self.checks = rig, [], [], []
        self.sums = {}

    def timed(self, what, ms, limit):
        self.rows.append({"fault": what, "ms": None if ms is None else round(ms, 1), "limit_ms": limit})
        self.verdicts.append(verdict(what, ms, limit, True, "ms"))

    def hold(self, w):
        """Suspends w through the CLI and waits until it makes no progress."""
        w.tell("loop")
        time.sleep(0.2)
        self.rig.cli("suspend", w.pid)
        if not w.wait_stopped():
            raise Failed("%s kept running after `xsched suspend`" % w.name)

    def guarded(self, name, f):
        """Injects one fault. A failure does not prevent the other faults."""
        try:
            f()
        except (Failed, OSError, KeyError) as e:
            self.checks.append(check(name, [str(e)[:300]]))
            for p in self.rig.procs:  # processes of this fault only
                if p not in (self.high, self.low, self.rig.daemon) and p.alive():
                    p.close()

    # -- the daemon

    def daemon_killed(self):
        self.rig.mode("live")
        self.hold(self.low)
        t = now_ns()
        self.rig.daemon.signal(signal.SIGKILL)
        self.timed("daemon killed (SIGKILL) while a job is suspended: the job resumes after", self.low.runs_again(t, 3), targets.RESUME_MS)
        self.rig.daemon.wait(5)
        t = now_ns()
        self.rig.start_daemon()
        up = now_ns()
        procs = self.rig.joined([self.high, self.low])
        self.rows.append({"fault": "daemon restarted: accepts clients after", "ms": round((up - t) / 1e6, 1), "limit_ms": None})
        self.timed("daemon restarted: all clients rejoined after", (now_ns() - up) / 1e6, targets.REJOIN_MS)
        left = [q["slice_us"] for q in procs[self.low.pid]["queues"] if q["slice_us"] not in (0, 1) and q["slice_us"] != q["original_slice_us"]]
        self.checks.append(check("after the restart the job has its original timeslice or one of the new daemon", ["%s" % left] if left else [], ""))

    def daemon_stopped(self):
        self.rig.mode("live")
        self.hold(self.low)
        t = now_ns()
        self.rig.daemon.signal(signal.SIGSTOP)
        try:
            self.timed("daemon stalled (SIGSTOP) while a job is suspended: the job resumes after", self.low.runs_again(t, 2), targets.RESUME_MS)
            time.sleep(max(3 - (now_ns() - t) / 1e9, 0))
        finally:
            self.rig.daemon.signal(signal.SIGCONT)
        time.sleep(0.5)
        self.rig.cli("resume", self.low.pid)
        t = now_ns()
        self.timed("daemon continues after 3 s: a resumed job runs after", self.low.runs_again(t, 2), targets.RESUME_MS)
        self.rig.joined([self.high, self.low])

    def daemon_stopped_gracefully(self):
        self.hold(self.low)
        t = now_ns()
        self.rig.daemon.signal(signal.SIGTERM)
        self.timed("daemon stopped (SIGTERM) while a job is suspended: the job resumes after", self.low.runs_again(t, 3), targets.RESUME_MS)
        self.rig.stop_daemon()
        self.rig.start_daemon()
        self.rig.joined([self.high, self.low])

    def attached_and_killed(self):
        w = self.rig.spin("attached", 2000, None, role="low2").ready(30)
        self.hold(w)
        t = now_ns()
        self.rig.daemon.signal(signal.SIGKILL)
        self.timed("daemon killed (SIGKILL) while an attached program is suspended: it resumes after", w.runs_again(t, 3), targets.RESUME_MS)
        self.rig.daemon.wait(5)
        self.sums["attached"] = w.quit()
        self.rig.start_daemon()
        self.rig.joined([self.high, self.low])

    # -- clients

    def high_killed(self):
        self.rig.mode("live")
        hog = self.rig.spin("hog", 20000, 20, role="low2").ready(30)
        self.low.tell("loop")
        hog.tell("loop")  # the low gets only what the starvation bound grants
        time.sleep(1)
        t = now_ns()
        hog.kill()
        self.timed("service killed (SIGKILL) while it holds the GPU: the job runs after", self.low.runs_again(t, 3), targets.HIGH_DIED_MS)
        hog.wait(5)

    def low_killed(self):
        """The daemon's duplicate of the file descriptor must not keep the memory of a killed client."""
        program, nvml, mb = self.rig.helper("correct"), Nvml(), 4096
        for how in ("suspended", "running"):
            empty = nvml.used_mib()
            w = self.rig.worker("memory", [program, "--mb", str(mb)], 0, role="low2", limit_s=60).ready(60)
            self.rig.joined([w])
            fds = self.rig.stats()["open_fds"]
            full = nvml.used_mib()
            if empty is None or full is None or full - empty < mb:
                raise Failed("cannot read GPU memory usage: %s, then %s MiB" % (empty, full))
            if how == "suspended":
                self.hold(w)
            else:
                w.tell("loop")
                time.sleep(0.3)
            t = now_ns()
            w.kill()
            ms = None
            while now_ns() - t < 5e9:
                if nvml.used_mib() < full - mb:
                    ms = (now_ns() - t) / 1e6
                    break
                time.sleep(0.005)
            self.timed("%s job killed (SIGKILL): its %d MiB of GPU memory are free after" % (how, mb), ms, targets.MEMORY_MS)
            w.wait(5)
            time.sleep(0.2)
            left = self.rig.stats()["open_fds"]
            self.checks.append(check("%s job killed: the daemon closes its files" % how,
                                     ["%d open files before, %d after" % (fds, left)] if left >= fds else [], "%d -> %d" % (fds, left)))

    def garbage(self):
        """Clients that send malformed packets."""
        rng, path = random.Random(5), os.path.join(self.rig.dir, "xsched.sock")
        self.low.tell("loop")
        sent = 0
        for i in range(200):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.settimeout(1)
            try:
                s.connect(path)
                for _ in range(3):
                    data = rng.randbytes(rng.choice((0, 1, 15, 64, 300, 4096, 9000)))
                    if i % 3 == 0:
                        data = (0x58534652).to_bytes(4, "little") + data  # a valid magic number
                    s.send(data or b"\0")
                    sent += 1
            except OSError:
                pass  # the daemon disconnects such a client
            finally:
                s.close()
        t = now_ns()
        ms = self.low.runs_again(t, 2)
        self.checks.append(check("200 clients send malformed packets: daemon and job keep running",
                                 [] if self.rig.daemon.alive() and ms is not None else ["the daemon or the job stopped"],
                                 "%d packets" % sent))
        self.rig.joined([self.high, self.low])

    def run(self):
        rig = self.rig
        rig.start_daemon()
        self.high, self.low = rig.spin("high", 90, 10), rig.spin("low1", 2000, 0)
        for w in (self.high, self.low):
            w.ready(30)
        rig.joined([self.high, self.low])
        self.high.tell("rate 50")
        for name, f in (("daemon killed", self.daemon_killed), ("daemon stalled", self.daemon_stopped),
                        ("high killed", self.high_killed), ("garbage", self.garbage), ("low killed", self.low_killed),
                        ("attached and daemon killed", self.attached_and_killed), ("daemon stopped", self.daemon_stopped_gracefully)):
            self.guarded(name, f)
            rig.start_daemon()
        launches = [rig.list().get(w.pid, {}).get("counters", {}).get("launches", 0) for w in (self.high, self.low)]
        rig.mode("off")
        self.sums.update(rig.end([self.high, self.low]))
        self.checks.append(ended_well(self.sums))
        proof = [check("shim intercepts", [] if all(launches) else ["launches %s" % launches], "launches %s" % launches)]
        return {"rows": {"faults": self.rows}, "checks": self.checks, "verdicts": self.verdicts, "proof": proof}


def faults(rig):
    return Faults(rig).run()
