# SPDX-License-Identifier: Apache-2.0
"""Statistics over samples, with the definitions of internal/bench.

Times are CLOCK_MONOTONIC nanoseconds. A sample is (start, end). A request starts at its scheduled arrival, so that
queueing counts.
"""
import math
import random
import statistics
from collections import namedtuple

Block = namedtuple("Block", "mode start end")
Window = namedtuple("Window", "start end")

MIN_BLOCKS = 4  # least number for resampling
SWITCH_MS = 0.4  # two context switches per request


def percentile(values, q):
    """Nearest rank; 0 for no values."""
    if not values:
        return 0.0
    s = sorted(values)
    return s[min(max(math.ceil(q * len(s)), 1), len(s)) - 1]


def median(values):
    return statistics.median(values) if values else 0.0


def windows(blocks, mode, head_ns, tail_ns):
    """Returns the measured part of each block of a mode. At the start the mode takes effect; at the end requests in
    flight finish under the next mode."""
    out = []
    for b in blocks:
        w = Window(b.start + head_ns, b.end - tail_ns)
        if b.mode == mode and w.end > w.start:
            out.append(w)
    return out


def seconds(ws):
    return sum(w.end - w.start for w in ws) / 1e9


def latencies_ms(samples, ws):
    """Latencies of the requests due inside the windows, including those that ended later: dropping them would hide the tail."""
    return [(end - start) / 1e6 for start, end in samples
            if any(w.start <= start < w.end for w in ws)]


Parts = namedtuple("Parts", "cpu_ms device_ms queue_ms submission_ms")


def split(due, end, begun, submitted, done):
    """Splits a latency. The device part is the time from the last submission to completion; the CPU part is the rest:
    late start, submission, wake-up. A CPU stall during submission never adds to the device part. Of the CPU part, the queue is the
    time until the request begins, behind those before it, and the submission follows."""
    done = min(max(done, submitted), end)  # the two clocks differ by some microseconds
    device = done - submitted
    return Parts((end - due - device) / 1e6, device / 1e6, (begun - due) / 1e6, (submitted - begun) / 1e6)


def parts_in(parts, ws):
    """The parts of the requests due inside the windows; parts is {due: (end, begun, submitted, done)}."""
    return [split(due, *rest) for due, rest in parts.items() if any(w.start <= due < w.end for w in ws)]


def parts_of(parts, ws):
    """Summarizes the parts. None without samples."""
    found = parts_in(parts, ws)
    if not found:
        return None
    out = {}
    for name in Parts._fields:
        values = [getattr(p, name) for p in found]
        out[name[:-3]] = {"p50_ms": round(percentile(values, 0.5), 4), "p99_ms": round(percentile(values, 0.99), 4),
                          "max_ms": round(max(values), 4), "p99_interval_ms": p99_interval(values)}
    return out


def per_token_ms(tokens, ws):
    """Times between tokens of the requests due inside the windows; tokens is {due: (first, end, count)}. None without any."""
    found = [(end - first, n - 1) for due, (first, end, n) in list(tokens.items()) if n > 1 and any(w.start <= due < w.end for w in ws)]
    if not found:
        return None
    values = [t / n / 1e6 for t, n in found]
    return {"n": len(found), "mean_ms": round(sum(t for t, _ in found) / sum(n for _, n in found) / 1e6, 4),
            "p50_ms": round(percentile(values, 0.5), 4), "p99_ms": round(percentile(values, 0.99), 4)}


def iterations(samples, ws):
    """Counts iterations inside the windows; at an edge, the fraction inside."""
    n = 0.0
    for start, end in samples:
        if end > start:
            for w in ws:
                n += max(min(end, w.end) - max(start, w.start), 0) / (end - start)
    return n


def rate(samples, ws):
    t = seconds(ws)
    return iterations(samples, ws) / t if t > 0 else 0.0


def completions(samples):
    """Intervals between completions, for programs with overlapping iterations."""
    ends = sorted(end for _, end in samples)
    return list(zip(ends, ends[1:]))


def p99_interval(values, seed=1, rounds=200):
    """95 % interval of the P99 by resampling requests."""
    if len(values) < 20:
        return None
    rng = random.Random(seed)
    return middle([percentile(rng.choices(values, k=len(values)), 0.99) for _ in range(rounds)], 4)


def compared(alone, ours, q=0.99, seed=1, rounds=500):
    """95 % intervals of a percentile over that of alone, and of their difference."""
    alone, ours = [b for b in alone if b], [b for b in ours if b]
    if min(len(alone), len(ours)) < MIN_BLOCKS:
        return None
    rng, ratios, more = random.Random(seed), [], []
    for _ in range(rounds):
        a, b = (over_blocks(drawn, q) for drawn in redrawn(rng, alone, ours))
        ratios.append(b / a)
        more.append(b - a)
    return {"ratio": middle(ratios, 4), "more_ms": middle(more, 4)}


def over_blocks(blocks, q):
    """The percentile over all requests of the blocks."""
    return percentile([v for b in blocks for v in b], q)


def redrawn(rng, alone, ours):
    """Resamples blocks, not requests, because noise is correlated in time. With equal block counts, the n-th blocks are neighbours in
    time and are drawn together."""
    mine = theirs = rng.choices(range(len(ours)), k=len(ours))
    if len(alone) != len(ours):
        theirs = rng.choices(range(len(alone)), k=len(alone))
    return [alone[i] for i in theirs], [ours[i] for i in mine]


def middle(found, digits):
    """The bounds of the middle 95 %."""
    s = sorted(found)
    return [round(s[int(len(s) * 0.025)], digits), round(s[int(len(s) * 0.975)], digits)]


def paired(pairs, seed=1, rounds=1000):
    """Median relative increase of the second value of each pair, and its 95 % interval by resampling pairs. Pairs are
    neighbours in time, so that drift affects both."""
    more = [b / a - 1 for a, b in pairs if a > 0 and b > 0]
    if len(more) < 5:
        return None, None
    rng = random.Random(seed)
    return round(median(more), 6), middle([median(rng.choices(more, k=len(more))) for _ in range(rounds)], 6)


def summarize(values_ms):
    if not values_ms:
        return None
    return {
        "n": len(values_ms),
        "mean_ms": round(sum(values_ms) / len(values_ms), 4),
        "p50_ms": round(percentile(values_ms, 0.50), 4),
        "p95_ms": round(percentile(values_ms, 0.95), 4),
        "p99_ms": round(percentile(values_ms, 0.99), 4),
        "max_ms": round(max(values_ms), 4),
        "p99_interval_ms": p99_interval(values_ms),
    }


def ideal_kept(requests_per_s, gpu_ms):
    """Throughput that ideal time-slicing leaves to the lows: one request and two context switches each time."""
    return max(1 - requests_per_s * (gpu_ms + SWITCH_MS) / 1000, 0.0)


def kept(low_samples, alone_rates, ws):
    """Sum over the lows of the rate inside the windows over the rate alone."""
    total = 0.0
    for samples, alone in zip(low_samples, alone_rates):
        if alone <= 0:
            return None
        total += rate(samples, ws) / alone
    return total


def ranks(values):
    """The rank of each value, from 1; equal values share their mean rank."""
    first, count = {}, {}
    for at, v in enumerate(sorted(values), 1):
        first.setdefault(v, at)
        count[v] = count.get(v, 0) + 1
    return [first[v] + (count[v] - 1) / 2 for v in values]


def spearman(xs, ys):
    """Rank correlation. None if one side does not vary."""
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    a, b = ranks(xs), ranks(ys)
    mean = (len(a) + 1) / 2
    both, of_a, of_b = (sum((x - mean) * (y - mean) for x, y in zip(*pair)) for pair in ((a, b), (a, a), (b, b)))
    return round(both / math.sqrt(of_a * of_b), 4)


def noise(samples, blocks, mode, head_ns, tail_ns):
    """Spread of P50 and P99 over the single blocks of a mode."""
    per_block = []
    for b in blocks:
        if b.mode == mode:
            values = latencies_ms(samples, windows([b], mode, head_ns, tail_ns))
            if values:
                per_block.append((percentile(values, 0.5), percentile(values, 0.99)))
    if not per_block:
        return None
    p50, p99 = [p for p, _ in per_block], [p for _, p in per_block]
    return {"blocks": len(per_block),
            "p50_ms": [round(min(p50), 4), round(max(p50), 4)],
            "p99_ms": [round(min(p99), 4), round(max(p99), 4)]}


def block_count(seconds, block_s):
    return max(round(seconds / block_s), 1) if seconds > 0 else 0


def schedule(modes, block_s, seed, together=()):
    """Returns the order of the blocks; modes is [(name, seconds)]. Every round has blocks of all modes, so that drift
    affects all of them. In a round, the compared modes (together) are neighbours. The order within each group is random."""
    counts = {name: block_count(s, block_s) for name, s in modes if s > 0}
    rounds = max(counts.values(), default=0)
    rng = random.Random(seed)
    out = []

    def before(r, k):
        return (2 * r * k + rounds) // (2 * rounds)
    for r in range(rounds):
        # A mode with k blocks gets k evenly spread rounds.
        names = [n for n, k in counts.items() if before(r, k) != before(r + 1, k)]
        for group in ([n for n in names if n in together], [n for n in names if n not in together]):
            rng.shuffle(group)
            out += group
    return out


def compact(values_ms):
    """Latencies for the raw data: microseconds, in order of arrival."""
    return [round(v * 1000) for v in values_ms]


def verdict(what, value, limit, at_most, unit="", interval=None):
    """Compares a value with its limit. A missing value fails. Only the value decides; "within noise" means that the
    interval contains the limit and another run may decide otherwise."""
    ok = value is not None and (value <= limit if at_most else value >= limit)
    out = {"what": what, "value": None if value is None else round(value, 4),
           "limit": limit, "at_most": at_most, "unit": unit, "ok": bool(ok)}
    if interval:
        out["interval"], out["within_noise"] = interval, interval[0] < limit < interval[1]
    return out
