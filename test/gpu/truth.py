# SPDX-License-Identifier: Apache-2.0
"""GPU occupancy by the device clock: the ground truth for the counters.

The kernels of cuda/truth.cu poll %globaltimer and log every jump. A jump means that the kernel was preempted.
This module matches the jumps of one program with the kernels of another.
"""
import bisect
import time

import stats
import targets
from scene import check, ended_well
from stats import verdict

SLACK_NS = 6000  # two reads of the clock and its granularity


def parse(answers, seen):
    """Returns the kernels and jumps a worker logged since the last call: ([(start, end)], [(from, to)])."""
    kernels = [(int(a), int(b)) for a, b in answers.get("K", [])[seen.get("K", 0):]]
    jumps = [(int(a), int(b)) for a, b in answers.get("O", [])[seen.get("O", 0):]]
    seen.update({k: len(answers.get(k, [])) for k in ("K", "O")})
    return kernels, jumps


def on_chip(kernels, jumps):
    """Returns the intervals in which the kernels were on the chip, sorted."""
    out, j = [], 0
    jumps = sorted(jumps)
    for start, end in sorted(kernels):
        at = start
        while j < len(jumps) and jumps[j][0] < end:
            if jumps[j][0] > at:
                out.append((at, jumps[j][0]))
            at = max(at, jumps[j][1])
            j += 1
        if end > at:
            out.append((at, end))
    return out


def overlap_ns(a, b):
    """Returns the time covered by both of two sorted lists of intervals."""
    total, i, j = 0, 0, 0
    while i < len(a) and j < len(b):
        total += max(min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]) - SLACK_NS, 0)
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def judge(high, lows):
    """Summarizes the span of the high's kernels. high is (kernels, jumps), lows is a list of such pairs."""
    kernels, own = high
    if not kernels:
        return None
    chips = [on_chip(*low) for low in lows]
    high_on = on_chip(kernels, own)
    begin, end = min(k[0] for k in kernels), max(k[1] for k in kernels)
    jumps = [sorted(j) for _, j in lows]
    inside, to_high, to_low, away = 0, [], [], []
    for start, stop in kernels:
        found = None
        for j in jumps:
            at = bisect.bisect_right(j, (start + SLACK_NS, 0)) - 1
            if at >= 0 and j[at][1] >= stop - SLACK_NS and (found is None or j[at][0] > found[0]):
                found = j[at]
        if found:
            inside += 1
            away.append((found[1] - found[0] - (stop - start)) / 1000)
            to_high.append((start - found[0]) / 1000)
            to_low.append((found[1] - stop) / 1000)
    span = end - begin
    low_ns = sum(max(min(b, end) - max(a, begin), 0) for chip in chips for a, b in chip)
    return {"requests": len(kernels), "in_a_stopped_low_kernel": inside, "high_stopped": len(own),
            "low_stops": sum(len(j) for j in jumps), "both_at_once_us": sum(overlap_ns(high_on, c) for c in chips) / 1000,
            "low_stop_to_high_us": round(stats.median(to_high), 1), "high_end_to_low_us": round(stats.median(to_low), 1),
            "lost_a_request_us": round(stats.median(away), 1),
            "lows_on_chip": round(low_ns / span, 4) if span else None,
            "high_on_chip": round(sum(b - a for a, b in high_on) / span, 4) if span else None}


def truth(rig):
    """The micro scenario with kernels that detect their own preemption."""
    program = rig.helper("truth")
    rig.start_daemon()
    rig.mode("off")
    high = rig.worker("high", [program, "--kernel-us", "90"], 10, role="high").ready(30)
    lows, rows, seen, proof = [], [], {}, []
    for n in (1, 3):
        while len(lows) < n:
            lows.append(rig.worker("low%d" % (len(lows) + 1), [program, "--kernel-us", "20000"], 0).ready(30))
        rig.joined([high] + lows)
        for mode in ("native", "timeslice", "suspend", "live"):
            rig.mode("off" if mode == "native" else mode)
            for w in lows:
                w.tell("loop")
            time.sleep(0.3)
            before = rig.preemptions(lows)
            latency = len(high.samples)
            high.tell("rate 100")
            time.sleep(3 * rig.scale)
            high.pause()
            counted = rig.preemptions(lows) - before
            rig.mode("off")
            for w in lows:
                w.pause()
            found = {w: parse(w.answers, seen.setdefault(w.name, {})) for w in [high] + lows}
            row = judge(found[high], [found[w] for w in lows])
            ms = [(b - a) / 1e6 for a, b in high.samples[latency:]]
            rows.append(dict({"lows": n, "mode": mode, "p99_ms": round(stats.percentile(ms, 0.99), 3), "preemptions_counted": counted}, **row or {}))
            if not row:
                proof.append(check("%s, %d lows" % (mode, n), ["no kernel of the service was logged"]))
    sums = ended_well(rig.end([high] + lows))
    ours = [r for r in rows if r["mode"] == "live" and r.get("requests")]
    proof += [sums, check("one program on the GPU at a time", ["%s with %d jobs: %.0f us with two" % (r["mode"], r["lows"], r["both_at_once_us"])
                                                               for r in rows if r.get("both_at_once_us", 0) > 100],
                          "no kernels of two programs overlap by the device clock"),
              check("jobs were preempted inside a kernel", ["%d jobs: no preemption was logged" % r["lows"] for r in ours if not r["in_a_stopped_low_kernel"]],
                    ", ".join("%d of %d requests with %d job%s" % (r["in_a_stopped_low_kernel"], r["requests"], r["lows"], "s" if r["lows"] > 1 else "")
                              for r in ours))]
    verdicts = [verdict("%d job%s: requests that ran inside a preempted kernel" % (r["lows"], "s" if r["lows"] > 1 else ""),
                        r["in_a_stopped_low_kernel"] / r["requests"], targets.TRUTH, False, "part") for r in ours]
    notes = ["A job kernel of 20 ms logs every jump of %globaltimer above 15 us. low_stop_to_high and high_end_to_low are the two context switches of a request."]
    return {"rows": {"truth": rows}, "verdicts": verdicts, "proof": proof, "notes": notes}
