// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"
)

// TestPreload runs programs under the built shim: on the null driver, on the null runtime, and on
// AMD's runtime where it is installed.
func TestPreload(t *testing.T) {
	for _, need := range []string{"make", "bash", "gcc"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("no %s: run make setup", need)
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
	for _, script := range []string{"runtime/cuda/test_preload.sh", "runtime/hip/test_preload.sh", "runtime/hip/test_real.sh"} {
		t.Run(script, func(t *testing.T) {
			out, err := run("bash", "shim/"+script)
			exit, ok := errors.AsType[*exec.ExitError](err)
			switch {
			case err == nil:
				t.Logf("%s", out)
			case ok && exit.ExitCode() == 77:
				t.Skipf("%s", out)
			default:
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
