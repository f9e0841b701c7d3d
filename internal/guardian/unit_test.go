// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// unit reads the settings of a systemd unit. A setting that occurs twice has both values.
func unit(t *testing.T, name string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy/systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			out[key] += value
		}
	}
	return out
}

// TestUnitsSpareGuardians checks what systemd signals and restarts. A guardian must outlive its daemon until every
// attached program is resumed, whether it runs as a service or in the daemon's cgroup.
func TestUnitsSpareGuardians(t *testing.T) {
	daemon, guardian := unit(t, "xsched.service"), unit(t, "xsched-guardian.service")
	// The default, control-group, and mixed end all processes of the unit.
	if got := daemon["KillMode"]; got != "process" {
		t.Errorf("xsched.service has KillMode=%q, which ends the daemon's own guardian; want process", got)
	}
	for _, key := range []string{"PartOf", "BindsTo", "Requires"} {
		if got := guardian[key]; got != "" {
			t.Errorf("xsched-guardian.service has %s=%s: it would stop with the daemon", key, got)
		}
	}
	stop, err := time.ParseDuration(guardian["TimeoutStopSec"])
	if err != nil || stop <= finalTime {
		t.Errorf("xsched-guardian.service is killed after %v (%v), but a guardian may need %v", stop, err, finalTime)
	}
	if daemon["RuntimeDirectoryPreserve"] != "yes" || guardian["RuntimeDirectoryPreserve"] != "yes" {
		t.Error("the records of attached programs do not outlive the units")
	}
	// In the daemon's slice, a limit or a kill of that slice would reach the guardian.
	if got := guardian["Slice"]; got != "xsched-guardian.slice" || got == daemon["Slice"] {
		t.Errorf("xsched-guardian.service has Slice=%q, xsched.service %q; want xsched-guardian.slice for the guardian only", got, daemon["Slice"])
	}
	if unit(t, guardian["Slice"])["MemoryMin"] == "" {
		t.Error("xsched-guardian.slice reserves no memory")
	}
	if dog, err := time.ParseDuration(daemon["WatchdogSec"]); err != nil || dog < time.Second || daemon["Type"] != "notify" || daemon["Restart"] != "always" {
		t.Errorf("WatchdogSec=%q, Type=%q and Restart=%q of xsched.service do not replace a daemon that hangs", daemon["WatchdogSec"], daemon["Type"], daemon["Restart"])
	}
}
