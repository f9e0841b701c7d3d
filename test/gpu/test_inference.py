# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import inference
import models
import report
import scene
import shown
import stats
import targets
from test_report import results, scenario
from test_worker import FakeProgram, FakeRig


class Plans(unittest.TestCase):
    def names(self, *args, **kw):
        rows, left = inference.plan(inference.SUITES, *args, **kw)
        return [inference.key(r) for r in rows], [inference.key(r) for r, _ in left]

    def test_nine_minutes_are_enough(self):
        rows, _ = self.names(540)
        self.assertEqual(rows[:len(inference.ROWS)], [inference.key(r) for r in inference.ROWS])
        rows, left = self.names(1500)
        self.assertEqual(len(rows), len(inference.ALL))
        self.assertFalse(left)

    def test_short_of_time_no_extra_row_replaces_one(self):
        rows, left = self.names(400)
        self.assertFalse(set(rows) & {inference.key(r) for r in inference.EXTRA})
        self.assertTrue(left)

    def test_tuning_runs_are_short(self):
        rows, left = self.names(180, only=["llm-cpu/jax", "bert12/f", "bert12/tr"], scale=0.5)
        self.assertEqual(rows, ["llm-cpu/jax", "bert12/train", "bert12/fft"])
        self.assertFalse(left)

    def test_every_pair_has_requests_and_a_target(self):
        for row in inference.ALL:
            high = inference.HIGHS[row.high]
            self.assertGreaterEqual(high.hz * high.block_s * high.rounds, targets.MIN_N)
            self.assertGreaterEqual(high.rounds, stats.MIN_BLOCKS)
            self.assertIsNotNone(targets.line_of(inference.key(row)))
            self.assertIn(row.high, shown.SERVICES)
            self.assertIn(row.job, shown.JOBS)
            for spec in [high.spec] + [m for _, m in inference.JOBS[row.job]]:
                self.assertTrue(hasattr(models.Maker, "make_" + spec.partition(":")[0].replace("-", "_")), spec)
                self.assertIn(spec, inference.SPIN)
        for key in ("test4", "micro/1 low", "llm/jax, under MPS"):
            self.assertEqual(targets.line_of(key), "one" if "llm" in key else None)

    def test_arguments(self):
        here = os.path.dirname(os.path.abspath(__file__))
        r = subprocess.run([sys.executable, "-B", os.path.join(here, "suite.py"), "/nonexistent/x", "--only", "bogus"], capture_output=True, text=True, timeout=30)
        self.assertEqual(r.returncode, 2)
        self.assertIn("--only bogus: no such pair; known: llm/jax,", r.stderr)


class Program(FakeProgram):
    def __init__(self, name):
        super().__init__()
        self.name, self.using, self.used = name, None, []

    def use(self, model):
        if self.using != model:
            self.using = model
            self.used.append(model)


class Rig(FakeRig):
    def __init__(self):
        self.modes = []

    def mode(self, name):
        self.modes.append(name)

    def list(self):
        return {}


class Groups(unittest.TestCase):
    def run_group(self, mps):
        high, low1, low3, rig = Program("high"), Program("low1"), Program("low3"), Rig()
        what = inference.High("m", "jitter 100 SEED", 100, 0.05, 4, None)
        pairs = [("llm/train", [(low1, "gpt2")], (), False), ("llm/fft", [(low1, "fft")], (), False), ("llm/three", [(low1, "gpt2"), (low3, "mm")], (), False)]
        with mock.patch.dict(inference.HIGHS, {"llm": what}), mock.patch.object(scene, "HEAD_S", 0.03), mock.patch.object(scene, "TAIL_S", 0.01), \
                mock.patch.multiple(inference, ALONE_S=0.05, WARM_S=0.01):
            found = inference.Group(rig, "llm", high, pairs, 1, mps, {"ms": 1.0, "kernels": 3}).run()
        return found, rig, low1

    def test_one_alone_block_counts_for_every_pair(self):
        found, rig, low1 = self.run_group(False)
        self.assertEqual([s["name"] for s in found], ["llm/train", "llm/fft", "llm/three"])
        for s in found:
            self.assertEqual({m: s["order"].count(m) for m in ("alone", "native", "live")}, {"alone": 4, "native": 4, "live": 4})
            self.assertEqual(s["order"].count("low alone 0"), 2)
            self.assertEqual(s["raw_us"]["alone"], found[0]["raw_us"]["alone"])
            self.assertEqual(s["ideal_by"], "kernels")
            self.assertEqual([v["what"] for v in s["verdicts"]][:1], ["service P99 / alone"])
            self.assertIsNotNone(s["modes"]["live"]["p99_to_native"])
        self.assertEqual(found[2]["order"].count("low alone 1"), 2)
        self.assertEqual(set(low1.used), {"gpt2", "fft"})
        self.assertEqual(rig.modes[0], "live")

    def test_mps_has_its_own_alone_blocks(self):
        found, rig, _ = self.run_group(True)
        for s in found:
            self.assertEqual(list(s["modes"]), ["alone", "mps-priority"])
            self.assertEqual(s["order"].count("low alone 0"), 1)
        self.assertEqual(rig.modes, [])


class Tokens(unittest.TestCase):
    def test_time_per_token(self):
        w = [stats.Window(0, 100)]
        found = stats.per_token_ms({10: (2_000_000, 8_000_000, 3), 50: (0, 4_000_000, 5), 60: (1, 1, 1), 200: (0, 9_000_000, 2)}, w)
        self.assertEqual(found, {"n": 2, "mean_ms": round(10 / 6, 4), "p50_ms": 1.0, "p99_ms": 3.0})
        self.assertIsNone(stats.per_token_ms({}, w))


def pair(name, p99=1.0, kept=0.9, native=0.9, **more):
    """A pair of an inference suite; native has P99 2x."""
    sc = scenario(name=name)
    live, alone = sc["modes"]["live"], sc["modes"]["alone"]
    high = dict(alone["high"], p99_ms=alone["high"]["p99_ms"] * p99)
    sc["modes"]["live"] = dict(live, high=high, p99_to_alone=p99, p99_to_native=p99 / 2, low={"kept": kept, "kept_of_ideal": kept / 0.9, "rates": [1.0]},
                               per_token={"to_alone": p99}, **more)
    sc["modes"]["native"] = dict(live, high=dict(high, p99_ms=8.4), p99_to_alone=2.0, low={"kept": native, "rates": [1.0]})
    sc["verdicts"], sc["ideal_by"] = targets.judge(name, sc["modes"]), "kernels"
    return sc


class Verdicts(unittest.TestCase):
    def missed(self, *args, **kw):
        return [v["what"] for v in pair(*args, **kw)["verdicts"] if not v["ok"]]

    def test_lines(self):
        self.assertEqual(self.missed("llm/jax"), [])
        self.assertEqual(self.missed("llm-cpu/jax", p99=1.12), ["service P99 / alone"])
        self.assertEqual(self.missed("llm/three", p99=1.12), [])
        self.assertEqual(self.missed("llm/torch-matmul", kept=0.85), ["jobs keep / ideal"])
        self.assertEqual(self.missed("llm/copies", kept=0.98), ["jobs keep"])
        self.assertEqual(self.missed("llm/copies", p99=2.2, kept=1.0), ["service P99 / native"])
        self.assertEqual(self.missed("bert24/train", kept=0.86), [])
        self.assertEqual(self.missed("bert12/fft", kept=0.86), ["jobs keep - native"])
        self.assertEqual(self.missed("recommender/tiny", p99=1.14), [])
        self.assertEqual(self.missed("recommender/tiny", p99=1.16), ["service P99 - alone"])
        self.assertEqual(self.missed("llm-eager/train", p99=1.2, kept=0.8), ["service P99 / alone", "jobs keep - native"])
        self.assertEqual(self.missed("serve/train", p99=1.03), ["time per token, mean / alone"])

    def test_a_pair_without_proof_shows_only_its_reason(self):
        good, bad = pair("llm/jax"), pair("llm/tiny")
        bad["proof"] = [{"name": "mode live", "ok": False, "detail": "no suspensions"}]
        r = inference.drop_unproven({"scenarios": [good, bad], "lost": [("llm/train", "low1 died")], "notes": []})
        self.assertEqual([s["name"] for s in r["scenarios"]], ["llm/jax"])
        m = report.merge([results(llm=r)])
        self.assertEqual(m["suites"]["llm"]["status"], "MISSED")
        self.assertIn("llm/tiny: no proof: mode live: no suspensions", m["suites"]["llm"]["why"])
        self.assertNotIn("llm/tiny |", report.page(m))
        self.assertIn("error", inference.drop_unproven({"scenarios": [bad], "lost": [], "notes": []}))

    def test_page(self):
        under = pair("llm/jax" + report.UNDER_MPS, p99=0.9)
        under["modes"]["mps-priority"] = dict(under["modes"].pop("live"), low={"kept": 0.97, "rates": [1.0]})
        del under["modes"]["native"]
        suite = {"scenarios": [pair("llm/jax", p99=1.05), pair("llm/three", p99=1.2), under], "incomplete": "without llm/tiny"}
        old, new = results(test4={"scenarios": [scenario()]}), results(llm=suite, test4={"scenarios": [scenario()]})
        m = report.merge([old, new])
        text, summary = report.page(m), report.summary(m)
        for want in ("## What it must show", "| llm/jax | 2 |", "| yes |\n| LLM step as a graph beside three jobs", "| not measured | - | - | **no** |",
                     "earlier suites: as before or better | test4 | 2 |", "## Latency against throughput",
                     "**To the upper left of XSched:** MPS, client priorities in llm/jax (0.90x or 3.78 ms, and 97.0 %"):
            self.assertIn(want, text.replace("\n", " ") if "upper left" in want else text)
        self.assertIn("NOT COMPLETE: llm: without llm/tiny", summary)
        self.assertIn("MISSED llm/three", summary)
        self.assertIn("<svg", report.pareto_chart(report.pareto(m)))
        self.assertNotIn("must show", report.page(report.merge([old])))
        self.assertIn("No mode is to the upper left", report.above_left(report.merge([old])))


if __name__ == "__main__":
    unittest.main()
