# SPDX-License-Identifier: Apache-2.0
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import truth

US = 1000


def us(*pairs):
    return [(a * US, b * US) for a, b in pairs]


class Truth(unittest.TestCase):
    def test_a_request_in_a_stopped_kernel(self):
        low = (us((0, 20000), (20005, 40000)), us((5000, 5490), (30000, 30400)))
        high = (us((5200, 5290), (30200, 30290)), [])
        r = truth.judge(high, [low])
        self.assertEqual((r["requests"], r["in_a_stopped_low_kernel"], r["low_stops"], r["both_at_once_us"]), (2, 2, 2, 0))
        self.assertEqual((r["low_stop_to_high_us"], r["high_end_to_low_us"], r["lost_a_request_us"]), (200, 155, 355))

    def test_two_owners_are_noticed(self):
        low = (us((0, 20000)), [])  # never stopped
        r = truth.judge((us((5000, 5090)), []), [low])
        self.assertEqual(r["in_a_stopped_low_kernel"], 0)
        self.assertEqual(r["both_at_once_us"], 84)  # 90 less the slack

    def test_a_request_between_kernels_is_in_no_stopped_one(self):
        low = (us((0, 20000), (20600, 40000)), [])
        r = truth.judge((us((20200, 20290)), []), [low])
        self.assertEqual((r["in_a_stopped_low_kernel"], r["both_at_once_us"]), (0, 0))

    def test_on_chip_is_without_the_jumps(self):
        self.assertEqual(truth.on_chip(us((0, 100), (110, 200)), us((40, 60), (150, 160))),
                         us((0, 40), (60, 100), (110, 150), (160, 200)))

    def test_only_what_is_new(self):
        answers, seen = {"K": [["1", "2"]], "O": []}, {}
        self.assertEqual(truth.parse(answers, seen), ([(1, 2)], []))
        answers["K"].append(["3", "4"])
        answers["O"].append(["3", "4"])
        self.assertEqual(truth.parse(answers, seen), ([(3, 4)], [(3, 4)]))

    def test_nothing_seen(self):
        self.assertIsNone(truth.judge(([], []), []))


if __name__ == "__main__":
    unittest.main()
