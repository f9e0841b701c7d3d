// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSimFleetTraces converts a public trace and simulates it on nodes with different GPUs.
func TestSimFleetTraces(t *testing.T) {
	const trace = "../sim/fleet/traces/testdata/alibaba-2023.csv"
	dir := t.TempDir()
	nodes, day := filepath.Join(dir, "nodes.csv"), filepath.Join(dir, "day.csv")
	if err := os.WriteFile(nodes, []byte("sn,cpu_milli,memory_mib,gpu,model\na,1,1,8,V100M32\nb,1,1,2,T4\nc,1,1,8,V100M16\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, string, error) {
		var out, errs bytes.Buffer
		root := newRoot(&app{stdout: &out, stderr: &errs})
		root.SetArgs(append([]string{"sim", "fleet"}, args...))
		err := root.ExecuteContext(t.Context())
		return out.String(), errs.String(), err
	}
	out, errs, err := run("--trace", trace, "--from", "alibaba-2023", "--fleet", nodes, "--mode", "exclusive,XSched")
	if err != nil || !strings.Contains(out, "3 nodes: 8 V100M16 with 16 GiB, 8 V100M32 with 32 GiB, 2 T4 with 16 GiB") || !strings.Contains(errs, "7 lines: 3 services, 2 jobs") {
		t.Errorf("%v\n%s\n%s", err, out, errs)
	}
	if _, _, err := run("--trace", trace, "--from", "alibaba-2023", "--write-trace", day); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(day); err != nil || strings.Count(string(text), "\n") != 6 || !strings.Contains(string(text), "V100M16|V100M32\n") {
		t.Errorf("%v\n%s", err, text)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--from", "helios"}, "add --trace FILE"},
		{[]string{"--trace", day, "--write-trace", day}, "add --from"},
		{[]string{"--trace", trace, "--from", "google"}, "unknown format"},
		{[]string{"--fleet", nodes, "--from", "alibaba-2023", "--trace", trace, "--gpus", "4"}, "--fleet replaces --gpus"},
		{[]string{"--fleet", filepath.Join(dir, "none")}, "open nodes"},
	} {
		if _, _, err := run(c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}
