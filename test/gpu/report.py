#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns results.json files into a Markdown page with pictures, or a summary on the terminal.

  report.py RESULTS...                                     print all modes, verdicts and checks
  report.py RESULTS... --out docs/results --name h200      write h200.md, its pictures and h200.json.gz

RESULTS are results.json files or the raw data of a page (NAME.json.gz). A run that appears twice counts once, so adding a
run again changes nothing. The page shows one run of each scenario, which tables.merge chooses, and the ratios of all runs. A
suite without proof shows its error and no numbers.
"""
import argparse
import glob
import gzip
import json
import os
import re
import sys
import time

import figures
import targets
from demands import must_show_rows
from findings import copies, first_token, protections, strategies, submissions, switches
from sentences import cost_sentence, lead, losses, noise
from shown import SCENARIOS, compared, described, kept, mode, noisy, of_ideal, p99, p99_text, ratio_text, rows_of, run_of, suite
from tables import (NAMES, UNDER_MPS, bullets, chart, halves, merge, ms, number, paragraph, percent, proven, ratio_interval, render, scenarios,
                    table, times, verdict_text)
from together import together

PICTURES = ("gpubound", "test4", "tenants", "micro/3 lows")
README_ROWS = ("gpubound", "micro/1 low", "micro/3 lows", "tenants")

METHOD = (
    "The *service* is the latency-critical tenant (priority 10). The *jobs* are best-effort tenants (priority 0) that loop without pause.",
    "*Alone*, *native* (mode `off`) and *XSched* (mode `live`) alternate in one set of processes, in blocks of 1.25 to 3.75 s. Compared modes are neighbours "
    "in every round, in random order, so drift of the machine affects all of them. MPS needs processes and alone blocks of its own.",
    "The page shows the newest build that measured a scenario, and says \"older build\" if that is not the build of the last run. If a build measured a scenario "
    "several times, the run on the steadiest machine counts, whatever it found. Only the alone blocks decide: first the steal time of the service's cores, rounded to "
    "1 % of the time, then the noise between two halves of the blocks. \"Every run\" lists all.",
    "A latency runs from the scheduled arrival to the result. Late requests count. P99 is the nearest rank over all blocks of a mode.",
    "The interval of a P99 ratio is the middle 95 % of 500 resamples of blocks, neighbours together. A `*` marks older runs with too few blocks; there the "
    "requests are resampled, which ignores slow drift.",
    "*Keep* is the throughput of the jobs beside the service over their throughput alone. *Ideal* is what remains if every request takes the sum of its "
    "kernel times alone, by torch.profiler, plus 0.4 ms for two context switches: 1 - rate x (kernel time + 0.4 ms).",
    "Runs marked *(span)* took the time between the first and the last kernel instead of the kernel times. The span contains idle gaps, so their ideal is too low.",
    "*Device P99* is the part of the latency after the last kernel was submitted, by CUDA events. The rest of the latency is CPU time of Python and the driver.",
    "Overhead compares two processes that alternate in blocks of 50 ms on one core, one of them under XSched. The figure is the median over pairs of neighbours.",
    "A suite reports numbers only with proof: the shim counted the launches, native blocks show no preemption, XSched blocks show the expected ones, no device "
    "error occurred, and all checksums are bit-equal.",
)


# -- tables


def scenario_rows(merged):
    found, rows = scenarios(merged), []
    for sc in compared(merged):
        beside = found.get(sc["name"] + UNDER_MPS)
        native, live = mode(sc, "native"), mode(sc, "live")
        rows.append([sc["name"], "%s, beside %s" % described(sc), run_of(merged, sc), ms(p99(mode(sc, "alone"))), p99_text(sc, "native"),
                     "%s (run %s)" % (p99_text(beside, "mps-priority"), run_of(merged, beside)) if "mps-priority" in (beside or {"modes": ()})["modes"] else "-",
                     "**%s**, %s" % (ms(p99(live)), ratio_text(sc)),
                     percent(kept(native)), percent(kept(live)), of_ideal(sc, live)])
    return rows


def proof_rows(merged):
    out = []
    s = suite(merged, "correctness")
    out += [["preemptions of one program in mode `%s`" % r["mode"], "%d" % r["preemptions"]] for r in rows_of(merged, "correctness") if r["preemptions"]]
    out += [[c["name"], c["detail"] if c["ok"] else "**FAILED** " + c["detail"]] for c in s.get("checks", [])]
    steps = suite(merged, "steps").get("checks", [])
    if steps:
        bad = [c["name"] for c in steps if not c["ok"]]
        out.append(["PyTorch features, bit-equal with and without XSched", "%d of %d: %s" % (len(steps) - len(bad), len(steps), ", ".join(c["name"] for c in steps))])
    launches = rows_of(merged, "steps")
    if launches:
        out.append(["launches, counted by the shim = by torch.profiler", ", ".join("%s %d = %d" % (r["section"], r["shim"], r["profiler"]) for r in launches)])
    own = [(sc["name"], p["detail"]) for sc in scenarios(merged).values() for p in sc["proof"] if p["name"] == "launches equal the program's own count" and p["detail"].isdigit()]
    if own:
        out.append(["launches, counted by the shim = by the program", ", ".join("%s %s" % o for o in own)])
    for r in rows_of(merged, "truth"):
        if r["mode"] == "live" and r.get("requests"):
            jobs = "%d job%s" % (r["lows"], "s" if r["lows"] > 1 else "")
            out.append(["device clock, %s: requests inside a preempted kernel; switch to the service, and back; both on the GPU" % jobs,
                        "%d of %d; %.0f us, %.0f us; %.0f us" % (r["in_a_stopped_low_kernel"], r["requests"], r["low_stop_to_high_us"], r["high_end_to_low_us"], r["both_at_once_us"])])
    every = [p for s in merged["suites"].values() if proven(s) for p in s.get("proof", []) + [p for sc in s.get("scenarios", []) for p in sc["proof"]]]
    if every:
        out.append(["proofs of all suites (launches, modes, checksums)", "%d of %d hold" % (sum(p["ok"] for p in every), len(every))])
    return out


def other_rows(merged):
    out = []
    for name in ("stops", "attach", "share", "streams"):
        s = suite(merged, name)
        out += [[name, s["run"], v["what"], ("%s %s" % (number(v["value"]), v["unit"])).strip(), ("<= " if v["at_most"] else ">= ") + number(v["limit"]), "yes" if v["ok"] else "**no**"]
                for v in s.get("verdicts", [])]
    for name in ("checkpoint", "watch", "starts", "situations"):
        s = suite(merged, name)
        if s.get("checks"):
            bad = [c for c in s["checks"] if not c["ok"]]
            found = "; ".join(c["detail"] for c in bad) or (s["checks"][0]["detail"] if len(s["checks"]) == 1 else "%d as expected" % len(s["checks"]))
            out.append([name, s["run"], "; ".join(c["name"] for c in s["checks"]), found, "-", "**no**" if bad else "yes"])
    return out


def history_rows(merged):
    rows = []
    for name in [n for n in SCENARIOS if n in merged["history"]] + [n for n in merged["history"] if n not in SCENARIOS and not n.startswith("strategy/")]:
        for sc in merged["history"][name]:
            alone, live = mode(sc, "alone"), mode(sc, "live")
            noise, missed = halves(sc), [v for v in sc["verdicts"] if not v["ok"]]
            rows.append([name, sc["run"], live["high"]["n"], times(mode(sc, "native").get("p99_to_alone")), times(live["high"]["p95_ms"] / alone["high"]["p95_ms"]),
                         ratio_text(sc), "%.2f-%.2f" % tuple(noise) if noise else "-", number(live.get("device_p99_more_ms"), 2),
                         of_ideal(sc, live), "missed" if missed else "met"])
    return rows


def pareto(merged):
    """The points of every compared scenario: [{label, scenario, name, x, y}], XSched first."""
    found, out = scenarios(merged), []
    for label, sc in enumerate(compared(merged), 1):
        other = found.get(sc["name"] + UNDER_MPS)
        modes = [("live", mode(sc, "live"))] + [(n, m) for n, m in sc["modes"].items() if n in ("native", "timeslice")]
        modes += [(n, mode(other, n)) for n in ("mps-priority",)]
        for n, m in modes:
            if m.get("p99_to_alone") and kept(m) is not None:
                out.append({"label": str(label), "scenario": sc["name"], "name": n, "x": m["p99_to_alone"], "y": 100 * kept(m), "p99_ms": p99(m), "interval": ratio_interval(sc)[0]})
    return out


def pareto_chart(points):
    series = [{"name": "xsched" if n == "live" else n, "points": [
        {"x": p["x"], "y": p["y"] / 100, "name": p["scenario"], "label": p["label"]} for p in points if p["name"] == n]}
        for n in dict.fromkeys(p["name"] for p in points)]
    return render({"title": "P99 over alone against throughput kept", "blocks": [{
        "heading": "pareto", "x_unit": "P99 of the service / alone (log): left is better", "y_unit": "jobs keep: up is better", "series": series}]})


def above_left(merged):
    """Names every mode with a lower P99 and a higher throughput than XSched."""
    points, out = pareto(merged), []
    ours = {p["label"]: p for p in points if p["name"] == "live"}
    for p in points:
        x = ours.get(p["label"])
        if x and p is not x and p["x"] < x["x"] and p["y"] > x["y"]:
            near = x["interval"] and p["x"] >= x["interval"][0]
            out.append("%s in %s (%s or %s, and %.1f %%, instead of %s or %s, and %.1f %%%s)" % (
                NAMES.get(p["name"], p["name"]), p["scenario"], times(p["x"]), ms(p["p99_ms"]), p["y"], times(x["x"]), ms(x["p99_ms"]), x["y"],
                "; inside the interval of XSched's P99" if near else ""))
    if out:
        return "**To the upper left of XSched:** %s." % "; ".join(out)
    return "No mode is to the upper left of XSched: none has both a lower P99 and a higher throughput of the jobs."


def run_rows(merged):
    out = []
    for i, r in enumerate(merged["runs"], 1):
        m = r["machine"]
        bad = ["%s %s" % (n, s["status"]) for n, s in r["suites"].items() if s["status"] != "OK"]
        version = m["xsched"].get("version", "-") if isinstance(m.get("xsched"), dict) else "-"
        words = " ".join(w for w in r["command"].split()[2:])
        out.append([i, time.strftime("%Y-%m-%d %H:%M", time.gmtime(m["started_unix"])), version, words or "all suites", ", ".join(bad) or "-"])
    return out


# -- the page


def page(merged, name="", pictures=True):
    last = merged["runs"][-1]["machine"]
    device = [w.strip() for w in last["device"].split(",")]
    days = sorted({time.strftime("%Y-%m-%d", time.gmtime(r["machine"]["started_unix"])) for r in merged["runs"]})
    suites = merged["suites"]
    bad = {n: s for n, s in suites.items() if s["status"] != "OK"}
    out = ["# XSched on %s\n" % device[0],
           paragraph("Tail latency of a latency-critical service that shares one GPU with best-effort jobs: alone, native sharing, MPS and XSched. `report.py` writes this page "
                     "from the raw samples%s." % (" in [%s.json.gz](%s.json.gz)" % (name, name) if name else "")),
           table(["", ""], [["GPU, driver", ", ".join(device[:2])], ["host", "%s CPUs%s, Linux %s" % (last["cpus"], " (%s)" % last["cpu"] if last.get("cpu") else "", last["kernel"])],
                            ["date, runs", "%s, %d run%s" % (" to ".join(dict.fromkeys([days[0], days[-1]])), len(merged["runs"]), "s" if len(merged["runs"]) > 1 else "")],
                            ["command", "`test/gpu/run.sh OUT_DIR [suite...]`"],
                            ["targets", "%d of %d suites met every target" % (len(suites) - len(bad), len(suites))]])]
    out.append(" ".join(lead(merged)) and paragraph(" ".join(lead(merged))))
    if bad:
        out += ["Targets not met, or not proven:\n", bullets("%s, run %d: **%s** %s" % (n, s["run"], s["status"], s["why"][:600]) for n, s in bad.items())]
    if pictures:
        out.append("![P99 relative to alone, native and XSched](../result.svg)\n")

    def section(title, *parts):
        if all(parts):
            out.extend(["## %s\n" % title] + list(parts))
    rows = scenario_rows(merged)
    if rows:
        section("What it must show", must_show_rows(merged) and paragraph("The demands on inference, evaluated on the run of each pair that this page shows. MPS has no verdict."),
                must_show_rows(merged) and table(["demand", "pair", "run", "measured", "met"], must_show_rows(merged)))
        section("Latency and throughput", "P99 of the service, its ratio to alone with a 95 % interval, and the throughput that the jobs keep.\n",
                table(["scenario", "service, jobs (bN: batch size)", "run", "P99 alone", "native", "MPS, client priorities", "XSched", "jobs keep: native", "XSched", "of ideal"], rows))
        drawn = [n for n in PICTURES if pictures and n in [r[0] for r in rows]]
        if drawn:
            out.append(" ".join("![Latency percentiles, %s](%s)" % (n, picture_name(name, n)) for n in drawn) + "\n")
    points = pareto(merged)
    section("Latency against throughput", points and paragraph(
        "Every scenario and mode: P99 of the service over alone against the throughput that the jobs keep. Better is up and to the left. Numbers: %s."
        % ", ".join("%s %s" % (n, name) for n, name in dict((p["label"], p["scenario"]) for p in points).items())),
        points and (pictures and "![P99 over alone against throughput kept](%s)\n" % picture_name(name, "pareto") or "\n"), points and paragraph(above_left(merged)))
    for title, parts in (("Strategies for launch-bound requests", strategies(merged)), ("What decides the first token", first_token(merged) + submissions(merged)), ("What protection said and did", protections(merged)), ("What a switch costs a request", switches(merged)), ("Which copies wait", copies(merged))):
        if parts:
            section(title, *parts)
    rows = [[r["what"], "%s %s" % (number(r["plain"]), r["unit"]), "%s %s" % (number(r["xsched"]), r["unit"]),
             "-" if r.get("more_%") is None else "%+.2f %%" % r["more_%"], r.get("95_%_interval", "-").replace("..", "to")] for r in rows_of(merged, "overhead")]
    section("Overhead", rows and table(["work, program alone on the GPU", "without XSched", "with XSched", "change", "95 % interval"], rows))
    rows = proof_rows(merged)
    section("Correctness and proof", rows and table(["check", "result"], rows))
    rows = [[r["fault"], number(r["ms"], 1), r["limit_ms"] or "-"] for n in ("faults", "upgrade") for r in rows_of(merged, n)]
    checks = [c for n in ("faults", "upgrade") for c in suite(merged, n).get("checks", [])]
    section("Faults and upgrades", rows and table(["fault", "measured (ms)", "limit (ms)"], rows),
            paragraph("Checks after the faults: %s." % "; ".join("%s (%s)" % (c["name"], (c["detail"] or "ok") if c["ok"] else "**FAILED** " + c["detail"]) for c in checks)))
    rows = other_rows(merged)
    section("Attach, shares, streams, starts, environments", rows and table(["suite", "run", "check", "measured", "limit", "met"], rows))
    section("Where XSched costs or loses", bullets(losses(merged)))
    section("Noise", bullets(noise(merged)))
    found = together(merged)
    if found:
        section("The last runs together", *found)
    rows = history_rows(merged)
    section("Every run", paragraph("XSched in every run with proof, older versions included. \"Noise\" is the P99 of one half of the alone blocks over that of the other half, "
                                   "middle 90 %. \"Targets\" are those of test/gpu/targets.py."),
            rows and table(["scenario", "run", "requests", "native / alone", "P95 / alone", "P99 / alone (95 %)", "noise", "device P99 over alone (ms)", "kept of ideal", "targets"], rows))
    section("Runs", table(["run", "start (UTC)", "XSched", "arguments of run.sh", "not OK"], run_rows(merged)))
    section("Method", bullets(METHOD))
    if name:
        section("Repeat", paragraph("[test/gpu/README.md](../../test/gpu/README.md) lists the requirements and the suites. Run it on the machine with the GPU, then add the run to this page:"),
                "    test/gpu/run.sh OUT_DIR\n    make results RUNS=OUT_DIR/results.json\n",
                paragraph("`test/gpu/report.py docs/results/%s.json.gz` prints all modes, verdicts and checks." % name))
    return "\n".join(str(b) for b in out if b)


def picture_name(name, scenario):
    return "%s-%s.svg" % (name, "".join(c if c.isalnum() else "-" for c in scenario).strip("-"))


def readme(text, merged):
    """README.md with the table and the sentence between its `results` comments replaced. A row shows the last of two runs whose
    machine was steady: that depends on the alone blocks, not on XSched."""
    rows = []
    for n in README_ROWS:
        runs = merged["history"].get(n, [])[-2:]
        sc = next((sc for sc in reversed(runs) if not noisy(sc)), runs[-1] if runs else None)
        if sc:
            native, live = mode(sc, "native"), mode(sc, "live")
            rows.append(["%s, beside %s" % SCENARIOS[n], sc["run"], ms(p99(mode(sc, "alone"))), ms(p99(native)), ms(p99(live)), percent(kept(native)), percent(kept(live))])
    body = table(["service", "run", "P99 alone", "native", "XSched", "jobs keep, native", "XSched"], rows)
    new = "<!-- results: make results -->\n%s\n%s<!-- end of results -->" % (body, paragraph(cost_sentence(merged)))
    return re.sub(r"<!-- results: make results -->.*?<!-- end of results -->", lambda _: new, text, flags=re.S)


# -- terminal

SUMMARY = ["suite", "mode", "alone P99", "P99 (ms)", "x alone", "kept", "of ideal"]


def summary_rows(merged):
    rows = []
    for name, s in merged["suites"].items():
        if not proven(s):
            rows.append([name, s["status"], s["why"][:160], "", "", "", ""])
            continue
        for sc in s.get("scenarios", []):
            for key, m in sc["modes"].items():
                if key != "alone":
                    low = m.get("low") or {}
                    rows.append([sc["name"], key, number(p99(mode(sc, "alone"))), number(p99(m)), number(m.get("p99_to_alone"), 2),
                                 percent(low.get("kept")), percent(low.get("kept_of_ideal"))])
    return rows


def summary(merged):
    """The comparison and the verdicts as plain text."""
    rows = [SUMMARY] + summary_rows(merged)
    widths = [max(len(str(r[i])) for r in rows) for i in range(len(SUMMARY))]
    widths[2] = min(widths[2], 12)
    lines = ["  ".join(str(c).ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows] + [""]
    for name, s in merged["suites"].items():
        if not proven(s):
            continue
        for sc in s.get("scenarios", []):
            if sc.get("noise"):
                lines.append("%s: alone blocks P50 %.3f..%.3f, P99 %.3f..%.3f ms%s" % (sc["name"], *sc["noise"]["p50_ms"], *sc["noise"]["p99_ms"],
                                                                                    ": NOISY, ratios are unreliable" if noisy(sc) else ""))
        for v in list(s.get("verdicts", [])) + [dict(v, what=sc["name"] + ": " + v["what"]) for sc in s.get("scenarios", []) for v in sc["verdicts"]]:
            lines.append("%-6s %-11s %s" % ("met" if v["ok"] else "MISSED", name, verdict_text(v)))
        for c in s.get("checks", []):
            lines.append("%-6s %-11s %s: %s" % ("ok" if c["ok"] else "FAILED", name, c["name"], c["detail"][:120]))
    shown = must_show_rows(merged)
    if shown:
        lines += ["", "What it must show:"] + ["%-6s %-18s %s: %s" % ("met" if r[4].startswith("yes") else "-" if r[4] == "-" else "MISSED", r[1], r[0], r[3]) for r in shown]
        lines += ["", above_left(merged).replace("*", "")]
    lines += ["NOT COMPLETE: %s: %s" % (n, s["incomplete"]) for n, s in merged["suites"].items() if s.get("incomplete")]
    lines += ["", "  ".join("%s %s" % (n, s["status"]) for n, s in merged["suites"].items())]
    return "\n".join(lines + ["%.0f s" % sum(r.get("seconds", 0) for r in merged["runs"])])


# -- files


def load(paths):
    """All runs of the files, oldest first. Start time and command identify a run."""
    runs = {}
    for path in paths:
        with (gzip.open if path.endswith(".gz") else open)(path, "rt") as f:
            data = json.load(f)
        for r in data if isinstance(data, list) else [data]:
            runs[r["machine"]["started_unix"], r["command"]] = r
    return sorted(runs.values(), key=lambda r: r["machine"]["started_unix"])


def save(path, text):
    with open(path, "w") as f:
        f.write(text)


def write(folder, name, merged):
    devices = {r["machine"]["device"].split(",")[0] for r in merged["runs"]}
    if len(devices) > 1:
        raise SystemExit("report.py: a page has one device, these runs have %s" % ", ".join(sorted(devices)))
    os.makedirs(folder, exist_ok=True)
    for old in glob.glob(os.path.join(folder, name + "-*.svg")):
        os.remove(old)
    for sc in compared(merged):
        if sc["name"] in PICTURES:
            save(os.path.join(folder, picture_name(name, sc["name"])), chart(sc["name"], sc["raw_us"]))
    points = pareto(merged)
    if points:
        save(os.path.join(folder, picture_name(name, "pareto")), pareto_chart(points))
    save(os.path.join(folder, name + ".md"), page(merged, name))
    # No file name and no time in the header: equal data gives equal bytes.
    with open(os.path.join(folder, name + ".json.gz"), "wb") as f, gzip.GzipFile(filename="", mode="wb", fileobj=f, mtime=0) as z:
        z.write(json.dumps(merged["runs"], separators=(",", ":")).encode())


def enough(suite):
    """True if a suite of a shortened run has enough requests for its percentiles, alone and under XSched. The comparison with MPS may have fewer."""
    scenes = [sc for sc in suite.get("scenarios", []) if "live" in sc["modes"]]
    return bool(scenes) and all(m["high"]["n"] >= targets.MIN_N for sc in scenes for name, m in sc["modes"].items() if name in ("alone", "live"))


def complete(runs):
    """Leaves out what shortened runs measured with too few requests."""
    out = []
    for r in runs:
        if r.get("scale", 1) < 1:
            few = [n for n, suite in r["suites"].items() if not enough(suite)]
            if few:
                print("report.py: left out, too few requests at scale %g: %s in %s" % (r["scale"], ", ".join(few), r["command"]), file=sys.stderr)
            r = dict(r, suites={n: suite for n, suite in r["suites"].items() if n not in few})
        if r["suites"]:
            out.append(r)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("results", nargs="+", metavar="RESULTS")
    p.add_argument("--out", metavar="DIR", help="directory for NAME.md, NAME-*.svg and NAME.json.gz")
    p.add_argument("--name", default="results", help="name of the page (default: results)")
    p.add_argument("--readme", metavar="FILE", help="update the results table of this README, and the figures in the pages beside it")
    a = p.parse_args()
    runs = load(a.results)
    if a.out:
        runs = complete(runs)
    merged = merge(runs)
    if a.out:
        write(a.out, a.name, merged)
    if a.readme:
        with open(a.readme) as f:
            text = f.read()
        save(a.readme, readme(text, merged))
        figures.update(os.path.dirname(os.path.abspath(a.readme)), merged)
    if not (a.out or a.readme):
        print(summary(merged))
    return 0


if __name__ == "__main__":
    sys.exit(main())
