# SPDX-License-Identifier: Apache-2.0
"""The processes of the example: a daemon, the server, the job. All of them end with this one."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIMIT_S = 60  # for a start or an answer: a loaded machine may be slow


class Failed(Exception):
    """The example cannot continue."""


def wait_for(what: str, condition, limit_s: float = LIMIT_S):
    """Polls until the condition holds, and returns its value."""
    until = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > until:
            raise Failed(f"{what}: not within {limit_s:g} s")
        time.sleep(0.02)
    return value


class Process:
    """A child whose lines of output a thread collects."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        def before() -> None:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        self.lines: list[str] = []
        self._changed, self._ended, self._seen = threading.Condition(), False, 0
        self.p = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, preexec_fn=before)
        self.pid = self.p.pid
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.p.stdout:
            with self._changed:
                self.lines.append(line.strip())
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def tell(self, line: str) -> None:
        try:
            self.p.stdin.write(line + "\n")
        except OSError as e:
            raise Failed(f"pid {self.pid} has exited with code {self.p.poll()}") from e

    def expect(self, word: str = "") -> str:
        """The next line that begins with word."""
        hit: list[str] = []

        def found() -> bool:
            while not hit and self._seen < len(self.lines):
                line, self._seen = self.lines[self._seen], self._seen + 1
                if line.startswith(word):
                    hit.append(line)
            return bool(hit) or self._ended
        with self._changed:
            self._changed.wait_for(found, LIMIT_S)
        if not hit:
            raise Failed(f"pid {self.pid} did not print {word or 'a line'}; exit code {self.p.poll()}")
        return hit[0]

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.p.poll() is None:
            self.p.send_signal(number)
        try:
            return self.p.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.p.kill()
            return self.p.wait()


class World:
    """A private daemon, and the programs it schedules."""

    def __init__(self, backend: str) -> None:
        self.virtual, self.backend = backend == "virtual", backend
        self.xsched = os.environ.get("XSCHED") or os.path.join(ROOT, "bin", "xsched")
        if not os.access(self.xsched, os.X_OK):
            raise Failed(f"{self.xsched} is not built; run `make build`")
        self.folder = tempfile.TemporaryDirectory(prefix="xss.")
        self.env = dict(os.environ, XSCHED_DIR=os.path.join(self.folder.name, "d"), PYTHONDONTWRITEBYTECODE="1")
        self.children: list[Process] = []
        # The self-test would use the GPU during a block.
        self.daemon = self._start([self.xsched, "serve", "--log-level", "warn", "--self-test", "off"] + (["--virtual"] if self.virtual else []))
        wait_for("the daemon answers", lambda: self.cli("list", "--json", check=False))

    def _start(self, argv: list[str]) -> Process:
        self.children.append(Process(argv, self.env))
        return self.children[-1]

    def close(self) -> None:
        for child in reversed(self.children):
            child.end()
        self.folder.cleanup()

    def program(self, flags: list[str], script: str, *arguments: str) -> Process:
        """Starts a script under XSched. `xsched run` execs it, so the pid stays."""
        run = [self.xsched, "run"] + (["--virtual"] if self.virtual else []) + flags
        return self._start(run + ["--", sys.executable, os.path.join(HERE, script), "--backend", self.backend, *arguments])

    def cli(self, *arguments: str, check: bool = True) -> dict:
        r = subprocess.run([self.xsched, *arguments], env=self.env, capture_output=True, text=True, timeout=LIMIT_S)
        if r.returncode == 0:
            return json.loads(r.stdout) if "--json" in arguments else {}
        if check:
            raise Failed(f"xsched {' '.join(arguments)}: {r.stderr.strip()}")
        return {}

    def processes(self) -> dict[int, dict]:
        return {p["pid"]: p for p in self.cli("list", "--json")["processes"]}

    def device(self) -> dict[int, dict]:
        """The virtual GPU's own counters, by process. A real GPU has none."""
        if not self.virtual:
            return {}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(LIMIT_S)
            s.connect(os.path.join(self.env["XSCHED_DIR"], "vgpu.sock"))
            s.send(struct.pack("<I", 0x47444756) + b'{"op": "stats"}')
            document, last = b"", False
            while not last:
                packet = s.recv(1 << 16)
                if len(packet) < 8:
                    raise Failed("the virtual GPU has ended")
                document, last = document + packet[8:], packet[4] & 1
        return {c["pid"]: c for c in json.loads(document)["stats"]["clients"]}


def get(url: str) -> tuple[int, dict]:
    """The status and the body of a GET request; status 0 without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as r:
            return r.status, json.loads(r.read() or b"{}")
    except urllib.error.HTTPError as e:
        return e.code, {}
    except OSError:
        return 0, {}
