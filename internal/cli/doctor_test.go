// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"

	"xsched/internal/doctor"
)

func TestWriteDoctor(t *testing.T) {
	checks := []doctor.Check{
		{Name: "shim", Status: doctor.Missing, Detail: "can't be\nloaded", Remedy: "set XSCHED_CACHE"},
		{Name: "MPS", Status: doctor.Limited, Detail: "runs", Remedy: "end it"},
		{Name: "MIG", Status: doctor.Note, Detail: "unknown"},
		{Name: "driver", Status: doctor.OK, Detail: "580", Remedy: "nothing"},
	}
	const todo = `to do, the most important first:
  1. missing  shim: can't be?loaded; set XSCHED_CACHE
  2. limited  MPS: runs; end it
  3. note     MIG: unknown
`
	const fine = `fine:
     ok       driver: 580
`
	for name, c := range map[string]struct {
		report doctor.Report
		want   string
	}{
		"a defect":    {doctor.Report{Checks: checks}, todo + fine + "scheduling is not possible on this machine\n"},
		"level 1":     {doctor.Report{OK: true, Level: 1, Checks: checks}, todo + fine + "available: level 1\n"},
		"all is fine": {doctor.Report{OK: true, Level: 3, Checks: checks[3:]}, fine + "available: levels 1, 2 and 3\n"},
		"no check":    {doctor.Report{OK: true, Level: 3}, "available: levels 1, 2 and 3\n"},
	} {
		var text strings.Builder
		if writeDoctor(&text, c.report, false); text.String() != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, text.String(), c.want)
		}
	}
}

func TestWriteTrial(t *testing.T) {
	trial := doctor.Trial{Command: []string{"sh", "run.sh"}, Daemon: "/run/xsched", Processes: []doctor.Process{
		{PID: 6, Name: "sh", Native: "/bin/sh is statically linked and can't load the shim"},
		{
			PID: 7, Name: "serve.py", Joined: true, Queues: 1, Level: 2, LevelReason: "Lv3 is unknown here",
			Calls: doctor.Calls{Hooked: 9, Launches: 4, Copies: 2, Syncs: 3, Unhooked: 1}, Preemption: doctor.Preemption{Tried: true, Level: 2},
			Log: []string{"cuNew is newer than this library"},
		},
		{PID: 8, Name: "train", NoPreload: true, GPUs: []string{"0000:19:00.0"}},
	}}
	var text strings.Builder
	writeTrial(&text, doctor.Judge(trial), false)
	const want = `checked with a daemon in /run/xsched: sh run.sh
to do, the most important first:
  1. missing  train (pid 8): it uses 0000:19:00.0 without scheduling: it was started without the shim; ` +
		"keep LD_PRELOAD in its environment (env -i, sudo and some launchers drop it), or use `xsched attach PID`" + `
  2. limited  sh (pid 6): /bin/sh is statically linked and can't load the shim; ` +
		"use `xsched attach PID` on it, or link it dynamically with glibc" + `
  3. limited  serve.py (pid 7): entry points unknown to the shim were looked up (1): their work is not accounted for; ` +
		`use a newer XSched; the notes name them
  4. limited  serve.py (pid 7): level 2: Lv3 is unknown here; see ` + "`xsched doctor`" + `
  5. note     serve.py (pid 7): cuNew is newer than this library
fine:
     ok       serve.py (pid 7): joined; 9 calls seen: 4 launches, 2 copies, 3 waits
     ok       serve.py (pid 7): preemption works: suspended at level 2 and resumed
not all GPU work of the command is scheduled
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
}

// Colours are for terminals only.
func TestDoctorColours(t *testing.T) {
	if a := (&app{stdout: &bytes.Buffer{}}); a.colours() {
		t.Error("colours without a terminal")
	}
	check := []doctor.Check{{Name: "MPS", Status: doctor.Limited, Detail: "runs"}}
	var plain, coloured strings.Builder
	writeChecks(&plain, check, false)
	writeChecks(&coloured, check, true)
	if strings.Contains(plain.String(), "\x1b") || !strings.Contains(coloured.String(), "\x1b[33mlimited\x1b[0m  MPS: runs") {
		t.Errorf("%q\n%q", plain.String(), coloured.String())
	}
}
