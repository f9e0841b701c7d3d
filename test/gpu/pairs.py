# SPDX-License-Identifier: Apache-2.0
"""The suites that load a high and lows once and switch modes between blocks."""
import time

import stats
import targets
from processes import Failed
from rig import Mps
from scene import Mode, Scene, check, ended_well, ideal, wall_s, xsched_modes
from stats import verdict


def finish(rig, scenarios, workers):
    """Ends the workers and adds their checksums to the proof of every scenario."""
    sums = ended_well(rig.end(workers))
    for s in scenarios:
        s["proof"].append(sums)
    return scenarios


SPIN = {"ms": 0.09, "kernels": 1}  # kernel time of a request of the spin suites


def micro(rig):
    """Spin kernels: the high 90 us at 100/s, the lows 20 ms back to back."""
    rig.start_daemon()
    high, lows = rig.spin("high", 90, 10), [rig.spin("low1", 20000, 0)]
    for w in [high] + lows:
        w.ready(30)
    rig.joined([high] + lows)
    seconds = {"alone": 5, "native": 5, "timeslice": 5, "suspend": 5, "live": 5, "level2": 2.5, "level1": 2.5, "low alone": 2.5}
    out = []
    for n in (1, 3):
        while len(lows) < n:
            lows.append(rig.spin("low%d" % (len(lows) + 1), 20000, 0).ready(30))
        rig.joined([high] + lows)
        key = "micro/%d low%s" % (n, "s" if n > 1 else "")
        out.append(Scene(rig, key, high, list(lows), xsched_modes(seconds, n), 100, kernel=SPIN, block_s=1.25,
                         seed=rig.seed + n).run())
    result = {"scenarios": finish(rig, out, [high] + lows)}

    def start(client):
        client(rig.spin, "mps-high", 90, 0, "high")
        client(rig.spin, "mps-low", 20000, 0, "low1")
        client(rig.spin, "mps-low-priority", 20000, 1, "low2")

    def measure(high, others):
        modes = mps_modes({"alone": 5, "mps": 5, "mps-priority": 5, "low alone": 2.5}, [0], [1])
        return [("micro", Scene(rig, "micro/1 low, under MPS", high, others, modes, 100, kernel=SPIN, block_s=1.25, seed=rig.seed).run())]
    return beside_mps(rig, "micro", result, start, measure)


QUANTA_MS = (5, 20, 50, 200)


def strategy(rig):
    """Alternatives for one high and three lows: driver slices, slices only, suspend all lows on arrival, and one low at a
    time with a minimal slice for turns of different length. Also a high with a request every millisecond."""
    rig.start_daemon()
    high, lows = rig.spin("high", 90, 10), [rig.spin("low%d" % i, 20000, 0) for i in (1, 2, 3)]
    for w in [high] + lows:
        w.ready(30)
    rig.joined([high] + lows)
    policy = rig.cli("policy", "--json")
    scenarios = []
    turns = [Mode("turns of %d ms" % q, 3, "live", [0, 1, 2], True) for q in QUANTA_MS]

    def prepare(mode):
        q = next((q for q in QUANTA_MS if mode.name == "turns of %d ms" % q), None)
        rig.http("PUT", "/api/v1/policy", {"name": policy["name"], "quantum_us": q * 1000 if q else policy["quantum_us"]})
    try:
        for key, hz in (("strategy/100 requests a second", 100), ("strategy/a request every millisecond", 1000)):
            seconds = {"alone": 3, "native": 3, "timeslice": 3, "suspend": 3, "low alone": 3}
            modes = xsched_modes(seconds, 3) + (turns if hz == 100 else [Mode("live", 3, "live", [0, 1, 2], True)])
            scenarios.append(Scene(rig, key, high, lows, modes, hz, kernel=SPIN, block_s=1.5, seed=rig.seed, prepare=prepare).run())
    finally:
        prepare(Mode("", 0, None, [], True))
    return {"scenarios": finish(rig, scenarios, [high] + lows)}


# 3.75 s is five periods of the on/off arrivals and 75 requests at 20/s. At 10/s it would be 37 or 38 requests, so
# blocks are 3 s there: blocks must have equal numbers of requests.
BLOCK_S = {20: 3.75, 10: 3.0}

# suite -> high model, low model, rate, arrivals, seconds by mode, seconds by MPS mode
MODELS = {
    "test3": ("resnet18:1", "resnet50:8", 10, {"test3": "rate 10"},
              {"alone": 30, "native": 6, "live": 30, "low alone": 12},  # CPU-bound low: its rate varies
              {"alone": 9, "mps": 3, "mps-priority": 12, "low alone": 2}),
    "test4": ("resnet18:1", "resnet50:1024", 20, {"test4": "rate 20"},
              {"alone": 30, "native": 11.25, "live": 30, "timeslice": 3.75, "suspend": 3.75, "level1": 3.75, "low alone": 2},
              {"alone": 15, "mps": 7.5, "mps-priority": 15, "low alone": 2}),
    "twomodels": ("resnet18:1", "resnet50:256", 20, {"twomodels": "rate 20"},
                  {"alone": 30, "native": 11.25, "live": 30, "low alone": 2},
                  {"alone": 7.5, "mps": 3.75, "mps-priority": 7.5, "low alone": 2}),
    "gpubound": ("resnet50:64", "resnet50:1024", 20, {"gpubound": "rate 20"},
                 {"alone": 30, "native": 11.25, "live": 30, "suspend": 3.75, "low alone": 2},
                 {"alone": 11.25, "mps": 3.75, "mps-priority": 11.25, "low alone": 2}),
    "vision": ("mobilenet:1", "vit:64", 20, {"vision": "rate 20"},
               {"alone": 30, "native": 11.25, "live": 30, "low alone": 2},
               {"alone": 7.5, "mps": 3.75, "mps-priority": 7.5, "low alone": 2}),
    "speech": ("whisper:1", "deeplab:16", 10, {"speech": "rate 10"},  # a request takes 45 ms alone: at 20/s they queue up
               {"alone": 30, "native": 12, "live": 30, "low alone": 2},
               {"alone": 9, "mps": 3, "mps-priority": 9, "low alone": 2}),
    "burst": ("resnet18:1", "resnet50:1024", 20,
              {"burst/poisson": "poisson 20 SEED", "burst/on-off": "onoff 60 250 500"},
              {"alone": 30, "native": 11.25, "live": 30, "low alone": 2},
              {"alone": 11.25, "mps": 3.75, "mps-priority": 11.25, "low alone": 2}),
}
LOAD_S = 17   # start and end of a pair of processes with all models
SETUP_S = 0.8  # per scenario


def model_seconds(name, mps, scale=1.0):
    """Estimates the duration of a suite without loading."""
    _, _, hz, arrivals, seconds, beside = MODELS[name]
    out = len(arrivals) * (SETUP_S + wall_s(xsched_modes(seconds, 1), BLOCK_S[hz], scale))
    return out + (SETUP_S + wall_s(mps_modes(beside, [0], [1]), BLOCK_S[hz], scale) if mps else 0)


def models(rig, names, mps=True, partial=None):
    """Measures pairs of models: one pair of processes for all suites, then another pair under MPS. Returns {suite: result};
    partial gets the results before MPS starts."""
    out = {n: {"scenarios": [], "notes": []} for n in names}
    highs = sorted({MODELS[n][0] for n in names})
    lows = sorted({MODELS[n][1] for n in names})
    if rig.virtual:  # spin kernels instead of PyTorch
        table = {m: "spin:%d" % (3000 + i) for i, m in enumerate(highs)}
        table.update({m: "spin:%d" % (20000 + i) for i, m in enumerate(lows)})
    else:
        table = {m: m for m in highs + lows}
    pair, measured = [], []

    kernels = {}  # high model -> kernel time

    def end_pair():
        """Measures the kernel times, then ends the pair; its checksums are part of the proof of all its scenarios."""
        for model, sc in measured:
            ideal(sc, kernel_time(pair[0], table[model], kernels))
        finish(rig, [sc for _, sc in measured], pair)
        pair.clear()
        measured.clear()
    for n in names:
        start = time.monotonic()
        try:
            if not pair:
                rig.start_daemon()
                pair += [rig.torch("high", [table[m] for m in highs], 10, check=10),
                         rig.torch("low1", [table[m] for m in lows], 0)]
                for w in pair:
                    w.ready(150)
                rig.joined(pair)
            for key, arrivals in MODELS[n][3].items():
                out[n]["scenarios"].append(model_scene(rig, n, key, arrivals, pair[0], pair[1:], table).run())
            measured += [(MODELS[n][0], sc) for sc in out[n]["scenarios"]]
        except Failed as e:
            out[n]["error"] = str(e)
            end_pair()  # the next suite gets a new pair
        out[n]["seconds"] = time.monotonic() - start
    end_pair()
    if partial:
        partial(out)
    to_compare = [n for n in names if MODELS[n][5]]
    if mps and to_compare:
        add_mps(out, lambda: with_mps(rig, to_compare, highs, lows, table, kernels), to_compare)
    return out


def kernel_time(high, model, known):
    """The kernel time of a model of the high, which is asked once. None if it cannot be measured."""
    if model not in known:
        try:
            known[model] = high.kernel_time(model)
        except Failed as e:
            print("kernel time of %s: %s" % (model, e), flush=True)
            known[model] = None
    return known[model]


def model_scene(rig, suite, key, arrivals, high, lows, table):
    high_model, low_model, hz, _, seconds, _ = MODELS[suite]
    high.use(table[high_model])
    for w in lows:
        w.use(table[low_model])
    rig.mode("off")
    gpu_ms = float(high.ask("gputime 30", "G")[0]) / 1000
    # Warm up after the change of models.
    high.tell("rate 50")
    time.sleep(0.5)
    high.pause()
    modes = xsched_modes(seconds, len(lows))
    return Scene(rig, key, high, lows, modes, hz, arrivals, gpu_ms, block_s=BLOCK_S[hz], seed=rig.seed + len(key))


def under_mps(rig, start, measure):
    """Runs start and measure under an MPS server. start(client) creates the processes with client(spawn, name, what,
    priority, role), high first. measure(high, lows) returns [(suite, scenario)], and each scenario gets its proof."""
    if not rig.virtual:  # the virtual device is a child of the daemon
        rig.stop_daemon()
    server = Mps(rig)
    workers = []

    def client(spawn, name, what, priority, role, **kw):
        env = dict(server.env, CUDA_MPS_CLIENT_PRIORITY=str(priority))
        workers.append(spawn(name, what, None, env=env, role=role, **kw))
        if workers[-1].tenant:  # calibrates its kernel, so it must be alone
            workers[-1].ready(30)
        return workers[-1]
    try:
        start(client)
        workers[:] = [w for w in workers if not w.closed]  # start may give up optional ones
        for w in workers:
            w.ready(150)
        known = server.clients()
        missing = [w.name for w in workers if w.pid not in known]
        if len(known) < len(workers):
            raise Failed("clients of the MPS server: %s; missing: %s" % (known, ", ".join(missing)))
        found = measure(workers[0], workers[1:])
        sums = ended_well(rig.end(workers))
        proof = check("clients of the MPS server", [], "%d" % len(known))
        for _, s in found:
            s["proof"] += [proof, sums]
        return found
    finally:
        for w in workers:
            w.close()
        server.stop()


def with_mps(rig, names, highs, lows, table, kernels):
    """Pairs of models: a high, a low of equal priority and a low of lower priority."""
    def start(client):
        client(rig.torch, "mps-high", [table[m] for m in highs], 0, "high", check=10)
        client(rig.torch, "mps-low", [table[m] for m in lows], 0, "low1")
        client(rig.torch, "mps-low-priority", [table[m] for m in lows], 1, "low2")

    def measure(high, others):
        found = []
        for n in names:
            high_model, low_model, hz, arrivals, _, seconds = MODELS[n]
            high.use(table[high_model])
            for w in others:
                w.use(table[low_model])
            key, how = next(iter(arrivals.items()))
            found.append((n, Scene(rig, key + ", under MPS", high, others, mps_modes(seconds, [0], [1]), hz, how, kernel=kernels.get(table[high_model]),
                                   block_s=BLOCK_S[hz], seed=rig.seed).run()))
        return found
    return under_mps(rig, start, measure)


def mps_modes(seconds, equal, below):
    """equal and below are the indexes of the lows of equal and lower priority."""
    which = {"alone": [], "mps": equal, "mps-priority": below, "low alone": equal or below}
    names = {"low alone": "low alone %d" % which["low alone"][0]}
    return [Mode(names.get(n, n), s, None, which[n], n != "low alone") for n, s in seconds.items()]


def add_mps(results, measured, names):
    """Adds the scenarios of measured() to {suite: result}. A failure of MPS becomes a note: it is not a failure of XSched."""
    try:
        for n, s in measured():
            lost = [p for p in s["proof"] if not p["ok"]]
            if lost:
                results[n].setdefault("notes", []).append("%s: proof failed: " % s["name"] + "; ".join("%s: %s" % (p["name"], p["detail"]) for p in lost))
            else:
                results[n]["scenarios"].append(s)
    except Failed as e:
        for n in names:
            results[n].setdefault("notes", []).append("MPS was not measured: %s" % e)


def beside_mps(rig, name, out, start, measure):
    """add_mps for a suite with its own processes."""
    if rig.mps and not rig.virtual:
        add_mps({name: out}, lambda: under_mps(rig, start, measure), [name])
    return out


TENANTS = ("resnet18:1", ["resnet50:256", "encoder:64", "mlp:8192"])
EIGHT = ("mobilenet:1", ["resnet50:64", "vit:32", "deeplab:8", "whisper:4", "encoder:32", "mlp:8192", "fft:1"])


def tenants(rig):
    """One high and three lows of different models."""
    return several(rig, "tenants", *TENANTS, beside=True)


def eight(rig):
    """Eight tenants. MPS is left out: its processes would double the time."""
    return several(rig, "eight", *EIGHT, beside=False)


def role(i):
    """The cores of a low: there are three sets."""
    return "low%d" % (i % 3 + 1)


def several(rig, name, high_spec, specs, beside):
    """One high, and lows that each have another model."""
    rig.start_daemon()
    if rig.virtual:
        specs, high_spec = ["spin:%d" % (20000 + 5000 * i) for i in range(len(specs))], "spin:3000"
    every = list(range(len(specs)))
    high = rig.torch("high", [high_spec], 10, check=10)
    lows = [rig.torch("low%d" % (i + 1), [specs[i]], 0, role=role(i)) for i in every]
    for w in [high] + lows:
        w.ready(150)
    rig.joined([high] + lows)
    rig.mode("off")
    gpu_ms = float(high.ask("gputime 30", "G")[0]) / 1000
    seconds = {"alone": 30, "native": 11.25, "live": 30, "low alone": 2}
    scene = Scene(rig, name, high, lows, xsched_modes(seconds, len(lows), alone_of=every), 20, gpu_ms=gpu_ms,
                  block_s=BLOCK_S[20], seed=rig.seed)
    out, kernels = scene.run(), {}
    out["low_models"] = specs
    ideal(out, kernel_time(high, high_spec, kernels))
    result = {"scenarios": finish(rig, [out], [high] + lows), "checks": [all_progress(out)]}
    if not beside:
        return result

    def start(client):
        client(rig.torch, "mps-high", [high_spec], 0, "high", check=10)
        for i in every:
            client(rig.torch, "mps-low%d" % (i + 1), [specs[i]], 1, role(i))

    def measure(high, others):
        modes = [Mode("alone", 7.5, None, [], True), Mode("mps-priority", 7.5, None, every, True)]
        modes += [Mode("low alone %d" % i, 2, None, [i], False) for i in every]
        return [(name, Scene(rig, name + ", under MPS", high, others, modes, 20, kernel=kernels[high_spec], block_s=BLOCK_S[20], seed=rig.seed).run())]
    return beside_mps(rig, name, result, start, measure)


def all_progress(sc):
    """No job starves in any mode."""
    bad = ["%s in mode %s" % (sc["low_models"][i], m) for m, out in sc["modes"].items() for i, r in enumerate((out.get("low") or {}).get("rates", [])) if not r]
    return check("%s: every job progresses" % sc["name"], bad, "%d jobs" % len(sc["low_models"]))


def share(rig):
    """Two saturating tenants of equal priority with shares, which become hardware timeslices."""
    rig.start_daemon()
    # Several kernels in flight: an empty queue would give up the rest of its timeslice.
    a, b = (rig.spin("share-" + x, 5000, 0, depth=8, role=role).ready(30) for x, role in (("a", "low1"), ("b", "low2")))
    rig.joined([a, b])
    policy = rig.cli("policy", "--json")
    head, tail = 0.5, 0.05
    blocks = []

    def block(name, who, length):
        for w in (a, b):
            if w in who:
                w.tell("loop")
            else:
                w.pause()
        start = time.monotonic_ns()
        time.sleep(length + head + tail)
        blocks.append(stats.Block(name, start, time.monotonic_ns()))

    slices, suspends = {}, {}
    for _ in range(2):
        for name in ["alone", "native"] + list(targets.SHARE):
            rig.mode("live" if name in targets.SHARE else "off")
            before = rig.stats()["suspends"]
            if name in targets.SHARE:
                rig.cli("policy", "UP")
                for w, part in zip((a, b), targets.SHARE[name][2]):
                    rig.cli("hint", w.pid, "--share", part)
            block(name, [a] if name == "alone" else [a, b], (2 if name in ("alone", "native") else 4) * rig.scale)
            procs = rig.list()
            slices[name] = {w.name: [q["slice_us"] for q in procs[w.pid]["queues"]] for w in (a, b)}
            suspends[name] = suspends.get(name, 0) + rig.stats()["suspends"] - before
    rig.mode("off")
    rig.cli("policy", policy["name"])
    for w in (a, b):
        w.pause()
    ws = {n: stats.windows(blocks, n, int(head * 1e9), int(tail * 1e9)) for n in {b.mode for b in blocks}}
    done = {w: stats.completions(w.samples) for w in (a, b)}
    alone = stats.rate(done[a], ws["alone"])
    rows, verdicts = [], []
    for name, windows in ws.items():
        ra, rb = stats.rate(done[a], windows), stats.rate(done[b], windows)
        rows.append({"mode": name, "a_per_s": round(ra, 3), "b_per_s": round(rb, 3),
                     "ratio": round(ra / rb, 3) if rb else None, "chip": round((ra + rb) / alone, 4) if alone else None,
                     "slices_us": slices.get(name), "suspends": suspends.get(name)})
    for name, (want, within, _) in targets.SHARE.items():
        row = next(r for r in rows if r["mode"] == name)
        off = None if row["ratio"] is None else abs(row["ratio"] / want - 1)
        verdicts.append(verdict("share %s: relative error" % name, off, within, True))
        verdicts.append(verdict("share %s: total throughput / alone" % name, row["chip"], targets.SHARE_CHIP, False))
    procs = rig.list()
    proof = [check("shim intercepts", [w.name for w in (a, b) if not procs[w.pid]["counters"]["launches"]], "both"),
             ended_well(rig.end([a, b]))]
    wrong = [n for n in targets.SHARE if not all(us for queues in slices[n].values() for us in queues)]
    proof.append(check("shares are timeslices", ["%s: %s" % (n, slices[n]) for n in wrong], "%s" % {n: slices[n] for n in targets.SHARE}))
    return {"rows": {"shares": sorted(rows, key=lambda r: r["mode"])}, "verdicts": verdicts, "proof": proof}
