# SPDX-License-Identifier: Apache-2.0
"""The suites steps, overhead, streams, attach and correctness."""
import json
import os
import subprocess
import sys
import time

import launches
import stats
import targets
from nvml import xids
from processes import Failed, now_ns
from rig import HERE
from scene import check, ended_well
from stats import verdict


def counters(rig, pid):
    """Returns the shim's counters once they are stable; it publishes them once per tick."""
    last = None
    for _ in range(20):
        found = rig.list().get(pid, {}).get("counters")
        if found == last and found is not None:
            return found
        last = found
        time.sleep(0.06)
    return last or {}


def batched(rig):
    """steps with the kernels of every program in batches, next to a service: nothing hangs, nothing changes."""
    rig.start_daemon()
    rig.http("PUT", "/api/v1/policy", {"name": "HPF/batch-all"})
    service = rig.spin("high", 50, 10, role="high").ready(30)
    service.tell("rate 20")
    found = steps(rig)
    service.tell("quit")
    service.wait(10)
    return found


def steps(rig):
    """Runs steps.py with and without XSched at the same time and compares results and launch counts."""
    rig.start_daemon()
    rig.mode("live")
    argv = [sys.executable, os.path.join(HERE, "testdata/steps_stub.py" if rig.virtual else "steps.py")]

    def start(name, priority, role):
        env = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(rig.tmp, name + "-inductor"),
               "TRITON_CACHE_DIR": os.path.join(rig.tmp, name + "-triton"), "TORCHINDUCTOR_COMPILE_THREADS": "1",
               "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        return rig.worker(name, argv, priority, env=env, role=role, limit_s=200)
    plain, ours = start("steps-plain", None, "low1"), start("steps-xsched", 0, "low2")
    limit, seen, rows, counts = time.monotonic() + 190, {plain: 0, ours: 0}, [], {}
    while time.monotonic() < limit:
        for w in (plain, ours):
            asked = w.answers.get("C", [])
            while seen[w] < len(asked):
                name, where = asked[seen[w]]
                seen[w] += 1
                if w is ours:
                    counts.setdefault(name, {})[where] = counters(rig, w.pid)
                w.tell("go")
        if all(w.answers.get("P") or w.ended for w in (plain, ours)):
            break
        time.sleep(0.01)
    total = counters(rig, ours.pid)
    bursts = sum(q.get("bursts", 0) for q in rig.list().get(ours.pid, {}).get("queues", []))
    gathers = rig.cli("policy", "--json")["name"].endswith("/batch-all")
    for w in (plain, ours):
        if not w.ended:
            w.tell("go")
        w.wait(10)
    proof = [check("shim intercepts", [] if total.get("launches") else ["no launches: %s" % total],
                   "%s launches, %s hooked calls" % (total.get("launches"), total.get("hooked_calls")))]
    if gathers:
        proof.append(check("kernels gather", [] if bursts else ["no batch was released"], "%d batches" % bursts))
    hashes = {w: {h[0]: h[1:] for h in w.answers.get("H", [])} for w in (plain, ours)}
    errors = {w: {x[0]: " ".join(x[1:]) for x in w.answers.get("X", [])} for w in (plain, ours)}
    for name in list(hashes[plain]) + [n for n in errors[plain] if n not in hashes[plain]]:
        if name == "profiled":
            continue
        a, b = hashes[plain].get(name), hashes[ours].get(name)
        bad = []
        if a is None:
            bad = ["also fails without XSched: " + errors[plain].get(name, "?")]
        elif b is None:
            bad = [errors[ours].get(name) or "no result: " + ours.why()]
        elif a != b:
            bad = ["%s without XSched, %s with it" % (" ".join(a), " ".join(b))]
        rows.append(check(name.replace("_", " "), bad, "bit-equal " + " ".join(a or [])[:40]))
    if not rows:
        raise Failed("no section completed: %s / %s" % (plain.why(), ours.why()))
    profiler = []
    for words in ours.answers.get("N", []):
        name, launches, kernels, calls = words[0], int(words[1]), int(words[2]), words[3]
        c = counts.get(name, {})
        got = c.get("end", {}).get("launches", 0) - c.get("begin", {}).get("launches", 0)
        profiler.append({"section": name, "shim": got, "profiler": launches, "kernels": kernels, "calls": calls})
        proof.append(check("launches of %s: shim equals torch.profiler" % name,
                           [] if got == launches and launches else ["%d by the shim, %d by the profiler (%s; %d kernels)"
                                                                    % (got, launches, calls, kernels)],
                           "%d (%s)" % (got, calls)))
    if not profiler:
        proof.append(check("launches: shim equals torch.profiler", [errors[ours].get("profiled", "the profiler did not run")]))
    took = {w.name: {t[0]: float(t[1]) for t in w.answers.get("T", [])} for w in (plain, ours)}
    return {"checks": rows, "rows": {"launches": profiler}, "proof": proof, "section_seconds": took}


# kind of block, label, unit, has a target, pairs of blocks (more for noisier kinds)
OVERHEAD = (("task", "vector-add tasks of 1 ms", "us", True, 32), ("launch", "launch-bound loop, two processes", "ns", False, 48),
            ("copy", "copy-bound loop, 4 KiB", "us", True, 96), ("bulk", "copy of 64 MiB", "us", True, 32),
            ("tiny", "empty kernel, launch and synchronize", "us", False, 48), ("synccopy", "synchronous copy of 4 KiB", "us", False, 48))
BLOCK_MS, OTHER_PAIRS = 50, 8
LIVES = 3  # restarts of both processes: their memory layout also affects the result


def overhead(rig):
    """Two processes, one under XSched, alternate in short blocks on one core. Neighbours are compared."""
    program = rig.helper("overhead")
    rig.start_daemon()
    cores = rig.cores.get("high") or sorted(os.sched_getaffinity(0))
    core, rig.cores["beside"] = cores[-1], cores[:-1]  # threads other than the main thread use other cores
    found = {mode: {kind: [] for kind, *_ in OVERHEAD} for mode in ("live", "off", "suspend", "level1")}
    counts = rings = waits = 0
    sums = {}

    def one(worker, kind):
        words = worker.ask("block %s %d" % (kind, BLOCK_MS), "B", 20)
        if words[0] != kind or int(words[2]) < 3:
            raise Failed("%s replied %s to a block of %s" % (worker.name, words, kind))
        return float(words[1])

    def pairs(mode, plain, ours, count):
        """Measures count[kind] pairs of each kind, spread over the same time."""
        most = max(count.values())
        for i in range(most):
            order = [plain, ours] if i % 2 == 0 else [ours, plain]
            for kind, n in count.items():
                if (i + 1) * n // most > i * n // most:
                    value = {w: one(w, kind) for w in order}
                    found[mode][kind].append([value[plain], value[ours]])
    for life in range(LIVES):
        rig.mode("live")
        plain, ours = (rig.worker("overhead-%s-%d" % (name, life), [program, "--core", str(core)], priority, role="beside", limit_s=150).ready(40)
                       for name, priority in (("plain", None), ("xsched", 0)))
        rig.joined([ours] if not rig.virtual else [])
        for kind, *_ in OVERHEAD:  # warm-up
            one(plain, kind), one(ours, kind)
        before, begun = rig.stats(), counters(rig, ours.pid)
        pairs("live", plain, ours, {kind: max(round(n / LIVES * rig.scale), 4) for kind, *_, n in OVERHEAD})
        after, counted = rig.stats(), counters(rig, ours.pid)
        counts += counted.get("launches", 0) - begun.get("launches", 0)
        waits += counted.get("syncs", 0) - begun.get("syncs", 0)
        rings += after["doorbells"] - before["doorbells"]
        if life == LIVES - 1:
            for mode in ("off", "suspend", "level1"):
                rig.mode(mode)
                pairs(mode, plain, ours, {kind: max(round(OTHER_PAIRS * rig.scale), 6) for kind, *_ in OVERHEAD})
        sums.update(rig.end([plain, ours]))
    rig.mode("live")
    rows, verdicts, proof, notes, found["launches"] = launches.measure(rig, counters)
    for kind, label, unit, held, _ in OVERHEAD:
        base = [a for a, _ in found["live"][kind]]
        more, interval = stats.paired(found["live"][kind])
        row = {"what": label, "unit": unit, "pairs": len(base), "plain": round(stats.median(base), 3),
               "xsched": round(stats.median([b for _, b in found["live"][kind]]), 3),
               "more_%": None if more is None else round(100 * more, 2),
               "95_%_interval": "" if interval is None else "%+.2f .. %+.2f" % tuple(100 * x for x in interval)}
        for mode in ("off", "suspend", "level1"):
            other, _ = stats.paired(found[mode][kind])
            row["more_%% in mode %s" % mode] = None if other is None else round(100 * other, 2)
        rows.append(row)
        if held:
            verdicts.append(verdict("%s: overhead of shim and daemon" % label, more, targets.OVERHEAD, True, "part", interval))
    proof += [check("the shim counted launches", [] if counts or rig.virtual else ["no launches"], "%d launches" % counts),
              ended_well(sums)]
    notes += ["%d doorbell rings for %d synchronizations under XSched in mode live: a program alone needs none" % (rings, waits)]
    return {"rows": {"overhead": rows}, "verdicts": verdicts, "proof": proof, "notes": notes, "raw": found}


def streams(rig):
    """Streams of different priority in one process, with and without XSched, and beside a low process."""
    program = rig.helper("streams")
    rig.start_daemon()
    rig.mode("live")
    secs = str(3 * rig.scale)
    found, queues, launched = {}, [], []

    def one(kind, priority, xsched):
        w = rig.worker("streams", [program, "--priority", str(priority), "--seconds", secs], 10 if xsched else None,
                       role="high", limit_s=40)
        if xsched:
            time.sleep(1.5 + float(secs) / 2)
            p = rig.list().get(w.pid)
            if p:
                queues.append(len(p["queues"]))
                launched.append(p["counters"]["launches"])
        if w.wait(40) is None:
            raise Failed("streams did not exit: " + w.why())
        time.sleep(0.1)
        line = next((" ".join([k] + words) for k, v in w.answers.items() for words in v if k.startswith("{")), None)
        if not line:
            raise Failed("streams: " + w.why())
        r = json.loads(line)
        found.setdefault(kind, {"us": [], "per_s": []})
        found[kind]["us"] += r["latency_us"]
        found[kind]["per_s"].append(r["long_per_s"])
    for _ in range(3):
        one("plain, equal priority", 0, False)
        one("plain, different priority", 1, False)
        one("xsched, equal priority", 0, True)
        one("xsched, different priority", 1, True)
    low = rig.spin("low1", 20000, 0).ready(30)
    low.tell("loop")
    one("xsched, different priority, beside a low process", 1, True)
    low.pause()
    sums = ended_well(rig.end([low]))
    rows, raw = [], {}
    for kind, r in found.items():
        ms = [u / 1000 for u in r["us"]]
        rows.append(dict({"mode": kind, "long_per_s": round(stats.median(r["per_s"]), 2)}, **stats.summarize(ms)))
        raw[kind] = stats.compact(ms)
    # P95, because the P99 of a few hundred requests of 0.4 ms is dominated by noise.
    p95 = {r["mode"]: r["p95_ms"] for r in rows}
    verdicts = [verdict("different priority: P95 with XSched / without", p95["xsched, different priority"] / p95["plain, different priority"],
                        targets.STREAMS, True, "x"),
                verdict("equal priority: P95 with XSched / without", p95["xsched, equal priority"] / p95["plain, equal priority"],
                        targets.STREAMS, True, "x")]
    proof = [check("shim intercepts", [] if launched and all(launched) else ["no launches: %s" % launched],
                   "%s launches" % launched), sums]
    notes = ["queues per process: %s. Streams of one process share the queue of their context; the hardware's stream priority "
             "decides between them." % max(queues, default=0)]
    return {"rows": {"streams": rows}, "raw_us": raw, "verdicts": verdicts, "proof": proof, "notes": notes}


def attach(rig):
    """`xsched suspend PID` on a program without the shim."""
    rig.start_daemon()
    rig.mode("off")
    rows, verdicts, proof, notes = [], [], [], []

    def times(label, w, reps):
        for _ in range(reps):
            w.tell("loop")
            time.sleep(0.15)
            t0 = now_ns()
            try:
                reply = rig.http("POST", "/api/v1/suspend", {"pid": w.pid})
            except Failed as e:
                rows.append({"case": label, "answered_ms": round((now_ns() - t0) / 1e6, 2), "stopped_ms": None, "error": str(e)[:300]})
                continue
            answered = (now_ns() - t0) / 1e6
            time.sleep(0.35)
            t1 = now_ns()
            rig.http("POST", "/api/v1/resume", {"pid": w.pid})
            again = w.runs_again(t1, 2)
            # By the program's own timestamps: the last completion before the resume.
            last = max((e for _, e in w.samples if e < t1), default=0)
            held = t1 - last > 0.3e9
            stopped = max(last - t0, 0) / 1e6
            rig.http("POST", "/api/v1/detach", {"pid": w.pid})
            rows.append({"case": label, "answered_ms": round(answered, 2), "stopped_ms": round(stopped, 2) if held else None,
                         "resumed_ms": None if again is None else round(again, 2), "level": reply.get("level"),
                         "attached": reply.get("attached")})
    old = rig.spin("plain-old", 2000, None, role="low1").ready(30)
    times("fresh machine", old, 5)
    time.sleep(0.2)
    t0 = time.monotonic()
    cli = rig.cli("suspend", old.pid)
    notes.append("`xsched suspend PID`, process start included: %.0f ms (%s)"
                 % ((time.monotonic() - t0) * 1000, cli.strip()))
    rig.cli("resume", old.pid)
    rig.cli("detach", old.pid)
    late = []
    try:
        churn = rig.helper("rmchurn")
        r = subprocess.run([churn, "5000"], capture_output=True, text=True, timeout=60)
        if r.returncode != 0:
            raise Failed(r.stderr.strip())
        notes.append("rmchurn: " + r.stdout.strip())
        late.append("program started before 5,000 short-lived RM clients")
        times(late[0], old, 3)
        late.append("program started after them")
        new = rig.spin("plain-new", 2000, None, role="low2").ready(30)
        times(late[1], new, 3)
        proof.append(ended_well(rig.end([new])))
    except (Failed, subprocess.TimeoutExpired, OSError) as e:
        notes.append("5,000 short-lived RM clients: not measured: %s" % e)
    proof.append(ended_well(rig.end([old])))
    for label, limit in [("fresh machine", targets.ATTACH_MS)] + [(n, targets.ATTACH_LATE_MS) for n in late]:
        mine = [r for r in rows if r["case"] == label]
        worst = None if any(r["stopped_ms"] is None for r in mine) or not mine else max(max(r["answered_ms"], r["stopped_ms"]) for r in mine)
        v = verdict("%s: attached and suspended after" % label, worst, limit, True, "ms")
        if worst is None and label in late and any(r.get("error") for r in mine):
            # An error with a reason is acceptable here if it comes in time.
            v = verdict("%s: rejected with an error after" % label, max(r["answered_ms"] for r in mine), limit, True, "ms")
            notes.append("%s: %s" % (label, next(r["error"] for r in mine if r.get("error"))))
        verdicts.append(v)
    fresh = [r for r in rows if r["case"] == "fresh machine"]
    proof.append(check("a suspended program does not run", ["it kept running or was not found"] if any(r["stopped_ms"] is None for r in fresh) else [],
                       "no completion for 0.3 s, %d times" % len(fresh)))
    proof.append(check("resumed", ["it did not resume"] if any(r.get("resumed_ms") is None for r in fresh) else [], "every time"))
    return {"rows": {"attach": rows}, "verdicts": verdicts, "proof": proof, "notes": notes}


def correctness(rig):
    """A low that is preempted more than 1,000 times computes the same results as undisturbed."""
    program = rig.helper("correct")
    rig.start_daemon()
    before = xids()
    plain = rig.worker("correct-plain", [program], None, role="low2").ready(60)
    want = {h[0]: h[1] for h in plain.answers.get("H", [])}
    plain_ok = plain.quit()
    rig.mode("off")
    low = rig.worker("correct", [program], 0, role="low1").ready(60)
    got = {h[0]: h[1] for h in low.answers.get("H", [])}
    high = rig.spin("high", 90, 10).ready(30)
    rig.joined([low, high])
    rows = []

    def disturbed(mode, hz, wanted, limit_s):
        rig.mode(mode)
        low.tell("loop")
        high.tell("rate %g" % hz)
        start, n, requests = time.monotonic(), 0, len(high.samples)
        first = rig.preemptions([low])
        rounds = len(low.samples)
        while time.monotonic() - start < limit_s:
            time.sleep(0.5)
            n = rig.preemptions([low]) - first
            if wanted and n >= wanted * 1.05:
                break
        rig.mode("off")
        high.pause()
        low.pause()
        rows.append({"mode": mode, "preemptions": n, "requests": len(high.samples) - requests,
                     "rounds": len(low.samples) - rounds, "seconds": round(time.monotonic() - start, 1)})
        return n
    n = disturbed("suspend", 200, targets.PREEMPTIONS, 25)
    disturbed("live", 200, 0, 6 * rig.scale)  # hardware timeslices preempt once per request
    disturbed("level2", 200, 0, 4 * rig.scale)
    sums, xid = {"correct-plain": plain_ok}, xids()
    sums.update(rig.end([low, high]))
    different = [k for k in want if want[k] != got.get(k)]
    fresh = None if xid is None or before is None else [x for x in xid if x not in before]
    checks = [check("digests equal with and without XSched", ["%s differs" % k for k in different] if want else ["no digests"], ", ".join(want)),
              ended_well(sums),
              check("no new Xid in the kernel log", fresh or [], "none" if fresh is not None else "the kernel log is not readable")]
    verdicts = [verdict("preemptions of one job (suspend)", n, targets.PREEMPTIONS, False),
                verdict("requests that preempted by timeslice (live)", rows[1]["requests"], 500 * rig.scale, False)]
    proof = [check("preempted", [] if n else ["no preemption was counted"], "%d times" % n), checks[1]]
    return {"rows": {"preempted": rows}, "checks": checks, "verdicts": verdicts, "proof": proof}
