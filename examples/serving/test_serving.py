# SPDX-License-Identifier: Apache-2.0
"""The server, the load generator and the proof. No test needs a GPU or depends on the speed of the machine."""

import contextlib
import http.client
import io
import json
import math
import os
import subprocess
import sys
import threading
import time
import unittest
from types import SimpleNamespace
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import job
import load
import proof
import virtual
from batcher import Batcher
from server import MODEL, MOST_BYTES, Server

LONG_S = 60


class Model:
    """Answers with the sum of the tokens. Each batch waits until the test lets it pass."""

    platform, datatype, launches = "test", "INT64", 0

    def __init__(self, open_at_start=False):
        self.batches, self.entered, self.gate, self.open = [], threading.Semaphore(0), threading.Semaphore(0), open_at_start

    def infer(self, batch):
        self.batches.append(len(batch))
        self.entered.release()
        if not self.open and not self.gate.acquire(timeout=LONG_S):
            raise RuntimeError("the test did not let the batch pass")
        return [[sum(tokens)] for tokens in batch]

    def wait_entered(self):
        if not self.entered.acquire(timeout=LONG_S):
            raise RuntimeError("no batch arrived")

    def release(self, batches=1):
        self.gate.release(batches)


def until(condition):
    end = time.monotonic() + LONG_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("the state was not reached")
        time.sleep(0.002)


class Served(unittest.TestCase):
    """Tests with a real server on the loopback interface."""

    def start(self, make, most=4, delay_s=0.0, queued=64):
        self.batcher = Batcher(make, most, delay_s, queued)
        self.server = Server(("127.0.0.1", 0), self.batcher)
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}{MODEL}/infer"

        def stop():
            self.batcher.close()
            self.server.shutdown()
            self.server.server_close()
            thread.join()
        self.addCleanup(stop)

    def model(self, **kw):
        model = Model()
        self.start(lambda: model, **kw)
        self.addCleanup(setattr, model, "open", True)
        self.addCleanup(model.release, 100)  # runs first
        until(self.batcher.ready)
        return model

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read(), reply.headers

    def post(self, number=0):
        status, body, headers = self.ask("POST", MODEL + "/infer", load.request(number))
        return status, json.loads(body), headers

    def background(self, count, first=0):
        """Sends requests at once; returns a function that waits for them."""
        out = []
        thread = threading.Thread(target=lambda: out.extend(
            load.send(self.url, [0.0] * count, lambda n: load.request(first + n))))
        thread.start()

        def result():
            thread.join()
            return out
        return result

    def test_batches_are_what_arrived_meanwhile(self):
        model = self.model(most=4)
        first = self.background(1)
        model.wait_entered()
        rest = self.background(5, 1)
        until(lambda: len(self.batcher._waiting) == 5)
        model.release(3)
        self.assertEqual([s.status for s in first() + rest()], [200] * 6)
        self.assertEqual(model.batches, [1, 4, 1])

    def test_a_first_request_waits_for_others_and_a_full_batch_does_not(self):
        model = self.model(most=3, delay_s=LONG_S)
        sent = self.background(3)
        model.wait_entered()  # without waiting for the delay
        model.release()
        self.assertEqual([s.status for s in sent()], [200] * 3)
        self.assertEqual(model.batches, [3])

    def test_every_client_gets_its_own_answer(self):
        model = self.model(most=8)
        model.open = True
        wrong = []

        def check(number, answer):
            reply = json.loads(answer)
            if reply["id"] != str(number) or reply["outputs"][0]["data"] != [sum(load.tokens(number))]:
                wrong.append(reply)
            return ""
        samples = load.send(self.url, [0.0] * 60, load.request, check)
        self.assertEqual([s.status for s in samples], [200] * 60)
        self.assertEqual(wrong, [])
        self.assertEqual(sum(model.batches), 60)

    def test_a_full_queue_refuses(self):
        model = self.model(most=1, queued=2)
        first = self.background(1)
        model.wait_entered()
        queued = self.background(2)
        until(lambda: len(self.batcher._waiting) == 2)
        status, body, headers = self.post()
        self.assertEqual((status, body["error"], headers["Retry-After"]), (503, "the queue is full", "1"))
        self.assertEqual(self.batcher.refused, 1)
        model.release(3)
        self.assertEqual([s.status for s in first() + queued()], [200] * 3)

    def test_health_follows_the_model(self):
        loaded, model = threading.Event(), Model(open_at_start=True)

        def make():
            loaded.wait(LONG_S)
            return model
        self.start(make)
        self.assertEqual([self.ask("GET", p)[0] for p in ("/v2/health/live", "/v2/health/ready", MODEL)], [200, 503, 404])
        self.assertEqual(self.post()[0], 503)
        loaded.set()
        until(self.batcher.ready)
        self.assertEqual([self.ask("GET", p)[0] for p in ("/v2/health/live", "/v2/health/ready", MODEL)], [200, 200, 200])
        self.assertEqual(self.post()[0], 200)

        def fail(_):
            raise RuntimeError("cuLaunchKernel: 719")
        model.infer = fail
        with contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(self.post()[0], 503)
        self.assertEqual([self.ask("GET", p)[0] for p in ("/v2/health/live", "/v2/health/ready")], [503, 503])

    def test_shutdown_answers_what_was_accepted(self):
        model = self.model(most=1)
        sent = self.background(3)
        model.wait_entered()
        until(lambda: len(self.batcher._waiting) == 2)
        drained = threading.Thread(target=self.server.drain)
        drained.start()
        until(lambda: not self.batcher.ready())
        self.assertEqual((self.ask("GET", "/v2/health/live")[0], self.ask("GET", "/v2/health/ready")[0]), (200, 503))
        self.assertEqual(self.post()[0], 503)
        self.assertTrue(drained.is_alive())
        model.release(3)
        drained.join()
        self.assertEqual([s.status for s in sent()], [200] * 3)
        self.assertEqual(self.server.counters()["answered"], 3)

    def test_invalid_requests(self):
        self.model().open = True
        tensor = {"name": "tokens", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}
        for status, body in ((200, {"inputs": [tensor]}), (400, {}), (400, []), (400, {"inputs": [tensor, tensor]}),
                             (400, {"inputs": [dict(tensor, shape=[2])]}), (400, {"inputs": [dict(tensor, data=[])]}),
                             (400, {"inputs": [dict(tensor, data=[1, "x"])]}), (400, {"inputs": [dict(tensor, data=[True, -1])]})):
            self.assertEqual(self.ask("POST", MODEL + "/infer", json.dumps(body))[0], status, body)
        for text in (b"{", b"[" * 100000):
            self.assertEqual(self.ask("POST", MODEL + "/infer", text)[0], 400)
        self.assertEqual(self.ask("POST", "/v2/models/other/infer", b"{}")[0], 404)
        self.assertEqual(self.ask("POST", MODEL + "/infer", b"", {"Content-Length": str(MOST_BYTES + 1)})[0], 413)
        self.assertEqual(self.ask("POST", MODEL + "/infer", b"", {"Content-Length": "many"})[0], 411)
        self.assertEqual(self.ask("GET", "/metrics")[0], 404)

    def test_load_does_not_wait_for_answers(self):
        model = self.model(most=1)
        sent = self.background(5)
        until(lambda: len(self.batcher._waiting) == 4)  # all of them arrive while none is answered
        model.release(5)
        self.assertEqual(len(sent()), 5)

    def test_a_stall_counts_from_the_intended_time(self):
        model, samples = self.model(most=1), []
        arrivals = [0.0, 0.001, 0.002]
        thread = threading.Thread(target=lambda: samples.extend(load.send(self.url, arrivals, load.request, workers=1)))
        thread.start()
        model.wait_entered()
        time.sleep(0.05)  # all requests are due; the only connection is busy
        model.release(3)
        thread.join()
        first = samples[0]
        for s, at in zip(samples, arrivals):
            self.assertEqual(s.due_ns, first.due_ns + int(at * 1e9))
            self.assertEqual(s.latency_ms, (s.end_ns - s.due_ns) / 1e6)
        for s in samples[1:]:
            self.assertGreaterEqual(s.sent_ns, first.end_ns)  # sent late, by the stall ...
            self.assertGreaterEqual(s.latency_ms, (first.end_ns - s.due_ns) / 1e6)  # ... which counts


class Numbers(unittest.TestCase):
    def test_arrivals(self):
        a = load.poisson(100, 50, 1)
        self.assertEqual(a, load.poisson(100, 50, 1))
        self.assertNotEqual(a, load.poisson(100, 50, 2))
        self.assertEqual(a, sorted(a))
        self.assertLess(abs(len(a) - 5000), 4 * 5000 ** 0.5)
        gaps = [b - a for a, b in zip(a, a[1:])]
        self.assertAlmostEqual(sum(g > 0.01 for g in gaps) / len(gaps), math.exp(-1), delta=0.03)  # exponential

    def test_a_refused_request_is_infinitely_late(self):
        samples = [load.Sample(0, 0, 10 ** 6 * n, 200, "") for n in range(1, 100)]
        self.assertEqual((load.summary(samples)["p50_ms"], load.summary(samples)["p99_ms"]), (50, 99))
        found = load.summary(samples + [load.Sample(0, 0, 1, 503, "")] * 2)
        self.assertEqual((found["refused"], found["p50_ms"], found["p99_ms"]), (2, 51, math.inf))
        self.assertEqual(load.summary([load.Sample(0, 0, 1, 0, "")])["failed"], 1)

    def test_a_late_generator_warns(self):
        def sent(late_ms):
            return load.summary([load.Sample(0, late_ms * 10 ** 6, 10 ** 9, 200, "")] * 10)
        self.assertEqual(load.lateness(sent(load.LATE_MS)), "")
        self.assertEqual(load.lateness(load.summary([])), "")
        self.assertIn("sent 35 ms late", load.lateness(sent(35)))
        for samples, warned in (([load.Sample(0, 0, 1, 200, "")], ""), ([load.Sample(0, 35 * 10 ** 6, 10 ** 9, 200, "")], "load.py: warning: one request in a hundred")):
            with mock.patch.object(load, "send", return_value=samples), mock.patch("sys.argv", ["load.py", "http://h", "--body", __file__]), \
                    mock.patch("sys.stderr", io.StringIO()) as err, mock.patch("sys.stdout", io.StringIO()):
                self.assertEqual(load.main(), 0)
            self.assertEqual(err.getvalue()[:len(warned) or None], warned)

    def test_answers_are_compared(self):
        def answer(number, data, rows):
            return json.dumps({"id": str(number), "outputs": [{"data": data}], "parameters": {"batch_rows": rows}}).encode()
        check = load.Checker("virtual")
        right = virtual.expected(load.tokens(3), 2)
        self.assertEqual(check(3, answer(3, right, 2)), "")
        self.assertTrue(check(3, answer(3, right, 3)))  # as if layers of another batch had run
        self.assertTrue(check(3, answer(4, right, 2)))
        self.assertTrue(check(4, answer(4, right, 2)))
        self.assertTrue(check(3, b"{}"))
        check = load.Checker("pytorch")
        self.assertEqual([check(n, answer(n, data, rows)) for n, data, rows in ((0, [1.5], 3), (load.INPUTS, [1.5], 4), (0, [2.5], 2), (1, [9.5], 4))], [""] * 4)
        self.assertTrue(check(0, answer(0, [1.25], 3)))

    def test_a_wrong_step_of_the_job_is_found(self):
        model = SimpleNamespace(submit=lambda n: None, finish=lambda n: n != 1, launches=7)
        work, out = job.Job(model), io.StringIO()
        with contextlib.redirect_stdout(out):
            for _ in range(4):
                work.step()
            work.pause()
        self.assertEqual(out.getvalue().splitlines()[-1], "paused 4 1 7")


class Proof(unittest.TestCase):
    def setUp(self):
        sample = load.Sample(0, 0, 1, 200, "")

        def block(mode, slices):
            counted = dict.fromkeys(("suspends", "resumes", "gate_holds", "timeslice_sets", "device_errors"), 0)
            device = {k: us or 2048 for k, us in slices.items()}
            return SimpleNamespace(mode=mode, samples=[] if mode == "job alone" else [sample], counted=counted, slices=[slices], device=[device], preempted=3)
        none = {"server": 0, "job": 0}
        self.blocks = [block("alone", none), block("native", none), block("xsched", {"server": 10 ** 6, "job": 1}), block("job alone", none)]
        self.end = proof.Ending({"server": (5, 5, 5), "job": (9, 9, 9)}, 4, 0, 0, 0, {"answered": 3}, 3)

    def refused(self, *words):
        with self.assertRaises(proof.Missing) as found:
            proof.collect(self.blocks, self.end, True)
        for word in words:
            self.assertIn(word, str(found.exception))

    def test_complete(self):
        self.assertEqual(len(proof.collect(self.blocks, self.end, True)), 4)

    def test_inert_shim(self):
        self.end = self.end._replace(launches={"server": (5, 0, 5), "job": (9, 9, 9)})
        self.refused("no launch of the server")

    def test_lost_launch(self):
        self.end = self.end._replace(launches={"server": (5, 5, 4), "job": (9, 9, 9)})
        self.refused("4 by the device")

    def test_no_preemption(self):
        self.blocks[2].slices = self.blocks[2].device = [{"server": 2048, "job": 2048}]
        self.refused("neither stopped")
        self.blocks[2].counted["suspends"] = 1
        proof.collect(self.blocks, self.end, True)
        self.blocks[2].preempted = 0
        self.refused("preempted no kernel")
        del self.blocks[2]
        self.refused("no block of XSched")

    def test_native_was_not_native(self):
        self.blocks[1].counted["suspends"] = 2
        self.blocks[0].slices = [{"server": 10 ** 6, "job": 1}]
        self.blocks[3].device = [{"server": 10 ** 6, "job": 1}]
        self.refused("2 suspensions and 0 gate holds in a block of mode native", "timeslices of XSched in a block of mode alone", "mode job alone")

    def test_results_differ(self):
        self.blocks[1].samples = [load.Sample(0, 0, 1, 200, "x instead of y"), load.Sample(0, 0, 1, 500, "")]
        self.end = self.end._replace(wrong_steps=1, server_code=-9)
        self.refused("1 wrong answers", "status 500", "1 of 4 steps", "server -9")

    def test_answers_not_compared_or_missing(self):
        self.end = self.end._replace(checked=2)
        self.refused("2 of 3 answers compared")
        self.blocks[0].samples = [load.Sample(0, 0, 1, 503, "")]
        self.refused("a block without an answer")

    def test_device_error(self):
        self.blocks[2].counted["device_errors"] = 1
        self.refused("1 device errors")


class Refusal(unittest.TestCase):
    def test_no_table_if_the_shim_is_disabled(self):
        r = subprocess.run([sys.executable, "-B", os.path.join(HERE, "run.py"), "--short", "--backend", "virtual", "--join-s", "1"],
                           env=dict(os.environ, XSCHED_DISABLE="1"), capture_output=True, text=True, timeout=110)
        self.assertEqual((r.returncode, r.stdout), (1, ""), r.stderr)
        self.assertIn("no comparison: no interception", r.stderr)


if __name__ == "__main__":
    unittest.main()
