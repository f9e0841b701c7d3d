# SPDX-License-Identifier: Apache-2.0
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import stats
import targets
from stats import Block, Window

MS = 1_000_000


class Percentiles(unittest.TestCase):
    def test_nearest_rank(self):
        values = list(range(100, 0, -1))
        for q, want in ((0, 1), (0.001, 1), (0.5, 50), (0.95, 95), (0.99, 99), (0.995, 100), (1, 100)):
            self.assertEqual(stats.percentile(values, q), want)
        self.assertEqual(stats.percentile([], 0.99), 0)
        self.assertEqual(stats.percentile([7], 0.99), 7)

    def test_summary(self):
        s = stats.summarize([3.0, 1.0, 2.0])
        self.assertEqual((s["n"], s["p50_ms"], s["p99_ms"], s["max_ms"], s["mean_ms"]), (3, 2.0, 3.0, 3.0, 2.0))
        self.assertIsNone(s["p99_interval_ms"])  # too few samples
        self.assertIsNone(stats.summarize([]))

    def test_interval_holds_the_p99(self):
        values = [i / 100 for i in range(300)]
        low, high = stats.p99_interval(values)
        self.assertLessEqual(low, stats.percentile(values, 0.99))
        self.assertGreaterEqual(high, stats.percentile(values, 0.99))
        self.assertEqual([low, high], stats.p99_interval(values))  # deterministic

    def test_blocks_are_resampled_together(self):
        # Noise that lasts for a block and its neighbour does not affect the ratio.
        spells = [1.0, 5.0, 2.0, 9.0, 1.5, 3.0]
        alone = [[s * (1 + i / 1000) for i in range(75)] for s in spells]
        got = stats.compared(alone, [[1.1 * v for v in b] for b in alone])
        self.assertEqual(got["ratio"], [1.1, 1.1])
        self.assertLess(got["more_ms"][0], got["more_ms"][1])
        low, high = stats.compared(alone, [[1.1 * v for v in b] for b in alone[:4]])["ratio"]  # no neighbours
        self.assertLess(low, 1)
        self.assertGreater(high, 1.1)
        # One bad block of ten makes the tail: the interval includes the ratio without it.
        low, high = stats.compared([[1.0] * 75] * 10, [[1.0] * 75] * 9 + [[1.0] * 60 + [2.0] * 15])["ratio"]
        self.assertEqual((low, high), (1.0, 2.0))
        self.assertIsNone(stats.compared(alone[:3], alone))
        self.assertIsNone(stats.compared(alone[:3] + [[]], alone))

    def test_pairs_are_compared_with_their_neighbour(self):
        drift = [100.0 * 1.05 ** i for i in range(20)]  # drift far above the searched difference
        more, (low, high) = stats.paired([(v, v * 1.02) for v in drift])
        self.assertAlmostEqual(more, 0.02)
        self.assertLessEqual(low, more)
        self.assertGreaterEqual(high, more)
        spoilt = [(100.0, 101.0)] * 15 + [(100.0, 300.0), (400.0, 101.0)]  # a few disturbed blocks
        self.assertAlmostEqual(stats.paired(spoilt)[0], 0.01)
        low, high = stats.paired([(100.0, 100.0 + i) for i in range(-5, 6)])[1]
        self.assertLess(low, 0)
        self.assertGreater(high, 0)
        self.assertEqual(stats.paired([(1, 1)] * 4), (None, None))  # too few samples
        self.assertEqual(stats.paired([(0, 1)] * 40), (None, None))

    def test_median(self):
        self.assertEqual(stats.median([3, 1, 2]), 2)
        self.assertEqual(stats.median([4, 1, 2, 3]), 2.5)


class Splitting(unittest.TestCase):
    def test_latency_is_the_sum(self):
        p = stats.split(due=0, begun=1 * MS, submitted=4 * MS, done=9 * MS, end=10 * MS)
        self.assertEqual((p.cpu_ms, p.device_ms), (5.0, 5.0))

    def test_cpu_stall_counts_as_cpu_time(self):
        before = stats.split(0, 10 * MS, 0, 4 * MS, 10 * MS)
        late = stats.split(0, 20 * MS, 0, 19 * MS, 20 * MS)  # 15 ms lost while submitting
        self.assertEqual(late.cpu_ms, 19)
        self.assertLess(late.device_ms, before.device_ms)

    def test_device_wait_counts_as_device_time(self):
        self.assertEqual(stats.split(0, 30 * MS, 0, 4 * MS, 30 * MS), stats.Parts(4.0, 26.0, 0.0, 4.0))

    def test_clocks_that_disagree_a_little(self):
        self.assertEqual(stats.split(0, 10 * MS, 0, 4 * MS, 3 * MS).device_ms, 0)
        self.assertEqual(stats.split(0, 10 * MS, 0, 4 * MS, 11 * MS).device_ms, 6)

    def test_only_inside_the_windows(self):
        parts = {0: (10 * MS, 0, 4 * MS, 9 * MS), 50 * MS: (90 * MS, 50 * MS, 51 * MS, 89 * MS)}
        got = stats.parts_of(parts, [Window(0, 20 * MS)])
        self.assertEqual((got["device"]["max_ms"], got["cpu"]["max_ms"]), (5.0, 5.0))
        self.assertIsNone(stats.parts_of(parts, [Window(20 * MS, 30 * MS)]))


class Windows(unittest.TestCase):
    blocks = [Block("native", 0, 1000 * MS), Block("live", 1000 * MS, 2000 * MS), Block("native", 2000 * MS, 2100 * MS)]

    def test_edges_are_dropped(self):
        ws = stats.windows(self.blocks, "native", 100 * MS, 50 * MS)
        self.assertEqual(ws, [Window(100 * MS, 950 * MS)])  # the last block is too short to count

    def test_requests_belong_to_the_block_they_were_due_in(self):
        ws = stats.windows(self.blocks, "native", 100 * MS, 50 * MS)
        samples = [(99 * MS, 101 * MS), (100 * MS, 101 * MS), (949 * MS, 1200 * MS), (950 * MS, 951 * MS), (1500 * MS, 1501 * MS)]
        self.assertEqual(stats.latencies_ms(samples, ws), [1.0, 251.0])

    def test_iterations_count_fractions_at_the_edges(self):
        ws = [Window(100, 200), Window(400, 500)]
        samples = [(0, 50), (80, 120), (120, 160), (160, 240), (300, 400), (350, 550), (500, 600), (5, 5)]
        self.assertAlmostEqual(stats.iterations(samples, ws), 2.5)
        self.assertAlmostEqual(stats.rate(samples, ws), 2.5 / 200e-9, delta=1)
        self.assertEqual(stats.rate(samples, []), 0)

    def test_kept_is_the_sum_over_the_lows(self):
        ws = [Window(0, 1_000_000_000)]
        a = [(i * 100 * MS, (i + 1) * 100 * MS) for i in range(10)]  # 10/s
        b = [(i * 250 * MS, (i + 1) * 250 * MS) for i in range(4)]   # 4/s
        self.assertAlmostEqual(stats.kept([a, b], [20, 16], ws), 0.75)
        self.assertIsNone(stats.kept([a], [0], ws))

    def test_completions(self):
        self.assertEqual(stats.completions([(0, 10), (2, 20), (4, 30)]), [(10, 20), (20, 30)])
        self.assertEqual(stats.completions([(0, 10)]), [])

    def test_ideal(self):
        self.assertAlmostEqual(stats.ideal_kept(20, 9.6), 0.8)
        self.assertEqual(stats.ideal_kept(1000, 9), 0)

    def test_noise_is_per_block(self):
        blocks = [Block("alone", 0, 100), Block("live", 100, 200), Block("alone", 200, 300)]
        samples = [(10, 10 + MS), (210, 210 + 3 * MS), (110, 110 + 9 * MS)]
        n = stats.noise(samples, blocks, "alone", 0, 0)
        self.assertEqual((n["blocks"], n["p50_ms"], n["p99_ms"]), (2, [1.0, 3.0], [1.0, 3.0]))
        self.assertIsNone(stats.noise([], blocks, "alone", 0, 0))


class Schedule(unittest.TestCase):
    def test_every_mode_has_its_blocks_spread_over_the_rounds(self):
        modes = [("alone", 16), ("native", 16), ("live", 16), ("suspend", 8), ("low alone 0", 4)]
        order = stats.schedule(modes, 4, 1)
        self.assertEqual({m: order.count(m) for m, _ in modes}, {"alone": 4, "native": 4, "live": 4, "suspend": 2, "low alone 0": 1})
        self.assertEqual(order, stats.schedule(modes, 4, 1))
        self.assertNotEqual(order, stats.schedule(modes, 4, 2))
        first = order[:len(order) // 2]
        self.assertEqual(first.count("suspend"), 1)
        self.assertEqual(first.count("alone"), 2)

    def test_compared_modes_are_neighbours(self):
        modes = [("alone", 32), ("native", 12), ("live", 32), ("suspend", 8), ("level1", 4), ("low alone 0", 2)]
        order = stats.schedule(modes, 4, 3, ("alone", "native", "live"))
        for a, b in zip([i for i, m in enumerate(order) if m == "alone"], [i for i, m in enumerate(order) if m == "live"]):
            self.assertLessEqual(abs(a - b), 2)
            self.assertTrue(abs(a - b) == 1 or order[(a + b) // 2] == "native")
        self.assertEqual(order.count("native"), 3)
        firsts = [next(m for m in stats.schedule(modes, 4, seed, ("alone", "live")) if m in ("alone", "live")) for seed in range(20)]
        self.assertEqual(set(firsts), {"alone", "live"})  # random order
        at = order.index("level1")  # a single block is in the middle
        self.assertTrue(len(order) / 4 < at < 3 * len(order) / 4)

    def test_short_modes_get_one_block(self):
        self.assertEqual(stats.schedule([("a", 0.1)], 4, 1), ["a"])
        self.assertEqual(stats.schedule([("a", 0)], 4, 1), [])


class Verdicts(unittest.TestCase):
    def modes(self, p99, kept, n=320):
        return {"alone": {"high": {"p99_ms": 4.0, "n": n}}, "live": {"high": {"p99_ms": p99, "n": n}, "low": {"kept_of_ideal": kept}}}

    def test_ratio(self):
        self.assertTrue(all(v["ok"] for v in targets.judge("test4", self.modes(4.4, 0.97))))
        self.assertEqual([v["ok"] for v in targets.judge("test4", self.modes(4.5, 0.96))], [False, False, True])

    def test_distance(self):
        self.assertTrue(targets.judge("micro/1 low", self.modes(4.29, 0.99))[0]["ok"])
        self.assertFalse(targets.judge("micro/1 low", self.modes(4.31, 0.99))[0]["ok"])

    def test_few_requests_miss(self):
        self.assertFalse(targets.judge("test4", self.modes(4.0, 1.0, n=299))[-1]["ok"])

    def test_value_decides_and_noise_is_marked(self):
        for p99, interval, ok, noise in ((4.3, [0.98, 1.2], True, True), (4.5, [0.98, 1.2], False, True),
                                         (4.3, [1.0, 1.09], True, False), (4.9, [1.15, 1.4], False, False)):
            modes = self.modes(p99, 1.0)
            modes["live"]["p99_compared"] = {"ratio": interval, "more_ms": [0, 9]}
            v = targets.judge("test4", modes)[0]
            self.assertEqual((v["ok"], v["within_noise"], v["interval"]), (ok, noise, interval))
        self.assertNotIn("within_noise", targets.judge("test4", self.modes(4.0, 1.0))[0])  # unknown without an interval
        modes["live"]["p99_compared"]["more_ms"] = [0.2, 0.4]
        self.assertTrue(targets.judge("micro/1 low", modes)[0]["within_noise"])

    def test_missing_values_miss(self):
        self.assertFalse(targets.judge("test4", self.modes(4.0, None))[1]["ok"])
        self.assertEqual(targets.judge("test4", {"alone": {"high": None}}), [])
        self.assertFalse(stats.verdict("x", None, 1, True)["ok"])


if __name__ == "__main__":
    unittest.main()
