# SPDX-License-Identifier: Apache-2.0
import os
import sys
import unittest
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import report
import suite


def scenario(ok=True):
    high = {"n": 320, "mean_ms": 3.0, "p50_ms": 3.0, "p95_ms": 4.0, "p99_ms": 4.2, "max_ms": 5.0, "p99_interval_ms": [4.0, 4.6]}
    return {"name": "test4", "arrivals": "rate 20", "gpu_ms": 2.9, "low_alone_rates": [7.5],
            "noise": {"blocks": 4, "p50_ms": [3.0, 3.1], "p99_ms": [4.0, 4.4]},
            "modes": {"alone": {"high": high, "p99_to_alone": 1.0},
                      "live": {"high": high, "p99_to_alone": 1.0, "low": {"kept": 0.92, "kept_of_ideal": 0.99, "rates": [6.9]},
                               "evidence": {"preemptions": 300, "suspends": 300}}},
            "raw_us": {"alone": [3000, 3100, 4200], "live": [3000, 3300, 4100]},
            "proof": [{"name": "shim intercepts <&>", "ok": ok, "detail": "12345 launches" if ok else "0 launches"}],
            "verdicts": [{"what": "high P99 / alone", "value": 1.0, "limit": 1.1, "at_most": True, "unit": "x", "ok": True}]}


def results(**suites):
    return {"machine": {"device": "NVIDIA H200", "cpus": 16, "kernel": "6", "started_unix": 0}, "command": "test/gpu/run.sh OUT", "seconds": 10,
            "suites": {n: suite.concluded(s, 5) for n, s in suites.items()}}


class Conclusions(unittest.TestCase):
    def status(self, r):
        return suite.concluded(r, 1)["status"]

    def test_status(self):
        self.assertEqual(self.status({"scenarios": [scenario()]}), "OK")
        self.assertEqual(self.status({"scenarios": [scenario(ok=False)]}), "FAILED")
        self.assertEqual(self.status({"error": "died"}), "FAILED")
        self.assertEqual(self.status({"verdicts": []}), "FAILED")  # no proof at all
        good = [{"name": "p", "ok": True, "detail": ""}]
        self.assertEqual(self.status({"proof": good, "verdicts": [dict(scenario()["verdicts"][0], ok=False)]}), "MISSED")
        self.assertEqual(self.status({"proof": good, "checks": [{"name": "c", "ok": False, "detail": "d"}]}), "MISSED")
        self.assertEqual(self.status({"proof": good, "incomplete": True, "notes": ["no --share"]}), "INCOMPLETE")


class Pages(unittest.TestCase):
    def test_a_proven_suite_is_compared(self):
        m = report.merge([results(test4={"scenarios": [scenario()]})])
        text = report.markdown(m, prefix="h200-")
        for want in ("## test4", "4.200 (4.00-4.60)", "92.0 %", "99.0 %", "![latency of test4](h200-test4.svg)", "12345 launches", "met"):
            self.assertIn(want, text)
        self.assertIn("live", report.summary(m))

    def test_a_suite_without_proof_shows_no_numbers(self):
        m = report.merge([results(test4={"scenarios": [scenario(ok=False)]})])
        for text in (report.markdown(m), report.summary(m), report.html(m)):
            self.assertIn("FAILED", text)
            self.assertNotIn("4.200", text)
            self.assertNotIn("92.0", text)

    def test_merge_takes_the_last_that_ran(self):
        skipped = results()
        skipped["suites"]["test4"] = {"status": "SKIPPED", "why": "no time", "seconds": 0}
        m = report.merge([results(test4={"scenarios": [scenario()]}), skipped])
        self.assertEqual(m["suites"]["test4"]["status"], "OK")
        self.assertEqual(len(m["commands"]), 2)

    def test_pictures_are_well_formed(self):
        root = ET.fromstring(report.cdf("a <b> & c", {"alone": [1.0, 2.0, 3.0], "live": [1.5, 0.0, 40.0], "x<y": [0.2]}))
        self.assertEqual(len(root.findall("{http://www.w3.org/2000/svg}polyline")), 3)
        self.assertEqual(report.cdf("nothing", {"alone": []}), "")

    def test_page_is_escaped(self):
        page = report.html(report.merge([results(test4={"scenarios": [scenario()]})]))
        self.assertIn("shim intercepts &lt;&amp;&gt;", page)
        self.assertNotIn("http://", page.replace("http://www.w3.org/2000/svg", ""))


if __name__ == "__main__":
    unittest.main()
