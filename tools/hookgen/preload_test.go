// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestPreload runs the built shim in programs on the null driver and the null runtime, and on AMD's own
// runtime where it is installed.
func TestPreload(t *testing.T) {
	for _, need := range []string{"make", "bash", "gcc"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("no %s", need)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = root
		cmd.WaitDelay = 5 * time.Second
		return cmd.CombinedOutput()
	}
	if out, err := run("make", "-s", "build/libxsched.so", "null"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, script := range []string{"runtime/cuda/test_preload.sh", "runtime/hip/test_preload.sh", "runtime/hip/test_real.sh", "core/test_programs.sh"} {
		t.Run(script, func(t *testing.T) {
			out, err := run("bash", "shim/"+script)
			exit, ok := errors.AsType[*exec.ExitError](err)
			switch {
			case err == nil:
				t.Logf("%s", out)
			case ok && exit.ExitCode() == 77 && os.Getenv("XSCHED_CI") != "1":
				t.Skipf("%s", out)
			default:
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
