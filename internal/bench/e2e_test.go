// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// program finds the built binary; these tests start it as a user would.
func program(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("takes up to a minute")
	}
	exe, err := filepath.Abs("../../bin/xsched")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(exe); err != nil {
		t.Skip("bin/xsched is not built; run `make build`")
	}
	return exe
}

// TestDemoShowsWhatItClaims runs the whole demo and holds it to the claims.
func TestDemoShowsWhatItClaims(t *testing.T) {
	exe := program(t)
	// What the device records must be right every time. The latencies also carry
	// what else the machine does: one good run of three shows that they can be.
	var bad []string
	for range 3 {
		res, took := demo(t, exe)
		for _, line := range DefaultClaims().CheckDevice(res) {
			t.Error(line)
		}
		if took > time.Minute {
			t.Errorf("the demo took %v, more than a minute", took.Round(time.Second))
		}
		if bad = DefaultClaims().Check(res); len(bad) == 0 || t.Failed() {
			break
		}
		t.Logf("again: %q", bad)
	}
	for _, line := range bad {
		t.Error(line)
	}
}

func demo(t *testing.T, exe string) (*Result, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	start := time.Now()
	res, err := Pair(ctx, PairOptions{Virtual: true, Lows: []int{1, 3}, Exe: exe, Out: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	var table bytes.Buffer
	if err := res.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	t.Logf("%v\n%s", took.Round(time.Second), table.String())
	return res, took
}

// TestDemoNoticesFaults: with each of these the demo must refuse to compare.
func TestDemoNoticesFaults(t *testing.T) {
	exe := program(t)
	for _, c := range []struct {
		fault string
		lows  int
		want  []string // the checks that must fail
	}{
		{FaultShimInert, 1, []string{"shim intercepts"}},
		{FaultSuspendNoop, 1, []string{"suspended means not running"}},
		{FaultSuspendNoop, 3, []string{"suspended means not running"}},
		{FaultTimesliceIgnored, 1, []string{"slices are in force", "GPU reached in time"}},
		{FaultTimesliceIgnored, 3, []string{"slices are in force", "GPU reached in time"}},
	} {
		t.Run(c.fault+", "+scenarioName(c.lows), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out := t.TempDir()
			stale := filepath.Join(out, "result.json")
			if err := os.WriteFile(stale, []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
			var stdout bytes.Buffer
			err := Demo(ctx, DemoOptions{
				Exe: exe, Out: out, Stdout: &stdout, Lows: []int{c.lows},
				Seconds: 1, Block: time.Second, Fault: c.fault,
			})
			t.Log(err)
			if !errors.Is(err, ErrProof) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v, want one line of failed proof", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want it to name %q", err, want)
				}
			}
			if stdout.Len() != 0 {
				t.Errorf("a table was printed:\n%s", stdout.String())
			}
			for _, name := range []string{"result.json", "report.html"} {
				if _, err := os.Stat(filepath.Join(out, name)); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is there (%v)", name, err)
				}
			}
		})
	}
}
