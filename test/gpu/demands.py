# SPDX-License-Identifier: Apache-2.0
"""The table *What it must show*."""
import targets
from shown import compared, kept, mode, p99, ratio_text, run_of
from tables import number, percent, ratio_interval, scenarios, verdict_text


def must_show_rows(merged):
    """Evaluates targets.LINES. Empty if no inference suite ran."""
    found = [sc for sc in compared(merged) if targets.line_of(sc["name"])]
    if not found:
        return []
    out = []
    for line, text in targets.LINES.items():
        some = [sc for sc in found if targets.line_of(sc["name"]) == line]
        for sc in some:
            out.append([text, sc["name"], run_of(merged, sc), "; ".join(verdict_text(v) for v in sc["verdicts"] if not v["ok"]) or
                        "; ".join("%s %s%s" % (v["what"], number(v["value"]), v["unit"] and " " + v["unit"]) for v in sc["verdicts"]),
                        met(sc)])
        if not some:
            out.append([text, "not measured", "-", "-", "**no**"])
    first = min(sc["run"] for name, runs in merged["history"].items() if targets.line_of(name) for sc in runs)
    shown = scenarios(merged)
    for name, runs in merged["history"].items():
        if targets.line_of(name) or name.startswith("strategy/"):
            continue
        before, now = [sc for sc in runs if sc["run"] < first], shown.get(name)
        if before and now and now["run"] >= first:
            out.append(["earlier suites: as before or better", name, run_of(merged, now), *as_before(before[-1], now)])
        elif before:
            out.append(["earlier suites: as before or better", name, "-", "not measured again", "-"])
    return out


def met(sc):
    missed = [v for v in sc["verdicts"] if not v["ok"]]
    return "yes" if not missed else "**no**, within noise" if all(v.get("within_noise") for v in missed) else "**no**"


def as_before(before, now):
    """Compares two runs of a scenario: (text, verdict). Worse means a P99 that rose beyond the intervals of both runs, over alone and in
    milliseconds above alone; jobs that keep 2 points less; or a missed target of its own. A worse value inside the intervals is no
    proof of either, and the verdict says so."""
    live = [mode(sc, "live") for sc in (before, now)]
    ratios, parts = [m["p99_to_alone"] for m in live], [kept(m) or 0 for m in live]
    more = [p99(m) - p99(mode(sc, "alone")) for m, sc in zip(live, (before, now))]
    text = "P99 / alone %s (%+.2f ms) before, %s (%+.2f ms) now; jobs keep %s before, %s now" % (
        ratio_text(before), more[0], ratio_text(now), more[1], percent(parts[0]), percent(parts[1]))
    missed = [v for v in now["verdicts"] if not v["ok"]]
    if missed:
        text += "; own target: " + "; ".join(verdict_text(v) for v in missed)
    spans = [[ratio_interval(sc)[0] or [r, r] for sc, r in zip((before, now), ratios)],
             [(m.get("p99_compared") or {}).get("more_ms") or [v, v] for m, v in zip(live, more)]]
    if all(after[0] > first[1] for first, after in spans) or parts[1] < parts[0] - 0.02:
        return text, "**no**"
    if missed:
        return text, met(now)
    return text, "yes" if ratios[1] <= ratios[0] else "yes, within noise"
