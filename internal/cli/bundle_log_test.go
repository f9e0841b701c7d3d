// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRedactedLog(t *testing.T) {
	r := redactor{}
	for line, want := range map[string]string{
		`time=2026-11-16T10:00:00Z level=INFO msg="client refused" pid=12 user=alice reason="no HELLO received: EOF"`: `time=2026-11-16T10:00:00Z level=INFO msg="client refused" pid=12 user=(hidden) reason="no HELLO received: EOF"`,
		`time=2026-11-16T10:00:00Z level=WARN msg=configuration warning="rule secret of alice"`:                       `time=2026-11-16T10:00:00Z level=WARN msg=configuration warning=(hidden)`,
		`time=2026-11-16T10:00:00Z level=WARN msg=x command="train.py --password=p w" device=0000:01:00.0`:            `time=2026-11-16T10:00:00Z level=WARN msg=x command=(hidden) device=0000:01:00.0`,
		`time=2026-11-16T10:00:00Z level=ERROR msg=x err="open /home/alice/x: no such file"`:                          `time=2026-11-16T10:00:00Z level=ERROR msg=x err="open (hidden): no such file"`,
		`time=2026-11-16T10:00:00Z level=ERROR msg=x err="bad name \"alice\" here"`:                                   `time=2026-11-16T10:00:00Z level=ERROR msg=x err="bad name (hidden) here"`,
		`{"time":"t","level":"INFO","msg":"m","pid":7,"user":"alice","err":"read /home/bob: EOF"}`:                    `{"err":"read (hidden): EOF","level":"INFO","msg":"m","pid":7,"time":"t","user":"(hidden)"}`,
		`panic: runtime error in alice`: `(hidden)`,
	} {
		if got := strings.TrimSpace(string(r.log([]byte(line + "\n")))); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", line, got, want)
		}
	}
}

// The log is the end of what the service manager keeps, in whole lines and within its bound.
func TestServiceLog(t *testing.T) {
	bin := t.TempDir()
	script := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, "journalctl"), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	script(`case "$*" in *"--unit xsched.service"*"--lines 2000"*) ;; *) exit 2;; esac
awk 'BEGIN { for (i = 0; i < 20000; i++) print "time=t level=INFO msg=line pid=" i }'`)
	out, err := serviceLog(t.Context())
	if err != nil || len(out) > bundleBytes || len(out) < bundleBytes-100 || !strings.HasPrefix(string(out), "time=") || !strings.HasSuffix(string(out), "pid=19999\n") {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	script("exit 1")
	if _, err := serviceLog(t.Context()); err == nil || !strings.Contains(err.Error(), "standard error") {
		t.Errorf("%v", err)
	}
	script("true")
	if _, err := serviceLog(t.Context()); err == nil || !strings.Contains(err.Error(), "sudo") {
		t.Errorf("%v", err)
	}
}
