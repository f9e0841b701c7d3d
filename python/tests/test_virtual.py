# SPDX-License-Identifier: Apache-2.0
"""Tests on the virtual GPU. This file is the test and, under `xsched run`, the tested program."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Callable

import xsched

from . import cuda

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PACKAGE = os.path.join(ROOT, "python")
XSCHED = os.environ.get("XSCHED_BIN", os.path.join(ROOT, "bin", "xsched"))


# ---- the program under the scheduler -----------------------------------------------


def program(command: Callable[[cuda.Cuda], None]) -> None:
    assert xsched.available(), "a daemon answers before the first GPU work"
    gpu = cuda.Cuda()
    gpu.launch(200)
    gpu.wait()
    assert cuda.eventually(xsched.available), "no daemon"
    command(gpu)
    print("done", flush=True)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)
    sys.stdin.readline()  # wait for the test


def hints(gpu: cuda.Cuda) -> None:
    queue = xsched.queues()[0]
    say(queue=queue.device, submitted=queue.submitted, kind=int(queue.kind))
    xsched.hint(priority=7, utilization=30)
    say(step="set")
    xsched.hint(priority=-7)
    say(step="again")
    try:
        xsched.hint(policy="UP")
    except xsched.NotSupportedError as error:
        say(error=int(error.result))


def requests(gpu: cuda.Cuda) -> None:
    xsched.hint(slo_ms=50)
    for _ in range(100):
        with xsched.request("infer"):
            gpu.launch(100)
            gpu.wait()
    time.sleep(0.1)
    say(step="marked")


def modes(gpu: cuda.Cuda) -> None:
    assert xsched.scheduler() == xsched.Scheduler.GLOBAL
    xsched.set_scheduler(xsched.Scheduler.APP_MANAGED)
    assert cuda.eventually(lambda: not xsched.available())
    gpu.launch(100)
    gpu.wait()
    say(step="app")
    xsched.set_scheduler(xsched.Scheduler.GLOBAL)
    assert cuda.eventually(xsched.available)
    say(step="global")


def local(gpu: cuda.Cuda) -> None:
    assert xsched.scheduler() == xsched.Scheduler.LOCAL
    xsched.hint(policy="rr")
    try:
        xsched.hint(policy="NOPE", priority=5)
    except ValueError as error:
        assert "use AWF" in str(error), error
    else:
        raise AssertionError("an unknown policy raises nothing")
    say(dir=os.environ["XSCHED_DIR"])
    xsched.set_scheduler(xsched.Scheduler.LOCAL, xsched.Policy.UTILIZATION_PARTITION)
    say(step="up")


# ---- the tests ----------------------------------------------------------------------


class Child:
    def __init__(self, env: dict, *arguments: str, module: str = "tests.test_virtual") -> None:
        self.process = subprocess.Popen(
            [XSCHED, "run", "--virtual", *arguments[:-1], "--", sys.executable, "-m"]
            + [module, arguments[-1]],
            env=env,
            cwd=PACKAGE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *unused: object) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def read(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def go_on(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, test: unittest.TestCase) -> None:
        test.assertEqual(self.process.stdout.readline(), "done\n")
        test.assertEqual(self.process.wait(10), 0)


def built(folder: str, name: str, test: unittest.TestCase) -> str:
    """Returns a folder of build products, or skips the test."""
    if not os.path.exists(os.path.join(ROOT, folder, name)):
        if os.environ.get("XSCHED_CI") == "1":
            test.fail(f"{folder}/{name} is not built")
        test.skipTest(f"{folder}/{name} is not built; run `make build`")
    return os.path.join(ROOT, folder)


def clean_environment() -> dict:
    return {
        k: v for k, v in os.environ.items() if not k.startswith("XSCHED_") or k == "XSCHED_CACHE"
    }


class World(unittest.TestCase):
    """A daemon with a virtual GPU."""

    serve_arguments: list = []

    def setUp(self) -> None:
        if not os.path.exists(XSCHED):
            built("bin", "xsched", self)
        self.dir = tempfile.mkdtemp(prefix="xs", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.dir, True)
        self.env = {**clean_environment(), "XSCHED_DIR": self.dir}
        self.serve = subprocess.Popen(
            [XSCHED, "serve", "--virtual", "--log-level", "warn", *self.serve_arguments], env=self.env
        )
        self.addCleanup(self.stop)
        self.assertTrue(cuda.eventually(lambda: self.xsched("version") is not None, 15))

    def stop(self) -> None:
        self.serve.terminate()
        try:
            self.serve.wait(10)
        except subprocess.TimeoutExpired:
            self.serve.kill()
            self.serve.wait()

    def xsched(self, *arguments: str, env: dict = None):
        ran = subprocess.run(
            [XSCHED, *arguments], env=env or self.env, capture_output=True, text=True, timeout=20
        )
        if arguments[0] == "version":
            return ran.stdout if "daemon" in ran.stdout and ran.returncode == 0 else None
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def known(self, pid: int) -> dict:
        for process in json.loads(self.xsched("list", "--json"))["processes"] or []:
            if process["pid"] == pid:
                return process
        return {}


class Virtual(World):
    def test_hints(self) -> None:
        with Child(self.env, "hints") as child:
            first = child.read()
            self.assertRegex(first["queue"], r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0$")
            self.assertEqual((first["submitted"], first["kind"]), (1, 0))
            pid = child.process.pid
            self.assertEqual(self.known(pid)["priority"], 0)
            child.go_on()
            self.assertEqual(child.read(), {"step": "set"})
            self.assertTrue(cuda.eventually(lambda: self.known(pid).get("priority") == 7))
            # A hint leaves the other hints as they are.
            self.assertEqual(self.known(pid).get("utilization", 30), 30)
            child.go_on()
            self.assertEqual(child.read(), {"step": "again"})
            self.assertTrue(cuda.eventually(lambda: self.known(pid).get("priority") == -7))
            child.go_on()
            self.assertEqual(child.read(), {"error": 5})
            child.go_on()
            child.end(self)

    def test_requests(self) -> None:
        with Child(self.env, "requests") as child:
            self.assertEqual(child.read(), {"step": "marked"})

            def counted() -> bool:
                latency = self.known(child.process.pid).get("latency", {})
                return (latency.get("source"), latency.get("requests")) == ("marked requests", 100)

            self.assertTrue(cuda.eventually(counted))
            slo = self.known(child.process.pid)["slo"]
            self.assertEqual((slo["target_us"], slo["objective"]), (50000, 0.99))
            child.go_on()
            child.end(self)

    def test_modes(self) -> None:
        with Child(self.env, "modes") as child:
            self.assertEqual(child.read(), {"step": "app"})
            self.assertTrue(cuda.eventually(lambda: self.known(child.process.pid) == {}))
            child.go_on()
            self.assertEqual(child.read(), {"step": "global"})
            self.assertNotEqual(self.known(child.process.pid), {})
            child.go_on()
            child.end(self)

    def test_local(self) -> None:
        with Child(self.env, "--local", "--policy", "FIFO", "local") as child:
            private = child.read()["dir"]
            self.assertNotEqual(private, self.dir)
            env = {**self.env, "XSCHED_DIR": private}
            policy = lambda: self.xsched("policy", env=env)  # noqa: E731
            self.assertTrue(cuda.eventually(lambda: "policy: RR" in policy()), policy())
            self.assertIn("policy: HPF", self.xsched("policy"))  # the global daemon keeps its policy
            self.assertEqual(self.known(child.process.pid), {})
            child.go_on()
            self.assertEqual(child.read(), {"step": "up"})
            self.assertTrue(cuda.eventually(lambda: "policy: UP" in policy()), policy())
            child.go_on()
            child.end(self)
            self.assertTrue(cuda.eventually(lambda: not os.path.exists(private)))


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in ("hints", "requests", "modes", "local"):
        program(globals()[sys.argv[1]])
    else:
        unittest.main()
