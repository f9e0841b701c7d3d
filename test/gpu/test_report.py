# SPDX-License-Identifier: Apache-2.0
import os
import sys
import unittest
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import report
import suite


def scenario(ok=True, name="test4", **more):
    high = {"n": 320, "mean_ms": 3.0, "p50_ms": 3.0, "p95_ms": 4.0, "p99_ms": 4.2, "max_ms": 5.0, "p99_interval_ms": [4.0, 4.6]}
    return dict({"name": name, "arrivals": "rate 20", "gpu_ms": 2.9, "low_alone_rates": [7.5],
            "noise": {"blocks": 4, "p50_ms": [3.0, 3.1], "p99_ms": [4.0, 4.4]},
            "modes": {"alone": {"high": high, "p99_to_alone": 1.0},
                      "live": {"high": high, "p99_to_alone": 1.0, "low": {"kept": 0.92, "kept_of_ideal": 0.99, "rates": [6.9]},
                               "evidence": {"preemptions": 300, "suspends": 300}}},
            "raw_us": {"alone": [3000, 3100, 4200], "live": [3000, 3300, 4100]},
            "proof": [{"name": "shim intercepts <&>", "ok": ok, "detail": "12345 launches" if ok else "0 launches"}],
            "verdicts": [{"what": "high P99 / alone", "value": 1.0, "limit": 1.1, "at_most": True, "unit": "x", "ok": True}]}, **more)


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

    def test_merge_takes_the_last_of_each_scenario(self):
        with_mps = results(test4={"scenarios": [scenario(), scenario(name="test4, under MPS")]}, burst={"scenarios": [scenario(name="burst")]})
        without = results(test4={"scenarios": [scenario(arrivals="rate 21")]})
        m = report.merge([with_mps, without])
        found = m["suites"]["test4"]["scenarios"]
        self.assertEqual([(s["name"], s["command"], s["arrivals"]) for s in found], [("test4", 2, "rate 21"), ("test4, under MPS", 1, "rate 20")])
        self.assertEqual(m["suites"]["burst"]["command"], 1)
        self.assertNotIn("command", without["suites"]["test4"]["scenarios"][0])  # what was measured is left as it is
        text = report.markdown(m)
        for want in ("1. `test/gpu/run.sh OUT`\n2. `test/gpu/run.sh OUT`", "**OK** (command 2, 5 s)", "Command 2; arrivals `rate 21`",
                     "#### test4, under MPS", "Command 1; arrivals `rate 20`", "## Every run",
                     "| test4 | 1 | 320 | 1.00x | 1.00x | - | - | 99.0 % |\n| test4 | 2 | 320 | 1.00x | 1.00x | - | - | 99.0 % |"):
            self.assertIn(want, text)
        self.assertNotIn("| burst | 1 |", text)  # what was measured once is below
        again = report.merge([with_mps, without, with_mps])["suites"]["test4"]["scenarios"]
        self.assertEqual([s["command"] for s in again], [3, 3])

    def test_alone_against_itself(self):
        same = scenario(block_requests={"alone": [2, 2, 2, 2]}, raw_us={"alone": [3, 4] * 4})
        self.assertEqual(report.halves(same), [1, 1])
        noisy = scenario(block_requests={"alone": [2, 2, 2, 2]}, raw_us={"alone": [3, 4, 3, 4, 3, 8, 3, 4]})
        self.assertEqual(report.halves(noisy), [0.5, 2])
        self.assertIsNone(report.halves(scenario()))

    def test_merge_keeps_nothing_beside_a_failure(self):
        good = results(test4={"scenarios": [scenario(), scenario(name="test4, under MPS")]})
        bad = results(test4={"scenarios": [scenario(ok=False)]})
        failed = report.merge([good, bad])["suites"]["test4"]
        self.assertEqual((failed["status"], len(failed["scenarios"])), ("FAILED", 1))
        self.assertEqual(len(report.merge([bad, good])["suites"]["test4"]["scenarios"]), 2)
        extra = dict(scenario(name="other"), proof=[{"name": "p", "ok": False, "detail": ""}])
        self.assertEqual(len(report.merge([results(test4={"scenarios": [extra]}), good])["suites"]["test4"]["scenarios"]), 2)

    def test_what_an_earlier_run_missed_stays_missed(self):
        missed = scenario(name="burst/on-off")
        missed["verdicts"] = [dict(missed["verdicts"][0], ok=False, value=1.3)]
        both = results(burst={"scenarios": [scenario(name="burst/poisson"), missed]})
        one = results(burst={"scenarios": [scenario(name="burst/poisson")]})
        s = report.merge([both, one])["suites"]["burst"]
        self.assertEqual(s["status"], "MISSED")
        self.assertIn("burst/on-off, by command 1: high P99 / alone 1.300", s["why"])
        self.assertEqual(one["suites"]["burst"]["status"], "OK")

    def test_noise_is_said_beside_the_verdict(self):
        s = scenario()
        s["modes"]["live"].update(p95_to_alone=1.02, p99_to_alone=1.13, p99_compared={"ratio": [0.98, 1.31], "more_ms": [-0.1, 1.2]})
        v = dict(s["verdicts"][0], value=1.13, ok=False, interval=[0.98, 1.31], within_noise=True)
        s["verdicts"] = [v, dict(v, value=1.07, ok=True), dict(v, value=1.4, interval=[1.2, 1.6], within_noise=False)]
        m = report.merge([results(test4={"scenarios": [s]})])
        text = report.markdown(m)
        for want in ("| 1.02x | 1.13x (0.98-1.31) |", "| 1.130 (0.98-1.31) x | <= 1.100 | **missed**, within noise |",
                     "| 1.070 (0.98-1.31) x | <= 1.100 | met, within noise |", "| 1.400 (1.20-1.60) x | <= 1.100 | **missed** |"):
            self.assertIn(want, text)
        self.assertIn("(must be <= 1.100, within noise)", report.summary(m))
        self.assertEqual(report.interval_text([-0.1, 0.3]), " (-0.10 to 0.30)")
        self.assertEqual(m["suites"]["test4"]["status"], "MISSED")

    def test_charts_are_well_formed(self):
        svg = report.Chart("a <b> & c", {"alone": [1000, 2000, 3000], "live": [1500, 0, 40000], "x<y": [200], "none": []}).svg()
        root = ET.fromstring(svg)
        self.assertEqual(len([e for e in root.iter("{http://www.w3.org/2000/svg}path")]), 6)  # three curves, three in the legend

    def test_page_is_escaped(self):
        page = report.html(report.merge([results(test4={"scenarios": [scenario()]})]))
        self.assertIn("shim intercepts &lt;&amp;&gt;", page)
        self.assertNotIn("http://", page.replace("http://www.w3.org/2000/svg", ""))


if __name__ == "__main__":
    unittest.main()
