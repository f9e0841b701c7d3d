# SPDX-License-Identifier: Apache-2.0
import random
import unittest

import launches


class Launches(unittest.TestCase):
    def test_summary(self):
        """Pairs that vary by 1 % tell 0.3 % with an interval below 0.2 points, as many as the suite measures."""
        rng = random.Random(1)
        pairs = [[a, a * 1.003 * rng.uniform(0.99, 1.01)] for a in (rng.uniform(2000, 4000) for _ in range(430))]
        rows, verdicts = launches.summary({case: pairs for case in launches.CASES})
        self.assertEqual([r["what"] for r in rows], [label for label, _ in launches.CASES.values()])
        self.assertAlmostEqual(rows[0]["more_%"], 0.3, delta=0.1)
        self.assertTrue(all(v["ok"] for v in verdicts))
        low, high = verdicts[0]["interval"]
        self.assertLess(high - low, 0.002)

    def test_missed(self):
        """A loop that is 0.7 % slower misses its target, threads that are do not."""
        _, verdicts = launches.summary({case: [[1000.0, 1007.0]] * 100 for case in launches.CASES})
        self.assertEqual([v["ok"] for v in verdicts], [False, True, True, True])


if __name__ == "__main__":
    unittest.main()
