# SPDX-License-Identifier: Apache-2.0
"""What decides the time to the first token of a server beside a training job.

The prompt is launch-bound: nearly all of its time is CPU time, which varies for seconds. So the suite has many short blocks with
equal arrivals, and three controls. The server has the shim in every mode. In *unshared*, XSched is live and no job runs. In *cpu*, the
job trains on the CPU only: what a busy neighbour costs the server without any work on the GPU. In *native*, the same job trains on the
GPU without XSched: there the server waits longer for the GPU, but the job disturbs its submission in the same way.
"""
import inference
import stats
from pairs import finish, kernel_time
from scene import CHANGE_S, HEAD_S, TAIL_S, Mode, Scene, ideal
from strategies import settle

NAME = "serve/train, long"
SERVER, JOB = inference.HIGHS["serve"], "gpt2:8"
ROUNDS = 28
LOAD_S = 40


def modes(cpu, length):
    """cpu: there is a second low, which trains on the CPU. length: seconds per mode."""
    out = [Mode("alone", length, "off", [], True), Mode("live", length, "live", [0], True), Mode("unshared", length, "live", [], True)]
    out += [Mode("cpu", length, "off", [1], True)] if cpu else []
    out += [Mode("native", length, "off", [0], True)]
    return out + [Mode("low alone %d" % i, 2, "off", [i], False) for i in range(2 if cpu else 1)]


def seconds(rounds=ROUNDS, block_s=SERVER.block_s):
    return LOAD_S + 5 * rounds * (block_s + HEAD_S + TAIL_S + CHANGE_S)


def prompts(sc, scene):
    """The parts of the requests, by mode and block."""
    return {m: [stats.parts_in(scene.high.parts, [w]) for w in scene.windows(m)] for m in sc["modes"]}


def add_submission(sc, scene):
    """Compares the time in which a prompt is submitted. Unlike the latency it contains no queue, which multiplies every delay."""
    found = {m: [[p.submission_ms for p in b] for b in blocks] for m, blocks in prompts(sc, scene).items()}
    for name, blocks in found.items():
        if name != "alone":
            sc["modes"][name]["submission_compared"] = stats.compared(found["alone"], blocks, 0.5)
    sc["modes"]["live"]["submission_to_native"] = stats.compared(found["native"], found["live"], 0.5)


def programs(rig):
    """Starts the server, the job and, on a real GPU, the job on the CPU, which uses one core as the other does."""
    real = inference.SPIN.get if rig.virtual else lambda model: model
    rig.start_daemon()
    high = rig.torch("high", [real(SERVER.spec)], 10, check=10)
    lows = [rig.torch("low1", [real(JOB)], 0)]
    if not rig.virtual:  # there, every backend has work on the GPU
        lows.append(rig.torch("cpu", [JOB], backend="torch-cpu", env={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}, role="low1"))
    for w in [high] + lows:
        w.ready(150)
    rig.joined([high, lows[0]])
    settle(rig, high, lows[0], SERVER.arrivals)
    return high, lows, real(SERVER.spec)


def scene_of(rig, name, high, lows, rounds, block_s):
    return Scene(rig, name, high, lows, modes(len(lows) > 1, rounds * block_s), SERVER.hz, SERVER.arrivals, block_s=block_s, seed=rig.seed, rests=True)


def first_token(rig):
    """The server alone, beside a job under XSched, and the controls."""
    high, lows, spec = programs(rig)
    scene = scene_of(rig, NAME, high, lows, ROUNDS, SERVER.block_s)
    sc = scene.run()
    add_submission(sc, scene)
    sc["modes"].get("cpu", {}).pop("low", None)  # proven to run; what it keeps compares with no other job
    ideal(sc, kernel_time(high, spec, {}))
    return {"scenarios": finish(rig, [sc], [high] + lows)}


# -- the submission, in short blocks

# The CPU keeps its speed for seconds. A queue begins anew in each block, so the latencies of these blocks say nothing about the P99.
SHORT_S, SHORT_ROUNDS = 0.6, 74


def submission(rig):
    """The time in which a prompt is submitted and run, in each mode over that of the alone block of the same round."""
    high, lows, _ = programs(rig)
    scene = scene_of(rig, "submission", high, lows, SHORT_ROUNDS, SHORT_S)
    sc = scene.run()
    found = prompts(sc, scene)
    finish(rig, [sc], [high] + lows)
    return {"rows": {"submission": [row(sc["modes"][m], m, found["alone"], blocks) for m, blocks in found.items()]}, "proof": sc["proof"], "order": sc["order"],
            "submission_us": {m: [stats.compact(p.submission_ms for p in b) for b in blocks] for m, blocks in found.items()},
            "wait_us": {m: [stats.compact(p.device_ms for p in b) for b in blocks] for m, blocks in found.items()}}


def row(out, name, alone, blocks):
    everything = [p for b in blocks for p in b]
    waits = [p.device_ms for p in everything]
    r = {"mode": name, "requests": len(everything), "jobs_cores": round(out["evidence"].get("jobs_cpu_ms", 0) / 1000 / out["seconds"], 3),
         "suspends": out["evidence"].get("suspends", 0), "per_token_ms": (out.get("per_token") or {}).get("mean_ms"),
         "wait_p50_ms": round(stats.median(waits), 4), "wait_p99_ms": round(stats.percentile(waits, 0.99), 4)}
    for what, of in (("submission", lambda p: p.submission_ms), ("prompt", lambda p: p.submission_ms + p.device_ms)):
        mine, theirs = ([stats.median([of(p) for p in b]) for b in some] for some in (blocks, alone))
        r[what + "_p50_ms"] = round(stats.median([of(p) for p in everything]), 4)
        r[what + "_more"], r[what + "_interval"] = stats.paired(list(zip(theirs, mine)))
    return r
