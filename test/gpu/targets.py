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
}
MIN_N = 300  # requests a P99 needs

OVERHEAD = 0.01
# ratio, greatest relative error, the two shares in percent
SHARE = {"3:1": (3.0, 0.05, (75, 25)), "8:1": (8.0, 0.10, (88, 11))}
SHARE_CHIP = 0.95
ATTACH_MS, ATTACH_LATE_MS = 50, 2000
RESUME_MS = 200        # after the daemon died or stalled
HIGH_DIED_MS = 100     # lows run
REJOIN_MS = 1000
MEMORY_MS = 1000       # GPU memory of a killed client is released
PREEMPTIONS = 1000
STREAMS = 1.10
TRUTH = 0.9             # least share of requests inside a preempted kernel, by the device clock


def judge(key, modes, mode="live"):
    """Returns the verdicts of a latency scenario."""
    target = LATENCY.get(key)
    alone, ours = modes.get("alone", {}).get("high"), modes.get(mode, {})
    high = ours.get("high")
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
