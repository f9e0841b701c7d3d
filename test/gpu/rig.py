# SPDX-License-Identifier: Apache-2.0
"""Processes: the daemon, workers, MPS. Each has a time limit enforced with SIGKILL and dies with its parent."""
import ctypes
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
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
libc = ctypes.CDLL(None, use_errno=True)
now_ns = time.monotonic_ns


class Failed(Exception):
    """The suite cannot continue."""


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


class Proc:
    """A child process with a time limit; standard error goes to a log."""

    def __init__(self, rig, name, argv, env=None, limit_s=300, cores=None, pipe=True):
        self.rig, self.name, self.closed = rig, name, False
        self.log_path = os.path.join(rig.logs, "%02d-%s.log" % (len(rig.procs), name))
        self.log = open(self.log_path, "wb")
        self.log.write((" ".join(argv) + "\n").encode())
        self.log.flush()

        def before_exec():
            os.setpgid(0, 0)
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            if cores:
                os.sched_setaffinity(0, cores)

        full = dict(rig.env)
        full.update(env or {})
        full = {k: v for k, v in full.items() if v is not None}
        self.p = subprocess.Popen(argv, env=full, stdin=subprocess.PIPE if pipe else subprocess.DEVNULL,
                                  stdout=subprocess.PIPE if pipe else self.log, stderr=self.log, bufsize=0,
                                  preexec_fn=before_exec)
        self.pid = self.p.pid
        self.timer = threading.Timer(limit_s, self.kill)
        self.timer.daemon = True
        self.timer.start()
        rig.procs.append(self)

    def alive(self):
        return self.p.poll() is None

    def signal(self, sig):
        if self.alive():
            try:
                os.kill(self.pid, sig)
            except ProcessLookupError:
                pass

    def cpu_ms(self):
        """CPU time of all its threads so far."""
        try:
            with open("/proc/%d/stat" % self.pid) as f:
                user, system = f.read().rpartition(")")[2].split()[11:13]
        except OSError:
            return 0
        return 1000 * (int(user) + int(system)) // os.sysconf("SC_CLK_TCK")

    def kill(self):
        """Sends SIGKILL to the process group."""
        if self.p.returncode is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def wait(self, timeout):
        try:
            return self.p.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            try:
                self.p.wait(10)  # the driver's cleanup delays the exit
            except subprocess.TimeoutExpired:
                pass
            return None

    def close(self):
        self.closed = True
        self.kill()
        self.wait(10)
        self.timer.cancel()
        self.log.close()

    def tail(self):
        try:
            with open(self.log_path, "rb") as f:
                lines = f.read()[-2000:].decode(errors="replace").strip().splitlines()
            return " | ".join(lines[-3:])
        except OSError:
            return ""


class Worker(Proc):
    """A program with the line protocol of the tenant."""

    def __init__(self, *args, tenant=False, shim=True, **kwargs):
        self.tenant, self.shim = tenant, shim
        self.samples, self.parts, self.tokens, self.answers, self.sums = [], {}, {}, {}, None
        self.using = None
        self.cond = threading.Condition()
        self.ended = False
        super().__init__(*args, **kwargs)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for raw in self.p.stdout:
            words = raw.decode(errors="replace").split()
            if not words:
                continue
            if words[0] == "I" and len(words) in (3, 6):
                self.samples.append((int(words[1]), int(words[2])))
                if len(words) == 6:
                    self.parts[int(words[1])] = tuple(int(w) for w in words[2:])
                continue
            if words[0] == "T" and len(words) == 5 and all(w.isdigit() for w in words[1:]):
                self.tokens[int(words[1])] = tuple(int(w) for w in words[2:])
                continue
            with self.cond:
                if words[0] == "S" and len(words) == 4:
                    self.sums = (int(words[1]), words[2], words[3])
                self.answers.setdefault(words[0], []).append(words[1:])
                self.cond.notify_all()
        with self.cond:
            self.ended = True
            self.cond.notify_all()

    def tell(self, line):
        try:
            self.p.stdin.write((line + "\n").encode())
        except (BrokenPipeError, ValueError, OSError) as e:
            raise Failed("%s (pid %d) exited: %s" % (self.name, self.pid, self.why())) from e

    def expect(self, letter, timeout, seen=None):
        """Waits for one more line that starts with letter and returns its words."""
        limit = time.monotonic() + timeout
        with self.cond:
            have = len(self.answers.get(letter, [])) if seen is None else seen
            while len(self.answers.get(letter, [])) <= have:
                left = limit - time.monotonic()
                if self.ended or left <= 0:
                    what = "ended" if self.ended else "did not answer %s within %g s" % (letter, timeout)
                    raise Failed("%s (pid %d) %s: %s" % (self.name, self.pid, what, self.why()))
                self.cond.wait(left)
            return self.answers[letter][have]

    def ask(self, line, letter, timeout=20):
        with self.cond:
            seen = len(self.answers.get(letter, []))
        self.tell(line)
        return self.expect(letter, timeout, seen)

    def why(self):
        said = self.answers.get("E")
        return " ".join(said[-1]) if said else self.tail() or "no output"

    def ready(self, timeout=90):
        self.expect("R", timeout, 0)
        return self

    def pause(self):
        self.ask("pause", "P")

    def use(self, model):
        """Changes the model. The program is idle."""
        if self.using != model:
            self.ask("use " + model, "U", 60)
            self.using = model

    def pace(self, cpu_ms):
        """Slows the model down to a CPU time per request, and returns that time before and after; None if it keeps its own."""
        if cpu_ms is None:
            return None
        natural, paced = map(float, self.ask("pace %g" % cpu_ms, "M", 30))
        return {"natural_ms": natural, "paced_ms": paced}

    def kernel_time(self, model, n=4):
        """Time with a kernel on the GPU per request, {"ms", "kernels"}; None if the profiler has none. The profiler may slow
        the program from now on, so ask when everything else is measured."""
        self.use(model)
        us, kernels = map(float, self.ask("kerneltime %d" % n, "K", 60))
        return {"ms": round(us / 1000, 4), "kernels": round(kernels, 1)} if us > 0 and kernels >= 1 else None

    def report(self):
        words = self.ask("report", "S")
        return int(words[0]), words[1], words[2]

    def quit(self, timeout=15):
        """Ends the program. True if the exit code is 0 and the checksums agree."""
        try:
            self.tell("quit")
        except Failed:
            pass
        code = self.wait(timeout)
        self.timer.cancel()
        with self.cond:  # the last line may still be in the pipe
            self.cond.wait_for(lambda: self.ended, 5)
        return code == 0 and self.sums is not None and self.sums[1] == self.sums[2]

    def runs_again(self, since_ns, timeout):
        """Milliseconds from since_ns to the next completion; None after the timeout."""
        limit = time.monotonic() + timeout
        while time.monotonic() < limit:
            first = next((e for s, e in self.samples[-5000:] if e > since_ns), None)
            if first:
                return (first - since_ns) / 1e6
            time.sleep(0.002)
        return None

    def wait_stopped(self, for_s=0.15, timeout=3):
        """Waits until no iteration completes for for_s seconds."""
        limit = time.monotonic() + timeout
        while time.monotonic() < limit:
            n = len(self.samples)
            time.sleep(for_s)
            if len(self.samples) == n:
                return True
        return False


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
        if self.cores:
            os.sched_setaffinity(0, self.cores["driver"])

    # -- daemon

    def start_daemon(self, limit_s=900):
        if self.daemon and self.daemon.alive():
            return self.daemon
        argv = [self.xsched, "serve", "--log-level", "info", "--self-test", "off"] + (["--virtual"] if self.virtual else [])
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

    def under(self, argv, priority):
        """Returns argv under the shim. `xsched run` execs the program, so the pid stays."""
        run = [self.xsched, "run"] + (["--virtual"] if self.virtual else [])
        return run + ["--priority", str(priority), "--"] + argv

    def plain_env(self):
        """The environment of a program without the shim."""
        if not self.virtual:
            return {"XSCHED_LOG": None}
        folder = os.path.join(ROOT, "build", "virtual")
        return {"LD_PRELOAD": os.path.join(folder, "libvgpu.so"), "LD_LIBRARY_PATH": folder,
                "XSCHED_VGPU_SOCKET": os.path.join(self.dir, "vgpu.sock")}

    def worker(self, name, argv, priority=None, env=None, role=None, limit_s=400, tenant=False):
        """Starts a worker, under XSched if it has a priority."""
        full = dict(env or {})
        if priority is None:
            full = dict(self.plain_env(), **full)
        else:
            argv = self.under(argv, priority)
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


class Nvml:
    """Memory usage and clocks of the GPU through NVML: nvidia-smi is too slow to time them."""

    class _Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self):
        self.lib = None
        try:
            lib = ctypes.CDLL("libnvidia-ml.so.1")
            self.device = ctypes.c_void_p()
            if lib.nvmlInit_v2() == 0 and lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)) == 0:
                self.lib = lib
        except OSError:
            pass

    def clocks(self):
        """(SM clock in MHz, power in W, throttle reasons as NVML's bits); None without NVML."""
        mhz, milliwatts, reasons = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        if not self.lib or self.lib.nvmlDeviceGetClockInfo(self.device, 1, ctypes.byref(mhz)) or \
                self.lib.nvmlDeviceGetPowerUsage(self.device, ctypes.byref(milliwatts)) or \
                self.lib.nvmlDeviceGetCurrentClocksThrottleReasons(self.device, ctypes.byref(reasons)):
            return None
        return mhz.value, milliwatts.value / 1000, reasons.value

    def used_mib(self):
        if self.lib:
            m = self._Memory()
            if self.lib.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(m)) == 0:
                return m.used / 2 ** 20
        try:
            r = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                               capture_output=True, text=True, timeout=10)
            return float(r.stdout.split()[0])
        except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
            return None


def xids():
    """GPU errors (Xid) in the kernel log; None if it is not readable."""
    try:
        r = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if r.returncode != 0:
        return None
    return [line for line in r.stdout.splitlines() if "Xid" in line]
