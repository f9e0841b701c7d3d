#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""results.json -> tables in Markdown, pictures in SVG, one HTML page.

  report.py RESULTS.json... --out docs/results --name h200

Several files (of several runs, or of one page's raw data) are put together: of a suite that is in more than one the
last one counts, and so it is with each of its scenarios: one that the last run of the suite left out stays, with the
number of its command. A suite without proof shows why, and no numbers.
"""
import argparse
import gzip
import itertools
import json
import os
import subprocess
import sys
import time

import stats

XSCHED = os.environ.get("XSCHED") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bin", "xsched")

NAMES = {"live": "**xsched**", "timeslice": "xsched, timeslices only", "suspend": "xsched, suspend only (Lv3)",
         "level1": "xsched Lv1", "level2": "xsched Lv2", "mps": "MPS", "mps-priority": "MPS, client priority"}


def merge(results):
    out = {"machines": [], "commands": [], "suites": {}, "seconds": 0, "runs": {}}
    for number_of, r in enumerate(results, 1):
        out["machines"].append(r["machine"])
        out["commands"].append(r["command"])
        out["seconds"] += r.get("seconds", 0)
        for name, s in r["suites"].items():
            if s["status"] != "SKIPPED" or name not in out["suites"]:
                out["suites"][name] = over(out["suites"].get(name), s, number_of)
            for sc in s.get("scenarios", []) if proven(s) else []:
                alone, live = (sc["modes"].get(m) or {} for m in ("alone", "live"))
                if alone.get("high") and live.get("high"):
                    p95 = live["high"]["p95_ms"] / alone["high"]["p95_ms"]
                    out["runs"].setdefault(sc["name"], []).append(dict(live, p95_to_alone=p95, halves=halves(sc), command=number_of))
    return out


def halves(sc):
    """The P99 of one half of the blocks of `alone` over that of the other: the middle 90 % of all ways to halve them. Nothing
    but the machine differs between them, so a ratio inside this says nothing about XSched."""
    sizes, raw = (sc.get("block_requests") or {}).get("alone"), sc["raw_us"].get("alone")
    if not sizes or len(sizes) < 4:
        return None
    ends = list(itertools.accumulate(sizes))
    blocks = [raw[end - n:end] for n, end in zip(sizes, ends)]
    which = set(range(len(blocks)))

    def p99(of):
        return stats.percentile([v for i in of for v in blocks[i]], 0.99)
    found = sorted(p99(one) / p99(which - set(one)) for one in itertools.combinations(sorted(which), len(blocks) // 2))
    return [found[int(len(found) * 0.05)], found[int(len(found) * 0.95)]]


def over(earlier, s, command):
    """The suite s of a later run, with what only the earlier has. A failed one keeps nothing: it says why."""
    s = dict(s, command=command)
    if "scenarios" in s:
        s["scenarios"] = [dict(sc, command=command) for sc in s["scenarios"]]
    if not earlier or not proven(s) or not proven(earlier):
        return s
    names = {sc["name"] for sc in s.get("scenarios", [])}
    kept = [sc for sc in earlier.get("scenarios", []) if sc["name"] not in names]
    if not kept:
        return s
    s["scenarios"] = s.get("scenarios", []) + kept
    missed = ["%s, by command %d: %s" % (sc["name"], sc["command"], verdict_text(v))
              for sc in kept for v in sc["verdicts"] if not v["ok"]]
    if missed:
        s["status"] = "MISSED" if s["status"] == "OK" else s["status"]
        s["why"] = "; ".join(([s["why"]] if s["why"] else []) + missed)
    return s


# -- text


def number(v, digits=3):
    if v is None:
        return "-"
    if isinstance(v, float):
        return ("%.*f" % (digits, v))
    return str(v)


def times(v):
    return "-" if not v else number(v, 2) + "x"


def percent(v):
    return "-" if v is None else "%.1f %%" % (100 * v)


def verdict_text(v):
    noise = ", within noise" if v.get("within_noise") else ""
    return "%s %s%s %s (must be %s %s%s)" % (v["what"], number(v["value"]), interval_text(v.get("interval")), v["unit"],
                                            "<=" if v["at_most"] else ">=", number(v["limit"]), noise)


def interval_text(interval, digits=2):
    if not interval:
        return ""
    return " (%s%s%s)" % (number(interval[0], digits), "-" if interval[0] >= 0 else " to ", number(interval[1], digits))


class Table:
    """A table, as Markdown or as a block of a page."""

    def __init__(self, head, rows):
        self.head, self.rows = head, [[str(c) for c in row] for row in rows]

    def block(self):
        return {"table": {"head": self.head, "rows": [[c.replace("**", "") for c in row] for row in self.rows], "left": 1}}

    def __str__(self):
        lines = ["| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in self.rows]) + "\n"


class Chart:
    """Latencies of each mode, as curves."""

    def __init__(self, name, raw_us):
        self.name = name
        self.curves = [{"name": m, "values": [v / 1000 for v in raw]} for m, raw in raw_us.items() if raw]

    def block(self):
        return {"heading": "Latency of the high tenant: " + self.name, "curves": self.curves}

    def svg(self):
        return render(self.name + ": latency of the high tenant", [self.block()], "--svg")


def render(title, blocks, *flags):
    """The page as HTML, or its charts as SVG: xsched has the one renderer."""
    done = subprocess.run([XSCHED, "render", *flags], input=json.dumps({"title": title, "blocks": blocks}), stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def generic(rows):
    """A table of what the rows have, in the order in which it first appears."""
    keys = []
    for r in rows:
        keys += [k for k in r if k not in keys]

    def cell(v):
        if isinstance(v, (dict, list)):
            return json.dumps(v).replace("|", "/")
        return number(v)
    return Table([k.replace("_", " ") for k in keys], [[cell(r.get(k)) for k in keys] for r in rows])


def scenario_table(s):
    rows = []
    for name, m in s["modes"].items():
        h, low, e = m["high"] or {}, m.get("low") or {}, m.get("evidence") or {}
        ratio = (m.get("p99_compared") or {}).get("ratio")
        rows.append([NAMES.get(name, name), h.get("n", 0), number(h.get("mean_ms"), 2), number(h.get("p50_ms")), number(h.get("p95_ms")),
                     number(h.get("p99_ms")) + interval_text(h.get("p99_interval_ms")), number(h.get("max_ms"), 2),
                     times(m.get("p95_to_alone")), times(m.get("p99_to_alone")) + interval_text(ratio),
                     percent(low.get("kept")), percent(low.get("kept_of_ideal")), e.get("preemptions", "-"), e.get("suspends", "-")])
    return Table(["mode", "n", "mean", "P50", "P95", "P99 (95 %)", "max (ms)", "P95 / alone", "P99 / alone (95 %)", "low kept", "of ideal", "preemptions", "suspends"], rows)


def runs_table(runs):
    """What was measured more than once, every time: one run is one draw from the machine's noise."""
    rows = [[name, m["command"], m["high"]["n"], times(m.get("p95_to_alone")), times(m["p99_to_alone"]) + interval_text((m.get("p99_compared") or {}).get("ratio")),
             "%.2f-%.2f" % tuple(m["halves"]) if m["halves"] else "-", number(m.get("device_p99_more_ms")), percent((m.get("low") or {}).get("kept_of_ideal"))]
            for name, found in runs.items() if len(found) > 1 for m in found]
    return rows and Table(["scenario", "command", "n", "P95 / alone", "P99 / alone (95 %)", "alone / alone (90 %)", "device P99 over alone (ms)", "kept of ideal"], rows)


def parts_table(s):
    """Where the latency comes from; None if the program did not say."""
    rows = []
    for name, m in s["modes"].items():
        p = m.get("parts")
        if p:
            rows.append([NAMES.get(name, name)] + [number(p[side][k]) for side in ("device", "cpu") for k in ("p50_ms", "p99_ms", "max_ms")]
                        + [number(m.get("device_p99_more_ms")), number(s.get("stolen_s", {}).get(name), 2)])
    if not rows:
        return None
    return Table(["mode", "device P50", "P99", "max (ms)", "CPU P50", "P99", "max (ms)", "device P99 over alone", "CPU stolen (s)"], rows)


def ideal_text(s):
    parts = ["Command %d" % s["command"]] if s.get("command") else []
    parts.append("arrivals `%s`" % s["arrivals"])
    if s.get("gpu_ms") is not None:
        parts.append("the high's isolated GPU time %.3f ms" % s["gpu_ms"])
    if s.get("low_models"):
        parts.append("lows: " + ", ".join(s["low_models"]))
    parts.append("lows alone: " + ", ".join("%s/s" % number(r, 2) for r in s["low_alone_rates"]))
    n = s.get("noise")
    if n:
        parts.append("the %d alone blocks one by one: P50 %s-%s, P99 %s-%s ms"
                     % (n["blocks"], number(n["p50_ms"][0], 2), number(n["p50_ms"][1], 2), number(n["p99_ms"][0], 2), number(n["p99_ms"][1], 2)))
    d = s.get("daemon")
    if d and (d.get("busy_to_decision") or {}).get("count"):
        parts.append("arrival to decision P50 %.0f, P99 %.0f us" % (d["busy_to_decision"]["p50_us"], d["busy_to_decision"]["p99_us"]))
        if d["suspend_time"]["count"]:
            parts.append("one suspend P50 %.0f, P99 %.0f us, one resume P50 %.0f us"
                         % (d["suspend_time"]["p50_us"], d["suspend_time"]["p99_us"], d["resume_time"]["p50_us"]))
    return "; ".join(parts) + "."


def proven(s):
    return s["status"] in ("OK", "MISSED", "INCOMPLETE")


def verdict_rows(verdicts):
    return Table(["must show", "measured", "limit", ""],
                 [[v["what"], "%s%s %s" % (number(v["value"]), interval_text(v.get("interval")), v["unit"]),
                   ("<= " if v["at_most"] else ">= ") + number(v["limit"]),
                   ("met" if v["ok"] else "**missed**") + (", within noise" if v.get("within_noise") else "")] for v in verdicts])


def sections(merged):
    """[(suite, [blocks])]; a block is Markdown text, a Table or a Chart."""
    out = []
    for name, s in merged["suites"].items():
        blocks = ["**%s**%s (command %d, %.0f s)\n" % (s["status"], ": " + s["why"] if s["why"] else "", s["command"], s.get("seconds", 0))]
        if proven(s):
            for sc in s.get("scenarios", []):
                if sc["name"] != name:
                    blocks.append("#### %s\n" % sc["name"])
                blocks.append(scenario_table(sc))
                parts = parts_table(sc)
                if parts:
                    blocks.append("Device: what it still had to do when all was submitted. CPU: the rest (starting, submitting, waking up).\n")
                    blocks.append(parts)
                blocks.append(ideal_text(sc) + "\n")
                if any(sc["raw_us"].values()):
                    blocks.append(Chart(sc["name"], sc["raw_us"]))
                if sc["verdicts"]:
                    blocks.append(verdict_rows(sc["verdicts"]))
            for rows in s.get("rows", {}).values():
                if rows:
                    blocks.append(generic(rows))
            if s.get("raw_us"):
                blocks.append(Chart(name, s["raw_us"]))
            if s.get("checks"):
                blocks.append(Table(["check", "", ""], [[c["name"], "ok" if c["ok"] else "**FAILED**", c["detail"]] for c in s["checks"]]))
            if s.get("verdicts"):
                blocks.append(verdict_rows(s["verdicts"]))
        proof = list(s.get("proof", [])) + [p for sc in s.get("scenarios", []) for p in sc["proof"]]
        if proof:
            lines = []
            for p in proof:
                line = "- %s: %s%s" % (p["name"], "" if p["ok"] else "**FAILED** ", p["detail"])
                if line not in lines:
                    lines.append(line)
            blocks.append("Proof:\n\n" + "\n".join(lines) + "\n")
        for note in s.get("notes", []):
            blocks.append("Note: %s\n" % note)
        out.append((name, blocks))
    return out


def summary_rows(merged):
    rows = []
    for name, s in merged["suites"].items():
        if not proven(s):
            rows.append([name, s["status"], s["why"][:160], "", "", "", ""])
            continue
        for sc in s.get("scenarios", []):
            alone = (sc["modes"].get("alone") or {}).get("high") or {}
            for mode, m in sc["modes"].items():
                if mode == "alone":
                    continue
                h, low = m["high"] or {}, m.get("low") or {}
                rows.append([sc["name"], mode, number(alone.get("p99_ms")), number(h.get("p99_ms")), number(m.get("p99_to_alone"), 2),
                             percent(low.get("kept")), percent(low.get("kept_of_ideal"))])
    return rows


def summary(merged):
    """Plain text, for a terminal: the comparison, then what must hold."""
    head = ["suite", "mode", "alone P99", "P99 (ms)", "x alone", "kept", "of ideal"]
    rows = [head] + summary_rows(merged)
    widths = [max(len(str(r[i])) for r in rows) for i in range(len(head))]
    widths[2] = min(widths[2], 12)
    lines = ["  ".join(str(c).ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows]
    lines.append("")
    for name, s in merged["suites"].items():
        if not proven(s):
            continue
        for sc in s.get("scenarios", []):
            for mode, m in sc["modes"].items():
                if m.get("parts") and mode in ("alone", "native", "live"):
                    lines.append("%s, %s: device P99 %s, CPU P99 %s ms" % (sc["name"], mode, number(m["parts"]["device"]["p99_ms"]), number(m["parts"]["cpu"]["p99_ms"])))
            if sc.get("noise"):
                low, high = sc["noise"]["p99_ms"]
                lines.append("%s: alone blocks P50 %s..%s, P99 %s..%s ms%s" % tuple(
                    [sc["name"]] + [number(v) for k in ("p50_ms", "p99_ms") for v in sc["noise"][k]]
                    + [": NOISY, the ratios say little" if high > 1.5 * low else ""]))
        for v in list(s.get("verdicts", [])) + [dict(v, what=sc["name"] + ": " + v["what"]) for sc in s.get("scenarios", []) for v in sc["verdicts"]]:
            lines.append("%-6s %-11s %s" % ("met" if v["ok"] else "MISSED", name, verdict_text(v)))
        for c in s.get("checks", []):
            lines.append("%-6s %-11s %s: %s" % ("ok" if c["ok"] else "FAILED", name, c["name"], c["detail"][:120]))
    lines += ["", "  ".join("%s %s" % (n, s["status"]) for n, s in merged["suites"].items()), "%.0f s" % merged["seconds"]]
    return "\n".join(lines)


def file_name(name):
    return "".join(c if c.isalnum() else "-" for c in name).strip("-")


def markdown(merged, pictures=True, prefix=""):
    m = merged["machines"][0]
    out = ["# Results\n", "%s; %s CPUs%s; kernel %s; %s.\n" % (m["device"], m["cpus"], " (%s)" % m["cpu"] if m.get("cpu") else "", m["kernel"],
                                                             time.strftime("%Y-%m-%d", time.gmtime(m["started_unix"]))),
           "Commands:\n", "\n".join("%d. `%s`" % numbered for numbered in enumerate(merged["commands"], 1)) + "\n",
           "P99 is nearest rank over all blocks of a mode; in brackets its 95 % interval by resampling requests, and that of the ratio to alone by "
           "resampling blocks. \"within noise\": the limit is inside that interval; met and missed go by the measured value. Latency counts from the scheduled arrival to results ready. "
           "\"kept\" is the lows' rate inside the high's window over their rate alone, \"ideal\" is 1 - rate x (isolated GPU time + 0.4 ms).\n"]
    again = runs_table(merged["runs"])
    if again:
        out += ["\n## Every run\n", "XSched in all runs, also those of earlier versions. Below, the last run of a scenario counts. \"alone / alone\": the P99 of one half of alone's own blocks over that "
                "of the other; a ratio to alone inside that is the machine's noise.\n", again]
    for name, blocks in sections(merged):
        out.append("\n## %s\n" % name)
        for b in blocks:
            if not isinstance(b, Chart):
                out.append(str(b))
            elif pictures:
                out.append("![latency of %s](%s%s.svg)\n" % (b.name, prefix, file_name(b.name)))
    return "\n".join(str(b) for b in out)


def html(merged):
    """One page with the charts inside."""
    head = ["suite", "mode", "alone P99", "P99 (ms)", "x alone", "kept", "of ideal"]
    blocks = [dict(Table(head, summary_rows(merged)).block(), text=merged["machines"][0]["device"])]
    for name, found in sections(merged):
        blocks.append({"section": name})
        for b in found:
            if not isinstance(b, str):
                blocks.append(b.block())
            elif b.startswith("#### "):
                blocks.append({"heading": b[5:].strip()})
            elif b.startswith("Proof:"):
                blocks.append({"heading": "Proof", "list": [line[2:] for line in b.split("\n") if line.startswith("- ")]})
            else:
                blocks.append({"soft": b.replace("**", "").strip()})
    return render("XSched on a GPU", blocks)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("results", nargs="+")
    p.add_argument("--out", help="directory for NAME.md, NAME.json.gz and NAME-*.svg; without it the summary is printed")
    p.add_argument("--name", default="results")
    a = p.parse_args()
    found = []
    for path in a.results:
        with (gzip.open if path.endswith(".gz") else open)(path, "rt") as f:
            data = json.load(f)
        found += data if isinstance(data, list) else [data]
    merged = merge(found)
    if not a.out:
        print(summary(merged))
        return 0
    os.makedirs(a.out, exist_ok=True)
    for _, blocks in sections(merged):
        for b in blocks:
            if isinstance(b, Chart):
                with open(os.path.join(a.out, "%s-%s.svg" % (a.name, file_name(b.name))), "w") as f:
                    f.write(b.svg())
    with open(os.path.join(a.out, a.name + ".md"), "w") as f:
        f.write(markdown(merged, prefix=a.name + "-"))
    # No name and no time in the header: the same data gives the same bytes.
    with open(os.path.join(a.out, a.name + ".json.gz"), "wb") as f:
        with gzip.GzipFile(filename="", mode="wb", fileobj=f, mtime=0) as z:
            z.write(json.dumps(found, separators=(",", ":")).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
