// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"xsched/internal/embedded"
)

// busyPort sets PORT to a port that is in use until the script ends.
func busyPort(ts *testscript.TestScript, _ bool, _ []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	setPort(ts, l)
}

// freePort sets PORT to an unused port.
func freePort(ts *testscript.TestScript, _ bool, _ []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	setPort(ts, l)
	ts.Check(l.Close())
}

func setPort(ts *testscript.TestScript, l net.Listener) {
	_, port, err := net.SplitHostPort(l.Addr().String())
	ts.Check(err)
	ts.Setenv("PORT", port)
}

// tool CODE TEXT CMD...: like failure, for a program named CMD.
func tool(ts *testscript.TestScript, _ bool, args []string) {
	exits(ts, false, append([]string{args[0]}, args[2:]...))
	text := ts.ReadFile("stderr")
	if strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, args[2]+": ") || !strings.Contains(text, args[1]) {
		ts.Fatalf("not one line of an error with %q: %q", args[1], text)
	}
	if out := ts.ReadFile("stdout"); out != "" {
		ts.Fatalf("standard output is not empty: %q", out)
	}
}

// tenant FILE: writes the test program there.
func tenant(ts *testscript.TestScript, _ bool, args []string) {
	unpacked, err := embedded.Unpack(embedded.Tenant)
	ts.Check(err)
	text, err := os.ReadFile(unpacked)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), text, 0o755))
}

// pause DURATION: waits.
func pause(ts *testscript.TestScript, _ bool, args []string) {
	d, err := time.ParseDuration(args[0])
	ts.Check(err)
	time.Sleep(d)
}

// shows TEXT CMD...: repeats the command for up to 10 s until its output contains TEXT.
func shows(ts *testscript.TestScript, _ bool, args []string) {
	for range 100 {
		if err := ts.Exec(args[1], args[2:]...); err == nil && strings.Contains(ts.ReadFile("stdout"), args[0]) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	ts.Fatalf("%v never shows %q: %s", args[1:], args[0], ts.ReadFile("stdout"))
}
