# SPDX-License-Identifier: Apache-2.0
"""Does the size of a job's grids, or the length of its kernels, predict what preempting it gains?

A fixed service runs beside one job. The grid and the length of the job's kernels vary independently: the length is calibrated
for each grid. The gain is the native P99 of the service minus its P99 under XSched. The cost is the throughput that the job
loses. All pairs of a grid and a length are measured, so the two rank correlations do not influence each other.
"""
import random

import stats
from scene import Scene, check, ended_well, xsched_modes

GRIDS = (1, 132, 1056, 8448)  # blocks: one, one per SM of an H200, all that fit at once, eight times as many
LENGTHS_US = (100, 1000, 5000, 20000)
SERVICE_US, HZ = 90, 200
BLOCK_S = 1.25
SECONDS = {"native": 2.5, "live": 2.5, "low alone": 1.25}


def cell(rig, high, grid, length_us):
    """Returns the row and the proof of one job."""
    name = "grids/%d blocks of %d us" % (grid, length_us)
    low = rig.spin("low1", length_us, 0, depth=2, grid=grid).ready(60)
    rig.joined([high, low])
    # XSched may leave a job alone that hardly disturbs.
    sc = Scene(rig, name, high, [low], xsched_modes(SECONDS, 1), HZ, block_s=BLOCK_S, seed=rig.seed + length_us + grid, rests=True).run()
    ended = ended_well(rig.end([low]))
    return row_of(sc, grid, length_us), [dict(p, name="%s: %s" % (name, p["name"])) for p in sc["proof"] + [ended]]


def row_of(sc, grid, length_us):
    native, live = sc["modes"]["native"], sc["modes"]["live"]
    out = {"grid": grid, "kernel_us": length_us, "native_p99_ms": native["high"]["p99_ms"], "xsched_p99_ms": live["high"]["p99_ms"],
           "gain_ms": round(native["high"]["p99_ms"] - live["high"]["p99_ms"], 4), "requests": min(native["high"]["n"], live["high"]["n"]),
           "native_kept": native["low"]["kept"], "xsched_kept": live["low"]["kept"],
           "cost": round(native["low"]["kept"] - live["low"]["kept"], 4)}
    return dict(out, **{k: live["evidence"].get(k) for k in ("suspends", "timeslice_sets", "preemptions")})


def correlations(rows):
    """Rank correlations of gain and cost with the grid and with the length of the kernels."""
    return [{"what": what, "with": signal, "spearman": stats.spearman([r[signal] for r in rows], [r[what] for r in rows])}
            for what in ("gain_ms", "cost") for signal in ("grid", "kernel_us")]


def answer(found):
    """Which signal predicts the gain. Below 0.5, a rank correlation of 16 pairs says little."""
    rho = {f["with"]: f["spearman"] for f in found if f["what"] == "gain_ms"}
    if None in rho.values():
        return "no answer: the gain is the same everywhere"
    strong = [name for name, key in (("grid size", "grid"), ("kernel length", "kernel_us")) if abs(rho[key]) >= 0.5]
    return "rank correlation of the gain with grid size %+.2f, with kernel length %+.2f: %s" % (
        rho["grid"], rho["kernel_us"], " and ".join(strong) + (" predict it" if len(strong) > 1 else " predicts it") if strong else "neither predicts it")


def grids(rig):
    rig.start_daemon()
    high = rig.spin("high", SERVICE_US, 10).ready(60)
    rows, proof = [], []
    cells = [(grid, length_us) for grid in GRIDS for length_us in LENGTHS_US]
    random.Random(rig.seed).shuffle(cells)  # drift of the machine must not look like an effect
    for grid, length_us in cells:
        row, proved = cell(rig, high, grid, length_us)
        rows.append(row)
        proof += proved
    proof.append(ended_well(rig.end([high])))
    found = correlations(rows)
    return {"rows": {"grids": rows, "correlations": found}, "proof": proof, "checks": [check("what predicts the gain of a preemption", [], answer(found))]}
