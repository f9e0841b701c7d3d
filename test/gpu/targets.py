# SPDX-License-Identifier: Apache-2.0
"""The targets of the suites."""
from stats import verdict

# scenario -> (greatest P99 / alone or None, greatest P99 - alone in ms or None, least throughput kept / ideal)
LATENCY = {
    "micro/1 low": (None, 0.30, 0.98),
    "micro/3 lows": (None, 0.60, 0.97),
    "test4": (1.10, None, 0.97),
    "gpubound": (1.05, None, 0.95),
    "test3": (1.15, None, 0.95),
    "twomodels": (1.15, None, 0.95),
    "burst/poisson": (1.15, None, 0.95),
    "burst/on-off": (1.15, None, 0.95),
    "tenants": (1.15, None, 0.95),
    "vision": (1.15, None, 0.95),
    "speech": (1.15, None, 0.95),
    "eight": (1.15, None, 0.95),
}
MIN_N = 300  # requests a P99 needs

OVERHEAD = 0.01
LAUNCHES = 0.005  # of a launch-bound loop
# ratio, greatest relative error, the two shares in percent
SHARE = {"3:1": (3.0, 0.05, (75, 25)), "8:1": (8.0, 0.10, (88, 11))}
SHARE_CHIP = 0.95
ATTACH_MS, ATTACH_LATE_MS = 50, 2000
RESUME_MS = 200        # after the daemon died or stalled
HIGH_DIED_MS = 100     # lows run
REJOIN_MS = 1000
UPGRADE_PAUSE_MS = 2200  # of a job: the starvation bound and 200 ms
MEMORY_MS = 1000       # GPU memory of a killed client is released
PREEMPTIONS = 1000
STOPS = {"one low": 0.68, "three lows": 0.85}  # decision to stopped, P50 in ms
STREAMS = 1.10
TRUTH = 0.9             # least share of requests inside a preempted kernel, by the device clock


# Lines of the inference suites: name -> what it demands. A pair belongs to the first line that fits its name.
LINES = {
    "one": "LLM step as a graph beside one job: P99 <= 1.10x, P50 <= alone + 0.30 ms, >= 97 % of ideal",
    "three": "LLM step as a graph beside three jobs: P99 <= 1.15x, >= 95 % of ideal",
    "copies": "LLM step as a graph beside copies: P99 <= native, jobs keep >= 99 %",
    "short": "short requests: P50 <= alone + 0.5 ms, P99 <= 1.15x or alone + 0.6 ms and <= native, jobs keep >= native - 1 point",
    "eager": "eager requests: P99 <= 1.10x and <= native, jobs keep >= native - 5 points",
    "serve": "serving: time to first token <= +5 % (P50, P99), time per token <= +2 % (mean)",
}


SHORT = ("recommender", "bert4", "bert6", "bert12", "compiled", "unet")  # services


def line_of(key):
    """The line of LINES that a pair belongs to, or None."""
    high, _, job = key.partition("/")
    if high in SHORT and job:
        return "short"
    if not job or high not in ("llm", "llm-cpu", "serve", "llm-eager", "bert24"):
        return None
    if high == "serve":
        return "serve"
    if high not in ("llm", "llm-cpu"):
        return "eager"
    return job if job in ("three", "copies") else "one"


def judge_inference(line, modes):
    """Returns the verdicts of a pair of the inference suites."""
    alone, native, ours = modes["alone"], modes.get("native", {}), modes["live"]
    high, low, ratio = ours["high"], ours.get("low") or {}, (ours.get("p99_compared") or {}).get("ratio")
    to_alone = high["p99_ms"] / alone["high"]["p99_ms"]
    to_native = verdict("service P99 / native", ours.get("p99_to_native"), 1.0, True, "x", (ours.get("native_compared") or {}).get("ratio"))
    out = []
    if line in ("one", "three", "eager"):
        out.append(verdict("service P99 / alone", to_alone, 1.15 if line == "three" else 1.10, True, "x", ratio))
    if line == "short":
        more = (ours.get("p99_compared") or {}).get("more_ms")
        limit = max(0.15 * alone["high"]["p99_ms"], 0.6)
        out.append(verdict("service P99 - alone", high["p99_ms"] - alone["high"]["p99_ms"], limit, True, "ms", more))
        out.append(verdict("service P50 - alone", high["p50_ms"] - alone["high"]["p50_ms"], 0.5, True, "ms"))
    if line == "one":
        out.append(verdict("service P50 - alone", high["p50_ms"] - alone["high"]["p50_ms"], 0.30, True, "ms"))
    if line in ("one", "three"):
        out.append(verdict("jobs keep / ideal", low.get("kept_of_ideal"), 0.97 if line == "one" else 0.95, False, "x"))
    if line in ("copies", "eager", "short"):
        out.append(to_native)
    if line == "copies":
        out.append(verdict("jobs keep", low.get("kept"), 0.99, False))
    if line in ("eager", "short"):
        before = (native.get("low") or {}).get("kept")
        out.append(verdict("jobs keep - native", None if None in (before, low.get("kept")) else low["kept"] - before, -0.01 if line == "short" else -0.05, False))
    if line == "serve":
        out.append(verdict("time to first token, P50 / alone", high["p50_ms"] / alone["high"]["p50_ms"], 1.05, True, "x",
                           (ours.get("p50_compared") or {}).get("ratio")))
        out.append(verdict("time to first token, P99 / alone", to_alone, 1.05, True, "x", ratio))
        out.append(verdict("time per token, mean / alone", (ours.get("per_token") or {}).get("to_alone"), 1.02, True, "x"))
    # Natively a service can collapse, so that only few requests end in the time. That matters where it is compared.
    judged = (alone, native, ours) if line in ("copies", "eager", "short") else (alone, ours)
    return out + [verdict("requests behind the P99", min([m["high"]["n"] for m in judged if m.get("high")]), MIN_N, False)]


def judge(key, modes, mode="live"):
    """Returns the verdicts of a latency scenario."""
    target = LATENCY.get(key)
    alone, ours = modes.get("alone", {}).get("high"), modes.get(mode, {})
    high = ours.get("high")
    if line_of(key) and alone and high:
        return judge_inference(line_of(key), modes)
    if target is None or not alone or not high:
        return []
    ratio, above, part = target
    spread = ours.get("p99_compared") or {}
    out = []
    if ratio is not None:
        out.append(verdict("service P99 / alone", high["p99_ms"] / alone["p99_ms"], ratio, True, "x", spread.get("ratio")))
    if above is not None:
        out.append(verdict("service P99 - alone", high["p99_ms"] - alone["p99_ms"], above, True, "ms", spread.get("more_ms")))
    out.append(verdict("jobs keep / ideal", (ours.get("low") or {}).get("kept_of_ideal"), part, False, "x"))
    out.append(verdict("requests behind the P99", min(high["n"], alone["n"]), MIN_N, False))
    return out
