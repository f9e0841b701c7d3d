# SPDX-License-Identifier: Apache-2.0
"""One run: the daemon, the programs and MPS."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from processes import Failed, Proc, Worker

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def cpu_sets(count=None):
    """Assigns separate cores to the roles if there are at least 12."""
    cores = sorted(os.sched_getaffinity(0)) if count is None else list(range(count))
    if len(cores) < 12:
        return {}
    # The high gets an even range: two neighbours may be hyper-threads of one core.
    sets = {"daemon": cores[:2], "high": cores[2:6], "driver": cores[-1:]}
    rest = cores[6:-1]
    part = len(rest) // 3
    for i, role in enumerate(("low1", "low2", "low3")):
        sets[role] = rest[i * part:(i + 1) * part]
    return sets


class Rig:
    """One run: private folders, one daemon at a time, and all started processes."""

    def __init__(self, out, virtual=False, quick=1.0, seed=1, mps=True, only=()):
        self.out, self.virtual, self.scale, self.seed, self.mps, self.only = out, virtual, quick, seed, mps, only
        self.tmp = tempfile.mkdtemp(prefix="xsched-gpu.")
        self.dir = os.path.join(self.tmp, "run")
        os.mkdir(self.dir, 0o700)
        self.logs = os.path.join(self.tmp, "logs")
        os.mkdir(self.logs)
        self.xsched = os.path.join(ROOT, "bin", "xsched")
        self.tenant = os.path.join(ROOT, "build", "virtual", "tenant")
        self.helpers = os.environ.get("XSCHED_GPU_HELPERS", "")
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(("XSCHED_", "CUDA_MPS_", "LD_PRELOAD"))}
        self.env.update(XSCHED_DIR=self.dir, XSCHED_CACHE=os.path.join(self.tmp, "cache"),
                        PYTHONUNBUFFERED="1", OMP_NUM_THREADS="2", CUDA_MODULE_LOADING="LAZY",
                        XSCHED_LOG=os.path.join(self.logs, "shim.log"), XSCHED_LOG_LEVEL="warn",
                        PYTHONDONTWRITEBYTECODE="1")
        self.procs, self.daemon, self.cores = [], None, cpu_sets()
        self.serve_arguments = []
        if self.cores:
            os.sched_setaffinity(0, self.cores["driver"])

    # -- daemon

    def start_daemon(self, limit_s=900):
        if self.daemon and self.daemon.alive():
            return self.daemon
        argv = [self.xsched, "serve", "--log-level", "info", "--self-test", "off"] + (["--virtual"] if self.virtual else []) + self.serve_arguments
        if "--no-state" in subprocess.run([self.xsched, "serve", "--help"], capture_output=True, text=True, timeout=15).stdout:
            argv.append("--no-state")  # a suite must not inherit settings; the release before keeps none
        self.daemon = Proc(self, "daemon", argv, limit_s=limit_s, cores=self.cores.get("daemon"), pipe=False)
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            try:
                self.http("GET", "/api/v1/version")
                return self.daemon
            except (OSError, Failed, http.client.HTTPException):
                if not self.daemon.alive():
                    break
                time.sleep(0.01)
        raise Failed("the daemon does not respond: " + self.daemon.tail())

    def stop_daemon(self):
        if self.daemon:
            self.daemon.signal(signal.SIGTERM)
            self.daemon.wait(5)
            self.daemon.close()
            self.daemon = None

    def cli(self, *args, timeout=15):
        """Runs the CLI and returns its output, parsed with --json."""
        try:
            r = subprocess.run([self.xsched] + [str(a) for a in args], env=self.env, capture_output=True,
                               text=True, timeout=timeout)
        except subprocess.TimeoutExpired as e:
            raise Failed("xsched %s took more than %g s" % (" ".join(map(str, args)), timeout)) from e
        if r.returncode != 0:
            raise Failed("xsched %s: %s" % (" ".join(map(str, args)), (r.stderr or r.stdout).strip()))
        return json.loads(r.stdout) if "--json" in args else r.stdout

    def http(self, method, path, body=None, timeout=10):
        """Calls the HTTP API: a process start would disturb the measurement."""
        c = http.client.HTTPConnection("xsched", timeout=timeout)
        c.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        c.sock.settimeout(timeout)
        try:
            c.sock.connect(os.path.join(self.dir, "control.sock"))
            data = None if body is None else json.dumps(body)
            c.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            r = c.getresponse()
            text = r.read().decode()
            if r.status >= 300:
                raise Failed("%s: %s" % (path, text.strip()))
            return json.loads(text) if text.strip() else {}
        finally:
            c.close()

    def mode(self, name):
        """off, live, timeslice, suspend or level1..3."""
        words = ["level", name[5:]] if name.startswith("level") else [name]
        self.cli("mode", *words)

    def list(self):
        return {p["pid"]: p for p in self.cli("list", "--json")["processes"]}

    def stats(self):
        return self.cli("list", "--stats", "--json")

    def preemptions(self, workers):
        """Preemptions of the workers, as counted by the daemon."""
        procs = self.list()
        return sum(q["preemptions"] for w in workers for q in procs.get(w.pid, {}).get("queues", []))

    def joined(self, workers, timeout=10):
        """Waits until the daemon lists a queue of every worker."""
        limit = time.monotonic() + timeout
        while time.monotonic() < limit:
            procs = self.list()
            if all(procs.get(w.pid, {}).get("queues") for w in workers):
                return procs
            time.sleep(0.05)
        raise Failed("not registered with the daemon: " + ", ".join(w.name for w in workers if not procs.get(w.pid, {}).get("queues")))

    def stolen_s(self):
        """Steal time of the high's cores in seconds; None if unknown."""
        names = {"cpu%d" % c for c in self.cores.get("high", [])} or {"cpu"}
        try:
            with open("/proc/stat") as f:
                return sum(int(line.split()[8]) for line in f if line.split()[0] in names) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return None

    # -- programs

    def under(self, argv, priority, options=()):
        """Returns argv under the shim. `xsched run` execs the program, so the pid stays."""
        run = [self.xsched, "run"] + (["--virtual"] if self.virtual else []) + list(options)
        return run + ["--priority", str(priority), "--"] + argv

    def plain_env(self):
        """The environment of a program without the shim."""
        if not self.virtual:
            return {"XSCHED_LOG": None}
        folder = os.path.join(ROOT, "build", "virtual")
        return {"LD_PRELOAD": os.path.join(folder, "libvgpu.so"), "LD_LIBRARY_PATH": folder,
                "XSCHED_VGPU_SOCKET": os.path.join(self.dir, "vgpu.sock")}

    def worker(self, name, argv, priority=None, env=None, role=None, limit_s=400, tenant=False, options=()):
        """Starts a worker, under XSched if it has a priority; options are those of `xsched run`."""
        full = dict(env or {})
        if priority is None:
            full = dict(self.plain_env(), **full)
        else:
            argv = self.under(argv, priority, options)
        return Worker(self, name, argv, env=full, limit_s=limit_s, cores=self.cores.get(role or name),
                      tenant=tenant, shim=priority is not None)

    def spin(self, name, kernel_us, priority=None, depth=1, grid=0, **kw):
        argv = [self.tenant, "--name", name, "--kernel-us", str(kernel_us), "--depth", str(depth)]
        argv += ["--grid", str(grid)] if grid else []
        return self.worker(name, argv, priority, tenant=True, **kw)

    def torch(self, name, models, priority=None, check=4, depth=2, limit_s=700, backend="torch", **kw):
        """Starts worker.py. The main thread of a high is pinned to one of its cores."""
        own = self.cores.get("high", []) if kw.get("role", name) == "high" else []
        argv = [sys.executable, os.path.join(HERE, "worker.py"), "--name", name, "--models", ",".join(models),
                "--check", str(check), "--depth", str(depth), "--backend", "spin" if self.virtual else backend]
        argv += ["--core", str(own[-1])] if own else []
        return self.worker(name, argv, priority, limit_s=limit_s, **kw)

    def helper(self, name):
        path = os.path.join(self.helpers, name)
        if not self.helpers or not os.access(path, os.X_OK):
            raise Failed("helper %s is missing: check nvcc, gcc and build.log" % name)
        return path

    def end(self, workers):
        """Ends the workers; returns {name: checksums agree}."""
        return {w.name: w.quit() for w in workers}

    def close(self):
        self.stop_daemon()
        for p in self.procs:
            if p.alive():
                p.close()
            p.timer.cancel()
        shutil.rmtree(self.tmp, ignore_errors=True)


class Mps:
    """An MPS control daemon with private folders."""

    def __init__(self, rig):
        self.rig = rig
        if not shutil.which("nvidia-cuda-mps-control"):
            raise Failed("nvidia-cuda-mps-control is not installed")
        self.folder = os.path.join(rig.tmp, "mps")
        os.makedirs(self.folder + "/log", exist_ok=True)
        self.env = {"CUDA_MPS_PIPE_DIRECTORY": self.folder, "CUDA_MPS_LOG_DIRECTORY": self.folder + "/log"}
        self.control = Proc(rig, "mps", ["nvidia-cuda-mps-control", "-f"], env=self.env, limit_s=600, pipe=False)
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            if os.path.exists(self.folder + "/control"):
                time.sleep(0.5)
                return
            if not self.control.alive():
                break
            time.sleep(0.05)
        self.stop()
        raise Failed("nvidia-cuda-mps-control did not start: " + self.control.tail())

    def ask(self, line, timeout=10):
        try:
            r = subprocess.run(["nvidia-cuda-mps-control"], input=line + "\n", env=dict(self.rig.env, **self.env),
                               capture_output=True, text=True, timeout=timeout)
            return r.stdout
        except subprocess.TimeoutExpired:
            return ""

    def clients(self):
        """Process ids of the MPS clients."""
        out = []
        for server in re.findall(r"^\d+$", self.ask("get_server_list"), re.M):
            out += [int(x) for x in re.findall(r"^\d+$", self.ask("get_client_list " + server), re.M)]
        return out

    def stop(self):
        servers = re.findall(r"^\d+$", self.ask("get_server_list"), re.M) if self.control.alive() else []
        if self.control.alive():
            self.ask("quit -t 3", timeout=8)
        self.control.close()
        for pid in servers:  # servers that did not exit
            try:
                with open("/proc/%s/comm" % pid) as f:
                    if f.read().strip().startswith("nvidia-cuda-mps"):
                        os.kill(int(pid), signal.SIGKILL)
            except (OSError, ValueError):
                pass
