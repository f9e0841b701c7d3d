// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"reflect"
	"testing"
	"time"

	"xsched/internal/model"
)

// TestSetBounds: new bounds reach every device, and a replay of the event does the same.
func TestSetBounds(t *testing.T) {
	e, replay := newWithQueue(t), newWithQueue(t)
	e.Observe(func(ev *Event) {
		if _, _, err := replay.Do(ev); err != nil {
			t.Error(err)
		}
	})
	e.SetBounds(0, 7*time.Second)
	for _, got := range []*Engine{e, replay} {
		if cfg, on := got.Config(), got.devices[0].cfg; cfg.Hold != 0 || cfg.StarvationBound != 7*time.Second || !reflect.DeepEqual(cfg.Knobs, on.Knobs) || !got.devices[0].pending {
			t.Errorf("%+v, on the device %+v", cfg.Knobs, on.Knobs)
		}
	}
}

func newWithQueue(t *testing.T) *Engine {
	t.Helper()
	e, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	e.AddQueue(1, model.Queue{ID: model.QueueID{Session: 1}, PID: 1, Device: 5, Level: model.LevelBlock})
	e.Decide(1)
	return e
}
