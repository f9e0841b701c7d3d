# SPDX-License-Identifier: Apache-2.0
"""Figures of the results in the text of other pages.

`make results` writes them, and a test compares them. A sentence is given with {} for each figure; what it says about the
figures is not checked.
"""
import os
import re
import textwrap

from findings import said
from shown import gains_over_native, kept, mode, most_preemptions, p99, rows_of, suite
from tables import number, percent, ratio_interval, scenarios

FIGURE = r"([-+]?\d+(?:[.,]\d+)*)"
COLUMNS = 100


def fault(m, name):
    return number(next(r["ms"] for r in rows_of(m, "faults") if r["fault"].startswith(name)), 1)


def share_error(m, *names):
    return number(100 * max(v["value"] for v in suite(m, "share")["verdicts"] if v["what"] in ["share %s: relative error" % n for n in names]), 1)


def stop(m, case, *columns):
    row = next(r for r in rows_of(m, "stops") if r["case"] == case)
    return [number(row[c], 2) for c in columns]


def overhead(m, what):
    return next(r for r in rows_of(m, "overhead") if r["what"] == what)["more_%"]


def took(m, name, key, digits=2):
    """P99 of a scenario in ms."""
    return number(p99(mode(scenarios(m)[name], key)), digits)


def keep(m, name, key, digits=1):
    return percent(kept(mode(scenarios(m)[name], key)), digits).split()[0]


def ratio(m, name, key="live", digits=2):
    return number(mode(scenarios(m)[name], key)["p99_to_alone"], digits)


def bounds(m, name):
    return [number(v, 2) for v in ratio_interval(scenarios(m)[name])[0]]


def gains(m, name, *parts):
    """What protection gains at a part, as the daemon said and as measured."""
    sc = scenarios(m)[name]
    measured = [mode(sc, "native")["high"][q + "_ms"] - mode(sc, "live")["high"][q + "_ms"] for q in parts]
    return [number(v, 1) for v in [said(sc)[q] for q in parts] + measured]


def below_ideal(m, name, key):
    low = mode(scenarios(m)[name], key)["low"]
    return number(100 * (low["ideal"] - low["kept"]), 1)


def mps(name):
    return name + ", under MPS"


def against_mps(m, name):
    """What the jobs keep and the P99 over alone, under MPS with priorities and under XSched."""
    return [keep(m, mps(name), "mps-priority"), keep(m, name, "live"), ratio(m, mps(name), "mps-priority"), ratio(m, name)]


def gain_over_native(m):
    gains = [gain for _, gain in gains_over_native(m)]
    return [str(len(gains)), number(min(gains), 1), number(max(gains), 0)]


# file, sentence, its figures
FIGURES = [
    ("docs/faq.md", "A program that was preempted {} times computed bit-equal results", lambda m: [format(most_preemptions(m), ",")]),
    ("README.zh-CN.md", "在 XSched 下慢 {} %；一个被抢占 {} 次的程序", lambda m: ["%.1f" % overhead(m, "launch-bound loop"), format(most_preemptions(m), ",")]),
    ("docs/rollback.md", "On an H200 it took {} ms after a kill and {} ms after SIGTERM",
     lambda m: [fault(m, "daemon killed (SIGKILL) while a job"), fault(m, "daemon stopped (SIGTERM)")]),
    ("docs/reports.md", "a job runs {} ms after the daemon was stopped, {} ms after it was killed",
     lambda m: [fault(m, "daemon stopped (SIGTERM)"), fault(m, "daemon killed (SIGKILL) while a job")]),
    ("docs/guides/share-a-workstation.md", "On an H200, 3:1 was kept within {} % at {} % of the throughput",
     lambda m: [share_error(m, "3:1"), number(100 * next(r["chip"] for r in rows_of(m, "share") if r["mode"] == "3:1"), 0)]),
    ("docs/faq.md", "kept 3:1 and 8:1 within {} %", lambda m: [share_error(m, "3:1", "8:1")]),
    ("docs/platforms/nvidia.md", "stops`, run {} of the [results]", lambda m: [str(suite(m, "stops")["run"])]),
    ("docs/platforms/nvidia.md", "one program is stopped {} ms after the decision, of which the request takes {} ms. Three are stopped together after {} ms, by one request of {} ms.",
     lambda m: stop(m, "one low", "decision_to_stopped_p50_ms", "request_p50_ms") + stop(m, "three lows", "decision_to_stopped_p50_ms", "request_p50_ms")),
    ("docs/platforms/nvidia.md", "All 20 are stopped there: the request takes {} ms instead of {}.",
     lambda m: stop(m, "one attached low", "request_p50_ms") + stop(m, "one low", "request_p50_ms")),
    ("docs/operations.md", "copies too ({} ms instead of {} on an H200)",
     lambda m: stop(m, "one attached low", "request_p50_ms") + stop(m, "one low", "request_p50_ms")),
    ("docs/operations.md", "the daemon said {} ms at P50 and {} ms at P99, and {} and {} ms were measured", lambda m: gains(m, "eight", "p50", "p99")),
    ("docs/operations.md", "beside one job it said {} ms at P50, and {} ms were measured", lambda m: gains(m, "llm/train", "p50")),
    ("docs/operations.md", "{} ms said, {} ms measured at P50 (`llm/three`)", lambda m: gains(m, "llm/three", "p50")),
    ("docs/operations.md", "together kept {} points less than the ideal, natively {} points less", lambda m: [below_ideal(m, "eight", k) for k in ("live", "native")]),
    ("docs/reports.md", "H200: {} ms P50, one job", lambda m: stop(m, "one low", "decision_to_stopped_p50_ms")),
    ("docs/guides/protect-a-service.md", "had a P99 of {} ms alone, {} ms natively and {} ms under XSched. The job kept {} %, natively {} %",
     lambda m: [took(m, "llm/train", k) for k in ("alone", "native", "live")] + [keep(m, "llm/train", k, 0) for k in ("live", "native")]),
    ("docs/faq.md", "a service of 90 us kernels had a P99 of {} ms under MPS with client priorities, and {} ms under XSched",
     lambda m: [took(m, mps("micro/1 low"), "mps-priority", 1), took(m, "micro/1 low", "live")]),
    ("docs/faq.md", "both programs run at once: {} % instead of {} % in that scenario, and {} % instead of {} % beside an LLM server. The server's P99 was {} times that alone under MPS, "
     "and {} times under XSched (interval {} to {})",
     lambda m: [keep(m, mps("micro/1 low"), "mps-priority"), keep(m, "micro/1 low", "live"), keep(m, mps("serve/train"), "mps-priority"), keep(m, "serve/train", "live"),
                ratio(m, mps("serve/train"), "mps-priority", 1), ratio(m, "serve/train"), *bounds(m, "serve/train")]),
    ("docs/kubernetes/comparison.md", "Jobs keep more than under XSched: {} % instead of {} % beside an LLM server. The server's P99 was {} times that alone under MPS, and {} times under XSched "
     "(interval {} to {})",
     lambda m: [keep(m, mps("serve/train"), "mps-priority"), keep(m, "serve/train", "live"), ratio(m, mps("serve/train"), "mps-priority", 1), ratio(m, "serve/train"), *bounds(m, "serve/train")]),
    ("docs/faq.md", "beside three jobs had a P99 of {} ms alone, {} ms natively and {} ms under XSched",
     lambda m: [took(m, "llm/three", "alone", 1), took(m, "llm/three", "native", 0), took(m, "llm/three", "live", 1)]),
    ("docs/faq.md", "An eager LLM step with 26 ms of CPU had a P99 of {} ms natively and {} ms under XSched, and the training job beside it kept {} % natively and {} % under XSched",
     lambda m: [took(m, "llm-eager/train", k, 1) for k in ("native", "live")] + [keep(m, "llm-eager/train", k) for k in ("native", "live")]),
    ("docs/faq.md", "service that uses the GPU a lot: {} % instead of {} % beside speech recognition, whose P99 was {} ms natively and {} ms under XSched",
     lambda m: [keep(m, "speech", k) for k in ("native", "live")] + [took(m, "speech", k, 0) for k in ("native", "live")]),
    ("docs/faq.md", "a launch-bound loop changed by {} % under the shim, that of an empty kernel with its synchronisation by {} %, that of a synchronous copy of 4 KiB by {} %",
     lambda m: ["%+.1f" % overhead(m, w) for w in ("launch-bound loop", "empty kernel, launch and synchronize", "synchronous copy of 4 KiB")]),
    ("docs/reports.md", "tasks of 1 ms {} %, launch-bound loop {} %", lambda m: ["%+.2f" % overhead(m, w) for w in ("vector-add tasks of 1 ms", "launch-bound loop")]),
    ("docs/reports.md", "H200: P99 {}x of alone ({}-{}); job keeps {} %, natively {} % |",
     lambda m: [ratio(m, "test3"), *bounds(m, "test3"), keep(m, "test3", "live"), keep(m, "test3", "native")]),
    ("docs/reports.md", "| `gpu twomodels` | H200: P99 {} ms |", lambda m: [took(m, "twomodels", "live")]),
    ("docs/reports.md", "H200: {} ms P50; a job runs", lambda m: [number(scenarios(m)["micro/1 low"]["daemon"]["resume_time"]["p50_us"] / 1000, 2)]),
    ("docs/faq.md", "In {} scenarios the P99 was {} to {} times that under XSched ([all]", gain_over_native),
    ("docs/faq.md", "Beside eager BERT, FFTs kept {} % under MPS instead of {} %, and the P99 was {} times that alone under MPS and {} times under XSched",
     lambda m: against_mps(m, "bert12/fft")),
    ("docs/faq.md", "the figures were {} % and {} %, and {} and {} times", lambda m: against_mps(m, "bert6/fft")),
    ("docs/reports.md", "P99 {} ms, P50 {} ms, {}x of alone; job keeps {} %",
     lambda m: [took(m, "test4", "live"), number(mode(scenarios(m)["test4"], "live")["high"]["p50_ms"], 2), ratio(m, "test4"), keep(m, "test4", "live")]),
    ("docs/reports.md", "| `gpu twomodels` | H200: P99 {} ms; job keeps {} % |", lambda m: [took(m, "twomodels", "live"), keep(m, "twomodels", "live")]),
    ("docs/reports.md", "H200: Poisson {}x ({}-{}) of alone, on/off {}x ({}-{}; natively {}x); job keeps {} and {} %",
     lambda m: [ratio(m, "burst/poisson"), *bounds(m, "burst/poisson"), ratio(m, "burst/on-off"), *bounds(m, "burst/on-off"), ratio(m, "burst/on-off", "native"),
                *[keep(m, n, "live", 0) for n in ("burst/poisson", "burst/on-off")]]),
    ("docs/reports.md", "H200: {}x with three jobs, {}x (natively {}x) with seven, which keep {} and {} %",
     lambda m: [ratio(m, "tenants"), ratio(m, "eight"), ratio(m, "eight", "native"), keep(m, "tenants", "live", 0), keep(m, "eight", "live", 0)]),
    ("docs/reports.md", "request of 90 us: P99 {} ms", lambda m: [took(m, "micro/1 low", "live")]),
]


def places(text, sentence):
    """Every occurrence of the sentence, with any figures and line breaks."""
    parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in sentence.split("{}")]
    return list(re.finditer(FIGURE.join(parts), text))


def stale(root, merged):
    """[(file, sentence, figures there or None, figures of the results)] of all that differ."""
    out = []
    for path, sentence, values in FIGURES:
        with open(os.path.join(root, path)) as f:
            found = places(f.read(), sentence)
        want = values(merged)
        out += [(path, sentence, got, want) for got in [list(p.groups()) for p in found] or [None] if got != want]
    return out


def update(root, merged):
    """Writes the figures of the results into the pages. A sentence that is gone is left to the test."""
    for path, sentence, got, want in stale(root, merged):
        if got is None:
            continue
        full = os.path.join(root, path)
        with open(full) as f:
            text = f.read()
        for p in reversed(places(text, sentence)):
            for i in range(len(want), 0, -1):
                text = text[:p.start(i)] + want[i - 1] + text[p.end(i):]
            text = wrapped(text, p.start())
        with open(full, "w") as f:
            f.write(text)


def wrapped(text, at):
    """Wraps the paragraph at a position again if a line has become too long."""
    start = text.rfind("\n\n", 0, at) + 2 if "\n\n" in text[:at] else 0
    end = text.find("\n\n", at)
    end = len(text.rstrip("\n")) if end < 0 else end
    lines = text[start:end].split("\n")
    first = max((i for i, line in enumerate(lines) if re.match(r"\s*- ", line) and start + sum(len(x) + 1 for x in lines[:i]) <= at), default=0)
    last = next((i for i, line in enumerate(lines) if i > first and re.match(r"\s*- ", line)), len(lines))
    item = lines[first:last]
    if any(line.startswith("|") for line in item) or all(len(line) <= COLUMNS for line in item):
        return text
    indent = re.match(r"(\s*- )?", item[0]).group()
    filled = textwrap.fill(" ".join(line.strip() for line in item), COLUMNS, subsequent_indent=" " * len(indent), break_long_words=False, break_on_hyphens=False)
    return text[:start] + "\n".join(lines[:first] + [filled] + lines[last:]) + text[end:]
