# SPDX-License-Identifier: Apache-2.0
"""A load generator with an open loop: Poisson arrivals that never wait for answers.

  load.py http://127.0.0.1:8000                                         the example's server
  load.py http://127.0.0.1:8000/v1/completions --body request.json      any other server

A latency runs from the time at which a request should have been sent. A stalled server or a late
generator therefore adds to it (no coordinated omission). Refused requests have no latency; they count
as infinitely late.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import queue
import random
import sys
import threading
import time
import urllib.parse
import urllib.request
from typing import Callable, NamedTuple

INFER = "/v2/models/encoder/infer"
WORKERS = 64  # connections; if all of them wait, requests are sent late, and that counts
TIMEOUT_S = 70
INPUTS = 32  # different requests
LATE_MS = 5  # a generator with a CPU of its own sends within 2 ms


class Sample(NamedTuple):
    due_ns: int
    sent_ns: int
    end_ns: int
    status: int  # of HTTP; 0: no answer
    wrong: str   # why an answer is wrong, or empty

    @property
    def latency_ms(self) -> float:
        return (self.end_ns - self.due_ns) / 1e6 if self.status == 200 else math.inf


def poisson(rate: float, seconds: float, seed: object) -> list[float]:
    """Arrival times in seconds after the start."""
    rng, out, at = random.Random(str(seed)), [], 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        out.append(at)
    return out


def tokens(number: int) -> list[int]:
    rng = random.Random(f"tokens {number % INPUTS}")
    return [rng.randrange(30000) for _ in range(64)]


def request(number: int) -> bytes:
    data = tokens(number)
    return json.dumps({"id": str(number), "inputs": [
        {"name": "tokens", "shape": [1, len(data)], "datatype": "INT64", "data": data}]}).encode()


def send(url: str, arrivals: list[float], body: Callable[[int], bytes], check: Callable[[int, bytes], str] = lambda *_: "",
         workers: int = WORKERS) -> list[Sample]:
    """Sends request n at arrivals[n]. check returns why an answer is wrong."""
    parts = urllib.parse.urlsplit(url)
    pending: queue.Queue = queue.Queue()
    out: list[Sample | None] = [None] * len(arrivals)

    def work() -> None:
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=TIMEOUT_S)
        while (job := pending.get()) is not None:
            number, due = job
            data, status, answer = body(number), 0, b""
            sent = time.monotonic_ns()
            try:
                connection.request("POST", parts.path, data, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                answer, status = reply.read(), reply.status
            except (OSError, http.client.HTTPException):
                connection.close()  # the next request opens another one
            end = time.monotonic_ns()
            out[number] = Sample(due, sent, end, status, check(number, answer) if status == 200 else "")
        connection.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, max(len(arrivals), 1)))]
    for thread in threads:
        thread.start()
    begin = time.monotonic_ns()
    for number, at in enumerate(arrivals):
        due = begin + int(at * 1e9)
        time.sleep(max((due - time.monotonic_ns()) / 1e9, 0))
        pending.put((number, due))
    for _ in threads:
        pending.put(None)
    for thread in threads:
        thread.join()
    return out


def percentile(values: list[float], q: float) -> float:
    """Nearest rank."""
    return sorted(values)[max(math.ceil(q * len(values)), 1) - 1] if values else math.nan


class Checker:
    """Knows the right answers: of the virtual GPU by computation. PyTorch's answers must repeat bit by bit, for
    equal tokens in batches of equal (padded) size."""

    def __init__(self, platform: str) -> None:
        self.platform, self.first, self.checked, self._lock = platform, {}, 0, threading.Lock()

    def __call__(self, number: int, answer: bytes) -> str:
        try:
            reply = json.loads(answer)
            found, rows, name = reply["outputs"][0]["data"], reply["parameters"]["batch_rows"], reply["id"]
        except (ValueError, KeyError, IndexError, TypeError):
            return "not an answer of the model"
        if name != str(number):
            return f"the answer of request {name}"
        with self._lock:
            self.checked += 1
            if self.platform == "virtual":
                import virtual
                right = virtual.expected(tokens(number), rows)
            else:
                right = self.first.setdefault((number % INPUTS, (rows - 1).bit_length()), found)
        return "" if found == right else f"{found} instead of {right}"


def summary(samples: list[Sample]) -> dict[str, object]:
    latencies = [s.latency_ms for s in samples]
    return {"requests": len(samples), "answered": sum(s.status == 200 for s in samples), "refused": sum(s.status == 503 for s in samples),
            "failed": sum(s.status not in (200, 503) for s in samples), "wrong": sum(bool(s.wrong) for s in samples),
            "p50_ms": percentile(latencies, 0.5), "p99_ms": percentile(latencies, 0.99), "max_ms": max(latencies, default=math.nan),
            "sent_late_p99_ms": percentile([(s.sent_ns - s.due_ns) / 1e6 for s in samples], 0.99)}


def lateness(found: dict[str, object]) -> str:
    """A warning if the latencies are not those of the server alone, or empty."""
    if not found["sent_late_p99_ms"] > LATE_MS:  # also without requests
        return ""
    return (f"one request in a hundred was sent {found['sent_late_p99_ms']:.0f} ms late or more, and the latencies contain that: "
            f"the CPUs are busy, or all {WORKERS} connections waited; compare medians, or repeat on an idle machine")


def main() -> int:
    p = argparse.ArgumentParser(description="A load generator with an open loop.")
    p.add_argument("url")
    p.add_argument("--rate", type=float, default=40, help="requests per second (default 40)")
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--seed", default="1", help="seed of the arrivals")
    p.add_argument("--body", metavar="FILE", help="send this JSON file to the URL; answers are not checked")
    a = p.parse_args()
    if a.rate <= 0 or a.seconds <= 0:
        p.error("--rate and --seconds must be positive")
    if a.body:
        with open(a.body, "rb") as f:
            fixed = f.read()
        samples = send(a.url, poisson(a.rate, a.seconds, a.seed), lambda _: fixed)
    else:
        with urllib.request.urlopen(a.url + "/v2/models/encoder", timeout=10) as r:
            check = Checker(json.load(r)["platform"])
        samples = send(a.url + INFER, poisson(a.rate, a.seconds, a.seed), request, check)
    found = summary(samples)
    for name, value in found.items():
        print(f"{name:18} {value:.2f}" if isinstance(value, float) else f"{name:18} {value}")
    if late := lateness(found):
        print("load.py: warning:", late, file=sys.stderr)
    return 1 if found["failed"] or found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
