# SPDX-License-Identifier: Apache-2.0
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import watch


class Verdicts(unittest.TestCase):
    def test_waits(self):
        self.assertEqual(watch.waits([0.2, 0.4], [0.3]), [])
        self.assertEqual(watch.waits([90.0], [0.3]), [])
        self.assertIn("took 3001 ms", watch.waits([0.2, 3001.0], [0.3])[0])
        self.assertEqual(watch.waits([2950.0], [2900.0]), [])  # the driver itself waits
        self.assertEqual(watch.waits([], [0.3]), ["not measured"])

    def test_blind(self):
        self.assertEqual(watch.blind({"nvml": 180, "alloc": 101}, 200), [])
        self.assertEqual(watch.blind({"nvml": 0, "alloc": 200}, 200), ["nvml: 0 busy periods seen, 200 without"])
        self.assertIn("only 3", watch.blind({}, 3)[0])

    def test_watcher_of_nobody(self):
        self.assertEqual(watch.watcher(os.getpid()), "no thread")


if __name__ == "__main__":
    unittest.main()
