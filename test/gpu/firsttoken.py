# SPDX-License-Identifier: Apache-2.0
"""What decides the time to the first token of a server beside a training job.

The prompt is launch-bound: nearly all of its time is CPU time, which varies for seconds. So the suite has many short blocks with
equal arrivals, and three controls. In *unshared*, XSched is live and no job runs: what XSched itself costs the server. In *cpu*, the
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


def modes(cpu):
    """cpu: there is a second low, which trains on the CPU."""
    length = ROUNDS * SERVER.block_s
    out = [Mode("alone", length, "off", [], True), Mode("live", length, "live", [0], True), Mode("unshared", length, "live", [], True)]
    out += [Mode("cpu", length, "off", [1], True)] if cpu else []
    out += [Mode("native", length, "off", [0], True)]
    return out + [Mode("low alone %d" % i, 2, "off", [i], False) for i in range(2 if cpu else 1)]


def seconds():
    return LOAD_S + 5 * ROUNDS * (SERVER.block_s + HEAD_S + TAIL_S + CHANGE_S)


def add_submission(sc, scene):
    """Compares the time in which a prompt is submitted. Unlike the latency it contains no queue, which multiplies every delay."""
    found = {m: [[p.submission_ms for p in stats.parts_in(scene.high.parts, [w])] for w in scene.windows(m)] for m in sc["modes"]}
    for name, blocks in found.items():
        if name != "alone":
            sc["modes"][name]["submission_compared"] = stats.compared(found["alone"], blocks, 0.5)
    sc["modes"]["live"]["submission_to_native"] = stats.compared(found["native"], found["live"], 0.5)


def first_token(rig):
    """The server alone, beside a job under XSched, and the controls."""
    real = inference.SPIN.get if rig.virtual else lambda model: model
    rig.start_daemon()
    high = rig.torch("high", [real(SERVER.spec)], 10, check=10)
    lows = [rig.torch("low1", [real(JOB)], 0)]
    if not rig.virtual:  # there, every backend has work on the GPU
        lows.append(rig.torch("cpu", [JOB], backend="torch-cpu", env={"CUDA_VISIBLE_DEVICES": ""}, role="low1"))
    for w in [high] + lows:
        w.ready(150)
    rig.joined([high, lows[0]])
    settle(rig, high, lows[0], SERVER.arrivals)
    scene = Scene(rig, NAME, high, lows, modes(len(lows) > 1), SERVER.hz, SERVER.arrivals, block_s=SERVER.block_s, seed=rig.seed, rests=True)
    sc = scene.run()
    add_submission(sc, scene)
    sc["modes"].get("cpu", {}).pop("low", None)  # proven to run; what it keeps compares with no other job
    ideal(sc, kernel_time(high, real(SERVER.spec), {}))
    return {"scenarios": finish(rig, [sc], [high] + lows)}
