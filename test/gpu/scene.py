# SPDX-License-Identifier: Apache-2.0
"""Measures one set of processes in all modes, in short blocks."""
import time
from collections import namedtuple

import stats
from processes import Failed, now_ns
from stats import Block
from targets import judge

# Not measured: the head of a block, in which the mode takes effect, and its tail, in which due requests start.
HEAD_S, TAIL_S = 0.2, 0.05
CHANGE_S = 0.1  # estimate per change of block: lows drain, the mode is set

# Compared modes are neighbours in time.
TOGETHER = ("alone", "native", "live", "mps", "mps-priority", "cpu")

# lows: indexes of the running lows; xmode: argument of `xsched mode`, or None.
Mode = namedtuple("Mode", "name seconds xmode lows high")


def xsched_modes(seconds, lows, alone_of=None):
    """Returns the modes of {name: seconds}. native is mode off, alone is the high without lows, `low alone I` is one low
    without the high."""
    everybody = list(range(lows))
    out = []
    for name, s in seconds.items():
        if name == "alone":
            out.append(Mode(name, s, "off", [], True))
        elif name == "low alone":
            out += [Mode("%s %d" % (name, i), s, "off", [i], False) for i in (alone_of or [0])]
        else:
            out.append(Mode(name, s, "off" if name == "native" else name, everybody, True))
    return out


def block_s_of(mode, block_s, scale):
    """Blocks with requests have full length, for equal arrivals. Lows alone may be shorter."""
    return block_s if mode.high else min(block_s, mode.seconds * scale)


def wall_s(modes, block_s, scale=1.0):
    """Estimates the duration of a scene."""
    return sum(stats.block_count(m.seconds * scale, block_s) * (block_s_of(m, block_s, scale) + HEAD_S + TAIL_S + CHANGE_S) for m in modes)


class Scene:
    def __init__(self, rig, key, high, lows, modes, hz, arrivals=None, gpu_ms=None, kernel=None, block_s=4.0, seed=1, prepare=None, rests=False, untouched=False):
        self.prepare = prepare  # called with the mode before each block
        self.rests = rests  # XSched may leave the lows alone in mode live
        self.untouched = untouched  # XSched must leave the lows alone in mode live
        self.rig, self.key, self.high, self.lows, self.modes = rig, key, high, lows, modes
        self.hz, self.arrivals, self.gpu_ms = hz, arrivals or "rate %g" % hz, gpu_ms
        self.kernel = kernel  # {"ms", "kernels"} of a request, or None: see ideal
        self.block_s, self.seed = block_s, seed
        self.blocks, self.evidence, self.turns, self.slices, self.stolen = [], {}, {}, {}, {}
        self.protection = []  # of the high, after each block under XSched
        self.managed = [w for w in [high] + lows if w.shim]

    # -- measuring

    def run(self):
        by_name = {m.name: m for m in self.modes}
        plan = [(m.name, m.seconds * self.rig.scale) for m in self.modes]
        for name in stats.schedule(plan, self.block_s, self.seed, TOGETHER + tuple(m.name for m in self.modes if m.xmode == "live")):
            self.one_block(by_name[name])
        self.settle()
        return self.summary()

    def settle(self):
        if self.managed:
            self.rig.mode("off")
        for w in [self.high] + self.lows:
            w.pause()

    def one_block(self, m):
        self.high.pause()
        if self.prepare:
            self.prepare(m)
        if m.xmode and self.managed:
            self.rig.mode(m.xmode)
        for i, w in enumerate(self.lows):
            if i in m.lows:
                w.tell("loop")
            else:
                w.pause()
        turn = self.turns[m.name] = self.turns.get(m.name, 0) + 1
        if m.high:
            # The n-th blocks of all modes have equal arrivals.
            self.high.tell(self.arrivals.replace("SEED", "%d-%d" % (self.seed, turn)))
        start = now_ns()
        stolen = self.rig.stolen_s()
        counts_until = start + int((HEAD_S + block_s_of(m, self.block_s, self.rig.scale)) * 1e9)
        end = counts_until + int(TAIL_S * 1e9)
        time.sleep(HEAD_S)
        before = self.counted()
        procs = self.rig.list() if self.managed else {}  # in every mode, so that it disturbs none more than another
        if procs and (m.xmode == "live" or m.name in ("native", "timeslice")):
            self.slices.setdefault(m.name, []).append(self.slices_of(procs))
        listed_at = now_ns()
        sleep_until(counts_until)
        after = self.counted()
        if m.name == "live" and self.high in self.managed:
            self.protection.append(with_cost(self.said(procs), self.said(self.rig.list()), now_ns() - listed_at))
        sleep_until(end)
        seen = self.evidence.setdefault(m.name, {})
        for k, v in after.items():
            seen[k] = seen.get(k, 0) + v - before[k]
        self.blocks.append(Block(m.name, start, end))
        took = self.rig.stolen_s()
        if stolen is not None and took is not None:
            self.stolen[m.name] = self.stolen.get(m.name, 0) + took - stolen
        for w in [self.high] + self.lows:
            if not w.alive():
                raise Failed("%s (pid %d) ended in mode %s: %s" % (w.name, w.pid, m.name, w.why()))

    def adopt(self, other, name):
        """Counts the last block of another scene with the same high as one of this scene."""
        self.adopt_block(other.blocks[-1])
        for mine, theirs in ((self.evidence, other.evidence), (self.stolen, other.stolen)):
            if name in theirs:
                mine[name] = theirs[name]

    def adopt_block(self, block):
        self.blocks.append(block)

    def counted(self):
        if not self.managed:
            return {}
        s, procs = self.rig.stats(), self.rig.list()
        out = {k: s[k] for k in ("suspends", "resumes", "gate_holds", "timeslice_sets", "undone", "device_errors")}
        out["gate_waits"] = sum(procs.get(w.pid, {}).get("counters", {}).get("gate_waits", 0) for w in self.lows)
        out["preemptions"] = self.rig.preemptions(self.lows)
        out["jobs_cpu_ms"] = sum(w.cpu_ms() for w in self.lows)
        return out

    def slices_of(self, procs):
        return {w.name: [q["slice_us"] for q in procs.get(w.pid, {}).get("queues", [])] for w in self.managed}

    def said(self, procs):
        """What the daemon says of the high's protection."""
        return procs.get(self.high.pid, {}).get("protection", [])

    # -- results

    def windows(self, name):
        return stats.windows(self.blocks, name, int(HEAD_S * 1e9), int(TAIL_S * 1e9))

    def summary(self):
        alone = [stats.rate(w.samples, self.windows("low alone %d" % i)) for i, w in enumerate(self.lows)]
        alone = [r or alone[0] for r in alone]
        modes, raw, blocks = {}, {}, {}
        for m in self.modes:
            ws = self.windows(m.name)
            if not ws or m.name.startswith("low alone"):
                continue
            blocks[m.name] = [stats.latencies_ms(self.high.samples, [w]) for w in ws]
            values = [v for block in blocks[m.name] for v in block]
            out = {"seconds": round(stats.seconds(ws), 2), "high": stats.summarize(values),
                   "evidence": self.evidence.get(m.name, {})}
            raw[m.name] = stats.compact(values)
            parts = stats.parts_of(self.high.parts, ws)
            if parts:
                out["parts"] = parts
            tokens = stats.per_token_ms(self.high.tokens, ws) if self.high.tokens else None
            if tokens:
                out["per_token"] = tokens
            if m.lows:
                part = stats.kept([self.lows[i].samples for i in m.lows], [alone[i] for i in m.lows], ws)
                low = {"rates": [round(stats.rate(self.lows[i].samples, ws), 4) for i in m.lows],
                       "kept": None if part is None else round(part, 4)}
                out["low"] = low
            if out["high"]:
                out["high"]["requests_per_s"] = round(len(values) / stats.seconds(ws), 2)
            modes[m.name] = out
        base = modes.get("alone", {}).get("high")
        at_alone = modes.get("alone", {}).get("parts")
        for name, out in modes.items():
            if at_alone and out.get("parts"):
                # Tail latency added by the device, independent of CPU noise.
                out["device_p99_more_ms"] = round(out["parts"]["device"]["p99_ms"] - at_alone["device"]["p99_ms"], 4)
            if base and out["high"]:
                out["p95_to_alone"] = round(out["high"]["p95_ms"] / base["p95_ms"], 3)
                out["p99_to_alone"] = round(out["high"]["p99_ms"] / base["p99_ms"], 3)
                if name != "alone":
                    out["p99_compared"] = stats.compared(blocks["alone"], blocks[name])
                    out["p50_compared"] = stats.compared(blocks["alone"], blocks[name], 0.5)
            if name == "live" and modes.get("native", {}).get("high") and out["high"]:
                out["p99_to_native"] = round(out["high"]["p99_ms"] / modes["native"]["high"]["p99_ms"], 3)
                out["native_compared"] = stats.compared(blocks["native"], blocks[name])
            tokens, alone_tokens = out.get("per_token"), modes.get("alone", {}).get("per_token")
            if tokens and alone_tokens:
                tokens["to_alone"] = round(tokens["mean_ms"] / alone_tokens["mean_ms"], 4)
        return ideal({"name": self.key, "collapsed": collapsed(modes), "arrivals": self.arrivals, "hz": self.hz, "gpu_ms": self.gpu_ms,
                "low_alone_rates": [round(r, 4) for r in alone], "modes": modes, "raw_us": raw,
                "order": [b.mode for b in self.blocks], "block_requests": {m: [len(b) for b in bs] for m, bs in blocks.items()},
                "slices_us": self.slices, "protection": self.protection, "block_s": self.block_s, "daemon": self.daemon_times(),
                "noise": stats.noise(self.high.samples, self.blocks, "alone", int(HEAD_S * 1e9), int(TAIL_S * 1e9)),
                "stolen_s": {m: round(t, 3) for m, t in self.stolen.items()},
                "proof": self.proof(modes)}, self.kernel)

    def daemon_times(self):
        if not self.managed:
            return None
        s = self.rig.stats()
        return {k: s.get(k) for k in ("busy_to_decision", "decision", "suspend_time", "resume_time", "scheduling")}

    # -- proof

    def proof(self, modes):
        """Returns the evidence as [{name, ok, detail}]. The caller adds the checksums when it ends the workers."""
        checks = [served(modes)]
        if self.managed:
            checks += [self.intercepted(), self.counts_equal()]
            checks += [check for m in modes for check in self.mode_checks(m)]
        return checks

    def intercepted(self):
        procs = self.rig.list()
        bad, total = [], 0
        for w in self.managed:
            c = procs.get(w.pid, {}).get("counters", {})
            total += c.get("launches", 0)
            if not c.get("hooked_calls") or not (c.get("launches") or c.get("copies")):
                bad.append("%s (pid %d): %s hooked calls, %s launches, %s copies" % (w.name, w.pid, c.get("hooked_calls"), c.get("launches"), c.get("copies")))
        return check("shim intercepts", bad, "%d launches by %d programs" % (total, len(self.managed)))

    def counts_equal(self):
        """Compares the shim's launch count with the tenant's own."""
        bad, n = [], 0
        for w in (w for w in self.managed if w.tenant):
            own = w.report()[0]
            for _ in range(40):  # the shim publishes once per tick
                seen = self.rig.list().get(w.pid, {}).get("counters", {}).get("launches")
                if seen == own:
                    break
                time.sleep(0.05)
            n += own
            if seen != own:
                bad.append("%s (pid %d): %d launches by its own count, %s by the shim" % (w.name, w.pid, own, seen))
        return check("launches equal the program's own count", bad, "%d" % n if n else "not counted by these programs")

    def mode_checks(self, name):
        e, bad = self.evidence.get(name, {}), []
        deep, held = e.get("suspends", 0), e.get("gate_waits", 0)
        if e.get("device_errors"):
            bad.append("%d device errors" % e["device_errors"])
        wrong = [s for s in self.slices.get(name, []) if not slices_fit(name, s, self.high.name)]
        if name in ("native", "alone", "cpu") and (deep or held or e.get("gate_holds")):
            bad.append("%d suspensions, %d held launches in mode off" % (deep, held))
        if name == "native" and wrong:
            bad.append("timeslices set by XSched were active: %s" % wrong[0])
        if name == "timeslice" and wrong and len(wrong) == len(self.slices[name]):
            bad.append("no timeslice set by XSched was active: %s" % wrong[0])
        if name == "live" and not self.rests and not deep and wrong and len(wrong) == len(self.slices[name]):
            bad.append("neither timeslices (%s) nor suspensions" % wrong[0])
        if name == "live" and self.untouched:
            set_by_us = [s for s in self.slices.get(name, []) if any(s.get(w.name) != [0] * len(s.get(w.name) or [1]) for w in self.lows)]
            if deep or held or set_by_us or not self.slices.get(name):
                bad.append("XSched did not leave the jobs alone: %d suspensions, %d held launches, timeslices %s" % (deep, held, set_by_us[:1] or "not read"))
        if name in ("suspend", "level2", "level3") and not (deep and e.get("preemptions")):
            bad.append("%d suspensions, %d preemptions of jobs" % (deep, e.get("preemptions", 0)))
        if name == "level1" and (deep or not e.get("gate_holds")):
            bad.append("%d gate holds, %d deeper suspensions" % (e.get("gate_holds", 0), deep))
        if name not in ("native", "alone", "timeslice", "live", "suspend", "level1", "level2", "level3") and not e:
            return []
        detail = "%d suspensions, %d preemptions, %d gate waits" % (deep, e.get("preemptions", 0), held)
        return [check("mode %s" % name, bad, detail)]


def ideal(sc, kernel):
    """Adds the ideal throughput of the jobs and the verdicts to a scenario. kernel is the time with a kernel on the GPU per
    request. Without it, the span of a request (gpu_ms) counts, which also contains the gaps between kernels."""
    ms = kernel["ms"] if kernel else sc.get("gpu_ms")
    sc["kernel"], sc["ideal_by"] = kernel, "kernels" if kernel else "span"
    for out in sc["modes"].values():
        low = out.get("low") or {}
        if ms is None or low.get("kept") is None or not out["high"]:
            continue
        most = stats.ideal_kept(out["high"]["requests_per_s"], ms)
        low["ideal"] = round(most, 4)
        low["kept_of_ideal"] = round(low["kept"] / most, 4) if most > 0 else None
    sc["verdicts"] = judge(sc["name"], sc["modes"])
    return sc


def with_cost(before, after, ns):
    """Adds what protection cost the lows between two readings, as a share of the time."""
    at = {p["device"]: p["cost_ns"] for p in before}
    return [dict(p, block_cost_ratio=round((p["cost_ns"] - at.get(p["device"], 0)) / ns, 6)) for p in after]


def sleep_until(ns):
    time.sleep(max((ns - now_ns()) / 1e9, 0))


def slices_fit(mode, found, high):
    """Native: no slice is set by XSched. Otherwise the high has one, longer than those of the lows. 0 is the driver's
    default, which lows keep if they do not take turns."""
    flat = [us for queues in found.values() for us in queues]
    if mode == "native":
        return not any(flat)
    top = max(found.get(high) or [0])
    lows = [us for name, queues in found.items() if name != high for us in queues]
    return top > 0 and all(us < top for us in lows)


def collapsed(modes):
    """The MPS modes in which the service ran alone and the jobs ran, and no request of the service ended: a result, and no lack of proof."""
    served_alone = (modes.get("alone") or {}).get("high")
    return [m for m, out in modes.items() if served_alone and m.startswith("mps") and not out["high"] and any((out.get("low") or {}).get("rates", []))]


def served(modes):
    gone = collapsed(modes)
    bad = [m for m, out in modes.items() if not out["high"] and m not in gone]
    bad += [m for m, out in modes.items() if out.get("low") and not any(out["low"]["rates"])]
    return check("service and jobs ran", ["no completion in mode " + m for m in bad],
                 "in %d modes" % len(modes) + "".join("; the service collapsed in mode " + m for m in gone))


def check(name, bad, detail=""):
    return {"name": name, "ok": not bad, "detail": "; ".join(bad) if bad else detail}


def ended_well(sums):
    """Checks the result of Rig.end: {name: checksums agree}."""
    return check("results equal", ["%s: wrong or missing checksum" % n for n, ok in sums.items() if not ok],
                 "bit-equal in all %d programs" % len(sums))
