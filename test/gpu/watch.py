# SPDX-License-Identifier: Apache-2.0
"""The shim's watcher on the real driver: what waits while a question of it has no answer, and what it still sees beside
threads that poll or free."""
import os
import sys
import time

from processes import Failed, now_ns
from rig import HERE
from scene import check

ROUNDS = 3
ANSWER_S = 3.0  # how long a stop lasts at most; a call that waits for its end takes about that long
MORE_MS = 100.0  # a call on the other context may take this much longer than while nothing is asked
PULSE_MS, PULSES_S = 20, 4.0
SEEN = 0.5  # of the busy periods that are seen without a neighbour


def waits(blocked_ms, quiet_ms):
    """What went wrong with the calls on the other context: nothing, or one line."""
    if not blocked_ms or not quiet_ms:
        return ["not measured"]
    worst, usual = max(blocked_ms), max(quiet_ms)
    return ["took %.0f ms, and %.1f ms while nothing is asked" % (worst, usual)] if worst > usual + MORE_MS else []


def blind(seen, alone):
    """What went wrong with the periods seen beside a thread, by its name."""
    if alone < 10:
        return ["only %d busy periods seen without a neighbour" % alone]
    return ["%s: %d busy periods seen, %d without" % (name, n, alone) for name, n in seen.items() if n < SEEN * alone]


def watcher(pid):
    """State of the watcher's thread: what it sleeps in."""
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            folder = "/proc/%d/task/%s/" % (pid, task)
            with open(folder + "comm") as f:
                if f.read().strip() != "xsched-watch":
                    continue
            with open(folder + "wchan") as f, open(folder + "syscall") as g:
                return "%s, syscall %s" % (f.read().strip(), " ".join(g.read().split()[:5]))
    except OSError as e:
        return str(e)
    return "no thread"


class Watch:
    def __init__(self, rig):
        self.rig, self.rows = rig, []
        argv = [sys.executable, os.path.join(HERE, "watched.py")]
        self.w = rig.worker("watched", argv, 0, role="low1", limit_s=100).ready(60)

    def count(self):
        return int(self.w.ask("count", "C")[0])

    def steady(self, timeout=5):
        """Waits until no launch returns: the channel is full. False: launches go on."""
        limit = time.monotonic() + timeout
        while time.monotonic() < limit:
            before = self.count()
            time.sleep(0.3)
            if self.count() == before:
                return True
        return False

    def stopped(self, fill):
        """Ends one stream of the other context while the program is suspended. Returns milliseconds, and whether launches wait."""
        w, full = self.w, None
        if fill:
            w.ask("fill", "F")
            time.sleep(0.3)
        self.rig.cli("suspend", w.pid)
        try:
            full = self.steady()
            with w.cond:
                seen = len(w.answers.get("D", []))
            w.tell("destroy")
            row = {"filled": fill, "launches_wait": full, "watcher": watcher(w.pid)}
            try:
                w.expect("D", ANSWER_S, seen)
                row["answered_while_stopped"] = True
            except Failed:
                row["answered_while_stopped"] = False
        finally:
            self.rig.cli("resume", w.pid)
        row["ms"] = float(w.expect("D", 20, seen)[0])
        w.ask("drain", "T", 30)
        self.rows.append(row)
        return row["ms"]

    def periods(self, thread):
        """Busy periods that the daemon was told of while the program launches one kernel per period and never waits."""
        w = self.w
        if thread:
            w.ask(thread, thread[0].upper())
            time.sleep(0.2)
        before, begun = self.transitions(), now_ns()
        w.ask("pulse %d" % PULSE_MS, "P")
        time.sleep(PULSES_S)
        seen = (self.transitions() - before) // 2
        w.ask("drain", "T", 30)
        w.ask("quiet", "Q")
        self.rows.append({"thread": thread or "none", "periods": seen, "seconds": round((now_ns() - begun) / 1e9, 2)})
        return seen

    def transitions(self):
        return sum(q["transitions"] for q in self.rig.list()[self.w.pid]["queues"])

    def run(self):
        self.rig.joined([self.w])
        quiet = [self.stopped(False) for _ in range(ROUNDS)]
        blocked = [self.stopped(True) for _ in range(ROUNDS)]
        full = all(r["launches_wait"] for r in self.rows if r["filled"])
        # Another queue on the device, so that this one is not quiet and tells of every change.
        other = self.rig.spin("neighbour", 100, 0, role="low2", limit_s=60).ready(30)
        self.rig.joined([self.w, other])
        alone = self.periods(None)
        seen = {t: self.periods(t) for t in (("alloc",) if self.rig.virtual else ("nvml", "alloc"))}
        sums = self.rig.end([other, self.w])
        checks = [check("a stream of another context ends at once while a launch waits for room", waits(blocked, quiet),
                        "%.1f ms, %.1f while nothing is asked" % (max(blocked), max(quiet))),
                  check("the end of work is seen beside threads that poll and free", blind(seen, alone), "%s, %d without" % (seen, alone))]
        proof = [check("launches wait for room in the stopped channel", [] if full else ["launches went on"]),
                 check("programs ended well", [n for n, ok in sums.items() if not ok])]
        return {"rows": {"watch": self.rows}, "checks": checks, "proof": proof}


def watch(rig):
    rig.start_daemon()
    rig.mode("live")
    return Watch(rig).run()
