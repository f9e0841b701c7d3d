# SPDX-License-Identifier: Apache-2.0
"""The smallest form of each page in docs/guides: is the program intercepted, and is the job beside it preempted?

A program that is not installed is reported as such. Nothing is downloaded, weights are random."""
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from processes import Failed, Proc
from scene import check

TOTAL_S = 60  # of all programs together; one that does not fit any more is reported, not run
POLL_S = 0.1
RUN_S = 3     # work of a program after its first kernel

# Every program takes RUN_S as its first argument and ends by itself, except servers.
TORCH = """
import sys, time, torch
a = torch.randn(2048, 2048, device="cuda")
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    (a @ a).sum().item()
"""
JAX = """
import sys, time, jax, jax.numpy as jnp
f = jax.jit(lambda x: (x @ x).sum())
a = jnp.ones((2048, 2048))
float(f(a))
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    float(f(a))
if "--any" not in sys.argv and jax.devices()[0].platform == "cpu":
    sys.exit("JAX found no GPU")
"""
CUPY = """
import sys, time, cupy
a = cupy.ones((2048, 2048), dtype=cupy.float32)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    (a @ a).sum().get()
"""
ONNX = """
import sys, time, numpy, onnxruntime
wanted = "CPUExecutionProvider" if "--any" in sys.argv else "CUDAExecutionProvider"
session = onnxruntime.InferenceSession(sys.argv[2], providers=[wanted])
if wanted not in session.get_providers():
    sys.exit("ONNX Runtime has no " + wanted)
x = numpy.ones((1024, 1024), dtype=numpy.float32)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    y = session.run(None, {"x": x})[0]
if y.shape != (1024, 1024) or y[0, 0] != 1024:
    sys.exit("wrong result %s %s" % (y.shape, y[0, 0]))
"""
VLLM = """
import sys, time
if __name__ == "__main__":  # children may import this file again
    from vllm import LLM, SamplingParams
    llm = LLM(model=sys.argv[2], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
              gpu_memory_utilization=0.1, max_model_len=256, dtype="float16")
    few = SamplingParams(max_tokens=32, ignore_eos=True, detokenize=False)
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        llm.generate([{"prompt_token_ids": list(range(1, 17))}] * 4, few, use_tqdm=False)
"""
VLLM_MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1024,
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "float16",
              "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
TRITON_MODEL = """
import time, torch
class TritonPythonModel:
    def initialize(self, args):
        a = torch.randn(2048, 2048, device="cuda")
        end = time.monotonic() + %d
        while time.monotonic() < end:
            (a @ a).sum().item()
    def execute(self, requests):
        return []
"""
TRITON_CONFIG = """backend: "python"
input [{name: "x" data_type: TYPE_FP32 dims: [1]}]
output [{name: "y" data_type: TYPE_FP32 dims: [1]}]
instance_group [{kind: KIND_GPU}]
"""


def field(number, value):
    """Encodes one field of a protocol buffer: an integer, or bytes."""
    def varint(n):
        out = bytearray()
        while n > 0x7F:
            out.append(n & 0x7F | 0x80)
            n >>= 7
        return bytes(out + bytes([n]))
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def onnx_model(n=1024):
    """An ONNX model y = x @ x of n by n floats: the package onnx is often missing where ONNX Runtime is not."""
    shape = b"".join(field(1, field(1, n)) for _ in range(2))
    tensor = field(1, field(1, 1) + field(2, shape))            # element type 1: float
    node = field(1, "x") + field(1, "x") + field(2, "y") + field(4, "MatMul")
    graph = field(1, node) + field(2, "g") + field(11, field(1, "x") + field(2, tensor)) + field(12, field(1, "y") + field(2, tensor))
    return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13))  # IR version 8, operator set 13


class Guide:
    """One page. prepare returns the command, or raises Failed with the reason why it can't run here."""

    def __init__(self, page, prepare, env=None, limit_s=20, server=False):
        self.page, self.prepare, self.env, self.limit_s, self.server = page, prepare, env or {}, limit_s, server


def need_module(*names):
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise Failed("not installed")


def need_program(*names):
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise Failed("not installed")


def write(folder, name, text):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(text.encode() if isinstance(text, str) else text)
    return path


def script(module, name, text, *more):
    """Returns a prepare function that runs a Python program, if its module is installed."""
    def prepare(folder):
        need_module(module)
        return [sys.executable, write(folder, name, text), str(RUN_S)] + [m(folder) for m in more]
    return prepare


def onnx(folder):
    need_module("onnxruntime")
    ask = "import onnxruntime; print(*onnxruntime.get_available_providers())"
    known = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=30).stdout
    if "CUDAExecutionProvider" not in known.split():
        raise Failed("installed for the CPU alone: %s" % (known.strip() or "no provider"))
    return [sys.executable, write(folder, "with_onnx.py", ONNX), str(RUN_S), write(folder, "model.onnx", onnx_model())]


def llama(folder):
    bench, model = need_program("llama-bench"), os.environ.get("XSCHED_GUIDES_GGUF", "")
    if not os.path.exists(model):
        raise Failed("installed, but XSCHED_GUIDES_GGUF names no model")
    return [bench, "-m", model, "-ngl", "99", "-p", "128", "-n", "64", "-r", "3"]


def triton(folder):
    server = need_program("tritonserver", "/opt/tritonserver/bin/tritonserver")
    need_module("torch")
    write(folder, "models/gpu/config.pbtxt", TRITON_CONFIG)
    write(folder, "models/gpu/1/model.py", TRITON_MODEL % RUN_S)
    return [server, "--model-repository", os.path.join(folder, "models"), "--http-address", "127.0.0.1", "--http-port", "18321",
            "--allow-grpc", "false", "--allow-metrics", "false"]


GUIDES = [
    Guide("pytorch", script("torch", "with_torch.py", TORCH)),
    Guide("jax", script("jax", "with_jax.py", JAX), env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    Guide("cupy", script("cupy", "with_cupy.py", CUPY), env={"CUPY_GPU_MEMORY_LIMIT": "10%"}),
    Guide("onnxruntime", onnx),
    Guide("llama-cpp", llama),
    Guide("triton-server", triton, limit_s=15, server=True),
    Guide("vllm", script("vllm", "with_vllm.py", VLLM, lambda f: os.path.dirname(write(f, "model/config.json", json.dumps(VLLM_MODEL)))),
          env={"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}, limit_s=45),
]


def stand_in(rig):
    """A guide for the virtual GPU, to test this suite: a program whose child uses the GPU."""
    line = "(echo loop; sleep 2; echo quit) | %s --name guide --kernel-us 2000" % rig.tenant
    return Guide("stand-in", lambda folder: ["sh", "-c", line])


class Seen:
    """What the daemon listed while a program ran."""

    def __init__(self):
        self.launches, self.levels, self.text = {}, {}, ""

    def look(self, rig, low):
        listed = rig.list()
        before = sum(self.launches.values())
        for pid, p in listed.items():
            if pid != low.pid:
                self.launches[pid] = max(self.launches.get(pid, 0), p["counters"]["launches"])
                for q in p["queues"]:
                    self.levels[pid] = (q["level"], q.get("level_reason", ""))
        if sum(self.launches.values()) > before:
            text = rig.cli("list")
            if any(line.startswith("%d " % pid) for pid in self.launches for line in text.splitlines()):  # else it has ended
                self.text = text


def yielded(rig):
    """How often a program gave way: it was suspended, or another one got the long timeslice."""
    stats = rig.stats()
    return stats["preemptions"] + stats["yields"]


def leftovers(rig, low):
    """Kills programs of a guide that outlived it. The daemon is this run's own, so it lists only ours."""
    limit = time.monotonic() + 5
    while time.monotonic() < limit:
        left = [pid for pid in rig.list() if pid != low.pid]
        if not left:
            return []
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(POLL_S)
    return left


def run_one(rig, guide, argv, low, limit_s):
    """Runs one program beside the low and returns its row."""
    before, start, seen = yielded(rig), time.monotonic(), Seen()
    p = Proc(rig, guide.page, rig.under(argv, 10), env=guide.env, limit_s=limit_s + 2, pipe=False)
    while p.alive() and time.monotonic() - start < limit_s:
        seen.look(rig, low)
        time.sleep(POLL_S)
    ended = not p.alive()
    code = p.p.returncode if ended else None
    tail = p.tail()
    p.close()
    bad = ["process %d is still there" % pid for pid in leftovers(rig, low)]
    used = {pid: n for pid, n in seen.launches.items() if n}
    if not used:
        bad.append("no launch was intercepted")
    if code not in ((0, None) if guide.server else (0,)):
        bad.append("exit code %s: %s" % (code, tail) if ended else "killed after %.0f s: %s" % (limit_s, tail))
    bad += ["Lv%d: %s" % (level, why) for pid, (level, why) in seen.levels.items() if pid in used and level < 3]
    row = {"page": guide.page, "seconds": round(time.monotonic() - start, 1), "processes": len(seen.launches), "launches": sum(used.values()),
           "the job gave way": yielded(rig) - before, "list": seen.text}
    if used and not row["the job gave way"]:
        bad.append("the job beside it never gave way")
    detail = "%d launches in %d of %d processes, the job gave way %d times, %.1f s" % (
        row["launches"], len(used), row["processes"], row["the job gave way"], row["seconds"])
    return row, check(guide.page, bad, detail)


def guides(rig):
    rig.start_daemon()
    rig.mode("live")
    low = rig.spin("low1", 20000, -10).ready(30)
    rig.joined([low])
    low.tell("loop")
    rows, checks, begun = [], [], time.monotonic()
    for guide in [stand_in(rig)] if rig.virtual else GUIDES:
        if guide.page not in os.environ.get("XSCHED_GUIDES", guide.page).split(","):
            continue
        left = TOTAL_S - (time.monotonic() - begun)
        try:
            argv = guide.prepare(os.path.join(rig.tmp, "guide-" + guide.page))
            if left < 10:
                raise Failed("out of time; XSCHED_GUIDES=%s runs it alone" % guide.page)
        except Failed as e:
            checks.append(check(guide.page, [], "not run: %s" % e))
            continue
        row, result = run_one(rig, guide, argv, low, min(guide.limit_s, left))
        rows.append(row)
        checks.append(result)
    launches = rig.list()[low.pid]["counters"]["launches"]
    sums = rig.end([low])
    proof = [check("the job was intercepted and its result is right", [] if launches and all(sums.values()) else ["%d launches, %s" % (launches, sums)],
                   "%d launches" % launches)]
    return {"rows": {"guides": rows}, "checks": checks, "proof": proof}
