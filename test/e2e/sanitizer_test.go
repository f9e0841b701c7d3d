// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSanitizedPrograms: programs built with ASan or TSan run under the shim, scheduled or disabled.
func TestSanitizedPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, sanitizer := range []string{"address", "thread"} {
		path := filepath.Join(t.TempDir(), sanitizer)
		out, err := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fsanitize="+sanitizer, "-I"+filepath.Join(root, "shim"),
			"-I"+filepath.Join(root, "shim", "include"), "-o", path, "testdata/scenarios.c", product(t, "virtual/libcuda.so.1"), "-lpthread").CombinedOutput()
		if err != nil {
			t.Fatalf("compile with -fsanitize=%s: %v\n%s", sanitizer, err, out)
		}
		argv := []string{path, "work", "20"}
		if sanitizer == "thread" { // TSan cannot place its shadow memory at every random address
			argv = append([]string{"setarch", "-R"}, argv...)
		}
		const leaks = "ASAN_OPTIONS=detect_leaks=0" // the scenario does not unload its module
		p := w.run(options{env: []string{leaks}}, argv...)
		p.expect(`{"done"`, 20*time.Second)
		w.assertProof(p, 20)
		w.endWell(p)
		if report := p.stderr(); strings.Contains(report, "Sanitizer") {
			t.Errorf("%s: %s", sanitizer, report)
		}
		disabled := w.run(options{env: []string{leaks, "XSCHED_DISABLE=1"}}, argv...)
		disabled.expect(`{"done"`, 20*time.Second)
		w.endWell(disabled)
	}
}
