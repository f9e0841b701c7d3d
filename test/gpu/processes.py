# SPDX-License-Identifier: Apache-2.0
"""A child process, and a worker with the line protocol. Each has a time limit enforced with SIGKILL and dies with its parent."""
import ctypes
import os
import signal
import subprocess
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
now_ns = time.monotonic_ns


class Failed(Exception):
    """The suite cannot continue."""


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
