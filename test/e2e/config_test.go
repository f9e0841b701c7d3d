// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"xsched/internal/control"
)

// logged counts the lines of the daemon's log that have a text.
func (w *world) logged(text string) int {
	w.t.Helper()
	log, err := os.ReadFile(w.log.Name())
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.Count(string(log), text)
}

func (w *world) hangup(result string) {
	w.t.Helper()
	before := w.logged(result)
	if err := w.serve.Process.Signal(syscall.SIGHUP); err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, soon, result, func() bool { return w.logged(result) > before })
}

// TestLongReloadUnderLoad: reloads under load disturb nobody. The programs keep their sessions, reloads stop
// nobody, every iteration is exact, and a mistake in the file changes nothing.
func TestLongReloadUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rule := func(slo string) string {
		return "rules: [{name: r, match: {command: tenant}, hints: {slo: " + slo + "}}]\n"
	}
	write("policy: HPF\n" + rule("5ms"))
	w := newWorld(t, "--config", path)
	a, b := w.tenant(options{}, 300), w.tenant(options{}, 300)
	for _, p := range []*program{a, b} {
		w.waitLevel(p.pid(), 3)
		p.send("rate 50")
		p.iterates(5)
	}
	session := func(p *program) (session uint64, slo int64) {
		t.Helper()
		v := w.process(p.pid())
		if v == nil || v.Rule != "r" {
			t.Fatalf("process %d: %+v", p.pid(), v)
		}
		return v.Session, v.Hints.SLOUS
	}
	sessionA, slo := session(a)
	sessionB, _ := session(b)
	if slo != 5000 {
		t.Errorf("target %d us", slo)
	}
	stopsA, stopsB := w.account(a.pid()).Disables, w.account(b.pid()).Disables
	const reloads = 20
	for i := range reloads {
		write("policy: HPF\nstarvation_bound: " + strconv.Itoa(2+i) + "s\n" + rule(strconv.Itoa(6+i)+"ms"))
		if i%10 == 0 { // the log has a rate limit
			w.hangup("configuration reloaded")
		} else {
			w.must("config", "reload")
		}
		if _, slo := session(b); slo != int64(6+i)*1000 {
			t.Errorf("reload %d: target %d us", i, slo)
		}
		for _, bad := range []string{"policy: NOPE\n", "{", "limits: {max_sessions: 0}\n"}[:1+i%3] {
			write(bad)
			if out, err := w.xsched("config", "reload"); err == nil || !strings.Contains(out, path+":1:") {
				t.Errorf("reload of %q: %s", bad, out)
			}
		}
		if _, slo := session(a); slo != int64(6+i)*1000 {
			t.Errorf("mistake after reload %d: target %d us", i, slo)
		}
	}
	w.hangup("nothing has changed")
	a.iterates(5)
	b.iterates(5)
	afterA, _ := session(a)
	afterB, _ := session(b)
	if afterA != sessionA || afterB != sessionB {
		t.Errorf("sessions %d and %d became %d and %d", sessionA, sessionB, afterA, afterB)
	}
	// Equal programs share the GPU by timeslices. On a loaded machine each is rarely stopped once, also without a
	// reload; reloads that stop programs would do so each time.
	if a, b := w.account(a.pid()).Disables-stopsA, w.account(b.pid()).Disables-stopsB; a+b >= reloads {
		t.Errorf("%d and %d stops in %d reloads", a, b, reloads)
	}
	if out := w.must("config", "show"); !strings.Contains(out, "starvation_bound") || !strings.Contains(out, "21s") {
		t.Errorf("%s", out)
	}
	a.finish()
	b.finish()
}

// TestLongRestartKeeps: policy, mode of a GPU, hints and a suspension survive SIGKILL of the daemon, because
// the command returns when they are in the file. --no-state starts without them and leaves the file.
func TestLongRestartKeeps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	held, other := w.tenant(options{}, 300), w.tenant(options{}, 300)
	for _, p := range []*program{held, other} {
		w.waitLevel(p.pid(), 3)
		p.send("rate 100")
	}
	pid := strconv.Itoa(held.pid())
	w.must("policy", "FIFO")
	w.must("hint", strconv.Itoa(other.pid()), "--priority", "-7")
	w.must("mode", "--gpu", pciOf(0), "suspend")
	w.must("suspend", pid)
	restart := func(args ...string) {
		t.Helper()
		w.killDaemon()
		w.startDaemon(args...)
		for _, p := range []*program{held, other} {
			w.waitLevel(p.pid(), 3)
		}
	}
	state := func(policy string, isHeld bool, priority int32) {
		t.Helper()
		p, err := w.client.Policy(context.Background())
		if err != nil || p.Name != policy || w.process(held.pid()).Held != isHeld || w.process(other.pid()).Priority != priority {
			t.Errorf("policy %s, held %v, priority %d; want %s, %v, %d (%v)", p.Name, w.process(held.pid()).Held,
				w.process(other.pid()).Priority, policy, isHeld, priority, err)
		}
		kept := []control.DeviceSetting{{Device: pciOf(0), Mode: "suspend"}}
		if priority == 0 {
			kept = nil
		}
		if list, err := w.client.List(context.Background()); err != nil || !slices.Equal(list.Devices, kept) {
			t.Errorf("settings of GPUs %+v, want %+v (%v)", list.Devices, kept, err)
		}
	}
	restart()
	state("FIFO", true, -7)
	if out := w.must("config", "show"); !strings.Contains(out, "state: "+w.path("state.json")) {
		t.Errorf("%s", out)
	}
	eventually(t, soon, "the device stops the held program", func() bool { return w.account(held.pid()).Stopped > 0 })
	at := nowNS()
	other.iterates(10)
	if n := held.iterationsAfter(at); n > 1 {
		t.Errorf("%d iterations of the held program", n)
	}
	restart("--no-state")
	state("HPF", false, 0)
	restart()
	state("FIFO", true, -7)
	w.must("resume", pid)
	held.iterates(5)
	restart()
	state("FIFO", false, -7)
	held.finish()
	other.finish()
}

// TestLongHangupWithoutTerminal: SIGHUP does not end a daemon without a configuration, and neither does the end
// of the terminal that its log goes to.
func TestLongHangupWithoutTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hangup("SIGHUP ignored")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.killDaemon()
	w.stderr = write
	w.startDaemon()
	_ = write.Close()
	_ = read.Close() // as a terminal that closes: every write fails
	for range 3 {
		if err := w.serve.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if _, err := w.xsched("policy", "FIFO"); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := w.client.Version(context.Background()); err != nil || v.PID != w.serve.Process.Pid {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestLongRuleForUser: a rule that names a user raises that user's service above the cap, without a flag. By
// its name alone a program of the same user raises nothing, whatever it calls itself.
func TestLongRuleForUser(t *testing.T) {
	t.Parallel()
	cache := asNobody(t)
	bin, tenant := copyFor(t, cache, xschedPath(t)), copyFor(t, cache, product(t, "virtual/tenant"))
	for name, c := range map[string]struct {
		match string
		want  int32
	}{
		"named":      {"{command: tenant, user: " + strconv.Itoa(nobody) + "}", 9},
		"group":      {"{group: " + strconv.Itoa(nobody) + "}", 9},
		"command":    {"{command: tenant}", 2},
		"executable": {"{executable: " + tenant + "}", 2},
		"another":    {"{command: tenant, user: 1}", 0},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			text := "caps: {users: {" + strconv.Itoa(nobody) + ": {priority: 2}}}\nrules: [{name: r, match: " + c.match + ", hints: {priority: 9}}]\n"
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, "--config", path)
			openTo(t, w)
			cmd := execAs(bin, "run", "--virtual", "--", tenant, "--name", "a", "--kernel-us", "300")
			cmd.Env = w.env("XSCHED_CACHE="+filepath.Join(cache, "c"), "HOME="+cache)
			p := w.drive(cmd)
			p.expect("R", soon)
			var v *control.Process
			eventually(t, soon, "the program is known", func() bool { v = w.process(p.pid()); return v != nil })
			if v.Priority != c.want || (v.Rule == "r") != (name != "another") {
				t.Errorf("priority %d by rule %q, want %d", v.Priority, v.Rule, c.want)
			}
		})
	}
}
