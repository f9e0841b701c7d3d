# SPDX-License-Identifier: Apache-2.0
"""Sections of the page that explain the figures: what a switch costs, which copies wait, what protection said and what it did."""
import firsttoken
import queueing
import stats
from shown import compared, kept, mode, of_ideal, p99, ratio_text, rows_of, run_of, suite
from tables import interval_text, number, paragraph, percent, scenarios, table, times

POWER_CAP = 4  # NVML's throttle reason "software power cap"


def switches(merged):
    rows = [[r["job"], "-" if r.get("sm_mhz") is None else "%d MHz" % r["sm_mhz"], "-" if r.get("power_w") is None else "%d W" % r["power_w"],
             "yes" if int(r.get("throttled", "0"), 16) & POWER_CAP else "no", number(r.get("switch_ms"), 2), number(r.get("step_slower_ms"), 2), r["suspends"]]
            for r in rows_of(merged, "switch")]
    return rows and [paragraph(
        "The decode step of the LLM at 100/s beside one job under timeslices, P50 of %d requests (run %d). No software acts on these requests. \"Switch\" is the time until the GPU has left the "
        "job's kernel. \"Step slower\" is how much longer the step itself takes than alone. A job that reaches the GPU's power limit lowers the clock, and the clock is still "
        "low when the next request runs." % (suite(merged, "switch").get("requests", 200), suite(merged, "switch")["run"])),
        table(["job", "SM clock", "power", "power limit reached", "switch (ms)", "step slower (ms)", "suspensions"], rows)]


# -- strategies

STRATEGIES = {"native": "native sharing", "HPF/native": "the driver's slices", "HPF/medium": "medium slices", "HPF/tiny": "tiny slices", "HPF/wait": "stop at the wait", "live": "HPF (the default)", "HPF/in-time": "just in time", "HPF/batch": "batches"}


def strategies(merged):
    """Launch-bound services under each strategy."""
    found = [sc for sc in scenarios(merged).values() if any(m.startswith("HPF/") for m in sc["modes"])]
    rows = []
    for sc in found:
        for name in [n for n in STRATEGIES if n in sc["modes"]]:
            m, alone = mode(sc, name), mode(sc, "alone")["high"]
            high = m.get("high")
            rows.append([sc["name"].partition("/")[2], run_of(merged, sc), STRATEGIES[name], times(high["p50_ms"] / alone["p50_ms"]) if high else "-", ratio_text(sc, name),
                         percent(kept(m)), of_ideal(sc, m), number(m["evidence"].get("suspends", 0) / high["n"], 2) if high else "-"])
    return rows and [paragraph("Requests whose program submits kernel by kernel, under each [strategy](../strategies.md) of XSched, in neighbouring blocks of one run."),
                     table(["service, job", "run", "strategy", "P50 / alone", "P99 / alone (95 %)", "job keeps", "of ideal", "suspensions per request"], rows)]


# -- the first token

CONTROLS = {"alone": "alone", "unshared": "XSched live, no job", "cpu": "XSched off, the job trains on the CPU only", "live": "XSched live, the job trains on the GPU", "native": "native sharing: XSched off, the job trains on the GPU"}


def first_token(merged):
    """What decides the time to the first token: the scenario of firsttoken.py."""
    rows, against = [], []
    for sc in [sc for sc in scenarios(merged).values() if "unshared" in sc["modes"]]:
        rows += [control(sc, name, run_of(merged, sc)) for name in CONTROLS if name in sc["modes"]]
        span = (mode(sc, "live").get("submission_to_native") or {}).get("ratio")
        if span:
            ours, native = (submission_ms(mode(sc, name)) for name in ("live", "native"))
            against.append("With the same job on the GPU, the P50 of the submission is %s under XSched of that of native sharing." % (times(ours / native) + interval_text(span)))
    return rows and [paragraph("A server of prompts of 512 tokens beside GPT-2 training, in blocks with equal arrivals. The first token takes mostly CPU time, because the prompt is "
                               "submitted kernel by kernel. Live without a job shows what the mode itself costs; the shim is loaded in every mode. The job on the CPU shows what a neighbour on other "
                               "cores costs. The submission begins when the requests before have ended. " + " ".join(against)),
                     table(["server beside", "run", "requests", "first token: P50 / alone (95 %)", "P99 / alone (95 %)", "submission: P50 / alone (95 %)", "wait for the GPU, P50 (ms)", "P99 (ms)",
                            "job keeps", "job's CPU (cores)"], rows)]


def control(sc, name, run):
    alone, m = mode(sc, "alone"), mode(sc, name)
    wait, ours, used = (m.get("parts") or {}).get("device") or {}, submission_ms(m), (m.get("evidence") or {}).get("jobs_cpu_ms")
    return [CONTROLS[name], run, m["high"]["n"], *[times(m["high"][q + "_ms"] / alone["high"][q + "_ms"]) + span_of(m, q) for q in ("p50", "p99")],
            times(ours and ours / submission_ms(alone)) + span_of(m, "submission"), number(wait.get("p50_ms"), 2), number(wait.get("p99_ms"), 2), percent(kept(m)),
            number(used / 1000 / m["seconds"], 2) if used else "-"]


def span_of(m, what):
    return interval_text((m.get(what + "_compared") or {}).get("ratio"))


def submission_ms(m):
    return ((m.get("parts") or {}).get("submission") or {}).get("p50_ms")


def submissions(merged):
    """The prompts of the suite submission, and the first tokens calculated from them."""
    found, long = suite(merged, "submission"), scenarios(merged).get(firsttoken.NAME)
    if not found:
        return []
    tokens = {r["mode"]: r.get("per_token_ms") or mode(long, r["mode"]).get("per_token", {}).get("mean_ms") for r in rows_of(merged, "submission")}
    prompts = {m: [[queueing.Prompt(*(us / 1000 for us in pair)) for pair in zip(*block)] for block in zip(found["submission_us"][m], found["wait_us"][m])] for m in tokens}
    rows = []
    for r in rows_of(merged, "submission"):
        name = r["mode"]
        queued = calculated(prompts, tokens, name) if name != "alone" and tokens[name] else ["-"] * 4
        rows.append([CONTROLS[name], r["requests"], number(r["prompt_p50_ms"], 1), *[more_text(r, what) for what in ("submission", "prompt")], number(r["wait_p50_ms"], 2),
                     number(r["wait_p99_ms"], 2), *queued, number(r["jobs_cores"], 2)])
    return [paragraph("The same server and job in blocks of %g s (run %d). The prompts of a block are compared with those of the alone block of the same round. The time to the first token is "
                      "calculated: the prompts of both modes, in the order in which they were measured, meet the same arrivals, and each has the tokens of its mode%s. The part of the GPU is "
                      "calculated with the submission times of *alone* in both modes. %s" % (
                          firsttoken.SHORT_S, found["run"], " in run %d" % long["run"] if long and not all("per_token_ms" in r for r in rows_of(merged, "submission")) else "",
                          fast_text(prompts, tokens) if tokens["live"] else "")),
            table(["server beside", "prompts", "prompt, P50 (ms)", "submission, over alone (95 %)", "prompt, over alone (95 %)", "wait for the GPU, P50 (ms)", "P99 (ms)",
                   "first token, calculated: P50 / alone (95 %)", "P99 / alone (95 %)", "the GPU's part: P50 / alone (95 %)", "P99 / alone (95 %)", "job's CPU (cores)"], rows)]


def more_text(r, what):
    more, span = r[what + "_more"], r[what + "_interval"]
    return "-" if more is None or r["mode"] == "alone" else "%+.1f %% (%+.1f to %+.1f)" % (100 * more, 100 * span[0], 100 * span[1])


def calculated(prompts, tokens, name):
    """The P50 and P99 of a mode over alone: with its own prompts, and with the submission of alone."""
    return [times(value) + interval_text(span) for pairing in (queueing.measured, queueing.with_equal_submission)
            for value, span in queueing.ratios(pairing(prompts["alone"], prompts[name]), tokens["alone"], tokens[name], firsttoken.SERVER.arrivals)]


def fast_text(prompts, tokens):
    """The same on a host whose CPU is always fast, where a wait is a greater part of a prompt."""
    alone, live = (queueing.fastest(prompts[m], 0.25) for m in ("alone", "live"))
    rounds = queueing.with_equal_submission(alone, live)
    shown = [times(value) + interval_text(span) for value, span in queueing.ratios(rounds, tokens["alone"], tokens["live"], firsttoken.SERVER.arrivals)]
    return "With the fastest quarter of the prompts only, which alone were submitted within %.1f ms, the part of the GPU is %s at P50 and %s at P99 under XSched." % (
        max(p.submission for b in alone for p in b), *shown)


# -- copies


def size_text(n):
    return "%d MB" % (n >> 20) if n >= 1 << 20 else "%d KB" % (n >> 10)


def copies(merged):
    """One row per kind of copy and memory, one column per size."""
    found = rows_of(merged, "copies")
    if not found:
        return []
    sizes, rows = sorted({r["bytes"] for r in found}), {}
    for r in found:
        for tail, title in (("", "without"), ("_xsched", "with")):
            row = rows.setdefault((r["copy"], r["memory"], title), {})
            row[r["bytes"]] = "%s ms, %s" % (number(r["call_ms" + tail], 2), r["over_at_return" + tail])
    s = suite(merged, "copies")
    asked = (s.get("raw") or {}).get("plain", {}).get("question_us", {})
    cost = ["%s %s us" % (m, number(asked["%s attribute" % m] - asked["%s an empty call" % m], 2)) for m in ("pageable", "pinned") if "%s attribute" % m in asked]
    return [paragraph("Each copy starts behind a kernel of 20 ms (run %d): the time in the call, and how often all earlier work was over when the call returned. A copy that takes 20 ms "
                      "waits. A copy that returns at once is work of its own, and its program has not waited.%s"
                      % (s["run"], " To ask the driver what kind of memory a pointer is takes, beyond an empty call: %s." % ", ".join(cost) if cost else "")),
            table(["copy", "memory", "XSched"] + [size_text(n) for n in sizes], [list(k) + [row.get(n, "-") for n in sizes] for k, row in rows.items()])]


# -- protection

# Scenarios whose service has a process of its own. Elsewhere a process serves one scenario after the other, and the daemon's figures,
# which cover its recent requests, mix them.
OWN_PROCESS = ("eight", "tenants", "micro/1 low")
NEAR, NEAR_MS = 0.25, 0.5  # a gain is right within this part of it, or within this time


def said(sc):
    """What the daemon said of the service in the blocks under XSched, as medians over the blocks, gains in ms. None without a
    reading. Older runs have no cost per block, only that of the last half minute, of which XSched was active in a part."""
    readings = [p for block in sc.get("protection") or [] for p in block if p.get("requests") and p.get("state") != "learning"]
    if not readings:
        return None
    return {"source": " and ".join(sorted({p["native_source"] for p in readings})), "old": "block_cost_ratio" not in readings[-1],
            "p50": stats.median([p["native_p50_us"] - p["p50_us"] for p in readings]) / 1000, "p99": stats.median([p["native_p99_us"] - p["p99_us"] for p in readings]) / 1000,
            "cost": stats.median([p.get("block_cost_ratio", p["cost_ratio"]) for p in readings])}


def protections(merged):
    """What the daemon said against what the blocks of the same run show."""
    rows, gains = [], []
    for sc in compared(merged):
        claim, native, live = said(sc), mode(sc, "native"), mode(sc, "live")
        if not claim or not p99(native):
            continue
        gain = {q: native["high"]["%s_ms" % q] - live["high"]["%s_ms" % q] for q in ("p50", "p99")}
        low = live.get("low") or {}
        lost = max(low["ideal"] - low["kept"], 0) if None not in (low.get("ideal"), low.get("kept")) else None
        less = kept(native) - kept(live) if None not in (kept(native), kept(live)) else None
        own = sc["name"] in OWN_PROCESS
        gains.append((own, claim, gain))
        rows.append([sc["name"], run_of(merged, sc), "own" if own else "shared", claim["source"], *[number(v, 1) for q in ("p50", "p99") for v in (claim[q], gain[q])],
                     percent(claim["cost"]) + ("*" if claim["old"] else ""), percent(lost), percent(less)])
    if not rows:
        return []
    return [paragraph("`xsched list` says what protection gains a service and costs the jobs. The table compares that, as the median over the blocks under XSched, with the blocks themselves. "
                      "The gain is native minus XSched. The cost is the throughput below the ideal, and below native sharing. The daemon's figures cover the recent requests of a process: where "
                      "scenarios share one, they contain requests of the scenarios before. `*`: a share of the last half minute, in which XSched was active only in a part."),
            table(["scenario", "run", "process", "source", "gain at P50 (ms): said", "measured", "gain at P99 (ms): said", "measured", "cost: said", "below ideal", "below native"], rows),
            paragraph("Gains within %d %% or %.1f ms of the measured ones: %s." % (100 * NEAR, NEAR_MS, "; ".join(
                "%s process: %d of %d at P50, %d of %d at P99" % (("own" if own else "shared",) + tuple(
                    n for q in ("p50", "p99") for n in (sum(abs(c[q] - g[q]) <= max(NEAR * abs(g[q]), NEAR_MS) for o, c, g in gains if o == own), sum(o == own for o, _, _ in gains))))
                for own in sorted({o for o, _, _ in gains}, reverse=True))))]
