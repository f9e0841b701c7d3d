# SPDX-License-Identifier: Apache-2.0
"""What the parts of the page share: names of scenarios, and access to their modes and suites."""
from tables import UNDER_MPS, build, interval_text, ms, percent, proven, ratio_interval, scenarios, times

# scenario -> service, jobs; bN is the batch size
SCENARIOS = {
    "micro/1 low": ("90 us kernels at 100/s", "one job of 20 ms kernels"),
    "micro/3 lows": ("90 us kernels at 100/s", "three jobs of 20 ms kernels"),
    "gpubound": ("ResNet-50 b64 at 20/s", "ResNet-50 b1024"),
    "tenants": ("ResNet-18 b1 at 20/s", "ResNet-50 b256, an attention encoder and an MLP"),
    "vision": ("MobileNet b1 at 20/s", "ViT-B/16 b64"),
    "speech": ("Whisper-like encoder-decoder b1 at 10/s", "DeepLab b16"),
    "eight": ("MobileNet b1 at 20/s", "seven jobs: ResNet-50, ViT, DeepLab, Whisper, an attention encoder, an MLP, FFTs"),
    "test3": ("ResNet-18 b1 at 10/s", "ResNet-50 b8"),
    "test4": ("ResNet-18 b1 at 20/s", "ResNet-50 b1024"),
    "twomodels": ("ResNet-18 b1 at 20/s", "ResNet-50 b256"),
    "burst/poisson": ("ResNet-18 b1, Poisson arrivals, mean 20/s", "ResNet-50 b1024"),
    "burst/on-off": ("ResNet-18 b1, 250 ms at 60/s, then 500 ms idle", "ResNet-50 b1024"),
}
SERVICES = {"llm": "decode step of a 1.1 B LLM as a CUDA graph at 100/s, result to pinned memory", "llm-cpu": "the same, result by `.cpu()`",
            "serve": "the LLM serving prompts of 512 tokens at 14/s, 2 to 6 tokens each", "llm-eager": "eager decode step, 26 ms of CPU, at 20/s",
            "recommender": "recommender, eager, 2 ms of CPU, at 150/s", "bert4": "4-layer encoder, eager, 3 ms of CPU, at 120/s",
            "compiled": "6-layer encoder by torch.compile, at 80/s", "unet": "step of a diffusion U-Net, eager, at 30/s",
            "bert6": "6-layer encoder, eager, at 100/s", "bert12": "BERT-base, eager, 9 ms of CPU, at 40/s", "bert24": "24-layer encoder, eager, at 10/s"}
JOBS = {"train": "GPT-2 training", "prefill": "prefill of the LLM", "jax": "JAX matrix products", "torch-matmul": "PyTorch matrix products", "copies": "pinned copies both ways",
        "tiny": "a flood of tiny kernels", "deep": "a queue of 1,000 short kernels", "fft": "FFTs", "three": "training, prefill and matrix products"}

ANSWERED = 0.9  # share of the requests below which the tables say how many were answered


def described(sc):
    """(service, jobs) of a scenario."""
    high, _, job = sc["name"].partition(",")[0].partition("/")
    if high in SERVICES and job in JOBS:
        return SERVICES[high], JOBS[job]
    return SCENARIOS.get(sc["name"], (sc["arrivals"], "jobs"))


def mode(sc, name):
    return (sc["modes"].get(name) or {}) if sc else {}


def p99(m):
    return (m.get("high") or {}).get("p99_ms")


def kept(m):
    return (m.get("low") or {}).get("kept")


def of_ideal(sc, m):
    """kept / ideal as text. Older runs took the span of a request for its kernel time."""
    part = (m.get("low") or {}).get("kept_of_ideal")
    old = sc.get("ideal_by", "kernels" if sc["name"].startswith(("micro/", "strategy/")) else "span") == "span"
    return percent(part) + (" (span)" if old and part is not None else "")


def run_of(merged, sc):
    """The number of the run, marked if its build is not the one that was measured last."""
    newest = build(merged["runs"][-1])
    return sc["run"] if sc.get("build") == newest else "%d, older build" % sc["run"]


def p99_text(sc, name):
    """P99 and its ratio to alone. Where a mode leaves requests without an answer, its P99 says too little: then also how many."""
    m = mode(sc, name)
    if name in sc.get("collapsed", ()):
        return "collapsed: no request ended"
    if not p99(m):
        return "-"
    rate = m["high"].get("requests_per_s")
    few = ", %d %% of the requests" % (100 * rate / sc["hz"]) if rate and sc.get("hz") and rate < ANSWERED * sc["hz"] else ""
    return "%s, %s%s" % (ms(p99(m)), times(m.get("p99_to_alone")), few)


def ratio_text(sc, name="live"):
    m = mode(sc, name)
    if not m.get("p99_to_alone"):
        return "-"
    interval, mark = ratio_interval(sc, name)
    return times(m["p99_to_alone"]) + interval_text(interval) + mark


def compared(merged):
    """The scenarios with a comparison, in the order of SCENARIOS, then SERVICES and JOBS."""
    found = scenarios(merged)

    def place(name):
        high, _, job = name.partition("/")
        return [list(known).index(n) if n in known else len(known) for n, known in ((high, SERVICES), (job, JOBS))]
    names = [n for n in SCENARIOS if n in found]
    names += sorted((n for n in found if n not in SCENARIOS and not n.endswith(UNDER_MPS) and not n.startswith("strategy/")), key=place)
    return [found[n] for n in names if p99(mode(found[n], "alone")) and p99(mode(found[n], "live"))]


def gains_over_native(merged):
    """[(scenario, native P99 / XSched P99)]"""
    return [(sc, p99(mode(sc, "native")) / p99(mode(sc, "live"))) for sc in compared(merged) if p99(mode(sc, "native"))]


def suite(merged, name):
    """A suite with proof, or {}."""
    s = merged["suites"].get(name)
    return s if s and proven(s) else {}


def rows_of(merged, name):
    return [r for rows in suite(merged, name).get("rows", {}).values() for r in rows]


def most_preemptions(merged):
    """Of one program whose results were compared."""
    return max((r["preemptions"] for r in rows_of(merged, "correctness")), default=0)


def noisy(sc):
    """True if the alone blocks differ so much that ratios to them are unreliable."""
    low, high = (sc.get("noise") or {}).get("p99_ms") or (1, 1)
    return high > 1.5 * low
