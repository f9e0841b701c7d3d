// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"slices"
	"testing"

	"xsched/internal/daemon"
	"xsched/internal/embedded"
)

// The sensors of real GPUs are read unless somebody says otherwise, by a program that loads no shim.
func TestSetSensors(t *testing.T) {
	t.Setenv("XSCHED_CACHE", t.TempDir())
	t.Setenv("LD_PRELOAD", "/lib/libxsched.so")
	for _, c := range []struct {
		when          string
		virtual, want bool
	}{{"on", false, true}, {"on", true, false}, {"off", false, false}, {"off", true, false}} {
		o := daemon.Options{Virtual: c.virtual}
		if err := setSensors(&o, c.when); err != nil || (o.Sensors != nil) != c.want {
			t.Errorf("%+v: %v, %v", c, o.Sensors != nil, err)
		}
		if o.Sensors == nil {
			continue
		}
		_, env, err := o.Sensors()
		if err != nil && !errors.Is(err, embedded.ErrMissing) {
			t.Error(err)
		}
		if !slices.Contains(env, "XSCHED_DISABLE=1") || slices.Contains(env, "LD_PRELOAD=/lib/libxsched.so") {
			t.Errorf("%q", env)
		}
	}
	if err := setSensors(&daemon.Options{}, "auto"); err == nil {
		t.Error("auto is accepted")
	}
}
