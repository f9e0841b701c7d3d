// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"sync"
	"testing"
	"time"

	"xsched/internal/driver"
	"xsched/internal/health"
)

// stuckDriver hangs when it is polled or tested.
type stuckDriver struct {
	driver.Attached
	driver.Instance
	driver.SelfTester
	free chan struct{}
}

func (s stuckDriver) Poll(context.Context) (bool, error) {
	<-s.free
	return false, nil
}

func (s stuckDriver) KeepTested(_ context.Context, o driver.SelfTestOptions, _ func()) {
	<-s.free
	o.Beat()
}

// A part that hangs is the one whose age the status shows, and it recovers.
func TestWedgedPartsOfTheDaemon(t *testing.T) {
	d, err := Start(Options{Dir: t.TempDir(), Virtual: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close) // after the parallel parts
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	var tests sync.WaitGroup
	t.Cleanup(tests.Wait)
	for name, wedge := range map[string]func(free chan struct{}, m *health.Monitor){
		"runtime folder": func(free chan struct{}, m *health.Monitor) {
			go d.watchFolder(ctx, func() bool { <-free; return true }, m.Add("runtime folder", folderLimit, false))
		},
		pollsPart: func(free chan struct{}, m *health.Monitor) {
			o := &observer{access: d.access, polls: m.AddCalls(pollsPart, pollsLimit, false)}
			go func() { _, _ = o.poll(stuckDriver{free: free}) }()
		},
		driverPart: func(free chan struct{}, m *health.Monitor) {
			keepTested(ctx, stuckDriver{free: free}, driver.SelfTestOptions{}, m, func() {}, &tests)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, free := &health.Monitor{}, make(chan struct{})
			v := &views{health: m}
			wedge(free, m)
			await := func(what string, ok func(age time.Duration) bool) {
				t.Helper()
				for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
					if p := v.Parts(); len(p) == 1 && p[0].Name == name && ok(time.Duration(p[0].AgeNS)) {
						return
					}
					if time.Now().After(end) {
						t.Fatalf("it never %s: %+v", what, v.Parts())
					}
				}
			}
			await("hangs", func(age time.Duration) bool { return age > 3*folderPeriod/2 })
			close(free)
			await("works again", func(age time.Duration) bool { return age < folderPeriod })
		})
	}
}
