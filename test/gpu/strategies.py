# SPDX-License-Identifier: Apache-2.0
"""Strategies for launch-bound requests on hardware: HPF as shipped, with batches for short requests, and without batches.

docs/strategies.md compares them in the simulator. One set of processes runs all of them, in blocks that are neighbours in time.
"""
import time

import inference
from pairs import finish, kernel_time
from processes import Failed
from scene import Mode, Scene, check, ideal

DEFAULT = "HPF"  # batches, or just in time
OTHERS = ("HPF/in-time",)
# name -> high model, its CPU time in ms or None, low model, rate, arrivals, seconds of a block
PAIRS = {
    "strategy/recommender, tiny kernels": ("recommender:26", 2, "tiny:1000", 200, "jitter 200 SEED", 0.5),
    "strategy/recommender, training": ("recommender:26", 2, "gpt2:8", 100, "jitter 100 SEED", 0.8),
    "strategy/bert6, FFTs": ("bert:6", 4.5, "fft", 80, "jitter 80 SEED", 1),
    "strategy/bert12 beside FFTs": ("bert:12", 9, "fft", 40, "jitter 40 SEED", 1.9),
    "strategy/ResNet-18 b1 beside ResNet-50 b1024": ("resnet18:1", None, "resnet50:1024", 20, "rate 20", 3.75),
}
ROUNDS = 4  # at least 300 requests per mode
SPIN = dict(inference.SPIN, **{"recommender:26": "spin:10x50@35", "resnet18:1": "spin:20x60@40", "resnet50:1024": "spin:20000"})


class Switch:
    """Sets the strategy before a block. The next block, or the end, checks that it was in force."""

    def __init__(self, rig):
        self.rig, self.expected, self.wrong = rig, None, []

    def verify(self):
        if self.expected:
            found = self.rig.cli("policy", "--json")["name"]
            if found != self.expected:
                self.wrong.append("%s instead of %s" % (found, self.expected))

    def prepare(self, mode):
        self.verify()
        wanted = mode.name if mode.name in OTHERS else DEFAULT
        if wanted != self.expected:
            self.rig.http("PUT", "/api/v1/policy", {"name": wanted})
        self.expected = wanted

    def proof(self):
        return check("the strategy of each block was in force", self.wrong, ", ".join((DEFAULT,) + OTHERS))


def modes(block_s):
    length = ROUNDS * block_s
    return [Mode("alone", length, "off", [], True), Mode("native", length, "off", [0], True), Mode("live", length, "live", [0], True)] + [
        Mode(name, length, "live", [0], True) for name in OTHERS] + [Mode("low alone 0", 2, "off", [0], False)]


def chosen(name, only):
    return not only or any(map(name.startswith, only))


def strategies(rig):
    """Launch-bound services beside one job, under each strategy."""
    pairs = {n: p for n, p in PAIRS.items() if chosen(n, rig.only)}
    rig.start_daemon()
    real = (lambda m: SPIN[m]) if rig.virtual else (lambda m: m)
    high = rig.torch("high", [real(p[0]) for p in pairs.values()], 10, check=10)
    low = rig.torch("low1", [real(p[2]) for p in pairs.values()], 0)
    for w in (high, low):
        w.ready(150)
    rig.joined([high, low])
    try:
        rig.http("PUT", "/api/v1/policy", {"name": OTHERS[0]})
    except Failed as e:
        raise Failed("this build has no strategies to choose from: %s" % e) from e
    switch, found, kernels = Switch(rig), [], {}
    try:
        for name, (model, cpu_ms, job, hz, arrivals, block_s) in pairs.items():
            rig.mode("off")
            high.use(real(model))
            low.use(real(job))
            pace = high.pace(cpu_ms)
            settle(rig, high, low, arrivals)
            sc = Scene(rig, name, high, [low], modes(block_s), hz, arrivals, block_s=block_s, seed=rig.seed, prepare=switch.prepare, rests=True).run()
            found.append((model, dict(sc, pace=pace)))
        switch.verify()
    finally:
        rig.http("PUT", "/api/v1/policy", {"name": DEFAULT})
    for model, sc in found:
        ideal(sc, kernel_time(high, real(model), kernels))
        sc["proof"].append(switch.proof())
    return {"scenarios": finish(rig, [sc for _, sc in found], [high, low])}


def settle(rig, high, low, arrivals):
    """Lets XSched learn the class of the service before the first block."""
    rig.mode("live")
    low.tell("loop")
    high.tell(arrivals.replace("SEED", "warm"))
    time.sleep(2)
    high.pause()
    low.pause()
    rig.mode("off")
