# SPDX-License-Identifier: Apache-2.0
"""The wheel: its version, tag and library, and that two builds are equal."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from types import ModuleType
from unittest import mock

from . import test_virtual


def backend() -> ModuleType:
    spec = importlib.util.spec_from_file_location("backend", os.path.join(test_virtual.PACKAGE, "backend.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Wheel(unittest.TestCase):
    def setUp(self) -> None:
        self.library = Path(test_virtual.built("build", "libxsched.so", self), "libxsched.so")
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.backend = backend()

    def test_brings_its_library(self) -> None:
        name = self.backend.write_wheel(self.folder, self.library)
        site = os.path.join(self.folder, "site")
        with zipfile.ZipFile(os.path.join(self.folder, name)) as wheel:
            wheel.extractall(site)
        program = (
            "import importlib.metadata as m, xsched, xsched.hip, xsched_hip; from xsched import XSched\n"
            "assert xsched_hip.XSchedHip is xsched.hip.XSchedHip and xsched_hip.hint is xsched.hint\n"
            "print(m.version('xsched'), xsched.library_path(), int(XSched.XQueueDestroy(9)))"
        )
        environment = {**test_virtual.clean_environment(), "PYTHONPATH": site}
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd="/", capture_output=True, text=True, timeout=60
        )
        release = self.backend.version()
        self.assertRegex(release, r"^\d+\.\d+\.\d+$")
        library = os.path.join(site, "xsched", "lib", f"libxsched.so.{release.split('.')[0]}")
        self.assertEqual((ran.stdout, ran.stderr), (f"{release} {library} 3\n", ""))
        machine = os.uname().machine
        self.assertTrue(re.fullmatch(rf"xsched-{re.escape(release)}-py3-none-manylinux_2_\d+_{machine}\.whl", name), name)

    def test_tag_follows_the_symbols(self) -> None:
        content = self.library.read_bytes()
        self.assertTrue(self.backend.platform_tag(content).startswith("manylinux_2_28_"))
        # The last version in the table of names; a version in other data does not count.
        newer = re.sub(rb"(\0GLIBC_2\.)17(?=\0)", rb"\g<1>39", content, count=1)
        self.assertNotEqual(newer, content)
        self.assertTrue(self.backend.platform_tag(newer).startswith("manylinux_2_39_"))
        self.assertTrue(self.backend.platform_tag(content + b"\0GLIBC_2.99\0").startswith("manylinux_2_28_"))
        with self.assertRaises(ValueError):
            self.backend.platform_tag(b"#!/bin/sh\n")

    def test_reproducible(self) -> None:
        digests = set()
        for part in ("a", "b"):
            folder = os.path.join(self.folder, part)
            os.mkdir(folder)
            with mock.patch.dict(os.environ, {"SOURCE_DATE_EPOCH": "1700000000"}):
                name = self.backend.write_wheel(folder, self.library)
            digests.add(hashlib.sha256(Path(folder, name).read_bytes()).hexdigest())
        self.assertEqual(len(digests), 1)

    def test_without_a_library(self) -> None:
        with mock.patch.dict(os.environ, {"XSCHED_WHEEL_LIBRARY": "/nonexistent"}):
            name = self.backend.build_wheel(self.folder)
        self.assertTrue(name.endswith("-py3-none-any.whl"), name)
