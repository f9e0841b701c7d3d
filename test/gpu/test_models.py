# SPDX-License-Identifier: Apache-2.0
"""The models on the CPU, in small sizes. Skipped where PyTorch is not installed."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import backends
import models

try:
    import torch
except ImportError:
    torch = None


class Numbers(unittest.TestCase):
    def test_overlapping_kernels_count_once(self):
        self.assertEqual(backends.covered([]), 0)
        self.assertEqual(backends.covered([(5, 7), (0, 2), (1, 3), (1, 2)]), 5)

    def test_shapes_of_spin_models(self):
        self.assertEqual([backends.shape(s) for s in ("spin:3000", "spin:20x240", "spin:5x620@42")], [(3000, 1, 0), (20, 240, 0), (5, 620, 42)])

    def test_sizes(self):
        n = models.FULL["llama"]
        kv = n["width"] // n["heads"] * n["groups"]
        layer = 2 * n["width"] ** 2 + 2 * kv * n["width"] + 3 * n["inner"] * n["width"]
        self.assertAlmostEqual((2 * n["vocab"] * n["width"] + n["layers"] * layer) / 1e9, 1.1, delta=0.01)
        layers, width, _, vocab, length = models.FULL["gpt2"]
        self.assertAlmostEqual((vocab * width + length * width + layers * 12 * width ** 2) / 1e6, 124, delta=1)


@unittest.skipIf(torch is None, "no PyTorch")
class Outputs(unittest.TestCase):
    HIGHS = ["llm-graph", "llm-cpu", "llm-eager", "serve:1", "bert:2"]
    LOWS = ["gpt2:2", "prefill:2", "matmul:64", "fft:1", "tiny:10", "copies:1"]

    def tearDown(self):
        torch.use_deterministic_algorithms(False)
        torch.set_grad_enabled(True)

    def test_outputs_repeat_and_a_change_is_found(self):
        for specs in (self.HIGHS, self.LOWS):
            backend = backends.TorchBackend(specs, "cpu")
            for spec in specs + specs:  # models of one process do not change each other's outputs
                backend.use(spec)
                for _ in range(7):
                    backend.check(backend.step())
            got, want = backend.checksums()
            self.assertEqual(got, want)
            self.assertFalse(any(backend.wrong.values()))
        backend.use("prefill:2")
        backend.check(backend.step() + 1)
        self.assertNotEqual(*backend.checksums())

    def test_decode_is_the_same_as_prefill(self):
        maker = models.Maker(torch, "cpu")
        torch.manual_seed(1)
        torch.set_grad_enabled(False)
        sequence = maker.sequence()
        whole = torch.cat([maker.prompt, maker.llama.token], 1)
        a, b = maker.llama.decode(sequence).float(), maker.llama.prefill(whole).float()
        self.assertLess((a - b).abs().max(), 0.05 * b.abs().max())

    def test_training_learns_and_starts_again(self):
        model = models.Maker(torch, "cpu").build("gpt2:2")
        losses = [float(model.step()) for _ in range(2 * model.cycle)]
        self.assertLess(losses[3], losses[0])
        self.assertEqual(losses[:4], losses[4:])

    def test_pace_adds_host_work(self):
        torch.set_grad_enabled(False)
        model = models.Maker(torch, "cpu").build("bert:2")
        natural, paced = model.pace(model.median_ms() + 60)
        self.assertGreater(paced, natural + 20)
        self.assertEqual(model.pace(0)[0] > 0, True)
        self.assertEqual(model.spin_ns, 0)


if __name__ == "__main__":
    unittest.main()
