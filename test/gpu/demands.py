# SPDX-License-Identifier: Apache-2.0
"""The table *What it must show*."""
import targets
from shown import compared, kept, mode, p99, ratio_text, run_of
from tables import ms, number, percent, ratio_interval, scenarios, verdict_text


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
    """Compares two runs of a scenario: (text, verdict). Worse means a P99 that rose, in milliseconds and over alone beyond the
    intervals of both; jobs that keep 2 points less; or a missed target of its own. If only alone became faster, the service did not
    become slower. A worse value inside the intervals is no proof of either, and the verdict says so."""
    spans = [ratio_interval(sc)[0] or [mode(sc, "live")["p99_to_alone"]] * 2 for sc in (before, now)]
    ratios, tails = ([get(mode(sc, "live")) for sc in (before, now)] for get in (lambda m: m["p99_to_alone"], p99))
    parts = [kept(mode(sc, "live")) or 0 for sc in (before, now)]
    text = "P99 %s, %s of alone before; %s, %s now; jobs keep %s before, %s now" % (ms(tails[0]), ratio_text(before), ms(tails[1]), ratio_text(now), percent(parts[0]), percent(parts[1]))
    missed = [v for v in now["verdicts"] if not v["ok"]]
    if missed:
        text += "; own target: " + "; ".join(verdict_text(v) for v in missed)
    if spans[1][0] > spans[0][1] and tails[1] > tails[0] or parts[1] < parts[0] - 0.02:
        return text, "**no**"
    if missed:
        return text, met(now)
    return text, "yes" if ratios[1] <= ratios[0] else "yes, the P99 fell" if tails[1] < tails[0] else "yes, within noise"
