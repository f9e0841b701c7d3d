# SPDX-License-Identifier: Apache-2.0
"""Environments with limits (MPS, missing device node, no daemon): XSched must detect and report them."""
import glob
import json
import os
import subprocess
import time

from processes import Failed
from rig import Mps
from scene import check, ended_well

START_LIMIT_S = 10


def doctor(rig, argv=(), env=None):
    """Returns the report of `xsched doctor` and {check name: (status, detail)}."""
    r = subprocess.run(list(argv) + [rig.xsched, "doctor", "--json"], env=dict(rig.env, **env or {}), capture_output=True, text=True, timeout=20)
    start = r.stdout.find("{")
    if start < 0:
        raise Failed("doctor printed no report: " + (r.stderr or r.stdout).strip()[:300])
    report, _ = json.JSONDecoder().raw_decode(r.stdout[start:])
    return report, {c["name"]: (c["status"], c["detail"]) for c in report["checks"]}


def starts(rig):
    """Starts a high and three lows at the same moment while scheduling is active: they create contexts and load modules
    while others are suspended and resumed."""
    rig.start_daemon()
    rig.mode("live")
    times, failed = [], None
    for _ in range(max(round(6 * rig.scale), 2)):
        begun = time.monotonic()
        workers = [rig.spin("high", 90, 10)] + [rig.spin("low%d" % i, 20000, 0) for i in (1, 2, 3)]
        try:
            for w in workers:
                w.ready(START_LIMIT_S)
        except Failed as e:
            failed = "%s; daemon state: %s" % (e, json.dumps({"list": rig.cli("list", "--json"), "stats": rig.stats()}))
            with open(os.path.join(rig.logs, "starts.json"), "w") as f:
                f.write(failed)
                for w in workers:
                    f.write("\n%s %d %s" % (w.name, w.pid, asleep(w.pid)))
            break
        times.append(time.monotonic() - begun)
        sums = ended_well(rig.end(workers))
        if not sums["ok"]:
            failed = sums["detail"]
            break
    checks = [check("four programs start at the same time", [failed[:600]] if failed else [], "ready after %s s" % ", ".join("%.1f" % t for t in times))]
    return {"checks": checks, "proof": [check("programs started", [] if times or failed else ["no attempt was made"], "%d times" % len(times))]}


def asleep(pid):
    """Returns the system call and wait channel of every thread of a process."""
    out = []
    for path in glob.glob("/proc/%d/task/*" % pid):
        try:
            with open(path + "/comm") as c, open(path + "/wchan") as w, open(path + "/syscall") as s:
                out.append("%s:%s:%s" % (c.read().strip(), w.read().strip(), s.read().split()[0]))
        except (OSError, IndexError):
            pass
    return " ".join(out)


def devices(rig):
    return rig.cli("list", "--devices", "--json")["devices"]


def situations(rig):
    """The machine as it is, without a device node, without a daemon, and with MPS."""
    rows = []

    def add_check(name, ok, detail):
        rows.append(check(name, [] if ok else [detail], detail))
    report, found = doctor(rig)
    add_check("doctor on an unmodified machine", report["ok"], "level %s; %s" % (report.get("level"), "; ".join("%s: %s" % (n, d) for n, (s, d) in found.items() if s != "ok") or "all ok"))
    empty = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec "$@"', "sh"]
    try:
        report, found = doctor(rig, empty)
        status, detail = found.get("device nodes", ("?", "not reported"))
        add_check("doctor without the device node", not report["ok"] and status not in ("ok", "?"), detail)
    except (Failed, OSError, subprocess.TimeoutExpired) as e:
        add_check("doctor without the device node", False, str(e))
    alone = subprocess.run(rig.under([rig.tenant, "--name", "native", "--kernel-us", "1000"], 0), env=rig.env, input="", capture_output=True, text=True, timeout=30)
    warned = [line for line in alone.stderr.splitlines() if line.strip()]
    add_check("`xsched run` without a daemon", alone.returncode == 0 and len(warned) == 1, "exit %d, %s" % (alone.returncode, " | ".join(warned) or "no warning"))
    rig.start_daemon()
    w = rig.spin("plain", 1000, 0, role="low1").ready(30)
    rig.joined([w])
    w.tell("loop")
    time.sleep(0.5)
    before = devices(rig)
    add_check("level of the GPU and its reason", any(d.get("max_level") == 3 for d in before), json.dumps([{k: d.get(k) for k in ("name", "max_level", "level_reason", "compute_mode")} for d in before]))
    launches = rig.list()[w.pid]["counters"]["launches"]
    rig.end([w])
    server = Mps(rig)
    try:
        w = rig.worker("under-mps", [rig.tenant, "--name", "under-mps", "--kernel-us", "1000"], 0, env=server.env, role="low1", tenant=True).ready(30)
        rig.joined([w])
        w.tell("loop")
        time.sleep(1.5)
        report, found = doctor(rig, env=server.env)
        add_check("doctor beside MPS", found["MPS"][0] == "limited" and report.get("level") == 1, "%s: %s" % found["MPS"])
        under = devices(rig)
        add_check("level of an MPS client", any(d.get("max_level") == 1 for d in under), json.dumps([{k: d.get(k) for k in ("max_level", "level_reason")} for d in under]))
        refused = "no error"
        try:
            rig.cli("suspend", w.pid)
        except Failed as e:
            refused = str(e)
        n = len(w.samples)
        time.sleep(0.5)
        held = len(w.samples) == n
        # Level 1 holds the client at the gate, or rejects the request with a reason.
        add_check("`xsched suspend` of an MPS client", held or "MPS" in refused, "held at the gate" if held else refused)
        rig.cli("resume", w.pid)
        rig.end([w])
    finally:
        server.stop()
    return {"checks": rows, "proof": [check("shim intercepts", [] if launches else ["no launches"], "%d launches" % launches)]}
