# SPDX-License-Identifier: Apache-2.0
"""What takes the time in a stop: channels, channel groups, or a running kernel? cuda/stopcost.c times the driver's controls on its own
channels, alone on the GPU and beside another busy process. XSched is not involved."""
import json

from processes import Failed
from scene import check

ROUNDS, LIMIT_S = 60, 150
STOPS = ("compute_group", "all_groups_together")  # each must stop a running kernel


def said(words):
    return json.loads(" ".join(words))


def measured(rig, w, neighbour, rounds):
    """Returns the rows of one situation."""
    if neighbour:
        neighbour.tell("loop")
    have = len(w.answers.get("C", []))
    w.ask("measure %d" % rounds, "D", LIMIT_S)
    if neighbour:
        neighbour.pause()
    label = "beside a busy process" if neighbour else "alone"
    rows = [dict(said(c), beside=label) for c in w.answers["C"][have:]]
    for r in rows:
        r["case"] = r["case"].replace("_", " ")
    return rows


def shown(rows):
    """The rows of the page: one for each case, next to one another what differs by situation."""
    out = {}
    for r in rows:
        row = out.setdefault(r["case"], {"case": r["case"], "channels": r["channels"], "calls": r["calls"]})
        key = ("kernel_" if r["busy"] else "idle_") + ("beside" if r["beside"] != "alone" else "alone")
        failed = int(r["status"], 16) != 0
        row[key + "_ms"] = r["status"] if failed else r["stop_p50_ms"]
        row[key + "_p99_ms"] = None if failed else r["stop_p99_ms"]
        if r["busy"] and r["beside"] == "alone":
            row["enable_ms"], row["cpu_ms"] = (None, None) if failed else (r["enable_p50_ms"], r["stop_cpu_p50_ms"])
            row["stops_the_kernel"] = "%d of %d" % (r["stops"], r["of"])
    return list(out.values())


def stopcost(rig):
    """Costs of the driver's controls that stop channels."""
    rig.start_daemon()  # the virtual GPU needs one
    rig.mode("off")
    rounds = max(10, round(ROUNDS * rig.scale))
    probe = rig.worker("stopcost", [rig.helper("stopcost")], None, role="high", limit_s=2 * LIMIT_S + 30).ready(30)
    neighbour = rig.spin("neighbour", 20000, None, role="low1").ready(30)
    rows = measured(rig, probe, None, rounds) + measured(rig, probe, neighbour, rounds)
    ended = {w.name: w.quit() for w in (probe, neighbour)}
    found = probe.answers.get("O")
    if not found:
        raise Failed("the probe did not say which channels it has")
    bad = ["%s, %s: %d of %d" % (r["case"], r["beside"], r["stops"], r["of"]) for r in rows
           if r["case"].replace(" ", "_") in STOPS and r["stops"] < r["of"]]
    return {"rows": {"stopcost": shown(rows)}, "raw": {"cases": rows, "channels": said(found[0])["groups"]},
            "proof": [check("a stop outlasts a kernel", bad, "%s" % ", ".join(n.replace("_", " ") for n in STOPS)),
                      check("every channel runs again", [n for n, ok in ended.items() if not ok], "%d cases" % len(rows))],
            "notes": ["channel groups: %s" % ", ".join("%d channels%s" % (g["channels"], " (compute)" if g["compute"] else "") for g in said(found[0])["groups"]),
                      "A number that begins with 0x is the status with which the driver refused the control."]}
