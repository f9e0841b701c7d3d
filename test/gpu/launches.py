# SPDX-License-Identifier: Apache-2.0
"""What the shim adds to a launch. cuda/launches.c launches through the shim and past it, in short blocks that take turns in one process under
one daemon. Two processes differ by up to 8 % for reasons of their own, such as where their memory lies."""
import stats
import targets
from scene import check, ended_well

LIVES, MS, LIMIT_S = 3, 1500, 60  # of each case; the first takes twice as long
CASES = {"one": ("launch-bound loop", targets.LAUNCHES), "streams": ("launches into 64 streams in turn", targets.OVERHEAD),
         "two": ("launches of two threads, a stream each", targets.OVERHEAD), "eight": ("launches of eight threads, a stream each", targets.OVERHEAD)}


def summary(found):
    """Rows and verdicts of {case: pairs of ns a launch, past the shim and through it}."""
    rows, verdicts = [], []
    for case, (label, limit) in CASES.items():
        pairs = found[case]
        more, interval = stats.paired(pairs)
        rows.append({"what": label, "unit": "ns", "pairs": len(pairs), "plain": round(stats.median([a for a, _ in pairs]), 3),
                     "xsched": round(stats.median([b for _, b in pairs]), 3), "more_%": None if more is None else round(100 * more, 2),
                     "95_%_interval": "" if interval is None else "%+.2f .. %+.2f" % tuple(100 * x for x in interval)})
        verdicts.append(stats.verdict("%s: overhead of the shim, in one process" % label, more, limit, True, "part", interval))
    return rows, verdicts


def measure(rig, counters):
    """Measures in LIVES processes, one after the other; the daemon runs. Returns rows, verdicts, proof, notes and pairs."""
    found, wrong, sums, lives = {case: [] for case in CASES}, [], {}, []
    for life in range(LIVES):
        w = rig.worker("launches-%d" % life, [rig.helper("launches")], 0, role="beside", limit_s=LIMIT_S).ready(30)
        rig.joined([w])
        begun = counters(rig, w.pid).get("launches", 0)
        w.ask("measure %d" % max(300, round(MS * rig.scale)), "D", LIMIT_S)
        counted, hooked = counters(rig, w.pid).get("launches", 0) - begun, int(w.answers["H"][-1][0])
        if counted != hooked:
            wrong.append("life %d: %d counted, %d through the shim" % (life, counted, hooked))
        mine = [(p[0], [float(p[1]), float(p[2])]) for p in w.answers["P"]]
        for case, pair in mine:
            found[case].append(pair)
        more, _ = stats.paired([pair for case, pair in mine if case == "one"])
        lives.append("-" if more is None else "%+.2f %%" % (100 * more))
        sums.update(rig.end([w]))
    rows, verdicts = summary(found)
    proof = [check("the shim counted each launch through it, and none past it", wrong, "in %d processes" % LIVES), ended_well(sums)]
    notes = ["Launches: through the shim and past it in one process, under a daemon in mode live. The loop in each of %d processes: %s." % (LIVES, ", ".join(lives))]
    return rows, verdicts, proof, notes, found
