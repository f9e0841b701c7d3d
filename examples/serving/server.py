# SPDX-License-Identifier: Apache-2.0
"""A model server over HTTP, with the inference protocol of KServe (version 2) that Triton speaks, too.

  GET  /v2/health/live            200, or 503 after a failure of the device
  GET  /v2/health/ready           200, or 503 while the model loads and during shutdown;
       /v2/models/encoder/ready   the same
  GET  /v2, /v2/models/encoder    names, inputs and outputs
  GET  /v2/models/encoder/stats   counters
  POST /v2/models/encoder/infer   an answer, or 503 if the queue is full

The program prints its port when it listens. On SIGTERM it refuses new requests, answers those it has,
and prints its counters. It knows nothing about XSched.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from concurrent.futures import TimeoutError as FutureTimeout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import backend
from batcher import Batcher, Refused

MODEL = "/v2/models/encoder"
MOST_BYTES = 1 << 20  # of a request
ANSWER_S, IDLE_S = 60, 60


class Invalid(Exception):
    """The request is not understood."""


def tokens_of(body: bytes) -> tuple[str, list[int]]:
    """The id and the tokens of a request."""
    try:
        request = json.loads(body)
        (tensor,) = [t for t in request["inputs"] if t["name"] == "tokens"]
        tokens, shape = tensor["data"], tensor["shape"]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise Invalid("the body must be JSON with one input called tokens") from e
    if not isinstance(tokens, list) or not tokens or shape != [1, len(tokens)]:
        raise Invalid("the shape of tokens must be [1, N], and N its length")
    if not all(type(t) is int and 0 <= t < 1 << 31 for t in tokens):
        raise Invalid("tokens must be integers from 0 to 2147483647")
    return str(request.get("id", "")), tokens


class Server(ThreadingHTTPServer):
    daemon_threads = True  # a client that keeps its connection open must not delay the exit
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], batcher: Batcher) -> None:
        self.batcher = batcher
        self._active, self._changed = 0, threading.Condition()
        super().__init__(address, Handler)

    def entered(self, step: int) -> None:
        with self._changed:
            self._active += step
            self._changed.notify_all()

    def drain(self) -> None:
        """Answers everything that was accepted. Later requests get 503."""
        self.batcher.close()
        with self._changed:
            self._changed.wait_for(lambda: self._active == 0, ANSWER_S)

    def counters(self) -> dict[str, object]:
        b = self.batcher
        return {"answered": b.answered, "refused": b.refused, "batches": b.batches, "largest": b.largest,
                "launches": getattr(b.model, "launches", None)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    wbufsize = -1  # one packet per answer
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, body: object = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 503:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def do_GET(self) -> None:
        b = self.server.batcher
        if self.path == "/v2/health/live":
            self.reply(503 if b.failure else 200)
        elif self.path in ("/v2/health/ready", MODEL + "/ready"):
            self.reply(200 if b.ready() else 503)
        elif self.path == "/v2":
            self.reply(200, {"name": "examples/serving", "version": "1", "extensions": []})
        elif self.path == MODEL + "/stats":
            self.reply(200, self.server.counters())
        elif self.path == MODEL and b.model is not None:
            self.reply(200, {"name": "encoder", "platform": b.model.platform,
                             "inputs": [{"name": "tokens", "datatype": "INT64", "shape": [1, -1]}],
                             "outputs": [{"name": "embedding", "datatype": b.model.datatype, "shape": [1, -1]}]})
        else:
            self.reply(404, {"error": "no such path"})

    def do_POST(self) -> None:
        self.server.entered(1)
        try:
            self.reply(*self.infer())
        finally:
            self.server.entered(-1)

    def infer(self) -> tuple[int, object]:
        try:
            size = int(self.headers.get("Content-Length", ""))
        except ValueError:
            size = -1
        if not 0 <= size <= MOST_BYTES:
            self.close_connection = True  # the body was not read
            return (411 if size < 0 else 413), {"error": f"a request needs a Content-Length of at most {MOST_BYTES}"}
        body = self.rfile.read(size)
        if self.path != MODEL + "/infer":
            return 404, {"error": "no such path"}
        b = self.server.batcher
        try:
            name, tokens = tokens_of(body)
            answer, rows = b.submit(tokens).result(ANSWER_S)
        except Invalid as e:
            return 400, {"error": str(e)}
        except Refused as e:
            return 503, {"error": str(e)}
        except FutureTimeout:
            return 504, {"error": f"no answer within {ANSWER_S} s"}
        tensor = {"name": "embedding", "datatype": b.model.datatype, "shape": [1, len(answer)], "data": answer}
        return 200, {"model_name": "encoder", "id": name, "outputs": [tensor], "parameters": {"batch_rows": rows}}


def main() -> int:
    p = argparse.ArgumentParser(description="A model server over HTTP.")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000, help="0: any free port")
    p.add_argument("--backend", choices=sorted(backend.NAMES), default=None, help="default: pytorch if it finds a GPU")
    p.add_argument("--max-batch", type=int, default=8, help="rows of a batch")
    p.add_argument("--delay-ms", type=float, default=1.0, help="longest wait for a larger batch")
    p.add_argument("--queue", type=int, default=64, help="waiting requests; more are refused with 503")
    p.add_argument("--weights-mib", type=int, default=0, help="further GPU memory that the model holds")
    a = p.parse_args()
    if a.max_batch < 1 or a.queue < 1 or a.delay_ms < 0 or a.weights_mib < 0:
        p.error("--max-batch and --queue must be at least 1, --delay-ms and --weights-mib at least 0")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    kind = a.backend or backend.detect()
    batcher = Batcher(lambda: backend.load(kind).Encoder(a.max_batch, a.weights_mib), a.max_batch, a.delay_ms / 1e3, a.queue)
    try:
        server = Server((a.host, a.port), batcher)
    except OSError as e:
        batcher.close()
        print(f"server: port {a.port}: {e.strerror}; choose another with --port", file=sys.stderr)
        return 1
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    stop.wait()
    server.drain()
    server.shutdown()
    print(json.dumps(server.counters()), flush=True)
    return 1 if batcher.failure else 0


if __name__ == "__main__":
    sys.exit(main())
