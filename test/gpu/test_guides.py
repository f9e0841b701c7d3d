# SPDX-License-Identifier: Apache-2.0
import glob
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guides
import processes
import rig


class FakeRig:
    """Lists what a program did, without a daemon."""
    virtual = False

    def __init__(self, listed, gave_way=5):
        self.listed, self.gave_way, self.tmp = listed, gave_way, tempfile.mkdtemp()
        self.env, self.procs, self.logs, self.looks = dict(os.environ), [], self.tmp, 0

    def under(self, argv, priority):
        return argv

    def list(self):
        return self.listed if any(p.alive() for p in self.procs) else {}

    def stats(self):
        self.looks += 1
        return {"preemptions": 0, "yields": self.gave_way * (self.looks - 1)}

    def cli(self, *args):
        return "PID\n77 root"


def process(launches, level=3):
    return {"counters": {"launches": launches}, "queues": [{"level": level, "level_reason": "MPS" if level < 3 else ""}]}


def run(listed, argv=("sleep", "0.4"), limit_s=5, server=False, **kw):
    fake = FakeRig(listed, **kw)
    return guides.run_one(fake, guides.Guide("page", None, server=server), list(argv), mock.Mock(pid=1), limit_s)


class Guides(unittest.TestCase):
    def test_pages(self):
        """Every page of a program says whether it was run, so it is run here; pages of tasks say nothing."""
        pages = set()
        for path in glob.glob(os.path.join(rig.ROOT, "docs", "guides", "*.md")):
            with open(path) as f:
                if re.search(r"^\*\*(Not run on hardware|Run on an H200)", f.read(), re.M):
                    pages.add(os.path.basename(path)[:-3])
        self.assertEqual(sorted(g.page for g in guides.GUIDES), sorted(pages))

    def test_programs_are_python(self):
        for text in (guides.TORCH, guides.JAX, guides.CUPY, guides.ONNX, guides.VLLM, guides.TRITON_MODEL % 3):
            compile(text, "program", "exec")

    def test_what_is_missing_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            for module in ("torch", "jax", "cupy", "onnxruntime", "vllm"):
                with mock.patch("importlib.util.find_spec", return_value=None), self.assertRaisesRegex(processes.Failed, "not installed"):
                    guides.script(module, "x.py", "")(folder)
            with mock.patch("shutil.which", return_value=None):
                for prepare in (guides.llama, guides.triton):
                    self.assertRaisesRegex(processes.Failed, "not installed", prepare, folder)
            with mock.patch("shutil.which", return_value="/bin/true"), mock.patch.dict(os.environ, {"XSCHED_GUIDES_GGUF": ""}):
                self.assertRaisesRegex(processes.Failed, "no model", guides.llama, folder)

    def test_a_program_that_is_intercepted(self):
        row, result = run({77: process(40), 78: {"counters": {"launches": 0}, "queues": []}})
        self.assertTrue(result["ok"], result)
        self.assertEqual((row["launches"], row["processes"], row["the job gave way"]), (40, 2, 5))
        self.assertIn("77", row["list"])

    def test_failures(self):
        for want, listed, kw in (
                ("no launch was intercepted", {77: process(0)}, {}),
                ("Lv1: MPS", {77: process(3, level=1)}, {}),
                ("never gave way", {77: process(3)}, {"gave_way": 0}),
                ("exit code 3", {77: process(3)}, {"argv": ("sh", "-c", "sleep 0.3; exit 3")}),
                ("killed after", {77: process(3)}, {"argv": ("sleep", "60"), "limit_s": 0.5})):
            result = run(listed, **kw)[1]
            self.assertFalse(result["ok"], want)
            self.assertIn(want, result["detail"])
        self.assertTrue(run({77: process(3)}, argv=("sleep", "60"), limit_s=0.5, server=True)[1]["ok"])  # servers do not end

    def test_onnx_model(self):
        model = guides.onnx_model(3)
        self.assertEqual(model[:2], b"\x08\x08")  # field 1, IR version 8
        self.assertTrue(model.endswith(b"\x42\x04\x0a\x00\x10\x0d"))  # field 8: operator set 13 of the default domain
        self.assertIn(b"MatMul", model)


if __name__ == "__main__":
    unittest.main()
