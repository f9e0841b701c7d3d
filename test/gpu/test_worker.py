# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import re
import subprocess
import sys
import threading
import time
import types
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models
import inference
import pairs
import processes
import rig
import scene
import stats
import suite
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

    def test_jitter_keeps_the_rate_and_the_order(self):
        a, b = self.take("jitter 100 1-1", 300), self.take("jitter 100 1-1", 300)
        self.assertEqual(a, b)
        self.assertAlmostEqual(a[-1], 3.0, delta=0.003)
        gaps = [y - x for x, y in zip(a, a[1:])]
        self.assertGreaterEqual(min(gaps), 0.005)
        self.assertGreater(max(gaps) - min(gaps), 0.005)

    def test_serving_repeats_its_requests(self):
        counts = [list(itertools.islice(worker.token_counts("serve 20 1-1".split()), 200)) for _ in range(2)]
        self.assertEqual(*counts)
        self.assertEqual({min(counts[0]), max(counts[0])}, set(models.TOKENS))
        self.assertEqual(self.take("serve 20 1-1", 50), self.take("poisson 20 1-1", 50))

    def test_onoff_keeps_off_empty(self):
        due = self.take("onoff 60 250 500", 45)
        self.assertEqual(len([t for t in due if 0.5 < t <= 0.7500001]), 15)
        self.assertFalse([t for t in due if t <= 0.5 or 0.7500001 < t <= 1.25])

    def test_a_block_has_whole_bursts(self):
        due = self.take("onoff 60 250 500", 200)
        for late in (0, 0.05, 0.19):  # the schedule starts after the block
            begin = scene.HEAD_S - late
            inside = [t for t in due if begin <= t < begin + pairs.BLOCK_S[20]]
            self.assertEqual(len(inside), 75)
            self.assertGreater(inside[0] - begin, 0.25)
            self.assertGreater(begin + pairs.BLOCK_S[20] - inside[-1], 0)

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

    says, waits = "torch", False

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

    def parts_us(self, n):
        return [(900.0, 80.0), (800.0, 90.0), (1000.0, 70.0)][:n]

    def kernel_time_us(self, n):
        return 900.0, 12.0

    def pace(self, wanted_ms):
        return 1.0, wanted_ms

    def serve(self, token, submitted=lambda: None):
        submitted()
        time.sleep(0.001)

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
            os.close(self.worker.out_fd)  # unblocks the reader

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
        self.tell("parts 3")
        self.tell("pace 9")
        self.tell("kerneltime 3")
        lines = self.finish()
        self.assertEqual(lines[0], "R")
        self.assertEqual(lines.count("P"), 2)
        self.assertIn("U model", lines)
        self.assertIn("G 1000.0 1000.0", lines)
        self.assertIn("H 900.0 80.0", lines)
        self.assertIn("M 1.000 9.000", lines)
        self.assertIn("K 900.0 12.0", lines)
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
            self.assertGreaterEqual(s, e)  # intervals between completions do not overlap
        self.assertGreater(self.backend.checks, 0)


    def test_serve_has_the_first_token_and_the_last(self):
        self.tell("serve 50 1-1")
        time.sleep(0.6)
        lines = self.finish()
        found = [tuple(map(int, x.split()[1:])) for x in lines if x[0] == "T"]
        self.assertGreater(len(found), 5)
        firsts = {int(x.split()[1]): tuple(map(int, x.split()[2:])) for x in lines if x[0] == "I"}
        for due, first, end, tokens in found:
            answered, begun, submitted, done = firsts[due]
            self.assertEqual((answered, done), (first, first))
            self.assertTrue(due <= begun <= submitted <= first - 1_000_000)
            self.assertGreaterEqual(end - first, (tokens - 1) * 1_000_000)


class Cores(unittest.TestCase):
    PROGRAM = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
import worker
every, done = os.sched_getaffinity(0), threading.Event()
core = max(every)
made = []
def make():
    made.append(threading.Thread(target=done.wait, daemon=True))
    made[-1].start()
def masks():
    return [os.sched_getaffinity(0) == {core}] + [core in os.sched_getaffinity(t.native_id) or not os.sched_getaffinity(t.native_id) for t in made]
make()
worker.keep_core(core, every - {core})
first = masks()
make()
inherited = masks()[-1]
worker.keep_core(core, every - {core})
print(first, inherited, masks())
"""

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one core")
    def test_the_main_thread_has_its_own(self):
        r = subprocess.run([sys.executable, "-B", "-c", self.PROGRAM, os.path.dirname(os.path.abspath(__file__))],
                           capture_output=True, text=True, timeout=20)
        self.assertEqual(r.stdout.strip(), "[True, False] True [True, False, False]", r.stderr)


class CpuTime(unittest.TestCase):
    def test_a_busy_process_uses_its_time(self):
        busy = subprocess.Popen([sys.executable, "-c", "import time; t = time.process_time\nwhile t() < 0.3: pass\nprint(flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
        try:
            busy.stdout.readline()
            found = processes.Proc.cpu_ms(types.SimpleNamespace(pid=busy.pid))
        finally:
            busy.kill()
            busy.communicate()
        self.assertTrue(280 <= found < 1000, found)
        self.assertEqual(processes.Proc.cpu_ms(types.SimpleNamespace(pid=busy.pid)), 0)


class FakeRig:
    scale = 1.0

    def stolen_s(self):
        return None


class FakeProgram:
    """Every request takes 1 ms; the schedule starts 3 ms after the command."""
    shim = False

    def __init__(self):
        self.samples, self.parts, self.tokens, self.told = [], {}, {}, []

    def alive(self):
        return True

    def tell(self, line):
        self.pause()
        self.told.append(line)
        begin, step = time.monotonic_ns() + 3_000_000, 1_000_000
        offsets = itertools.islice(worker.arrivals(line.split()), 40) if line != "loop" else (i / 1000 for i in range(2000))
        self.samples += [(begin + int(t * 1e9), begin + int(t * 1e9) + step) for t in offsets]

    def pause(self):
        now = time.monotonic_ns()
        self.samples = [s for s in self.samples if s[0] < now]


class Scenes(unittest.TestCase):
    def test_blocks_have_equal_requests_and_neighbours_are_compared(self):
        high, low = FakeProgram(), FakeProgram()
        modes = pairs.mps_modes({"alone": 0.4, "mps": 0.1, "mps-priority": 0.4, "low alone": 0.05}, [0], [0])
        s = scene.Scene(FakeRig(), "x, under MPS", high, [low], modes, 20, block_s=0.1)
        r = s.run()
        self.assertEqual([w.end - w.start for w in s.windows("alone")], [100_000_000] * 4)  # independent of wake-up latency
        self.assertEqual(r["block_requests"], {"alone": [2] * 4, "mps": [2], "mps-priority": [2] * 4})
        plan = [(m.name, m.seconds) for m in modes]
        self.assertEqual(r["order"], stats.schedule(plan, 0.1, 1, ("alone", "mps", "mps-priority")))
        self.assertNotEqual(r["order"], stats.schedule(plan, 0.1, 1))
        self.assertEqual(r["modes"]["mps-priority"]["p99_compared"]["ratio"], [1.0, 1.0])
        self.assertIsNone(r["modes"]["mps"]["p99_compared"])  # too few blocks
        self.assertEqual(r["modes"]["mps-priority"]["p95_to_alone"], 1.0)
        self.assertEqual(high.told, ["rate 20"] * 9)
        self.assertAlmostEqual(r["modes"]["mps"]["low"]["kept"], 1.0, delta=0.05)


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
        for key in ("tenants", "eight"):
            self.assertIn(key, LATENCY)
        for name, (_, _, _, arrivals, seconds, _) in pairs.MODELS.items():
            for key in arrivals:
                self.assertIn(key, LATENCY)
            hz, block_s = pairs.MODELS[name][2], pairs.BLOCK_S[pairs.MODELS[name][2]]
            self.assertAlmostEqual(hz * block_s, round(hz * block_s))  # otherwise blocks differ by one request
            for mode, s in seconds.items():
                self.assertTrue(mode == "low alone" or (s / block_s).is_integer(), (name, mode))
            self.assertEqual(seconds["alone"], seconds["live"])
            self.assertGreaterEqual(hz * seconds["alone"], 300 if hz == 10 else 600)

    def test_suites_of_models_fit_one_call(self):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "README.md")) as f:
            calls = [suite.arguments(line.split()[1:]) for line in f if re.match(r"    test/gpu/run.sh out/\d", line)]
        rows = set()
        for a in calls:  # those of the README
            names, mps = [n for n in a.suites if n in pairs.MODELS], not a.no_mps
            need = sum(suite.SUITES[n][1] * a.scale for n in a.suites if n in suite.SUITES) + sum(pairs.model_seconds(n, mps, a.scale) for n in names)
            need += pairs.LOAD_S * (1 + mps) if names else 0
            self.assertLessEqual(need, a.budget, a)
            self.assertLessEqual(a.budget, 570)
            chosen, left = inference.plan([n for n in a.suites if n in inference.SUITES], a.budget - need, a.only, mps, a.scale)
            self.assertFalse(left, a)
            rows |= {inference.key(r) for r in chosen}
        self.assertLessEqual(set(pairs.MODELS) | set(inference.SUITES), {n for a in calls for n in a.suites})
        self.assertEqual({inference.key(r) for r in inference.ALL} - rows, {"serve/three"})
        self.assertLess(pairs.model_seconds("test4", False), pairs.model_seconds("test4", True))
        self.assertLess(pairs.model_seconds("test4", False, 0.5), 0.6 * pairs.model_seconds("test4", False))

    def test_a_high_gets_a_core_of_its_own(self):
        r = rig.Rig.__new__(rig.Rig)
        r.cores, r.virtual, said = rig.cpu_sets(16), False, []
        r.worker = lambda name, argv, priority, **kw: said.append(argv)
        r.torch("high", ["m"], 10)
        r.torch("mps-high", ["m"], None, role="high")
        r.torch("low1", ["m"], 0)
        r.cores = {}
        r.torch("high", ["m"], 10)
        self.assertEqual([a[a.index("--core") + 1] if "--core" in a else None for a in said], ["5", "5", None, None])


if __name__ == "__main__":
    unittest.main()
