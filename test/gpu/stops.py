# SPDX-License-Identifier: Apache-2.0
"""Decision to stopped: one low and three, which one decision stops together.

The high is busy all the time, so the mode `level 3` stops every low at once, and `off` resumes them. Each case has a daemon
of its own: its histogram then holds this case only.
"""
import time

import targets
from processes import Failed
from scene import check, ended_well
from stats import verdict

CASES = [("one low", 1, True), ("three lows", 3, True), ("one attached low", 1, False), ("three attached lows", 3, False)]
ROUNDS = 150


def case(rig, label, n, shim):
    """Returns the row of one case and its proof."""
    rig.stop_daemon()
    rig.start_daemon()
    rig.mode("off")
    high = rig.spin("high", 90, 10, depth=2)
    lows = [rig.spin("low%d" % (i + 1), 20000, 0 if shim else None) for i in range(n)]
    for w in [high] + lows:
        w.ready(30)
        w.tell("loop")
    for w in lows if not shim else []:
        rig.http("POST", "/api/v1/attach", {"pid": w.pid, "priority": 0})
    rig.joined([high] + lows)
    time.sleep(0.3)
    before = rig.stats()
    rounds = max(10, int(ROUNDS * rig.scale))
    for _ in range(rounds):
        rig.http("PUT", "/api/v1/mode", {"mode": "level", "level": 3})
        time.sleep(0.012)
        rig.http("PUT", "/api/v1/mode", {"mode": "off"})
        time.sleep(0.012)
    after = rig.stats()
    d = {k: after[k] - before[k] for k in ("suspends", "resumes", "timeslice_sets", "shared", "split", "undone", "device_errors")}
    t = after["preempt_time"][3]
    row = {"case": label, "rounds": rounds, "stops": t["count"], "decision_to_stopped_p50_ms": round(t["p50_us"] / 1000, 3),
           "p90_ms": round(t["p90_us"] / 1000, 3), "p99_ms": round(t["p99_us"] / 1000, 3),
           "request_p50_ms": round(after["suspend_time"]["p50_us"] / 1000, 3),
           "resume_p50_ms": round(after["resume_time"]["p50_us"] / 1000, 3),
           "requests_per_round": round((d["suspends"] + d["resumes"] + d["timeslice_sets"] - d["shared"]) / rounds, 2)}
    row.update(d)
    bad = []
    if d["suspends"] < 0.9 * n * rounds:
        bad.append("%d stops of %d" % (d["suspends"], n * rounds))
    if d["device_errors"] or d["undone"]:
        bad.append("%d errors, %d undone" % (d["device_errors"], d["undone"]))
    return row, [check("%s: every round stops and resumes all" % label, bad, "%d stops, %d shared, %d repeated alone"
                       % (d["suspends"], d["shared"], d["split"])), ended_well(rig.end([high] + lows))]


def stops(rig):
    """Decision to stopped for one low and for three, with the shim and attached."""
    rows, verdicts, proof, notes = [], [], [], []
    for label, n, shim in CASES:
        try:
            row, proved = case(rig, label, n, shim)
        except Failed as e:
            if shim:
                raise
            notes.append("%s: not measured: %s" % (label, e))
            continue
        rows.append(row)
        proof += proved
        if label in targets.STOPS:
            verdicts.append(verdict("%s: decision to stopped, P50" % label, row["decision_to_stopped_p50_ms"], targets.STOPS[label], True, "ms"))
    return {"rows": {"stops": rows}, "verdicts": verdicts, "proof": proof, "notes": notes}
