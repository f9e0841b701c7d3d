// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/session"
)

// A daemon whose engine loop hangs, or whose last step does, ends in time. The next one starts at once,
// and what the first one does late changes nothing of the second's.
func TestCloseIsLimited(t *testing.T) {
	for name, wedge := range map[string]func(t *testing.T, d *Daemon) (free func()){
		"engine loop": func(t *testing.T, d *Daemon) func() {
			const long = 700 * time.Millisecond
			wedged := time.Now()
			if err := d.loop.Wedge(t.Context(), long); err != nil {
				t.Fatal(err)
			}
			return func() { time.Sleep(time.Until(wedged.Add(long))) }
		},
		"driver": func(_ *testing.T, d *Daemon) func() {
			hang := make(chan struct{})
			d.onClose(func() { <-hang })
			return func() { close(hang) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Options{Dir: t.TempDir(), Virtual: true}
			first, err := Start(o)
			if err != nil {
				t.Fatal(err)
			}
			first.closeTime = 100 * time.Millisecond
			ended := make(chan struct{})
			first.shutdown = append([]func(){func() { close(ended) }}, first.shutdown...)
			free := wedge(t, first)
			began := time.Now()
			if first.Close(); time.Since(began) > 500*time.Millisecond {
				t.Errorf("the end took %v", time.Since(began))
			}
			first.Close() // again, as the caller's deferred call
			second, err := Start(o)
			if err != nil {
				t.Fatalf("the next daemon does not start: %v", err)
			}
			defer second.Close()
			free()
			<-ended
			if !second.lock.Held() {
				t.Error("the first daemon removed the lock of the second")
			}
			if _, err := session.Listen("unixpacket", filepath.Join(o.Dir, control.ClientDir, control.ClientSocket), 0o600); err == nil {
				t.Error("the first daemon removed the socket of the second")
			}
			if _, err := second.loop.Clients(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}
