# SPDX-License-Identifier: Apache-2.0
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import figures
import report

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


class Figures(unittest.TestCase):
    def test_pages_have_the_figures_of_the_results(self):
        merged = report.merge(report.load([os.path.join(ROOT, "docs", "results", "h200.json.gz")]))
        wrong = ["%s: %r has %s, the results have %s; run `make results`" % each for each in figures.stale(ROOT, merged)]
        self.assertEqual(wrong, [])

    def test_update(self):
        text = "# T\n\n- one\n- It took 4.6 ms\n  after a kill, and " + "very " * 13 + "long.\n- three\n\n| It took 4.6 ms after a kill |\n"
        with tempfile.TemporaryDirectory() as d, mock.patch.object(figures, "FIGURES", [("a.md", "It took {} ms after a kill", lambda m: ["1,234,567.25"]), ("a.md", "gone {}", lambda m: ["1"])]):
            report.save(os.path.join(d, "a.md"), text)
            self.assertEqual([got for _, _, got, _ in figures.stale(d, None)], [["4.6"], ["4.6"], None])
            figures.update(d, None)
            with open(os.path.join(d, "a.md")) as f:
                found = f.read()
            self.assertEqual([got for _, _, got, _ in figures.stale(d, None)], [None])
        self.assertEqual(" ".join(found.split()), " ".join(text.replace("4.6", "1,234,567.25").split()))
        self.assertLessEqual(max(map(len, found.splitlines())), figures.COLUMNS)
        self.assertIn("\n- three\n", found)


if __name__ == "__main__":
    unittest.main()
