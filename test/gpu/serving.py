# SPDX-License-Identifier: Apache-2.0
"""The example examples/serving: a model server over HTTP beside a training job. It has a daemon of its own and prints nothing
without its own proof."""
import json
import os
import subprocess
import sys

from processes import Failed
from rig import ROOT
from scene import check

ROUNDS, SECONDS, RATE = 6, 4, 40


def serving(rig):
    rig.stop_daemon()
    path = os.path.join(rig.tmp, "serving.json")
    rounds = max(round(ROUNDS * rig.scale), 1)
    argv = [sys.executable, "-B", os.path.join(ROOT, "examples", "serving", "run.py"), "--json", path, "--rate", str(RATE),
            "--rounds", str(rounds), "--seconds", str(SECONDS if rounds > 1 else 1.5), "--backend", "virtual" if rig.virtual else "pytorch"]
    cores = set().union(*rig.cores.values())  # this process keeps to one
    with open(os.path.join(rig.logs, "serving.log"), "w") as log:
        r = subprocess.run(argv, env=dict(rig.env, XSCHED=rig.xsched), stdout=log, stderr=subprocess.PIPE, text=True, timeout=230,
                           preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None)
        log.write(r.stderr)
    if r.returncode != 0:
        raise Failed(r.stderr.strip().rpartition("\n")[2] or "exit code %d" % r.returncode)
    with open(path) as f:
        return result(json.load(f))


def result(found):
    """The result of the suite from the numbers of the example."""
    rows, text = [], []
    for mode, r in found["modes"].items():
        rows.append({"mode": mode, "p50_ms": finite(r["p50_ms"]), "p99_ms": finite(r["p99_ms"]), "requests": r["requests"], "refused": r["refused"],
                     "kept": None if r["kept"] is None else round(r["kept"], 4)})
        text.append("%s P50 %s, P99 %s%s" % (mode, ms(rows[-1]["p50_ms"]), ms(rows[-1]["p99_ms"]), "" if r["kept"] is None else ", job keeps %.1f %%" % (100 * r["kept"])))
    return {"rows": {"serving": rows}, "raw_us": {m: [round(1000 * v) for v in r["latencies_ms"]] for m, r in found["modes"].items()},
            "protection": found.get("protection", []),
            "checks": [check("model server over HTTP, %s" % found["backend"], [], "; ".join(text))],
            "proof": [check(line.partition(":")[0], [], line.partition(": ")[2]) for line in found["proof"]]}


def finite(v):
    """None for a percentile that falls on a refused request."""
    return round(v, 4) if v != float("inf") else None


def ms(v):
    return "refused" if v is None else "%.2f ms" % v
