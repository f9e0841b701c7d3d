// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/daemon"
	"xsched/internal/identity"
)

// sensorHelper lists its files, and writes a line each tenth of a second until a file is there: then it hangs.
const sensorHelper = `#!/bin/sh
ls /proc/self/fd >"$HANG.fds"
[ -z "$LIST" ] || exit 0
echo '{"gpus":[{"id":"0000:02:00.0","memory_total_bytes":100},{"id":"0000:01:00.0","memory_total_bytes":200}]}'
echo '{"xid":31,"id":"0000:02:00.0"}'
while [ ! -e "$HANG" ]; do
	echo '{"gpus":[{"id":"0000:02:00.0","memory_total_bytes":3200,"memory_free_bytes":99},{"id":"0000:01:00.0","power_watts":50}]}'
	sleep 0.1
done
exec sleep 1000
`

// TestSensors: the values of both GPUs reach those on the host, a full memory and an error of the driver the journal.
// When the helper hangs, values are unknown and nothing else changes.
func TestSensors(t *testing.T) {
	w := newWorld(t)
	helper, hang := filepath.Join(w.dir, "helper"), filepath.Join(w.dir, "hang")
	if err := os.WriteFile(helper, []byte(sensorHelper), 0o700); err != nil {
		t.Fatal(err)
	}
	bare := exec.CommandContext(t.Context(), helper)
	bare.Env = append(os.Environ(), "HANG="+hang, "LIST=1")
	if err := bare.Run(); err != nil {
		t.Fatal(err)
	}
	inherited, err := os.ReadFile(hang + ".fds")
	if err != nil {
		t.Fatal(err)
	}
	stop := w.serve(t, func(o *daemon.Options) {
		o.Sensors = func() (string, []string, error) { return helper, append(os.Environ(), "HANG="+hang), nil }
	})
	app := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	pid := app.Process.Pid
	sensorsOf := func(c control.Caller) (a, b *control.Sensors) {
		t.Helper()
		all, err := w.daemon.Control().Devices(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		for i := range all.Devices {
			switch all.Devices[i].ID {
			case "0000:01:00.0":
				a = all.Devices[i].Sensors
			case "0000:02:00.0":
				b = all.Devices[i].Sensors
			}
		}
		return a, b
	}
	root := control.Caller{User: identity.OnHost(0)}
	await(t, "both GPUs have values", func() bool {
		a, b := sensorsOf(root)
		return a != nil && b != nil && a.PowerWatts != nil && *a.PowerWatts == 50 && b.MemoryLow && len(b.Xids) == 1 && len(a.Xids) == 0
	})
	if a, b := sensorsOf(control.Caller{User: identity.User{UID: 1000, Container: "docker-a"}}); a != nil || b != nil {
		t.Errorf("a container sees %+v, %+v", a, b)
	}
	var texts []string
	await(t, "journal", func() bool {
		j, err := w.daemon.Control().Journal(ctx, root, control.JournalRequest{Max: control.JournalMax})
		texts = nil
		for _, e := range j.Entries {
			if e.Kind == control.JournalFault {
				texts = append(texts, e.Text)
			}
		}
		return err == nil && len(texts) >= 2
	})
	for _, want := range []string{"the driver reports Xid 31 on 0000:02:00.0", "the next allocation may fail: 96 % of its memory is used on 0000:02:00.0"} {
		if !strings.Contains(fmt.Sprintf("%q", texts), want) {
			t.Errorf("%q, want %q", texts, want)
		}
	}
	if fds, err := os.ReadFile(hang + ".fds"); err != nil || !bytes.Equal(fds, inherited) {
		t.Errorf("the helper has files of the daemon: %q instead of %q, %v", fds, inherited, err)
	}
	if err := os.WriteFile(hang, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "unknown", func() bool {
		a, b := sensorsOf(root)
		return a.Unknown != "" && a.PowerWatts == nil && b.Unknown != "" && !b.MemoryLow && len(b.Xids) == 1
	})
	if _, err := w.ctl.Suspend(ctx, pid); err != nil {
		t.Fatal(err)
	}
	await(t, "channels stopped", w.stopped(t, pid, 1))
	if s, err := w.ctl.Stats(ctx); err != nil || s.Dead() != "" {
		t.Errorf("%v, %q, heartbeat %v ago", err, s.Dead(), time.Duration(s.HeartbeatAgeNS))
	}
	began := time.Now()
	if err := stop(); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("the end took %v, %v", time.Since(began), err)
	}
}
