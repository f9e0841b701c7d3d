// SPDX-License-Identifier: Apache-2.0

package gpumodel

import (
	"testing"
	"time"

	"xsched/internal/model"
)

// Behavior measured on an H200 (docs/platforms/nvidia.md): after which sequences of disable and
// enable a low runs again, alone and with another busy tenant.
func TestDisablesAsOnTheH200(t *testing.T) {
	type step struct{ disable, onlyScheduling bool }
	var (
		stop  = step{true, false} // Lv3
		leave = step{true, true}  // Lv2
		run   = step{false, false}
	)
	for _, c := range []struct {
		name          string
		steps         []step
		alone, beside bool // runs afterwards
	}{
		{"3 E", []step{stop, run}, true, true},
		{"2 E", []step{leave, run}, false, true},
		{"2 E E E", []step{leave, run, run, run}, false, true},
		{"2 E 3 E", []step{leave, run, stop, run}, true, true},
		{"3 3 E", []step{stop, stop, run}, false, false},
		{"3 3 E E", []step{stop, stop, run, run}, true, true},
		{"2 3 E E", []step{leave, stop, run, run}, true, true},
		{"3 2 E", []step{stop, leave, run}, false, false},
		{"3 2 E E", []step{stop, leave, run, run}, true, true},
		{"E 3 E", []step{run, stop, run}, true, true},
	} {
		for _, beside := range []bool{false, true} {
			g := NewGPU(0, DefaultCosts(), nil, nil)
			busy := func() (*Account, *Channel) {
				account := &Account{}
				group := g.AddGroup(account, false)
				channel := g.AddChannel(group, discard{})
				g.Schedule(group)
				for seq := range uint64(200) {
					g.Submit(channel, Work{Kind: WorkKernel, Seq: seq + 1, Duration: 20 * time.Millisecond})
				}
				return account, channel
			}
			account, channel := busy()
			if beside {
				busy()
			}
			now := model.Time(0)
			pass := func(d time.Duration) {
				now = now.Add(d)
				g.Advance(now)
			}
			pass(100 * time.Millisecond)
			for _, s := range c.steps {
				g.Disable([]*Channel{channel}, s.disable, s.onlyScheduling, nil)
				pass(30 * time.Millisecond)
			}
			if stopped := account.Stopped == 1; stopped == channel.Enabled() {
				t.Errorf("%s, beside another %v: %d channels are stopped", c.name, beside, account.Stopped)
			}
			before := account.RunNS
			pass(400 * time.Millisecond)
			want := c.alone
			if beside {
				want = c.beside
			}
			if ran := account.RunNS > before; ran != want {
				t.Errorf("%s, beside another %v: runs %v, want %v", c.name, beside, ran, want)
			}
			if g.RemoveChannel(channel); account.Stopped != 0 {
				t.Errorf("%s: %d channels are stopped that are not there", c.name, account.Stopped)
			}
		}
	}
}
