// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The oldest of several pieces of work decides, and each ends alone.
func TestOldestCallDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Monitor
		c := m.AddCalls("calls", 10*time.Second, true)
		first := c.Begin()
		time.Sleep(8 * time.Second)
		second := c.Begin()
		time.Sleep(3 * time.Second)
		if m.Alive() {
			t.Error("a call of 11 s is not late")
		}
		first()
		if !m.Alive() {
			t.Error("a call that has ended is late")
		}
		second()
		time.Sleep(time.Hour)
		if !m.Alive() {
			t.Error("without calls the part is late")
		}
		var none *Calls
		none.Begin()()
	})
}

// A socket answers with the states of another process's parts; one that nobody answers at fails within
// the caller's limit.
func TestServeAndAsk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "health.sock")
	if err := os.WriteFile(path, nil, 0o600); err != nil { // a killed process left something
		t.Fatal(err)
	}
	var m Monitor
	m.Watch("scan", time.Second, true, func() time.Duration { return 2 * time.Second })
	m.Add("log", time.Hour, false)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- m.Serve(ctx, path) }()
	var states []State
	var err error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if states, err = Ask(t.Context(), path); err == nil {
			break
		}
	}
	if err != nil || len(states) != 2 || !strings.HasPrefix(Dead(states), "scan: the last sign of life was 2s ago") {
		t.Errorf("%v, %v", states, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}

	frozen := filepath.Join(t.TempDir(), "frozen.sock")
	l, err := net.Listen("unix", frozen) // the kernel accepts, nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	limited, end := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer end()
	if _, err := Ask(limited, frozen); err == nil {
		t.Error("a frozen process answers")
	}
}
