# SPDX-License-Identifier: Apache-2.0
"""The models on the CPU, in small sizes. Skipped where PyTorch is not installed."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import backends
import models
import virtual
import pairs
import rig

try:
    import torch
except ImportError:
    torch = None


class Numbers(unittest.TestCase):
    def test_overlapping_kernels_count_once(self):
        self.assertEqual(backends.covered([]), 0)
        self.assertEqual(backends.covered([(5, 7), (0, 2), (1, 3), (1, 2)]), 5)

    def test_shapes_of_spin_models(self):
        self.assertEqual([virtual.shape(s) for s in ("spin:3000", "spin:20x240", "spin:5x620@42", "copy:1000x8")], [(3000, 1, 0), (20, 240, 0), (5, 620, 42), (1000, 8, 0)])

    def test_sizes(self):
        n = models.FULL["llama"]
        kv = n["width"] // n["heads"] * n["groups"]
        layer = 2 * n["width"] ** 2 + 2 * kv * n["width"] + 3 * n["inner"] * n["width"]
        self.assertAlmostEqual((2 * n["vocab"] * n["width"] + n["layers"] * layer) / 1e9, 1.1, delta=0.01)
        layers, width, _, vocab, length = models.FULL["gpt2"]
        self.assertAlmostEqual((vocab * width + length * width + layers * 12 * width ** 2) / 1e6, 124, delta=1)


class Published(unittest.TestCase):
    """The numbers of parameters, by hand, are those of the published models."""

    def test_vit(self):
        image, patch, width, _, layers, classes = models.FULL["nets"]["vit"]
        places = (image // patch) ** 2 + 1
        self.assertEqual(vit_parameters(places, patch, width, layers, classes), 86_567_656)  # ViT-B/16

    def test_mobilenet(self):
        _, n, stages, last, classes = models.FULL["nets"]["mobilenet"]
        total = 3 * 9 * n + 2 * n
        for expand, m, blocks, _ in stages:
            for _ in range(blocks):
                wide = n * expand
                total += (n * wide + 2 * wide if expand > 1 else 0) + 9 * wide + 2 * wide + wide * m + 2 * m
                n = m
        self.assertEqual(total + n * last + 2 * last + last * classes + classes, 3_504_872)  # MobileNetV2

    def test_whisper(self):
        bands, frames, width, _, layers, words, _ = models.FULL["nets"]["whisper"]
        self.assertEqual((bands, frames), (80, 3000))  # 30 s
        total = layers * 28 * width ** 2 + words * width + 3 * width * (bands + width)
        self.assertAlmostEqual(total / 1e6, 72, delta=2)  # Whisper base: 74 million, with positions

    def test_deeplab_has_the_stride_and_the_dilations(self):
        image, stages, _, rates, classes = models.FULL["nets"]["deeplab"]
        stride = 4
        for _, _, s, _ in stages:
            stride *= s
        self.assertEqual((stride, rates, classes, (image - 1) % stride), (16, (6, 12, 18), 21, 0))

    def test_every_pair_has_models(self):
        specs = [m for row in pairs.MODELS.values() for m in row[:2]] + [s for high, lows in (pairs.TENANTS, pairs.EIGHT) for s in [high] + lows]
        for spec in specs:
            self.assertTrue(hasattr(models.Maker, "make_" + spec.partition(":")[0]), spec)
        self.assertEqual(len(pairs.EIGHT[1]) + 1, 8)
        self.assertEqual(set(models.SMALL["nets"]), set(models.FULL["nets"]))
        for name, sizes in models.FULL["nets"].items():
            self.assertEqual(len(sizes), len(models.SMALL["nets"][name]))

    def test_many_jobs_have_cores(self):
        sets = rig.cpu_sets(16)
        self.assertTrue(all(sets[pairs.role(i)] for i in range(7)))

    def test_a_job_that_starves_is_found(self):
        def found(*rates):
            modes = {"alone": {"high": {}}, "live": {"low": {"rates": list(rates)}}}
            return pairs.all_progress({"name": "eight", "low_models": ["a:1", "b:1"], "modes": modes})
        self.assertTrue(found(0.5, 0.1)["ok"])
        self.assertEqual(found(0.5, 0)["detail"], "b:1 in mode live")


def vit_parameters(places, patch, width, layers, classes):
    layer = 12 * width ** 2 + 13 * width
    return 3 * patch ** 2 * width + width + width + places * width + layers * layer + 2 * width + width * classes + classes


@unittest.skipIf(torch is None, "no PyTorch")
class Nets(unittest.TestCase):
    def test_outputs_have_the_right_shape_and_depend_on_all_of_the_input(self):
        import nets
        sizes = models.SMALL["nets"]
        shapes = {"vit": (2, 10), "mobilenet": (2, 10), "deeplab": (2, 5, 64, 64), "whisper": (2, 50)}
        for name, shape in shapes.items():
            torch.manual_seed(3)
            net, x = getattr(nets, name)(sizes[name], 2)
            with torch.no_grad():
                out, other = net(x), net(x.flip(-1))
            self.assertEqual(tuple(out.shape), shape, name)
            self.assertTrue(bool(torch.isfinite(out).all()), name)
            self.assertFalse(bool((out[0] == other[0]).all()), name)
            self.assertFalse(bool((out[0] == out[1]).all()), name)

    def test_parameters_are_those_counted_by_hand(self):
        import nets
        for name, expected in (("vit", 86_567_656), ("mobilenet", 3_504_872)):
            net, _ = getattr(nets, name)(models.FULL["nets"][name], 1)
            self.assertEqual(sum(p.numel() for p in net.parameters()), expected, name)


@unittest.skipIf(torch is None, "no PyTorch")
class Outputs(unittest.TestCase):
    HIGHS = ["llm-graph", "llm-cpu", "llm-eager", "serve:1", "bert:2", "mobilenet:1", "whisper:1"]
    LOWS = ["gpt2:2", "prefill:2", "matmul:64", "fft:1", "tiny:10", "copies:1", "vit:2", "deeplab:2"]

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
