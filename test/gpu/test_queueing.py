# SPDX-License-Identifier: Apache-2.0
import itertools
import unittest

import queueing
import worker
from queueing import Prompt

ARRIVALS = "serve 14 SEED"


def ratios(alone, ours, alone_token=2.75, token=2.75):
    return queueing.ratios(queueing.measured(alone, ours), alone_token, token, ARRIVALS)


def blocks(*submissions, wait=0.0):
    return [[Prompt(ms, wait)] * 8 for ms in submissions]


class Queueing(unittest.TestCase):
    def test_a_prompt_without_a_queue_takes_its_own_time(self):
        self.assertEqual({round(v, 6) for v in queueing.first_tokens([5.0], 0.0, "rate 10", blocks=3)}, {5.0})

    def test_the_next_request_waits_for_all_tokens(self):
        """A request every 100 ms, and each takes more than that: every one begins when the one before has ended."""
        got = queueing.first_tokens([90.0, 80.0], 20.0, "rate 10", blocks=1)
        dues = [100.0 * (i + 1) for i in range(30)]
        free, want = 0.0, []
        for due, count, prompt in zip(dues, worker.token_counts(["rate", "10"]), itertools.cycle([90.0, 80.0])):
            first = max(due, free) + prompt
            want.append(first - due)
            free = first + 20 * (count - 1)
        self.assertEqual([round(v, 6) for v in got], [round(v, 6) for v in want[1:]])  # the first one is due in the head

    def test_equal_prompts_have_equal_ratios(self):
        some = blocks(*[12.0 + i % 7 for i in range(40)])
        for value, (low, high) in ratios(some, some):
            self.assertEqual((value, low, high), (1.0, 1.0, 1.0))

    def test_a_queue_multiplies_what_a_prompt_costs_more(self):
        alone = [14.0 + i % 9 for i in range(40)]
        p50, p99 = (value for value, _ in ratios(blocks(*alone), blocks(*[v * 1.1 for v in alone])))
        self.assertGreater(p50, 1.08)
        self.assertGreater(p99, p50)
        self.assertLess(p99, 1.4)
        longer = [value for value, _ in ratios(blocks(*alone), blocks(*alone), token=5.5)]
        self.assertGreater(longer[1], 1.2)

    def test_rounds_are_resampled_in_a_row(self):
        """Alternating rounds hardly differ when five in a row are drawn. Drawn one by one, they would."""
        alone, ours = blocks(*[14.0] * 40), blocks(*[12.0, 16.0] * 20)
        (_, (low, high)), _ = ratios(alone, ours)
        self.assertLess(high - low, 0.08)
        (_, (low, high)), _ = ratios(alone, blocks(*[12.0] * 20 + [16.0] * 20))
        self.assertGreater(high - low, 0.12)

    def test_a_wait_follows_its_submission(self):
        """The k-th fastest prompts belong together, whenever they were measured."""
        alone = [[Prompt(10, 1), Prompt(30, 1)], [Prompt(20, 1)]]
        ours = [[Prompt(33, 7), Prompt(22, 8)], [Prompt(11, 9)]]
        self.assertEqual(queueing.with_equal_submission(alone, ours), [[(11, 19), (31, 37)], [(21, 28)]])
        self.assertEqual(queueing.measured(alone, ours), [[(11, 40), (31, 30)], [(21, 20)]])
        self.assertEqual(queueing.fastest(alone, 0.6), [[Prompt(10, 1)], [Prompt(20, 1)]])
        self.assertEqual(queueing.fastest(alone, 0.33), [[Prompt(10, 1)]])


if __name__ == "__main__":
    unittest.main()
