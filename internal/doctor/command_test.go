// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	const gpu = "0000:19:00.0"
	fine := Process{
		PID: 7, Name: "serve.py", Joined: true, Queues: 1, Level: 3, GPUs: []string{gpu},
		Calls: Calls{Hooked: 90, Launches: 40, Copies: 2, Syncs: 20}, Preemption: Preemption{Tried: true, Level: 3},
	}
	changed := func(change func(*Process)) Process {
		p := fine
		change(&p)
		return p
	}
	for name, c := range map[string]struct {
		processes []Process
		failed    bool
		ok        bool
		status    Status // of the first check
		words     []string
	}{
		"a normal program":   {[]Process{fine}, false, true, OK, []string{"90 calls", "40 launches"}},
		"a launcher beside":  {[]Process{{PID: 6, Name: "sh", Joined: true}, fine}, false, true, OK, []string{"used no GPU"}},
		"an exit code":       {[]Process{fine}, true, true, Note, []string{"ended with exit code 3"}},
		"no GPU":             {[]Process{{PID: 6, Name: "sh", Joined: true}}, false, false, Missing, []string{"used a GPU", "--for"}},
		"nothing was seen":   {nil, false, false, Missing, []string{"used a GPU"}},
		"static":             {[]Process{{PID: 7, Name: "x", Native: "/x is statically linked", GPUs: []string{gpu}}}, false, false, Missing, []string{gpu, "statically linked", "attach"}},
		"static without GPU": {[]Process{{PID: 7, Name: "x", Native: "/x is statically linked"}}, false, false, Missing, []string{"statically linked", "attach"}},
		"static launcher": {
			[]Process{{PID: 6, Name: "launcher", Native: "/launcher is statically linked"}, fine},
			false, true, Limited,
			[]string{"launcher (pid 6)", "statically linked"},
		},
		"environment lost": {[]Process{{PID: 6, Name: "env", Joined: true}, {PID: 7, Name: "x", NoPreload: true, GPUs: []string{gpu}}}, false, false, Missing, []string{"without the shim", "LD_PRELOAD"}},
		"did not connect":  {[]Process{{PID: 7, Name: "x", GPUs: []string{gpu}, Log: []string{"refused"}}}, false, false, Missing, []string{"did not connect", "notes"}},
		"never called":     {[]Process{{PID: 7, Name: "x", GPUs: []string{gpu}}}, false, false, Missing, []string{"saw none", "dlsym"}},
		"one of two bypasses": {
			[]Process{fine, {PID: 8, Name: "x", NoPreload: true, GPUs: []string{gpu}}},
			false, false, Missing,
			[]string{"x (pid 8)"},
		},
		"own symbol search": {[]Process{changed(func(p *Process) { p.Calls = Calls{} })}, false, false, Missing, []string{"by itself", "exports"}},
		"no queue at all": {
			[]Process{changed(func(p *Process) { p.Calls, p.Queues = Calls{}, 0 })},
			false, false, Missing,
			[]string{"by itself"},
		},
		"no work": {[]Process{changed(func(p *Process) { p.Calls = Calls{Hooked: 5} })}, false, false, Limited, []string{"5 calls", "--for"}},
		"unknown entry point": {
			[]Process{changed(func(p *Process) { p.Calls.Unhooked, p.Log = 1, []string{"cuNew is newer"} })},
			false, true, Limited,
			[]string{"looked up (1)"},
		},
		"preemption fails": {
			[]Process{changed(func(p *Process) { p.Preemption = Preemption{Tried: true, Error: "it ran on"} })},
			false, false, Missing,
			[]string{"it ran on", "--self-test"},
		},
		"never busy": {[]Process{changed(func(p *Process) { p.Preemption = Preemption{} })}, false, true, Note, []string{"not tried"}},
		"level 1":    {[]Process{changed(func(p *Process) { p.Level, p.LevelReason = 1, "MPS" })}, false, true, Limited, []string{"level 1: MPS"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := Judge(Trial{Command: []string{"x"}, Processes: c.processes, Failed: c.failed, Ended: "exit code 3"})
			if r.OK != c.ok || r.Schema != Schema || len(r.Checks) == 0 || r.Checks[0].Status != c.status {
				t.Fatalf("ok %v, checks %+v", r.OK, r.Checks)
			}
			line := r.Checks[0].Name + ": " + Line(r.Checks[0])
			for _, w := range c.words {
				if !strings.Contains(line, w) {
					t.Errorf("%q is not in %q", w, line)
				}
			}
		})
	}
}
