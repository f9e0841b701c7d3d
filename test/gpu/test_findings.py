# SPDX-License-Identifier: Apache-2.0
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import demands
import findings
import firsttoken
import inference
import pairs
import report
import scene
import stats
import strategies
import targets
import together
from test_inference import Rig as GroupRig
from test_report import results, scenario

OK = {"name": "p", "ok": True, "detail": ""}


def build(run, commit):
    run["machine"] = dict(run["machine"], xsched={"commit": commit})
    return run


class Copies(unittest.TestCase):
    def test_a_row_per_kind_and_a_column_per_size(self):
        rows = [{"copy": "HtoD", "memory": "pinned", "bytes": n, "call_ms": 20.013, "over_at_return": "3 of 3", "call_ms_xsched": 0.004, "over_at_return_xsched": "0 of 3"}
                for n in (4 << 10, 1 << 20)]
        text = report.page(report.merge([results(copies={"rows": {"copies": rows}, "proof": [OK], "raw": {"plain": {"question_us": {
            "pageable attribute": 1.9, "pageable an empty call": 0.7}}}})]))
        self.assertIn("| copy | memory | XSched | 4 KB | 1 MB |", text)
        self.assertIn("| HtoD | pinned | without | 20.01 ms, 3 of 3 | 20.01 ms, 3 of 3 |\n| HtoD | pinned | with | 0.00 ms, 0 of 3 | 0.00 ms, 0 of 3 |", text)
        self.assertIn("beyond an empty call: pageable 1.20 us.", text.replace("\n", " "))


class Protection(unittest.TestCase):
    def reading(self, **more):
        return dict({"device": "d", "state": "protected", "requests": 60, "native_source": "modelled", "p50_us": 3000, "native_p50_us": 6000, "p99_us": 4000,
                     "native_p99_us": 14000, "cost_ratio": 0.01, "cost_ns": 5_000_000}, **more)

    def test_said_against_measured(self):
        sc = scenario(name="eight", protection=[[self.reading(state="learning")], [self.reading()]])
        sc["modes"]["native"] = dict(sc["modes"]["live"], high=dict(sc["modes"]["live"]["high"], p50_ms=6.1, p99_ms=9.2), low={"kept": 0.95, "rates": [1.0]})
        sc["modes"]["live"]["low"]["ideal"] = 0.96
        text = report.page(report.merge([results(eight={"scenarios": [sc]})]))
        self.assertIn("| eight | 1 | own | modelled | 3.0 | 3.1 | 10.0 | 5.0 | 1.0 %* | 4.0 % | 3.0 % |", text)
        self.assertIn("own process: 1 of 1 at P50, 0 of 1 at P99.", text.replace("\n", " "))
        self.assertFalse(findings.protections(report.merge([results(eight={"scenarios": [scenario(name="eight")]})])))

    def test_cost_of_a_block(self):
        found = scene.with_cost([self.reading()], [self.reading(cost_ns=25_000_000), self.reading(device="e", cost_ns=10_000_000)], 1_000_000_000)
        self.assertEqual([p["block_cost_ratio"] for p in found], [0.02, 0.01])
        self.assertEqual(findings.said({"protection": [found]})["cost"], 0.015)


class Collapse(unittest.TestCase):
    def test_mps_without_an_answer_is_a_result(self):
        high, low = {"p99_ms": 3}, {"rates": [1.0]}
        modes = {"alone": {"high": high}, "mps-priority": {"high": None, "low": low}}
        self.assertEqual((scene.collapsed(modes), scene.served(modes)["ok"]), (["mps-priority"], True))
        for bad in ({"alone": {"high": None}, "mps-priority": {"high": None, "low": low}},
                    {"alone": {"high": high}, "mps-priority": {"high": None, "low": {"rates": [0]}}},
                    {"alone": {"high": high}, "live": {"high": None, "low": low}}):
            self.assertEqual((scene.collapsed(bad), scene.served(bad)["ok"]), ([], False))

    def test_the_table_shows_it(self):
        under = scenario(name="test4" + report.UNDER_MPS, collapsed=["mps-priority"], verdicts=[])
        under["modes"]["mps-priority"] = {"high": None, "low": {"kept": 0.98, "rates": [1.0]}}
        del under["modes"]["live"]
        out = {"scenarios": [scenario()]}
        pairs.add_mps({"test4": out}, lambda: [("test4", under)], ["test4"])
        m = report.merge([results(test4=out)])
        self.assertIn("| collapsed: no request ended (run 1) |", report.page(m))
        self.assertIn("mps-priority", report.summary(m))

    def test_few_answers_are_said(self):
        sc = scenario(hz=100)
        sc["modes"]["native"] = dict(sc["modes"]["live"], high=dict(sc["modes"]["live"]["high"], requests_per_s=53.9))
        self.assertIn("| 4.20 ms, 1.00x, 53 % of the requests |", report.page(report.merge([results(test4={"scenarios": [sc]})])))


class Together(unittest.TestCase):
    def test_the_mean_over_runs_hides_no_run(self):
        blocks = [[100 + i + n for i in range(20)] for n in range(4)]
        runs = [(blocks, [[f * v for v in b] for b in blocks]) for f in (0.5, 1, 4)]
        mean, interval = together.mean_ratio(runs, 0.99)
        self.assertAlmostEqual(mean, 2 ** (1 / 3))
        self.assertEqual(interval, [0.5, 4.0])  # all draws may be the same run: three runs prove little
        self.assertEqual(together.mean_ratio([runs[2]] * 9, 0.5)[1], [4.0, 4.0])

    def test_three_runs_with_blocks(self):
        def sc():
            found = scenario()
            found["modes"]["native"] = found["modes"]["live"]
            found["raw_us"] = {m: [f * v for v in range(1000, 1080)] for m, f in (("alone", 1), ("native", 3), ("live", 2))}
            found["block_requests"] = {m: [20] * 4 for m in found["raw_us"]}
            return found
        runs = [results(test4={"scenarios": [sc()]}) for _ in range(3)]
        self.assertIn("| test4 | 1, 2, 3 | 3.00x (3.00-3.00) | 2.00x (2.00-2.00) | 3.00x (3.00-3.00) | 2.00x (2.00-2.00) |", report.page(report.merge(runs)))
        del runs[1]["suites"]["test4"]["scenarios"][0]["block_requests"]["live"][1:]
        self.assertNotIn("The last runs together", report.page(report.merge(runs)))

    def test_runs_without_requests_in_a_block_do_not_count(self):
        def sc(**sizes):
            return {"raw_us": {m: [1000] * sum(n) for m, n in sizes.items()}, "block_requests": sizes}
        four = [5] * 4
        self.assertTrue(together.usable(sc(alone=four, live=four), "live"))
        for bad in (sc(alone=four, live=[5, 0, 5, 5]), sc(alone=[0] * 4, live=four), sc(alone=four, live=[5] * 3), sc(alone=four)):
            self.assertFalse(together.usable(bad, "live"))
        cut = sc(alone=four, live=four)
        cut["raw_us"]["live"].pop()
        self.assertFalse(together.usable(cut, "live"))


class FirstToken(unittest.TestCase):
    def test_the_controls_stand_beside_the_result(self):
        sc = scenario(name=firsttoken.NAME, ideal_by="kernels")
        live = sc["modes"]["live"]
        for name in ("unshared", "cpu"):
            sc["modes"][name] = dict(live, low={}, seconds=50, evidence={"jobs_cpu_ms": 48_000}, p50_compared={"ratio": [0.98, 1.04]}, submission_compared={"ratio": [1.01, 1.03]},
                                     parts={"device": {"p50_ms": 0.11, "p99_ms": 1.5}, "submission": {"p50_ms": 20.4}})
        sc["modes"]["alone"]["parts"] = {"submission": {"p50_ms": 20.0}}
        for name, p50 in (("live", 20.6), ("native", 20.2)):
            sc["modes"][name] = dict(live, parts={"submission": {"p50_ms": p50}})
        sc["modes"]["live"]["submission_to_native"] = {"ratio": [0.99, 1.05]}
        text = report.page(report.merge([results(**{"first-token": {"scenarios": [sc]}})]))
        self.assertIn("| XSched live, no job | 1 | 320 | 1.00x (0.98-1.04) | 1.00x | 1.02x (1.01-1.03) | 0.11 | 1.50 | - | 0.96 |", text)
        self.assertIn("the P50 of the submission is 1.02x (0.99-1.05) under XSched of that of native sharing", " ".join(text.split()))
        self.assertIn("| the LLM serving prompts of 512 tokens at 14/s, 2 to 6 tokens each, beside GPT-2 training | 1 |", text)
        self.assertIn("| XSched off, the job trains on the CPU only | 1 | 320 | 1.00x (0.98-1.04) | 1.00x | 1.02x (1.01-1.03) | 0.11 | 1.50 | - | 0.96 |", text)

    def short(self, **tokens):
        """The page of a suite submission: under XSched the submission takes 10 % longer, and every eighth prompt waits for 2 ms."""
        rng = random.Random(1)
        alone = [[rng.choice((12_000, 20_000))] * 8 for _ in range(70)]
        waits = {"alone": [[100] * 8] * 70, "live": [[100] * 7 + [2_100]] * 70}
        rows = [dict({"mode": m, "requests": 560, "jobs_cores": 1.0, "suspends": 560, "wait_p50_ms": 0.1, "wait_p99_ms": 2.1, "prompt_p50_ms": 14.25, "submission_more": 0.1,
                      "submission_interval": [-0.01, 0.2], "prompt_more": 0.11, "prompt_interval": [-0.01, 0.3]}, **({"per_token_ms": tokens[m]} if tokens else {})) for m in waits]
        sc = scenario(name=firsttoken.NAME, ideal_by="kernels")
        for name, ms in (("alone", 2.0), ("unshared", 2.0), ("live", 4.0)):
            sc["modes"][name] = dict(sc["modes"]["live"], per_token={"mean_ms": ms, "to_alone": 1.0})
        suite = {"rows": {"submission": rows}, "submission_us": {"alone": alone, "live": [[us * 11 // 10 for us in b] for b in alone]}, "wait_us": waits,
                 "proof": [{"name": "x", "ok": True, "detail": ""}], "status": "OK", "why": "", "seconds": 1}
        text = report.page(report.merge([results(**{"first-token": {"scenarios": [sc]}, "submission": suite})]))
        row = next(line for line in text.splitlines() if line.startswith("| XSched live, the job trains on the GPU | 560 "))
        return " ".join(text.split()), [c.strip() for c in row.strip("|").split("|")]

    def test_short_blocks_and_the_queue_calculated_from_them(self):
        text, cells = self.short(alone=2.0, live=2.0)
        self.assertEqual(cells[2:7] + cells[11:], ["14.2", "+10.0 % (-1.0 to +20.0)", "+11.0 % (-1.0 to +30.0)", "0.10", "2.10", "1.00"])
        own, gpu = ([float(c.partition("x")[0]) for c in cells[i:i + 2]] for i in (7, 9))
        self.assertTrue(1.08 < own[0] < 1.2 and 1.1 < own[1] < 1.5, cells)
        self.assertTrue(1.0 <= gpu[0] < 1.02 and 1.0 < gpu[1] < 1.05, cells)
        self.assertIn("and each has the tokens of its mode. The part", text)
        self.assertIn("were submitted within 12.0 ms, the part of the GPU is 1.0", text)

    def test_the_tokens_of_another_run_are_named(self):
        text, cells = self.short()
        self.assertIn("and each has the tokens of its mode in run 1. The part", text)
        self.assertGreater(float(cells[10].partition("x")[0]), 1.1)  # longer tokens, so a longer queue

    def test_a_row_has_the_increase_over_the_alone_block_of_its_round(self):
        def blocks(*submissions):
            return [[stats.Parts(0, 0.5, 0, ms)] * 3 for ms in submissions]
        alone, live = blocks(10, 20, 10, 20, 10, 20), blocks(11, 22, 11, 22, 11, 22)
        r = firsttoken.row({"evidence": {"jobs_cpu_ms": 2000, "suspends": 18}, "seconds": 4, "per_token": {"mean_ms": 2.5}}, "live", alone, live)
        self.assertAlmostEqual(r["submission_more"], 0.1)
        self.assertTrue(0.09 < r["prompt_more"] < 0.1)
        self.assertEqual((r["jobs_cores"], r["suspends"], r["per_token_ms"], r["wait_p99_ms"], r["requests"]), (0.5, 18, 2.5, 0.5, 18))

    def test_a_call_fits_into_its_limit(self):
        self.assertGreaterEqual(firsttoken.ROUNDS * firsttoken.SERVER.block_s * firsttoken.SERVER.hz, 3 * targets.MIN_N)
        self.assertEqual(targets.line_of(firsttoken.NAME), "serve")
        for cpu in (False, True):
            for rounds, block_s in ((firsttoken.ROUNDS, firsttoken.SERVER.block_s), (firsttoken.SHORT_ROUNDS, firsttoken.SHORT_S)):
                limit_s = firsttoken.seconds(rounds, block_s)
                self.assertLess(limit_s, 540)
                self.assertLess(scene.wall_s(firsttoken.modes(cpu, rounds * block_s), block_s), limit_s)


class AsBefore(unittest.TestCase):
    def run_of(self, ratio, interval, kept=0.92, missed=False, more=None):
        sc = scenario()
        sc["modes"]["live"].update(p99_to_alone=ratio, p99_compared={"ratio": interval, "more_ms": more or [4 * v - 4 for v in interval]}, low={"kept": kept, "kept_of_ideal": 0.99, "rates": [1.0]})
        sc["verdicts"][0]["ok"] = not missed
        return sc

    def test_verdicts(self):
        before = self.run_of(1.0, [0.9, 1.1])
        for now, want in ((self.run_of(0.95, [0.8, 1.2]), "yes"), (self.run_of(1.05, [0.8, 1.2]), "yes, within noise"), (self.run_of(1.2, [1.15, 1.3]), "**no**"),
                          (self.run_of(1.2, [1.15, 1.3], more=[0.2, 0.5]), "yes, within noise"),  # alone became faster, and the time added is the same
                          (self.run_of(0.95, [0.8, 1.2], kept=0.89), "**no**"), (self.run_of(0.95, [0.8, 1.2], missed=True), "**no**")):
            self.assertEqual(demands.as_before(before, now)[1], want)

    def test_a_miss_within_noise_is_said(self):
        now = self.run_of(0.95, [0.8, 1.2], missed=True)
        now["verdicts"][0]["within_noise"] = True
        self.assertEqual(demands.as_before(self.run_of(1.0, [0.9, 1.1]), now)[1], "**no**, within noise")

    def test_older_builds_are_marked(self):
        old, new = build(results(test4={"scenarios": [scenario()]}), "a"), build(results(test3={"scenarios": [scenario(name="test3")]}), "b")
        text = report.page(report.merge([old, new]))
        self.assertIn("| test4 | ResNet-18 b1 at 20/s, beside ResNet-50 b1024 | 1, older build |", text)
        self.assertIn("| test3 | ResNet-18 b1 at 10/s, beside ResNet-50 b8 | 2 |", text)


class Strategies(unittest.TestCase):
    def test_the_table_has_a_row_per_strategy(self):
        sc = scenario(name="strategy/bert12 beside FFTs", ideal_by="kernels")
        live = sc["modes"]["live"]
        for name, n in (("native", 0), ("HPF/wait", 320), ("HPF/medium", 0), ("HPF/native", 0)):
            sc["modes"][name] = dict(live, evidence={"suspends": n})
        text = report.page(report.merge([results(strategies={"scenarios": [sc]})]))
        self.assertIn("| bert12 beside FFTs | 1 | stop at the wait | 1.00x | 1.00x | 92.0 % | 99.0 % | 1.00 |", text)
        self.assertEqual(text.count("| bert12 beside FFTs | 1 |"), 5)
        self.assertNotIn("## Latency and", text)

    def test_enough_requests_and_neighbours(self):
        for high, _, low, hz, _, block_s in strategies.PAIRS.values():
            self.assertGreaterEqual(hz * block_s * strategies.ROUNDS, targets.MIN_N)
            self.assertTrue(set(strategies.OTHERS) < set(findings.STRATEGIES))
            self.assertTrue({high, low} <= set(strategies.SPIN))
            self.assertLess(scene.wall_s(strategies.modes(block_s), block_s), 110)

    def test_a_strategy_that_is_not_in_force_is_no_proof(self):
        class Daemon:
            name, obeys = "HPF", True

            def http(self, method, path, body):
                self.name = body["name"] if self.obeys else self.name

            def cli(self, *args):
                return {"name": self.name}
        daemon = Daemon()
        switch = strategies.Switch(daemon)
        for name in ("live", "HPF/in-time", "alone", "HPF/in-time"):
            switch.prepare(scene.Mode(name, 1, "live", [0], True))
            self.assertEqual(daemon.name, name if "/" in name else "HPF")
        switch.verify()
        self.assertTrue(switch.proof()["ok"])
        switch.prepare(scene.Mode("live", 1, "live", [0], True))
        daemon.obeys = False
        switch.prepare(scene.Mode("HPF/in-time", 1, "live", [0], True))
        switch.verify()
        self.assertFalse(switch.proof()["ok"])


class Untouched(unittest.TestCase):
    """Beside a job that only copies, XSched must change nothing."""

    def proof(self, slices, **evidence):
        class Program:
            name, shim = "low4", True
        s = scene.Scene(GroupRig(), "llm/copies", Program(), [Program()], [], 100, rests=True, untouched=True)
        s.slices, s.evidence = {"live": slices}, {"live": evidence}
        return s.mode_checks("live")[0]["ok"]

    def test_proof(self):
        self.assertTrue(self.proof([{"low4": [0]}, {"low4": [0, 0]}]))
        self.assertFalse(self.proof([{"low4": [0]}, {"low4": [1]}]))
        self.assertFalse(self.proof([{"low4": [0]}], suspends=1))
        self.assertFalse(self.proof([{}]))
        self.assertFalse(self.proof([]))

    def test_copies_have_a_process_without_kernels(self):
        users = {}
        for job, parts in inference.JOBS.items():
            for process, _ in parts:
                users.setdefault(process, set()).add(job)
        for process, _ in inference.JOBS["copies"]:
            self.assertEqual(users[process], {"copies"})

    def test_a_block_waits_until_xsched_knows(self):
        told = []

        class Low:
            name, pid, shim = "low4", 7, True

            def tell(self, line):
                told.append(line)

            def pause(self):
                pass

        class Daemon(GroupRig):
            def list(self):
                return {7: {"queues": [{"copies_only": len(told) >= 2}]}}
        low = Low()
        group = inference.Group(Daemon(), "llm", low, [("llm/copies", [(low, "copies")], (), True)], 1)
        self.assertTrue(group.scenes[0].untouched)
        group.seen_copying([low])
        self.assertEqual(told, ["loop", "loop"])


if __name__ == "__main__":
    unittest.main()
