# SPDX-License-Identifier: Apache-2.0
import unittest

import stopcost
import uploads

MS = 1000 * 1000


def case(**more):
    c = {"case": "HtoDAsync", "memory": "pageable", "bytes": 4096, "copies": 1, "waits": 1, "gap_us": 0, "n": 30, "begin": 0, "end": 100 * MS, "mode": "native",
         "p50_us": 1, "p99_us": 2}
    c.update(more)
    c["name"] = uploads.name(c)
    return c


class Uploads(unittest.TestCase):
    def test_cost(self):
        """30 requests in 100 ms that make iterations of 20 ms take 22 take (2/22) x 100 ms from the job, 303 us each."""
        idle = case(case="idle", memory="-", iteration_ms=20.0)
        first, second = uploads.added([idle, case(iteration_ms=22.0)])
        self.assertEqual(first["cost_us"], 0)
        self.assertEqual(second["cost_us"], 303.0)
        self.assertEqual(second["job_kept"], 0.9091)

    def test_other_mode(self):
        """Without an idle case of the same mode there is no cost."""
        found = uploads.added([case(case="idle", memory="-", iteration_ms=20.0), case(mode="live", iteration_ms=30.0)])
        self.assertNotIn("cost_us", found[1])

    def test_iterations(self):
        samples = [(i * 20 * MS, (i + 1) * 20 * MS) for i in range(10)]
        self.assertEqual(uploads.iteration_ms(samples, 10 * MS, 90 * MS), 20)
        self.assertIsNone(uploads.iteration_ms(samples, 10 * MS, 70 * MS))  # only two are whole

    def test_names(self):
        self.assertEqual(case(copies=2, gap_us=50, waits=2)["name"], "HtoDAsync pageable 4 KB, two 50 us apart, two waits")


class StopCost(unittest.TestCase):
    def test_refused(self):
        """A control that the driver refuses has its status instead of a time."""
        row = {"case": "preempt", "busy": True, "beside": "alone", "channels": 0, "calls": 0, "status": "0x56", "stop_p50_ms": 0.1, "stop_p99_ms": 0.2,
               "enable_p50_ms": 0, "stop_cpu_p50_ms": 0, "stops": 0, "of": 3}
        shown = stopcost.shown([row])
        self.assertEqual(shown[0]["kernel_alone_ms"], "0x56")
        self.assertIsNone(shown[0]["enable_ms"])


if __name__ == "__main__":
    unittest.main()
