# SPDX-License-Identifier: Apache-2.0
"""Do small copies need the compute channel, and therefore a switch of the GPU, beside a process that keeps it busy? cuda/uploads.c times
copies with a wait; the job's iterations show what each copy costs it. An empty kernel, which needs two switches, and an idle loop are
the references."""
import json

from processes import Failed
from scene import check

COUNT, HZ, ALONE_HZ, LIMIT_S = 150, 300, 1000, 120
MODES = ("alone", "native", "timeslice", "live")
JOB_US = 20000


def name(r):
    text = r["case"] if r["memory"] == "-" else "%s %s %d KB" % (r["case"], r["memory"], r["bytes"] >> 10)
    if r["copies"] > 1:
        text += ", two %d us apart, %s" % (r["gap_us"], "one wait" if r["waits"] == 1 else "two waits")
    return text


def iteration_ms(samples, begin, end):
    """Mean length of the iterations within a case; None if there are too few."""
    inside = [(b - a) / 1e6 for a, b in samples if a >= begin and b <= end]
    return sum(inside) / len(inside) if len(inside) >= 3 else None


def block(rig, high, low, mode, count):
    """Returns the cases of one mode with the length of the job's iterations in each."""
    rig.mode("off" if mode in ("alone", "native") else mode)
    if mode != "alone":
        low.tell("loop")
    have = len(high.answers.get("C", []))
    high.ask("measure %d %d" % (count, ALONE_HZ if mode == "alone" else HZ), "D", LIMIT_S)
    low.pause()
    cases = [json.loads(" ".join(c)) for c in high.answers["C"][have:]]
    samples = list(low.samples)
    for c in cases:
        c["mode"], c["name"] = mode, name(c)
        c["iteration_ms"] = iteration_ms(samples, c["begin"], c["end"])
    return cases


def added(cases):
    """Adds what a request costs the job: how much longer than without requests an iteration is, by requests in it."""
    idle = {c["mode"]: c["iteration_ms"] for c in cases if c["case"] == "idle"}
    for c in cases:
        base, mine = idle.get(c["mode"]), c["iteration_ms"]
        seconds = (c["end"] - c["begin"]) / 1e9
        if base and mine:
            c["job_kept"] = round(base / mine, 4)
            c["cost_us"] = round((1 - base / mine) * seconds / c["n"] * 1e6, 1)
    return cases


def shown(cases):
    rows = {}
    for c in cases:
        row = rows.setdefault(c["name"], {"request": c["name"]})
        row["%s_p50_us" % c["mode"]], row["%s_p99_us" % c["mode"]] = c["p50_us"], c["p99_us"]
        if "cost_us" in c:
            row["%s_cost_us" % c["mode"]] = c["cost_us"]
    return list(rows.values())


def uploads(rig):
    """Small copies with a wait, alone and beside a busy job."""
    rig.start_daemon()
    rig.mode("off")
    count = max(75, round(COUNT * rig.scale))
    high = rig.worker("uploads", [rig.helper("uploads")], 10, role="high", limit_s=len(MODES) * LIMIT_S).ready(30)
    low = rig.spin("low1", JOB_US, 0, depth=2).ready(30)
    rig.joined([high, low])
    cases = []
    for mode in MODES:
        cases += block(rig, high, low, mode, count)
    rig.mode("off")
    sums = rig.end([high, low])
    added(cases)
    ran = [c["mode"] for c in cases if c["mode"] != "alone" and not c["iteration_ms"]]
    if not cases:
        raise Failed("no case was measured: " + high.why())
    notes = ["p50 and p99 of copy and wait, in us. cost: time that the job loses by a request, in us.",
             "The kernel is the reference for a request that needs the compute channel, idle for one that needs nothing."]
    return {"rows": {"uploads": shown(cases)}, "raw": {"cases": cases},
            "proof": [check("the job ran beside every case", ["%s: fewer than 3 iterations in a case" % m for m in sorted(set(ran))], "%d cases" % len(cases)),
                      check("copies are correct", [n for n, ok in sums.items() if not ok], "bytes compared after every case")],
            "notes": notes}
