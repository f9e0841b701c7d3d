# SPDX-License-Identifier: Apache-2.0
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import serving
import suite


class Serving(unittest.TestCase):
    def example(self, **native):
        def mode(p50, p99, kept):
            return {"p50_ms": p50, "p99_ms": p99, "requests": 100, "refused": 0, "kept": kept, "latencies_ms": [p50, p99]}
        return {"backend": "pytorch", "modes": {"alone": mode(2.0, 3.0, None), "native": dict(mode(9.0, 20.0, 0.9), **native), "xsched": mode(2.5, 3.5, 0.85)},
                "proof": ["launches intercepted (by the shim): server 5, job 6", "results equal: 300 answers, 9 steps of the job"]}

    def test_numbers_and_proof_of_the_example(self):
        r = suite.concluded(serving.result(self.example()), 1)
        self.assertEqual(r["status"], "OK")
        self.assertEqual(r["rows"]["serving"][2], {"mode": "xsched", "p50_ms": 2.5, "p99_ms": 3.5, "requests": 100, "refused": 0, "kept": 0.85})
        self.assertEqual(r["raw_us"]["native"], [9000, 20000])
        self.assertIn("native P50 9.00 ms, P99 20.00 ms, job keeps 90.0 %", r["checks"][0]["detail"])
        self.assertEqual(r["proof"][1], {"name": "results equal", "ok": True, "detail": "300 answers, 9 steps of the job"})

    def test_a_percentile_of_refused_requests(self):
        r = serving.result(self.example(p99_ms=float("inf"), refused=3))
        self.assertIsNone(r["rows"]["serving"][1]["p99_ms"])
        self.assertIn("P99 refused", r["checks"][0]["detail"])

    def test_without_proof_there_is_no_result(self):
        self.assertEqual(suite.concluded(serving.result(dict(self.example(), proof=[])), 1)["status"], "FAILED")


if __name__ == "__main__":
    unittest.main()
