// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"maps"
	"testing"

	"xsched/internal/model"
)

// A program that leaves during a scan stays known until the next scan has judged it. A new program
// counts from its first scan on.
func TestScanMeetsDepartures(t *testing.T) {
	const gpu, other = model.DeviceID(1), model.DeviceID(2)
	o := &unmanaged{departed: map[int][]model.DeviceID{7: {gpu}}}
	judge := func(users map[model.DeviceID][]int, judged map[int][]model.DeviceID, want map[model.DeviceID]bool) {
		t.Helper()
		if _, shared := o.merge(users, judged); !maps.Equal(shared, want) {
			t.Errorf("%v, want %v", shared, want)
		}
	}
	judge(map[model.DeviceID][]int{other: {9}}, nil, map[model.DeviceID]bool{gpu: true, other: true})
	judge(map[model.DeviceID][]int{other: {10}}, maps.Clone(o.departed), map[model.DeviceID]bool{other: true})
	if len(o.departed) != 0 {
		t.Errorf("departed: %v", o.departed)
	}
	judge(map[model.DeviceID][]int{gpu: {11}}, nil, map[model.DeviceID]bool{gpu: true})
	o.departed = map[int][]model.DeviceID{12: {other}}
	judge(map[model.DeviceID][]int{other: {12}}, maps.Clone(o.departed), map[model.DeviceID]bool{other: true})
	judge(nil, nil, map[model.DeviceID]bool{})
}
