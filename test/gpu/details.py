# SPDX-License-Identifier: Apache-2.0
"""The HTML report: every table, proof and chart of every suite."""
import json

from tables import NAMES, Chart, Table, interval_text, number, percent, proven, render, times


def generic(rows):
    """A table with a column for every key of the rows."""
    keys = list(dict.fromkeys(k for r in rows for k in r))

    def cell(v):
        return json.dumps(v) if isinstance(v, (dict, list)) else number(v)
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
    return Table(["mode", "requests", "mean (ms)", "P50", "P95", "P99 (95 %)", "max", "P95 / alone", "P99 / alone (95 %)", "jobs keep", "of ideal",
                  "preemptions", "suspensions"], rows)


def parts_table(s):
    """Latency split into device and CPU; None if the program did not report it."""
    rows = [[NAMES.get(name, name)] + [number(m["parts"][side][k]) for side in ("device", "cpu") for k in ("p50_ms", "p99_ms", "max_ms")]
            + [number(m.get("device_p99_more_ms")), number(s.get("stolen_s", {}).get(name), 2)] for name, m in s["modes"].items() if m.get("parts")]
    return rows and Table(["mode", "device P50 (ms)", "P99", "max", "CPU P50 (ms)", "P99", "max", "device P99 over alone (ms)", "CPU steal (s)"], rows)


def setup_text(s):
    parts = ["Run %d" % s["run"]] if s.get("run") else []
    parts.append("arrivals: %s" % s["arrivals"])
    if s.get("gpu_ms") is not None:
        parts.append("isolated GPU time of a request: %.3f ms" % s["gpu_ms"])
    if s.get("low_models"):
        parts.append("jobs: " + ", ".join(s["low_models"]))
    parts.append("jobs alone: " + ", ".join("%s/s" % number(r, 2) for r in s["low_alone_rates"]))
    n, d = s.get("noise"), s.get("daemon")
    if n:
        parts.append("single alone blocks (%d): P50 %.2f to %.2f, P99 %.2f to %.2f ms" % (n["blocks"], *n["p50_ms"], *n["p99_ms"]))
    if d and (d.get("busy_to_decision") or {}).get("count"):
        parts.append("arrival to decision: P50 %.0f, P99 %.0f us" % (d["busy_to_decision"]["p50_us"], d["busy_to_decision"]["p99_us"]))
        if d["suspend_time"]["count"]:
            parts.append("suspend: P50 %.0f, P99 %.0f us; resume: P50 %.0f us"
                         % (d["suspend_time"]["p50_us"], d["suspend_time"]["p99_us"], d["resume_time"]["p50_us"]))
    return "; ".join(parts) + "."


def verdict_table(verdicts):
    return Table(["target", "measured", "limit", ""],
                 [[v["what"], "%s%s %s" % (number(v["value"]), interval_text(v.get("interval")), v["unit"]),
                   ("<= " if v["at_most"] else ">= ") + number(v["limit"]),
                   ("met" if v["ok"] else "missed") + (", within noise" if v.get("within_noise") else "")] for v in verdicts])


def suite_blocks(name, s):
    out = [{"section": name}, {"soft": "%s%s (run %d, %.0f s)" % (s["status"], ": " + s["why"] if s["why"] else "", s["run"], s.get("seconds", 0))}]
    if proven(s):
        for sc in s.get("scenarios", []):
            out += [{"heading": sc["name"]}, scenario_table(sc).block()]
            parts = parts_table(sc)
            if parts:
                out.append(parts.block())
            out.append({"soft": setup_text(sc)})
            if any(sc["raw_us"].values()):
                out.append(Chart(sc["name"], sc["raw_us"]).block())
            if sc["verdicts"]:
                out.append(verdict_table(sc["verdicts"]).block())
        out += [generic(rows).block() for rows in s.get("rows", {}).values() if rows]
        if s.get("raw_us"):
            out.append(Chart(name, s["raw_us"]).block())
        if s.get("checks"):
            out.append(Table(["check", "", ""], [[c["name"], "ok" if c["ok"] else "FAILED", c["detail"]] for c in s["checks"]]).block())
        if s.get("verdicts"):
            out.append(verdict_table(s["verdicts"]).block())
    proof = list(s.get("proof", [])) + [p for sc in s.get("scenarios", []) for p in sc["proof"]]
    lines = dict.fromkeys("%s: %s%s" % (p["name"], "" if p["ok"] else "FAILED ", p["detail"]) for p in proof)
    if lines:
        out.append({"heading": "Proof", "list": list(lines)})
    return out + [{"soft": "Note: " + note} for note in s.get("notes", [])]


def html(merged, head, rows):
    """One self-contained page; head and rows are the summary at its top."""
    blocks = [dict(Table(head, rows).block(), text=merged["runs"][0]["machine"]["device"])]
    for name, s in merged["suites"].items():
        blocks += suite_blocks(name, s)
    return render("XSched on a GPU", blocks)
