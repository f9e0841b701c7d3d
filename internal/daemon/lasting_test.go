// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"testing"

	"xsched/internal/control"
	"xsched/internal/model"
)

// TestHardwareAlerts: a GPU that was listed and is gone, and one whose memory is nearly full. A driver that lists
// none from the start lost none.
func TestHardwareAlerts(t *testing.T) {
	full, _ := model.ParseDeviceID("0000:02:00.0")
	a := &alerts{known: map[string]bool{}, values: func(id model.DeviceID) *control.Sensors {
		return &control.Sensors{MemoryLow: id == full}
	}}
	const first, second = "0000:01:00.0", "0000:02:00.0"
	for _, c := range []struct {
		listed []string
		want   []string
	}{
		{nil, nil},
		{[]string{first, second}, []string{"memory warning 0000:02:00.0"}},
		{[]string{first}, []string{"gpu critical 0000:02:00.0"}},
		{nil, []string{"gpu critical 0000:01:00.0", "gpu critical 0000:02:00.0"}},
		{[]string{first, second}, []string{"memory warning 0000:02:00.0"}},
	} {
		var got []string
		for _, condition := range a.hardware(c.listed) {
			got = append(got, condition.Alert.Kind+" "+condition.Alert.Severity+" "+condition.Alert.Subject.GPU)
			if condition.Owner != "" || condition.Alert.Text == "" {
				t.Errorf("%+v", condition)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.listed, got, c.want)
		}
	}
}
