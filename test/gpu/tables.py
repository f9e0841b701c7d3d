# SPDX-License-Identifier: Apache-2.0
"""Merging of runs, figures derived from raw samples, and formatting."""
import itertools
import json
import math
import os
import random
import re
import subprocess
import textwrap

import stats

XSCHED = os.environ.get("XSCHED") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bin", "xsched")

# Modes as the tables name them.
NAMES = {"live": "XSched", "timeslice": "XSched, timeslices only", "suspend": "XSched, suspension only (Lv3)",
         "level1": "XSched, Lv1", "level2": "XSched, Lv2", "mps": "MPS", "mps-priority": "MPS, client priorities"}
UNDER_MPS = ", under MPS"
HALVES = 500  # ways to halve the blocks of a mode


def proven(s):
    return s["status"] in ("OK", "MISSED")


# -- merging


def merge(results):
    """Combines runs. The last run of each suite counts. Of each scenario, the newest build that measured it counts, and of
    several runs of that build the one on the steadiest machine, whatever it found. A scenario that the last run of its suite
    left out stays, with the number of its run. "history" has every proven run of a scenario."""
    out = {"runs": results, "suites": {}, "history": {}}
    for run, r in enumerate(results, 1):
        for name, s in r["suites"].items():
            if s["status"] != "SKIPPED" or name not in out["suites"]:
                out["suites"][name] = over(out["suites"].get(name), s, run, build(r))
            for sc in s.get("scenarios", []) if proven(s) else []:
                if all((sc["modes"].get(m) or {}).get("high") for m in ("alone", "live")):
                    out["history"].setdefault(sc["name"], []).append(dict(sc, run=run))
    return out


def build(r):
    """What was measured: the commit, or the version of older builds."""
    found = r["machine"].get("xsched")
    return found.get("commit") or found.get("version") if isinstance(found, dict) else found


def over(earlier, s, run, of):
    """Returns suite s of a later run, with the scenarios of the earlier run that s lacks or measured on a less steady
    machine with the same build. A failed suite keeps nothing."""
    s = dict(s, run=run)
    if "scenarios" in s:
        s["scenarios"] = [dict(sc, run=run, build=of) for sc in s["scenarios"]]
    if not earlier or not proven(s) or not proven(earlier):
        return s
    found = {sc["name"]: sc for sc in s.get("scenarios", [])}
    for sc in earlier.get("scenarios", []):
        later = found.get(sc["name"])
        if later is None or sc["build"] == of and unsteadiness(sc) < unsteadiness(later):
            found[sc["name"]] = sc
    if all(sc["run"] == run for sc in found.values()):
        return s
    s["scenarios"] = list(found.values())
    missed = ["%s%s: %s" % (sc["name"], "" if sc["run"] == run else ", run %d" % sc["run"], verdict_text(v)) for sc in found.values() for v in sc["verdicts"] if not v["ok"]]
    missed += ["%s: %s" % (c["name"], c["detail"]) for c in s.get("checks", []) if not c["ok"]] + [verdict_text(v) for v in s.get("verdicts", []) if not v["ok"]]
    s["status"], s["why"] = "MISSED" if missed else "OK", "; ".join(missed)
    return s


def unsteadiness(sc):
    """How unsteady the machine was, as a sort key. Only the alone blocks count, so XSched's own figures have no influence: first
    the steal time of the service's cores, in percent of the time, then how far the P99 of two halves of the blocks differ."""
    alone, stolen = sc["modes"].get("alone") or {}, (sc.get("stolen_s") or {}).get("alone", 0)
    apart = halves(sc) or (sc.get("noise") or {}).get("p99_ms") or [0, 0]
    return round(100 * stolen / alone["seconds"]) if alone.get("seconds") else 0, apart[1] / apart[0] if apart[0] else float("inf")


def scenarios(merged):
    """{name: scenario} of all proven suites."""
    return {sc["name"]: sc for s in merged["suites"].values() if proven(s) for sc in s.get("scenarios", [])}


# -- figures derived from raw samples


def blocks(sc, mode):
    """The raw latencies of a mode, block by block. [] for runs that do not say where a block ends."""
    sizes, raw = (sc.get("block_requests") or {}).get(mode) or [], sc["raw_us"].get(mode) or []
    if sum(sizes) != len(raw):
        return []
    return [raw[end - n:end] for n, end in zip(sizes, itertools.accumulate(sizes))]


def halves(sc):
    """Returns the middle 90 % of the ratios between the P99 of one half of the alone blocks and of the other half, over
    all ways to halve them, or over 500 of them. Both halves measure the same thing, so a ratio in this range is noise of the machine."""
    alone = blocks(sc, "alone")
    if len(alone) < stats.MIN_BLOCKS:
        return None
    which, half = range(len(alone)), len(alone) // 2
    if math.comb(len(alone), half) <= HALVES:
        ways = itertools.combinations(which, half)
    else:
        rng = random.Random(1)
        ways = [rng.sample(which, half) for _ in range(HALVES)]

    def p99(of):
        return stats.over_blocks([alone[i] for i in of], 0.99)
    found = sorted(p99(one) / p99(set(which) - set(one)) for one in ways)
    return [found[int(len(found) * 0.05)], found[int(len(found) * 0.95)]]


def ratio_interval(sc, mode="live", rounds=500):
    """Returns the 95 % interval of P99 / alone and how it was made: "" by resampling blocks, "*" by resampling requests,
    for runs with fewer than four blocks of a mode."""
    found = (sc["modes"][mode].get("p99_compared") or {}).get("ratio")
    if found:
        return found, ""
    alone, ours = sc["raw_us"].get("alone") or [], sc["raw_us"].get(mode) or []
    if min(len(alone), len(ours)) < 20:
        return None, ""
    rng = random.Random(1)

    def p99(values):
        return stats.percentile(rng.choices(values, k=len(values)), 0.99)
    return stats.middle([p99(ours) / p99(alone) for _ in range(rounds)], 4), "*"


# -- text


def number(v, digits=3):
    if v is None:
        return "-"
    return "%.*f" % (digits, round(v, digits) + 0.0) if isinstance(v, float) else str(v)  # + 0.0: no -0.00


def ms(v):
    """Milliseconds with three significant digits."""
    return "-" if v is None else "%.*f ms" % (2 if v < 9.995 else 1, v)


def times(v):
    return "-" if not v else number(v, 2 if v < 10 else 1) + "x"


def percent(v, digits=1):
    return "-" if v is None else "%.*f %%" % (digits, 100 * v)


def span(values, digits=2, unit="x"):
    """The least and the greatest of values."""
    return "%.*f to %.*f%s" % (digits, min(values), digits, max(values), unit)


def interval_text(interval, digits=2):
    if not interval:
        return ""
    return " (%s%s%s)" % (number(interval[0], digits), "-" if interval[0] >= 0 else " to ", number(interval[1], digits))


def verdict_text(v):
    noise = ", within noise" if v.get("within_noise") else ""
    return "%s %s%s %s (must be %s %s%s)" % (v["what"], number(v["value"]), interval_text(v.get("interval"), 3), v["unit"],
                                            "<=" if v["at_most"] else ">=", number(v["limit"]), noise)


def paragraph(text, indent=""):
    text = re.sub(r" (?=%|ms\b|us\b)", "\0", text)  # keeps a number and its unit on one line
    return textwrap.fill(text, 100, initial_indent=indent, subsequent_indent=" " * len(indent), break_long_words=False,
                         break_on_hyphens=False).replace("\0", " ") + "\n"


def bullets(items):
    return "".join(paragraph(i, "- ") for i in items)


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(c).replace("|", "/") for c in row) + " |" for row in rows]) + "\n"


def render(page):
    """`xsched render` is the only renderer."""
    return subprocess.run([XSCHED, "render", "--svg"], input=json.dumps(page), stdout=subprocess.PIPE, text=True, check=True).stdout


def chart(name, raw_us):
    """Latency percentiles of each mode as SVG."""
    curves = [{"name": "xsched" if m == "live" else m, "values": [v / 1000 for v in raw]} for m, raw in raw_us.items() if raw]
    return render({"title": name + ": latency of the service", "blocks": [{"heading": "Latency of the service: " + name, "curves": curves}]})
