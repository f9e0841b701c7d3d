// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"testing"
	"time"

	"xsched/internal/health"
)

// A publisher of grants that hangs is named, and recovers.
func TestWedgedGrantsAreNamed(t *testing.T) {
	m := &health.Monitor{}
	w := newWorld(t, testFile)
	c := w.plugin.Config
	c.Health = m
	p := New(c)
	p.retry = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	p.mu.Lock()
	go func() { defer close(done); p.publish(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	p.Changed()
	await := func(what string, ok func(age time.Duration) bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if s := m.States(); len(s) == 1 && s[0].Name == "grants of labels" && s[0].Vital && ok(s[0].Age) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("it never %s: %+v", what, m.States())
			}
		}
	}
	await("hangs", func(age time.Duration) bool { return age > 100*time.Millisecond })
	p.mu.Unlock()
	await("works again", func(age time.Duration) bool { return age == 0 })
}
