// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"testing"

	"xsched/internal/model"
)

// HardwareQueues lists groups with their channels; a channel created during a stop counts as
// caught.
func TestHardwareQueues(t *testing.T) {
	r, s, _ := newFake(t)
	const c = 0xc1d00001
	r.newContext(t, s, c, fakeGPU, 1)
	apply(t, s.Target(fakeDevice), model.Desired{})
	if s.Caught() != 0 {
		t.Error("caught a channel while none was stopped")
	}
	apply(t, s.Target(fakeDevice), model.Desired{Suspend: model.LevelInterrupt})
	r.mu.Lock()
	r.clients[c][101] = &fakeObject{kind: kindChannel}
	r.mu.Unlock()
	if err := s.Alloc(c, 10, 101, 0xC86F); err != nil {
		t.Fatal(err)
	}
	apply(t, s.Target(fakeDevice), model.Desired{Suspend: model.LevelInterrupt})
	if n := s.Caught(); n != 1 {
		t.Errorf("%d channels caught, want 1", n)
	}
	all, err := s.HardwareQueues(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	kinds, stopped := map[string]int{}, 0
	for _, q := range all {
		kinds[q.Kind]++
		d := func(name string) uint64 { return q.Details[name] }
		if q.Device != fakeDevice || d("client") != c || q.ID != d("handle") || q.ID == 0 || d("class") == 0 || q.Kind == "compute" && d("group") == 0 {
			t.Errorf("%+v", q)
		}
		if q.Stopped {
			stopped++
		}
	}
	if kinds["group"] == 0 || kinds["compute"] < 2 || stopped != kinds["compute"] {
		t.Errorf("%v, %d stopped", kinds, stopped)
	}
}
