# SPDX-License-Identifier: Apache-2.0
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import grids
import scene
import stats
import suite


class Ranks(unittest.TestCase):
    def test_equal_values_share_their_rank(self):
        self.assertEqual(stats.ranks([30, 10, 20, 20]), [4, 1, 2.5, 2.5])

    def test_known_correlations(self):
        x = [1, 2, 3, 4, 5]
        self.assertEqual(stats.spearman(x, [1, 10, 100, 1000, 10000]), 1)  # ranks, not values
        self.assertEqual(stats.spearman(x, [5, 4, 3, 2, 1]), -1)
        self.assertEqual(stats.spearman([106, 100, 86, 101, 99, 103, 97, 113, 112, 110], [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]), -0.1758)
        self.assertEqual(stats.spearman([1, 1, 2, 2], [1, 2, 1, 2]), 0)
        self.assertIsNone(stats.spearman(x, [7] * 5))


class Grids(unittest.TestCase):
    def scenario(self, native_ms, live_ms, kept):
        def mode(p99, part):
            return {"high": {"p99_ms": p99, "n": 500}, "low": {"kept": part}, "evidence": {"suspends": 3, "timeslice_sets": 2, "preemptions": 5}}
        return {"modes": {"native": mode(native_ms, 0.99), "live": mode(live_ms, kept)}}

    def rows(self, gain):
        """gain(grid, length) in ms for all pairs."""
        return [grids.row_of(self.scenario(1 + gain(g, n), 1, 0.95), g, n) for g in grids.GRIDS for n in grids.LENGTHS_US]

    def test_gain_and_cost(self):
        row = grids.row_of(self.scenario(4.5, 0.5, 0.9), 132, 5000)
        self.assertEqual((row["grid"], row["kernel_us"], row["gain_ms"], row["cost"], row["suspends"]), (132, 5000, 4.0, 0.09, 3))

    def test_the_design_separates_the_signals(self):
        for gain, text in ((lambda g, n: n / 1000, "grid size +0.00, with kernel length +1.00: kernel length predicts it"),
                           (lambda g, n: g / 1000, "grid size +1.00, with kernel length +0.00: grid size predicts it"),
                           (lambda g, n: g * n / 1e6, "grid size and kernel length predict it"),
                           (lambda g, n: (grids.GRIDS.index(g) * 7 + grids.LENGTHS_US.index(n) * 5) % 4, "neither predicts it"),
                           (lambda g, n: 2, "no answer")):
            self.assertIn(text, grids.answer(grids.correlations(self.rows(gain))))

    def test_costs_are_correlated_too(self):
        found = grids.correlations(self.rows(lambda g, n: n))
        self.assertEqual([(f["what"], f["with"]) for f in found], [("gain_ms", "grid"), ("gain_ms", "kernel_us"), ("cost", "grid"), ("cost", "kernel_us")])
        self.assertIsNone(found[2]["spearman"])

    def test_the_suite_fits_into_its_time(self):
        per_cell = scene.wall_s(scene.xsched_modes(grids.SECONDS, 1), grids.BLOCK_S) + 1.5  # start and calibration
        self.assertLess(len(grids.GRIDS) * len(grids.LENGTHS_US) * per_cell, suite.SUITES["grids"][1])
        self.assertLessEqual(suite.SUITES["grids"][1], 240)


if __name__ == "__main__":
    unittest.main()
