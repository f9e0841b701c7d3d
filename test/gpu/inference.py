# SPDX-License-Identifier: Apache-2.0
"""The suites llm, short and eager: inference services next to jobs, in all modes, with one set of processes for all.

Services with the same model form a group. In every round of a group each pair has a native and an XSched block, and one
alone block counts for all of them. The kernel times are measured last, because the profiler may slow a program.
"""
import random
import time
from collections import namedtuple

from pairs import add_mps, kernel_time, under_mps
from processes import Failed
from scene import CHANGE_S, HEAD_S, TAIL_S, Mode, Scene, ended_well, ideal

# model; arrivals; requests per second; seconds of a block; rounds; CPU time of a request in ms, or None for its own
High = namedtuple("High", "spec arrivals hz block_s rounds cpu_ms")
HIGHS = {
    "llm": High("llm-graph", "jitter 100 SEED", 100, 0.76, 4, None),
    "llm-cpu": High("llm-cpu", "jitter 100 SEED", 100, 0.76, 4, None),
    "serve": High("serve", "serve 14 SEED", 14, 2.85, 8, None),  # more, shorter blocks: the speed of the CPU varies for seconds
    "llm-eager": High("llm-eager", "jitter 20 SEED", 20, 3.8, 4, 26),
    # short requests that use 20 to 50 % of a core
    "recommender": High("recommender:26", "jitter 150 SEED", 150, 0.55, 4, 2),
    "bert4": High("bert:4", "jitter 120 SEED", 120, 0.64, 4, 3),
    "bert6": High("bert:6", "jitter 100 SEED", 100, 0.76, 4, 4.5),
    "compiled": High("compiled:6", "jitter 80 SEED", 80, 0.95, 4, None),
    "unet": High("unet:1", "jitter 30 SEED", 30, 2.6, 4, None),
    "bert12": High("bert:12", "jitter 40 SEED", 40, 1.9, 4, 9),
    "bert24": High("bert:24", "jitter 10 SEED", 10, 7.6, 4, 18),
}
# job -> [(process, model)]
JOBS = {
    "train": [("low1", "gpt2:8")], "copies": [("low4", "copies")], "tiny": [("low1", "tiny:1000")], "deep": [("low1", "deep:1000")], "fft": [("low1", "fft")],
    "prefill": [("low2", "prefill:4")], "jax": [("low3", "matmul:8192")],
    "three": [("low1", "gpt2:8"), ("low2", "prefill:4"), ("low3", "matmul:8192")],
}
BACKENDS = {"low3": "jax"}
# low4 launches no kernel after its start, so that XSched sees a program that only copies. It has the cores of low1, which is idle then.
CORES = {"low4": "low1"}
COPIES_S = 15  # limit until XSched sees that
NO_JAX = "torch-matmul"  # replaces jax in the name of a pair where JAX is not installed

# suite, service, job, further modes of XSched. The first rows fit into 9 minutes with MPS; EXTRA rows run if time is left
# or if --only names them.
Row = namedtuple("Row", "suite high job also")
ROWS = [Row("llm", "llm", job, ()) for job in ("jax", "train", "prefill", "copies", "tiny", "three")] + [
    Row("llm", "llm-cpu", "jax", ("timeslice",)), Row("llm", "llm-cpu", "three", ()), Row("llm", "serve", "train", ()),
    Row("eager", "llm-eager", "train", ()),
]
SHORT = [Row("short", high, job, ()) for high in ("recommender", "bert4", "bert6", "bert12") for job in ("train", "fft", "deep", "tiny")] + [
    Row("short", high, "train", ()) for high in ("unet", "compiled")]
EXTRA = [Row("llm", "llm-cpu", job, ()) for job in ("train", "prefill", "copies", "tiny")] + [
    Row("eager", "bert24", "train", ()), Row("llm", "serve", "three", ())]
ALL = ROWS + SHORT + EXTRA
SUITES = ("llm", "short", "eager")
LOAD_S, SETUP_S, PROFILE_S = 25, 3, 2  # a set of processes; a group; the kernel time of a model
ALONE_S = 0.8  # block of a job alone
WARM_S = 1.0

# The models on the virtual GPU.
SPIN = {"llm-graph": "spin:3000", "llm-cpu": "spin:3100", "serve": "spin:3200", "llm-eager": "spin:5x260@100", "bert:6": "spin:20x60@75",
        "bert:12": "spin:20x120@75", "bert:24": "spin:20x240@75", "gpt2:8": "spin:20000", "copies": "copy:1000000x8", "tiny": "spin:5x1000", "tiny:1000": "spin:5x1000",
        "fft": "spin:2000", "deep:1000": "spin:20x1000", "bert:4": "spin:20x40@75", "recommender:26": "spin:10x50@35", "unet:1": "spin:20x200@40",
        "compiled:6": "spin:20x60@40", "prefill:4": "spin:14000", "matmul:8192": "spin:1400x8"}


def key(row):
    return "%s/%s" % (row.high, row.job)


def beside_mps(rows):
    """The rows that also run under MPS, for which both kinds of result memory are the same."""
    return [r for r in rows if r.high != "llm-cpu" or r.job == "jax"]


def named(row, only):
    """True if one of the words is the beginning of the row's name."""
    return any(key(row).startswith(word) for word in only)


def groups(rows):
    """{high: rows}, in order."""
    out = {}
    for row in rows:
        out.setdefault(row.high, []).append(row)
    return out


def rounds_of(high, scale):
    return max(round(high.rounds * scale), 1)


def alone_rounds(rounds, mps):
    """The rounds that measure each job alone."""
    return {0} if mps else {0, rounds - 1}


def seconds(rows, mps=False, scale=1.0):
    """Estimates the duration of the rows, with all processes; with mps, only the part under MPS."""
    total = LOAD_S
    for name, some in groups(rows).items():
        high = HIGHS[name]
        n, jobs = rounds_of(high, scale), {j for r in some for j in JOBS[r.job]}
        blocks = 1 + sum(1 if mps else 2 + len(r.also) for r in some)
        total += SETUP_S + n * blocks * (high.block_s + HEAD_S + TAIL_S + CHANGE_S)
        total += len(alone_rounds(n, mps)) * len(jobs) * (ALONE_S + HEAD_S + TAIL_S + CHANGE_S) + (0 if mps else PROFILE_S)
    return total if rows else 0


def plan(names, budget_s, only=(), mps=True, scale=1.0):
    """Returns (rows that fit into the budget, [(row left out, why)])."""
    rows = [r for r in ALL if r.suite in names]
    chosen, left = [], []
    for row in [r for r in rows if not only or named(r, only)]:
        if row in EXTRA and any(r in ROWS for r, _ in left):
            break
        need = seconds(chosen + [row], False, scale) + (seconds(beside_mps(chosen + [row]), True, scale) if mps else 0)
        if need <= budget_s:
            chosen.append(row)
        else:
            left.append((row, "%.0f s left, needs %.0f s" % (budget_s, need)))
    return chosen, left


# -- one group


class Group:
    """Pairs with the same service."""

    def __init__(self, rig, name, high, pairs, seed, mps=False, kernel=None):
        """pairs is [(key, [(worker, model)], further modes, may rest)]."""
        self.rig, self.high, self.what, self.seed, self.mps = rig, high, HIGHS[name], seed, mps
        self.rounds, self.scenes, self.models, self.copying_by = rounds_of(self.what, rig.scale), [], {}, 0
        self.workers = list(dict.fromkeys(w for _, jobs, _, _ in pairs for w, _ in jobs))
        for k, jobs, also, rests in pairs:
            every = list(range(len(jobs)))
            modes = [Mode("alone", 1, None if mps else "off", [], True)]
            modes += [Mode("mps-priority", 1, None, every, True)] if mps else [
                Mode(m, 1, "off" if m == "native" else m, every, True) for m in ("native", "live") + tuple(also)]
            modes += [Mode("low alone %d" % i, ALONE_S / min(rig.scale, 1), None if mps else "off", [i], False) for i in every]
            scene = Scene(rig, k, high, [w for w, _ in jobs], modes, self.what.hz, self.what.arrivals, kernel=kernel, block_s=self.what.block_s,
                          seed=seed, rests=rests, untouched=only_copies(k) and not mps)
            self.models[scene] = [model for _, model in jobs]
            scene.prepare = lambda m, scene=scene: self.prepare(scene, m)
            self.scenes.append(scene)

    def prepare(self, scene, mode):
        """Stops the jobs that do not belong to the block, and changes their models."""
        wanted = {scene.lows[i]: self.models[scene][i] for i in mode.lows}
        for w in self.workers:
            if wanted.get(w) != w.using:
                w.pause()
        for w, model in wanted.items():
            w.use(model)
        if scene.untouched and mode.name == "live":
            self.seen_copying(scene.lows)

    def seen_copying(self, lows):
        """Waits until XSched knows that the lows only copy. That takes 1 s after their last kernel, and an idle moment after copies. The
        proof of the pair shows it if XSched does not."""
        self.copying_by = self.copying_by or time.monotonic() + COPIES_S  # once per group, not per block
        while time.monotonic() < self.copying_by:
            procs = self.rig.list()
            if all(any(q.get("copies_only") for q in procs.get(w.pid, {}).get("queues", [])) for w in lows):
                return
            for w in lows:
                w.tell("loop")
            time.sleep(0.2)
            for w in lows:
                w.pause()

    def warm_up(self):
        """Lets the service and XSched settle after the change of models."""
        scene = self.scenes[0]
        self.prepare(scene, scene.modes[1])
        if not self.mps:
            self.rig.mode("live")
        for w in scene.lows:
            w.tell("loop")
        self.high.tell(self.what.arrivals.replace("SEED", "warm"))
        time.sleep(WARM_S)
        scene.settle()

    def block(self, scene, mode, to_all):
        scene.one_block(mode)
        for other in to_all:
            if other is not scene:
                other.adopt(scene, mode.name)

    def run(self):
        """Returns the scenarios."""
        rng = random.Random(self.seed)
        self.warm_up()
        for r in range(self.rounds):
            if r in alone_rounds(self.rounds, self.mps):
                self.jobs_alone()
            blocks = [(s, m) for s in rng.sample(self.scenes, len(self.scenes)) for m in shuffled(rng, [m for m in s.modes if m.lows and m.high])]
            blocks.insert(rng.randrange(len(blocks) + 1), (self.scenes[0], self.scenes[0].modes[0]))
            for scene, mode in blocks:
                self.block(scene, mode, self.scenes if mode.name == "alone" else [])
        self.scenes[0].settle()
        for w in self.workers:
            w.pause()
        return [s.summary() for s in self.scenes]

    def jobs_alone(self):
        """Measures every job without the service, once for all pairs."""
        done = {}
        for scene in self.scenes:
            for i, job in enumerate(zip(scene.lows, self.models[scene])):
                name = "low alone %d" % i
                if job in done:
                    scene.adopt_block(done[job]._replace(mode=name))
                else:
                    scene.one_block(next(m for m in scene.modes if m.name == name))
                    done[job] = scene.blocks[-1]


def only_copies(pair):
    return pair.partition("/")[2] == "copies"


def shuffled(rng, items):
    return rng.sample(items, len(items))


# -- both suites


class Cast:
    """The processes of the chosen rows. A job that cannot start takes its rows with it."""

    def __init__(self, rig, rows, spawn, notes):
        self.rig, self.notes = rig, notes
        self.table = SPIN if rig.virtual else {}
        highs = list(dict.fromkeys(HIGHS[r.high].spec for r in rows))
        lows = {}
        for row in rows:
            for process, model in JOBS[row.job]:
                if self.real(model) not in lows.setdefault(process, []):
                    lows[process].append(self.real(model))
        self.high = spawn("high", [self.real(s) for s in highs], "high", check=10)
        self.lows = {p: spawn(p, models, CORES.get(p, p), backend=BACKENDS.get(p, "torch")) for p, models in sorted(lows.items())}
        self.high.ready(200)
        for p, w in list(self.lows.items()):
            try:
                w.ready(200)
            except Failed as e:
                notes.append("jobs of %s were not measured: %s" % (p, e))
                print(notes[-1], flush=True)
                self.lows.pop(p).close()
        jax = self.lows.get("low3")
        self.jax = jax is not None and (rig.virtual or ["jax"] in jax.answers.get("N", []))
        if jax is not None and not self.jax:
            notes.append("JAX is not usable here: PyTorch multiplies the same matrices")

    def real(self, model):
        return self.table.get(model, model)

    def workers(self):
        return [self.high] + list(self.lows.values())

    def sums(self):
        """Compares all outputs so far: a later failure does not take this proof away."""
        def equal(w):
            _, got, want = w.report()
            return got == want
        return ended_well({w.name: equal(w) for w in self.workers()})

    def jobs(self, row):
        """[(worker, model)] of a row; None if a process is missing."""
        if any(p not in self.lows for p, _ in JOBS[row.job]):
            return None
        return [(self.lows[p], self.real(model)) for p, model in JOBS[row.job]]

    def name(self, row):
        return key(row) if self.jax or row.job != "jax" else "%s/%s" % (row.high, NO_JAX)

    def group(self, name, rows, mps=False, kernel=None):
        """Prepares the service for a group; returns it and the CPU times of a request."""
        high, tail = HIGHS[name], ", under MPS" if mps else ""
        pairs = [(self.name(r) + tail, self.jobs(r), r.also, r.job == "copies" or high.cpu_ms is not None) for r in rows if self.jobs(r)]
        if not pairs:
            raise Failed("no job of %s could start" % name)
        self.high.use(self.real(high.spec))
        pace = self.high.pace(high.cpu_ms)
        return Group(self.rig, name, self.high, pairs, self.rig.seed, mps, kernel), pace


def measure(rig, names, budget_s, only=(), mps=True, partial=None):
    """Runs the suites; returns {suite: result}. partial gets the results before MPS starts."""
    mps = mps and not rig.virtual
    rows, left = plan(names, budget_s, only, mps, rig.scale)
    out = {n: {"scenarios": [], "notes": [], "lost": []} for n in names}
    for row, why in left:
        print("%-12s SKIPPED    %s" % (key(row), why), flush=True)
        if row in ROWS:
            out[row.suite]["notes"].append("%s was skipped: %s" % (key(row), why))
    for n in names:
        missing = [key(r) for r in ROWS + SHORT if r.suite == n and r not in rows]
        if missing or rig.scale < 1:
            out[n]["incomplete"] = "%s%s" % ("scale %g; " % rig.scale if rig.scale < 1 else "", "without " + ", ".join(missing) if missing else "all pairs")
    kernels = {}
    deadline = time.monotonic() + budget_s
    with_xsched(rig, rows, out, kernels, deadline)
    if partial:
        partial({n: drop_unproven(dict(r)) for n, r in out.items()})
    measured = {s["name"] for r in out.values() for s in r["scenarios"]}
    if mps and measured:
        add_mps(out, lambda: with_mps(rig, [r for r in beside_mps(rows) if measured & {key(r), "%s/%s" % (r.high, NO_JAX)}], kernels, out, deadline), names)
    return {n: drop_unproven(r) for n, r in out.items()}


def drop_unproven(result):
    """A pair without proof shows its reason and no numbers. Without any pair, the suite fails."""
    kept, lost = [], list(result["lost"])
    for sc in result["scenarios"]:
        bad = [p for p in sc["proof"] if not p["ok"]]
        if bad:
            lost.append((sc["name"], "no proof: " + "; ".join("%s: %s" % (p["name"], p["detail"]) for p in bad)))
        else:
            kept.append(sc)
    result = dict(result, scenarios=kept, checks=[{"name": name, "ok": False, "detail": why} for name, why in lost])
    if not kept:
        result["error"] = "; ".join("%s: %s" % each for each in lost) or "no pair was measured"
    return result


def late(rows, deadline, mps, scale):
    """True if the rows, with loaded processes, end after the deadline."""
    return time.monotonic() + seconds(rows, mps, scale) - LOAD_S > deadline


def with_xsched(rig, rows, out, kernels, deadline):
    """Alone, native and XSched. A failed group ends the processes; the next group gets new ones."""
    cast, measured, unloaded = None, [], 0

    def end():
        for name, sc in measured:
            ideal(sc, kernel_time(cast.high, cast.real(HIGHS[name].spec), kernels))
        measured.clear()
        rig.end(cast.workers())
    for name, some in groups(rows).items():
        suite = out[some[0].suite]
        if unloaded > 1 or late(some, deadline, False, rig.scale):
            suite["lost"] += [(key(r), "the processes do not start" if unloaded > 1 else "out of time") for r in some]
            continue
        try:
            if cast is None:
                rig.start_daemon()
                cast = Cast(rig, rows, lambda n, models, role, **kw: rig.torch(n, models, 10 if role == "high" else 0, role=role, **kw), suite["notes"])
                rig.joined(cast.workers())
            start = time.monotonic()
            group, pace = cast.group(name, some)
            found, sums = group.run(), cast.sums()
            for row, sc in zip([r for r in some if cast.jobs(r)], found):
                sc["pace"] = pace
                sc["proof"].append(sums)
                out[row.suite]["scenarios"].append(sc)
                measured.append((name, sc))
            print("%-12s %d pairs in %.0f s" % (name, len(group.scenes), time.monotonic() - start), flush=True)
        except Failed as e:
            print("%-12s FAILED: %s" % (name, e), flush=True)
            suite["lost"] += [(key(r), str(e)) for r in some]
            unloaded += cast is None
            if cast is not None:
                end()
            for p in rig.procs:
                if p is not rig.daemon and p.alive():
                    p.close()
            cast = None
    if cast is not None:
        end()


def with_mps(rig, rows, kernels, out, deadline):
    """MPS with client priorities. Returns [(suite, scenario)]; a failed group becomes a note."""
    casts, found = [], []
    notes = out[rows[0].suite]["notes"]

    def start(client):
        def spawn(name, models, role, **kw):
            return client(rig.torch, "mps-" + name, models, 0 if role == "high" else 1, role, **kw)
        casts.append(Cast(rig, rows, spawn, notes))

    def run(high, others):
        cast = casts[0]
        for name, some in groups(rows).items():
            if late(some, deadline, True, rig.scale):
                notes.append("MPS, %s: out of time" % name)
                continue
            try:
                group, pace = cast.group(name, some, True, kernels.get(cast.real(HIGHS[name].spec)))
                for row, sc in zip([r for r in some if cast.jobs(r)], group.run()):
                    found.append((row.suite, dict(sc, pace=pace)))
            except Failed as e:
                notes.append("MPS, %s: %s" % (name, e))
                print(notes[-1], flush=True)
                if not cast.high.alive():
                    break
        return found
    return under_mps(rig, start, run)
