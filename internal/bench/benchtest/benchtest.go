// SPDX-License-Identifier: Apache-2.0

// Package benchtest helps the tests of the benchmarks: it finds the built program and plays a tenant
// without a GPU.
package benchtest

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"xsched/internal/clock"
)

// Program returns the path of the built binary, which end-to-end tests start as a user would.
func Program(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes on the virtual GPU")
	}
	_, file, _, _ := runtime.Caller(0)
	exe := filepath.Join(filepath.Dir(file), "../../../bin/xsched")
	if _, err := os.Stat(exe); err != nil {
		t.Skip("bin/xsched is not built; run `make build`")
	}
	return exe
}

// TenantEnv turns a test binary that calls Main into a tenant.
const TenantEnv = "BENCH_FAKE_TENANT"

// Main runs the tests, or the fake tenant that TenantEnv names.
func Main(m *testing.M) {
	if kind := os.Getenv(TenantEnv); kind != "" {
		tenant(kind)
		return
	}
	// The parallel tests wait for other processes most of the time.
	_ = flag.Set("test.parallel", "6")
	m.Run() // the testing package exits with its result
}

// tenant implements the tenants' protocol: "loop" completes three iterations at once, "rate" one
// every 10 ms until the next command.
func tenant(kind string) {
	fmt.Fprintln(os.Stdout, "R")
	lines := make(chan string)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	n, rated := 0, false
	tick := time.NewTicker(10 * time.Millisecond)
	for {
		select {
		case <-tick.C:
			if rated {
				now := int64(clock.Now())
				n++
				fmt.Fprintf(os.Stdout, "I %d %d\n", now-100_000, now)
			}
			continue
		case line, open := <-lines:
			if !open {
				return
			}
			cmd, _, _ := strings.Cut(line, " ")
			rated = cmd == "rate" || cmd == "loop" && kind == "steady"
			switch {
			case cmd == "loop" && kind == "dies":
				fmt.Fprintln(os.Stderr, "out of luck")
				os.Exit(3) // plays a program that fails
			case cmd == "loop" && kind != "steady":
				for ; n < 3; n++ {
					fmt.Fprintf(os.Stdout, "I %d %d\n", 1000*n, 1000*n+500)
				}
			case cmd == "pause" && kind != "deaf":
				fmt.Fprintln(os.Stdout, "P")
			case cmd == "quit":
				sum := "abc"
				if kind == "wrong" {
					sum = "abd"
				}
				if kind == "stuck" {
					time.Sleep(time.Minute)
				}
				fmt.Fprintf(os.Stdout, "S %d %s abc\n", n, sum)
				return
			}
		}
	}
}
