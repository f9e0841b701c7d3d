# SPDX-License-Identifier: Apache-2.0
"""Tests without a library: calls check their arguments only, and types match the C header."""

import asyncio
import ctypes
import os
import re
import unittest

import xsched
from xsched import _library, enums_gen, hints_gen

HEADER = os.path.join(
    os.path.dirname(__file__), "..", "..", "shim", "include", "xsched", "xsched.h"
)


class Alone(unittest.TestCase):
    def setUp(self) -> None:
        if _library.library() is not None:
            self.skipTest("libxsched is loaded")

    def test_inert(self) -> None:
        self.assertFalse(xsched.available())
        self.assertEqual(xsched.queues(), [])
        self.assertEqual(xsched.scheduler(), xsched.Scheduler.UNKNOWN)
        xsched.hint(priority=5, utilization=50, slo_ms=20, slo_percentile=99.9, gang="a")
        xsched.set_scheduler(xsched.Scheduler.GLOBAL)
        with xsched.request("a") as outer, xsched.request("b"):
            self.assertIsInstance(outer, xsched.request)

    def test_bad_values(self) -> None:
        bad = [
            {"priority": 256},
            {"priority": -257},
            {"utilization": 101},
            {"timeslice_us": 99},
            {"timeslice_us": 10**7 + 1},
            {"deadline_us": -1},
            {"laxity_us": 1, "critical_priority": 300},
            {"k": 5000},
            {"slo_ms": -1},
            {"slo_ms": 1, "slo_percentile": 100},
            {"slo_percentile": 99},
            {"gang": "x" * 64},
            {"gang": "a\nb"},
            {"slo_ms": float("inf")},
            {"slo_ms": 1, "slo_percentile": float("nan")},
            {"in_flight": -1},
            {"policy": "x" * 32},
            {"policy": "NOPE"},
        ]
        for arguments in bad:
            with self.subTest(arguments), self.assertRaises(ValueError) as caught:
                xsched.hint(**arguments)
            self.assertEqual(caught.exception.result, xsched.Result.ERROR_INVALID_VALUE)
        for arguments in [
            {},
            {"priority": "high"},
            {"priority": True},
            {"gang": 3},
            {"slo_ms": "1"},
            {"k": 1, "queue": "first"},
        ]:
            with self.subTest(arguments), self.assertRaises(TypeError):
                xsched.hint(**arguments)
        for name in ["", "a\0b", None]:
            with self.assertRaises(ValueError):
                xsched.request(name)
        with self.assertRaises(ValueError):
            xsched.set_scheduler(9)

    def test_decorator(self) -> None:
        @xsched.request("f")
        def add(a: int, b: int) -> int:
            """adds"""
            return a + b

        @xsched.request("g")
        async def wait(n: int) -> int:
            await asyncio.sleep(0)
            return n

        self.assertEqual(add(1, b=2), 3)
        self.assertEqual(add.__doc__, "adds")
        self.assertEqual(asyncio.run(wait(4)), 4)
        with self.assertRaises(KeyError), xsched.request("h"):
            raise KeyError


class Header(unittest.TestCase):
    """The enums and structs match the C header."""

    def setUp(self) -> None:
        if not os.path.exists(HEADER):
            self.skipTest("no C header: not run from the repository")
        text = ""
        for name in (HEADER, os.path.join(os.path.dirname(HEADER), "hints_gen.h")):
            with open(name, encoding="utf-8") as file:
                text += file.read()
        self.text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)

    def test_enums(self) -> None:
        for ctype, kind, prefix in [
            ("XResult", enums_gen.Result, "kXSched"),
            ("XPreemptLevel", enums_gen.Level, "kPreemptLevel"),
            ("XQueueState", enums_gen.QueueState, "kQueueState"),
            ("XSchedulerType", enums_gen.Scheduler, "kScheduler"),
            ("XPolicyType", enums_gen.Policy, "kPolicy"),
            ("XSHintField", hints_gen.HintField, "kHint"),
            ("XSQueueKind", enums_gen.QueueKind, "kQueueKind"),
        ]:
            body = re.search(r"typedef enum \{([^}]*)\} " + ctype + ";", self.text).group(1)
            want = {
                int(value)
                for name, value in re.findall(prefix + r"(\w+) = (-?\d+)", body)
                if name != "Max"
            }
            self.assertEqual({int(v) for v in kind}, want, ctype)

    def test_structs(self) -> None:
        sizes = {"uint32_t": 4, "int32_t": 4, "uint64_t": 8, "int64_t": 8, "const char *": 8}
        for ctype, structure in [
            ("xs_hint", hints_gen.CHint),
            ("xs_queue_info", _library.CQueue),
        ]:
            body = re.search(r"typedef struct " + ctype + r" \{([^}]*)\}", self.text).group(1)
            fields = re.findall(r"(const char \*|\w+ )(\w+);", body)
            self.assertEqual([n for _, n in fields], [n for n, _ in structure._fields_])
            for (kind, name), (_, here) in zip(fields, structure._fields_):
                self.assertEqual(ctypes.sizeof(here), sizes[kind.strip()], name)


if __name__ == "__main__":
    unittest.main()
