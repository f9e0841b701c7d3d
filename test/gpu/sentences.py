# SPDX-License-Identifier: Apache-2.0
"""The sentences of the page: the result, the losses and the noise."""
from shown import compared, gains_over_native, kept, mode, most_preemptions, p99, rows_of, suite
from tables import NAMES, UNDER_MPS, halves, ms, number, percent, proven, ratio_interval, scenarios, span, times

ALONE_ENOUGH = 1.1  # P99 / alone above which a scenario without interval counts as slower than alone


def lead(merged):
    """The result in three sentences."""
    gains, out = gains_over_native(merged), []
    found = [sc for sc, _ in gains]
    if found:
        out.append("In %d scenarios, the P99 of the service is %s its P99 alone under native sharing and %s under XSched, which is %s lower than native."
                   % (len(found), span([mode(sc, "native")["p99_to_alone"] for sc in found], 2, " times"), span([mode(sc, "live")["p99_to_alone"] for sc in found], 2, " times"),
                      span([gain for _, gain in gains], 1, " times")))
        keep = [(mode(sc, "live").get("low") or {}).get("kept_of_ideal") for sc in found]
        keep = [100 * k for k in keep if k]
        if keep:
            out.append("The jobs keep %s of their throughput, which is %s of what ideal time-slicing leaves them."
                       % (span([100 * kept(mode(sc, "live")) for sc in found if kept(mode(sc, "live"))], 0, " %"), span(keep, 0, " %")))
    return [s for s in out + [cost_sentence(merged)] if s]


def cost_sentence(merged):
    loop = next((r for r in rows_of(merged, "overhead") if r["what"] == "launch-bound loop"), None)
    most = most_preemptions(merged)
    parts = []
    if loop and loop.get("more_%") is not None:
        parts.append("A launch-bound loop runs %.1f %% %s under XSched" % (abs(loop["more_%"]), "slower" if loop["more_%"] >= 0 else "faster"))
    if most and all(c["ok"] for c in suite(merged, "correctness")["checks"]):
        parts.append("a program that was preempted %s times computed bit-equal results" % format(most, ","))
    text = ", and ".join(parts)
    return text and text[0].upper() + text[1:] + "."


def losses(merged):
    found, out = scenarios(merged), []
    slow = [r for r in rows_of(merged, "overhead") if (r.get("more_%") or 0) > 1]
    if slow:
        out.append("**Synchronous calls:** " + ", ".join("%s (%s %s) %+.1f %%" % (r["what"], number(r["plain"], 1), r["unit"], r["more_%"]) for r in slow) + ".")
    above = []
    for sc in compared(merged):
        interval, _ = ratio_interval(sc)
        if (interval[0] > 1) if interval else mode(sc, "live")["p99_to_alone"] > ALONE_ENOUGH:
            above.append("%s %s (%+.2f ms)" % (sc["name"], times(mode(sc, "live")["p99_to_alone"]), p99(mode(sc, "live")) - p99(mode(sc, "alone"))))
    if above:
        out.append("**P99 above alone, beyond the interval:** " + ", ".join(above) + ". A request pays at least one context switch.")
    less = ["%s %s instead of %s" % (sc["name"], percent(kept(mode(sc, "live"))), percent(kept(mode(sc, "native")))) for sc in compared(merged)
            if kept(mode(sc, "live")) and kept(mode(sc, "native")) and kept(mode(sc, "live")) < kept(mode(sc, "native")) - 0.005]
    if less:
        out.append("**Jobs keep less than natively:** " + ", ".join(less) + ". Native sharing leaves the jobs the GPU while the service waits.")
    mps = []
    for sc in compared(merged):
        theirs = mode(found.get(sc["name"] + UNDER_MPS), "mps-priority")
        if p99(theirs) and kept(theirs) and kept(mode(sc, "live")) and kept(theirs) > kept(mode(sc, "live")):
            mps.append("%s %s instead of %s, P99 %s alone" % (sc["name"], percent(kept(theirs)), percent(kept(mode(sc, "live"))), times(theirs["p99_to_alone"])))
    if mps:
        out.append("**MPS with client priorities keeps more for the jobs**, because it runs both programs at once: " + "; ".join(mps) + ".")
    p95 = {r["mode"]: r["p95_ms"] for r in rows_of(merged, "streams")}
    both = [p95.get("xsched, different priority" + tail) for tail in ("", ", beside a low process")]
    if all(both):
        out.append("**Stream priorities inside a service.** Beside a job, the P95 of its high-priority stream is %s; without a job it is %s." % (ms(both[1]), ms(both[0])))
    return out


def noise(merged):
    out, spread = [], {}
    for name, found in merged["history"].items():
        known = [h for h in map(halves, found) if h]
        if known:
            spread[name] = [min(h[0] for h in known), max(h[1] for h in known)]
    if spread:
        out.append("**Alone against alone.** The P99 of one half of the alone blocks over that of the other half, middle 90 %%: %s. "
                   "A target of 1.05x to 1.15x inside this range can be missed or met by chance, and a ratio below 1 is such an effect." % ", ".join("%s %.2f-%.2f" % (n, *s) for n, s in spread.items()))
    often = max(merged["history"].items(), key=lambda i: sum(1 for sc in i[1] if halves(sc)), default=None)
    if often:
        same = [sc for sc in often[1] if halves(sc)]
        if len(same) > 1:
            out.append("**Run against run.** The last %d runs of %s gave P99 / alone of %s. Device P99 over alone was %s ms in these runs, natively %s ms."
                       % (len(same), often[0], ", ".join(times(mode(sc, "live")["p99_to_alone"]) for sc in same),
                          ", ".join(number(mode(sc, "live").get("device_p99_more_ms"), 2) for sc in same),
                          ", ".join(number(mode(sc, "native").get("device_p99_more_ms"), 2) for sc in same)))
    loop = [(i, 100 * v["value"]) for i, r in enumerate(merged["runs"], 1) if proven(r["suites"].get("overhead", {"status": ""}))
            for v in r["suites"]["overhead"]["verdicts"] if v["what"].startswith("launch-bound loop") and v["value"] is not None]
    if loop:
        out.append("**Launch-bound loop in every run** (%%, run in brackets): %s." % ", ".join("%+.1f (%d)" % (v, i) for i, v in loop))
    under = [sc for n, sc in scenarios(merged).items() if n.endswith(UNDER_MPS) and (mode(sc, "mps-priority").get("p99_to_alone") or 1) < 1]
    out += ["**MPS faster than alone.** %s has %s: the P99 of its own alone blocks is %s (run %d)." % (sc["name"], times(mode(sc, "mps-priority")["p99_to_alone"]), ms(p99(mode(sc, "alone"))), sc["run"])
            for sc in under]
    more = ["%s %s %s" % (sc["name"], NAMES.get(n, n), percent(kept(m))) for sc in compared(merged) for n, m in sc["modes"].items() if n in ("native", "live") and (kept(m) or 0) > 1.05]
    if more:
        out.append("**Jobs above 100 %%.** %s. Such a value means that the rate alone was measured too low." % ", ".join(more))
    short = [sc["name"] for sc in compared(merged) if (sc.get("noise") or {}).get("p99_ms") and sc["noise"]["p99_ms"][1] > 1.5 * sc["noise"]["p99_ms"][0]]
    if short:
        out.append("**Noisy runs.** Single alone blocks differ by more than 1.5x in P99: %s. The intervals of these scenarios matter more than their ratios." % ", ".join(short))
    return out
