# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import report
import suite
import tables


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


def contents(folder):
    return {p.name: p.read_bytes() for p in sorted(pathlib.Path(folder).iterdir())}


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


class Pages(unittest.TestCase):
    def test_proven_suite_is_compared(self):
        m = report.merge([results(test4={"scenarios": [scenario()]})])
        text = report.page(m, "h200")
        for want in ("| test4 | ResNet-18 b1 at 20/s, beside ResNet-50 b1024 | 1 | 4.20 ms | - | - | **4.20 ms**, 1.00x |", "92.0 %", "99.0 % (span)", "![Latency percentiles, test4](h200-test4.svg)",
                     "1 of 1 suites met every target"):
            self.assertIn(want, text)
        self.assertIn("live", report.summary(m))
        self.assertNotIn("svg", report.page(m, pictures=False))
        self.assertLess(max(len(line) for line in text.splitlines() if line[:1] not in "|!"), 104)

    def test_suite_without_proof_shows_no_numbers(self):
        m = report.merge([results(test4={"scenarios": [scenario(ok=False)]})])
        for text in (report.page(m), report.summary(m)):
            self.assertIn("FAILED", text)
            self.assertNotIn("4.20", text)
            self.assertNotIn("92.0", text)

    def test_every_suite_has_its_section(self):
        ok = {"name": "results equal", "ok": True, "detail": "bit-equal in all 2 programs"}
        verdict = dict(scenario()["verdicts"][0], what="launch-bound loop: overhead", value=0.02, unit="part")
        m = report.merge([results(
            overhead={"proof": [ok], "verdicts": [verdict], "rows": {"overhead": [
                {"what": "launch-bound loop", "unit": "ns", "plain": 4000.0, "xsched": 4080.0, "more_%": 2.0, "95_%_interval": "+1.00 .. +3.00"}]}},
            correctness={"proof": [ok], "checks": [ok], "rows": {"preempted": [{"mode": "suspend", "preemptions": 1120}]}},
            faults={"proof": [ok], "checks": [ok], "rows": {"faults": [{"fault": "daemon killed", "ms": 2.5, "limit_ms": 200}]}},
            truth={"proof": [ok], "rows": {"truth": [{"lows": 1, "mode": "live", "requests": 300, "in_a_stopped_low_kernel": 299, "low_stop_to_high_us": 147.1,
                                                      "high_end_to_low_us": 153.2, "both_at_once_us": 0.0}]}},
            starts={"proof": [ok], "checks": [dict(ok, name="four at once", detail="ready after 0.8 s")]})])
        text = report.page(m)
        for want in ("| launch-bound loop | 4000.000 ns | 4080.000 ns | +2.00 % | +1.00 to +3.00 |", "A launch-bound loop runs 2.0 % slower", "**Synchronous calls:** launch-bound loop",
                     "preempted 1,120 times", "| daemon killed | 2.5 | 200 |", "299 of 300; 147 us, 153 us; 0 us", "| four at once | ready after 0.8 s |", "+2.0 (1)"):
            self.assertIn(want, text)
        self.assertNotIn("## Latency", text)

    def test_merge_takes_the_last_that_ran(self):
        skipped = results()
        skipped["suites"]["test4"] = {"status": "SKIPPED", "why": "no time", "seconds": 0}
        m = report.merge([results(test4={"scenarios": [scenario()]}), skipped])
        self.assertEqual(m["suites"]["test4"]["status"], "OK")
        self.assertEqual(len(m["runs"]), 2)

    def test_merge_takes_the_last_of_each_scenario(self):
        with_mps = results(test4={"scenarios": [scenario(), scenario(name="test4, under MPS")]}, burst={"scenarios": [scenario(name="burst")]})
        without = results(test4={"scenarios": [scenario(arrivals="rate 21")]})
        m = report.merge([with_mps, without])
        found = m["suites"]["test4"]["scenarios"]
        self.assertEqual([(s["name"], s["run"], s["arrivals"]) for s in found], [("test4", 2, "rate 21"), ("test4, under MPS", 1, "rate 20")])
        self.assertEqual(m["suites"]["burst"]["run"], 1)
        self.assertNotIn("run", without["suites"]["test4"]["scenarios"][0])  # the input is unchanged
        text = report.page(m)
        for want in ("| test4 | 1 | 320 | - | 1.00x | 1.00x | - | - | 99.0 % (span) | met |\n| test4 | 2 | 320 |", "| burst | 1 | 320 |", "| 2 | 1970-01-01 00:00 |"):
            self.assertIn(want, text)
        again = report.merge([with_mps, without, with_mps])["suites"]["test4"]["scenarios"]
        self.assertEqual([s["run"] for s in again], [3, 3])

    def test_merge_takes_the_steadiest_run_of_the_newest_build(self):
        def run(commit, arrivals, alone, missed, stolen=0.0):
            sc = scenario(arrivals=arrivals, block_requests={"alone": [2, 2, 2, 2]}, raw_us={"alone": alone}, stolen_s={"alone": stolen})
            sc["modes"]["alone"]["seconds"] = 10
            # A narrow interval of XSched's own figure must not matter.
            sc["modes"]["live"]["p99_compared"] = {"ratio": [0.6, 1.6] if missed else [0.99, 1.01]}
            sc["verdicts"] = [{"what": "P99 / alone", "value": 1.3 if missed else 1.0, "limit": 1.1, "at_most": True, "unit": "x", "ok": not missed}]
            r = results(test4={"scenarios": [sc]})
            r["machine"] = dict(r["machine"], xsched={"commit": commit})
            return r
        steady, unsteady = [3, 4] * 4, [3, 4, 3, 4, 3, 8, 3, 4]
        old, noisy, quiet = run("a", "old", steady, False), run("b", "noisy", unsteady, False), run("b", "quiet", steady, True)
        robbed = run("b", "robbed", steady, False, stolen=0.7)
        for runs, want, status in (([old, noisy], "noisy", "OK"), ([old, quiet, noisy], "quiet", "MISSED"), ([old, noisy, quiet], "quiet", "MISSED"), ([quiet, old], "old", "OK"),
                                   ([quiet, robbed], "quiet", "MISSED"), ([noisy, robbed], "noisy", "OK")):
            found = report.merge(runs)["suites"]["test4"]
            self.assertEqual([s["arrivals"] for s in found["scenarios"]], [want])
            self.assertEqual((found["status"], "1.300" in found["why"]), (status, status == "MISSED"))

    def test_switch_names_the_power_limit(self):
        rows = [{"job": "none", "sm_mhz": 1980, "power_w": 149, "throttled": "0x0", "suspends": 0},
                {"job": "products", "sm_mhz": 1695, "power_w": 651, "throttled": "0x4", "suspends": 0, "switch_ms": 0.151, "step_slower_ms": 0.26}]
        text = report.page(report.merge([results(switch={"rows": {"switch": rows}, "proof": [{"name": "p", "ok": True, "detail": ""}]})]))
        self.assertIn("| none | 1980 MHz | 149 W | no | - | - | 0 |\n| products | 1695 MHz | 651 W | yes | 0.15 | 0.26 | 0 |", text)

    def test_adding_a_run_twice_changes_nothing(self):
        one, two = results(test4={"scenarios": [scenario()]}), results(test4={"scenarios": [scenario()]})
        two["machine"] = dict(two["machine"], started_unix=60)
        with tempfile.TemporaryDirectory() as d:
            paths = [os.path.join(d, n) for n in ("2.json", "1.json")]
            for path, r in zip(paths, (two, one)):
                report.save(path, json.dumps(r))
            report.save(os.path.join(d, "h-old.svg"), "")
            report.write(d, "h", report.merge(report.load(paths)))
            files = contents(d)
            self.assertEqual(list(files), ["1.json", "2.json", "h-pareto.svg", "h-test4.svg", "h.json.gz", "h.md"])
            report.write(d, "h", report.merge(report.load([os.path.join(d, "h.json.gz")] + paths)))
            self.assertEqual(files, contents(d))
            self.assertEqual([r["machine"]["started_unix"] for r in report.load([os.path.join(d, "h.json.gz")])], [0, 60])

    def test_short_runs_count_if_they_have_enough_requests(self):
        def suite(n):
            mps = {"modes": {"alone": {"high": {"n": 75}}, "mps-priority": {"high": {"n": 75}}}}
            return {"scenarios": [{"modes": {"alone": {"high": {"n": n}}, "native": {"high": {"n": 20}}, "live": {"high": {"n": n}}}}, mps]}
        run = {"command": "run.sh", "suites": {"many": suite(300), "few": suite(299), "none": {"status": "OK"}}}
        with mock.patch("sys.stderr"):
            self.assertEqual([list(r["suites"]) for r in report.complete([dict(run, scale=0.5), run, dict(run, scale=0.5, suites={"few": suite(1)})])],
                             [["many"], ["many", "few", "none"]])

    def test_a_page_has_one_device(self):
        virtual = results(test4={"scenarios": [scenario()]})
        virtual["machine"] = dict(virtual["machine"], device="virtual GPU")
        with self.assertRaisesRegex(SystemExit, "NVIDIA H200, virtual GPU"):
            report.write("/nonexistent", "h", report.merge([results(), virtual]))

    def test_readme_table_is_replaced(self):
        m = report.merge([results(gpubound={"scenarios": [scenario(name="gpubound")]})])
        text = report.readme("a\n<!-- results: make results -->\nold\n<!-- end of results -->\nb\n", m)
        self.assertIn("| ResNet-50 b64 at 20/s, beside ResNet-50 b1024 | 1 | 4.20 ms |", text)
        self.assertNotIn("old", text)
        self.assertEqual(report.readme(text, m), text)

    def test_alone_against_itself(self):
        same = scenario(block_requests={"alone": [2, 2, 2, 2]}, raw_us={"alone": [3, 4] * 4})
        self.assertEqual(tables.halves(same), [1, 1])
        noisy = scenario(block_requests={"alone": [2, 2, 2, 2]}, raw_us={"alone": [3, 4, 3, 4, 3, 8, 3, 4]})
        self.assertEqual(tables.halves(noisy), [0.5, 2])
        self.assertIsNone(tables.halves(scenario()))

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
        self.assertIn("burst/on-off, run 1: high P99 / alone 1.300", s["why"])
        self.assertEqual(one["suites"]["burst"]["status"], "OK")

    def test_noise_is_said_beside_the_verdict(self):
        s = scenario()
        s["modes"]["live"].update(p95_to_alone=1.02, p99_to_alone=1.13, p99_compared={"ratio": [0.98, 1.31], "more_ms": [-0.1, 1.2]})
        v = dict(s["verdicts"][0], value=1.13, ok=False, interval=[0.98, 1.31], within_noise=True)
        s["verdicts"] = [v, dict(v, value=1.07, ok=True), dict(v, value=1.4, interval=[1.2, 1.6], within_noise=False)]
        m = report.merge([results(test4={"scenarios": [s]})])
        self.assertIn("1.13x (0.98-1.31)", report.page(m))
        for want in ("MISSED test4       test4: high P99 / alone 1.130 (0.980-1.310) x (must be <= 1.100, within noise)",
                     "met    test4       test4: high P99 / alone 1.070 (0.980-1.310) x (must be <= 1.100, within noise)",
                     "MISSED test4       test4: high P99 / alone 1.400 (1.200-1.600) x (must be <= 1.100)"):
            self.assertIn(want, report.summary(m))
        self.assertEqual(tables.interval_text([-0.1, 0.3]), " (-0.10 to 0.30)")
        self.assertEqual(m["suites"]["test4"]["status"], "MISSED")

    def test_charts_are_well_formed(self):
        svg = tables.chart("a <b> & c", {"alone": [1000, 2000, 3000], "live": [1500, 0, 40000], "x<y": [200], "none": []})
        root = ET.fromstring(svg)
        self.assertEqual(len([e for e in root.iter("{http://www.w3.org/2000/svg}path")]), 6)  # three curves, three in the legend


if __name__ == "__main__":
    unittest.main()
