# SPDX-License-Identifier: Apache-2.0
import itertools
import unittest

import queueing
import worker

ARRIVALS = "serve 14 SEED"


class Queueing(unittest.TestCase):
    def test_a_prompt_without_a_queue_takes_its_own_time(self):
        self.assertEqual({round(v, 6) for v in queueing.first_tokens([5.0], 0.0, "rate 10", blocks=3)}, {5.0})

    def test_the_next_request_waits_for_all_tokens(self):
        """A request every 100 ms, and each takes more than that: every one begins when the one before has ended."""
        got = queueing.first_tokens([90.0], 20.0, "rate 10", blocks=1)
        counts = list(itertools.islice(worker.token_counts(["rate", "10"]), len(got)))
        free = 0.0
        for i, (value, count) in enumerate(zip(got, counts), 1):
            begun = max(100.0 * i, free)
            self.assertAlmostEqual(value, begun + 90 - 100 * i, places=6)
            free = begun + 90 + 20 * (count - 1)

    def test_equal_prompts_have_equal_ratios(self):
        blocks = [[12.0 + (i % 7)] * 8 for i in range(40)]
        for value, (low, high) in queueing.ratios(blocks, blocks, 2.75, 2.75, ARRIVALS):
            self.assertEqual((value, low, high), (1.0, 1.0, 1.0))

    def test_a_queue_multiplies_what_a_prompt_costs_more(self):
        alone = [[14.0 + (i % 9)] * 8 for i in range(40)]
        slower = [[v * 1.1 for v in b] for b in alone]
        p50, p99 = (value for value, _ in queueing.ratios(alone, slower, 2.75, 2.75, ARRIVALS))
        self.assertGreater(p50, 1.08)
        self.assertGreater(p99, p50)
        self.assertLess(p99, 1.4)

    def test_only_requests_with_a_neighbour_count(self):
        self.assertEqual(queueing.rounds([[1, 2, 3], [4]], [[5, 6], [7, 8]]), [[(1, 5), (2, 6)], [(4, 7)]])
        self.assertEqual(queueing.added([[1, 2], [3]], [[10, 20], [30]]), [[11, 22], [33]])


if __name__ == "__main__":
    unittest.main()
