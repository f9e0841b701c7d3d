// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"xsched/internal/bench/overhead"
)

// TestLongOverheadMeasures: the benchmark of the budgets gets figures. A machine under load may exceed a
// budget, so only `make bench` judges them.
func TestLongOverheadMeasures(t *testing.T) {
	null := filepath.Dir(product(t, "null/pairloop"))
	cmd := exec.Command(xschedPath(t), "bench", "overhead", "--null", null, "--launches", "100000", "--seconds", "2", "--json")
	var errs strings.Builder
	cmd.Stderr = &errs
	text, err := cmd.Output()
	var r overhead.Result
	if bad := json.Unmarshal(text, &r); bad != nil {
		t.Fatalf("no figures: %v: %s", err, errs.String())
	}
	if r.Hook.Launches != 100000 || r.Pair.Pairs == 0 || r.Wake.Count == 0 || r.Decision.Queues == 0 || len(r.Streams) != 6 || len(r.Streams[5].AddedNS) != overhead.StreamRuns {
		t.Errorf("%+v", r)
	}
	t.Logf("hook %.1f ns, pair %.1f ns with %d rings, P99 %.1f us, decision %.1f us", r.Hook.AddedNS, r.Pair.AddedNS, r.Pair.Rings, r.Wake.P99US, r.Decision.P50US)
}
