# SPDX-License-Identifier: Apache-2.0
import struct
import unittest

import holder
import memory


class Keys(unittest.TestCase):
    def test_period(self):
        """A block is as before after PERIOD changes, and differs after each of the others."""
        word, seen = 0x1234, set()
        for key in holder.KEYS:
            seen.add(word)
            word ^= key
        self.assertEqual(word, 0x1234)
        self.assertEqual(len(seen), holder.PERIOD)
        self.assertTrue(all(0 < k < 1 << 31 for k in holder.KEYS))


class Driver:
    """Memory that behaves, or comes back without its content."""

    def __init__(self, lost=False):
        self.lost = lost

    def read(self, case):
        for i, block in enumerate(case.blocks):
            filled = i * 7 + 1
            word = filled << 32 | filled
            for k in range(case.steps):
                word = holder.Virtual.fold(case, word, (k + i) & 0xFFFF)
            yield struct.pack("<QQ", word, (filled << 32 | filled) + case.steps) + struct.pack("<I", 0 if self.lost else filled) * 12


class Case(holder.Virtual):
    def __init__(self, driver):
        self.unit, self.block_units, self.blocks, self.words, self.seen, self.steps = 64, 1, [1, 2], [], 0, 0
        self.driver = driver
        self.start()

    def call(self, name, *args):
        if name == "cuMemcpyDtoH_v2":
            args[0].raw = list(self.driver.read(self))[self.blocks.index(args[1])]


class Content(unittest.TestCase):
    def test_right(self):
        case = Case(Driver())
        case.steps = 5
        self.assertEqual(case.wrong(5), 0)
        self.assertEqual(case.wrong(6), 2)  # an iteration whose kernels had no effect

    def test_lost(self):
        case = Case(Driver(lost=True))
        self.assertEqual(case.wrong(0), 2)


class Rate(unittest.TestCase):
    def test_whole_iterations(self):
        import time
        now = time.monotonic_ns()

        class Program:
            samples = [(now - 10**9, now - 10**8), (now + 10**7, now + 2 * 10**7), (now + 2 * 10**7, now + 9 * 10**9)]
        self.assertEqual(memory.rate(Program, 0.1), 10)


if __name__ == "__main__":
    unittest.main()
