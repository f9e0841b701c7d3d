# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import re
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pairs
import rig
import scene
import worker


class Arrivals(unittest.TestCase):
    def take(self, line, n):
        return list(itertools.islice(worker.arrivals(line.split()), n))

    def test_rate(self):
        self.assertEqual(self.take("rate 20", 3), [0.05, 0.1, 0.15])

    def test_poisson_is_the_same_for_the_same_seed(self):
        a, b, c = self.take("poisson 20 1-1", 500), self.take("poisson 20 1-1", 500), self.take("poisson 20 1-2", 500)
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)
        self.assertAlmostEqual(a[-1] / 500, 0.05, delta=0.008)

    def test_onoff_keeps_off_empty(self):
        due = self.take("onoff 60 250 500", 45)
        self.assertEqual(len([t for t in due if t <= 0.2500001]), 15)
        self.assertFalse([t for t in due if 0.2500001 < t < 0.75])

    def test_wrong_ones_fail(self):
        for line in ("rate 0", "bogus 3", "onoff 3"):
            with self.assertRaises((ValueError, IndexError)):
                self.take(line, 1)


class FakeBackend:
    class Event:
        def record(self):
            pass

        def synchronize(self):
            time.sleep(0.002)

    def __init__(self):
        self.checks = 0

    def use(self, spec):
        pass

    def step(self):
        time.sleep(0.001)

    def check(self, out):
        self.checks += 1

    def sync(self):
        pass

    def new_event(self):
        return self.Event()

    def checksums(self):
        return "a", "a"

    def gpu_times_us(self, n):
        return [1000.0] * n

    class Clock:
        def mark(self):
            self.at = time.monotonic_ns()

        def done_ns(self):
            return self.at

    def clock(self):
        return self.Clock()


class Protocol(unittest.TestCase):
    """The worker's loop over pipes, without a GPU."""

    def setUp(self):
        self.saved = os.dup(0)
        r, self.stdin = os.pipe()
        os.dup2(r, 0)
        os.close(r)
        self.stdout, w = os.pipe()
        self.backend = FakeBackend()
        self.worker = worker.Worker(self.backend, w, 2, 4)
        self.code = None
        self.thread = threading.Thread(target=self.body)
        self.thread.start()
        self.lines = []

    def body(self):
        try:
            self.code = self.worker.run()
        finally:
            os.close(self.worker.out_fd)  # whoever reads must not wait for ever

    def tell(self, line):
        os.write(self.stdin, (line + "\n").encode())

    def finish(self):
        self.tell("quit")
        self.thread.join(5)
        data = b""
        while chunk := os.read(self.stdout, 65536):
            data += chunk
        return data.decode().splitlines()

    def tearDown(self):
        os.close(self.stdin)
        self.thread.join(5)
        os.close(self.stdout)
        os.dup2(self.saved, 0)
        os.close(self.saved)

    def test_rate_loop_pause(self):
        self.tell("rate 100")
        time.sleep(0.3)
        self.tell("pause")
        time.sleep(0.1)
        self.tell("loop")
        time.sleep(0.2)
        self.tell("pause")
        self.tell("use model")
        self.tell("gputime 3")
        lines = self.finish()
        self.assertEqual(lines[0], "R")
        self.assertEqual(lines.count("P"), 2)
        self.assertIn("U model", lines)
        self.assertIn("G 1000.0 1000.0", lines)
        self.assertTrue(re.fullmatch(r"S \d+ a a", lines[-1]))
        self.assertEqual(self.code, 0)
        cut = lines.index("P")
        requests = [tuple(map(int, x.split()[1:])) for x in lines[:cut] if x[0] == "I"]
        loops = [tuple(map(int, x.split()[1:])) for x in lines[cut:] if x[0] == "I"]
        self.assertGreaterEqual(len(requests), 10)
        for a, b in zip(requests, requests[1:]):
            self.assertAlmostEqual(b[0] - a[0], 10_000_000, delta=1000)  # the schedule is absolute
        for due, end, begun, submitted, done in requests:
            self.assertTrue(due <= begun <= submitted and done <= end)
        self.assertGreater(len(loops), 10)
        for (_, e), (s, _) in zip(loops, loops[1:]):
            self.assertGreaterEqual(s, e)  # completion to completion: no overlap is counted twice
        self.assertGreater(self.backend.checks, 0)


class Rules(unittest.TestCase):
    def test_cores_are_apart(self):
        sets = rig.cpu_sets(16)
        used = [c for s in sets.values() for c in s]
        self.assertEqual(len(used), len(set(used)))
        self.assertTrue(all(sets[r] for r in ("daemon", "driver", "high", "low1", "low2", "low3")))
        self.assertEqual(rig.cpu_sets(2), {})

    def test_slices(self):
        fit = scene.slices_fit
        self.assertTrue(fit("native", {"high": [0], "low1": [0]}, "high"))
        self.assertFalse(fit("native", {"high": [0], "low1": [1]}, "high"))
        self.assertTrue(fit("live", {"high": [1000000], "low1": [1]}, "high"))
        self.assertTrue(fit("timeslice", {"high": [1000000], "low1": [0], "low2": [0]}, "high"))
        self.assertFalse(fit("live", {"high": [0], "low1": [0]}, "high"))
        self.assertFalse(fit("live", {"high": [2000], "low1": [2000]}, "high"))

    def test_modes(self):
        modes = scene.xsched_modes({"alone": 4, "native": 4, "level1": 2, "low alone": 1}, 3, alone_of=[0, 2])
        self.assertEqual([m.name for m in modes], ["alone", "native", "level1", "low alone 0", "low alone 2"])
        self.assertEqual([m.xmode for m in modes], ["off", "off", "level1", "off", "off"])
        self.assertEqual([m.lows for m in modes], [[], [0, 1, 2], [0, 1, 2], [0], [2]])
        self.assertEqual([m.high for m in modes], [True, True, True, False, False])

    def test_targets_know_every_scenario(self):
        from targets import LATENCY
        for suite, (_, _, _, arrivals, seconds, _) in pairs.MODELS.items():
            for key in arrivals:
                self.assertIn(key, LATENCY)
            self.assertGreaterEqual(pairs.MODELS[suite][2] * min(seconds["alone"], seconds["live"]), 300)


if __name__ == "__main__":
    unittest.main()
