// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/identity"
)

func loaded(d driver.Driver) *driver.Set {
	return driver.OpenAll([]driver.Driver{d}, driver.Options{}, "")
}

// presentDriver has an instance without GPUs.
type presentDriver struct{ driver.Driver }

func (presentDriver) Name() string { return "present" }

func (presentDriver) Open(driver.Options) (driver.Instance, error) { return stuckDriver{}, nil }

// A machine without a driver has a problem until one is loaded; the log has each result once.
func TestMissingDriver(t *testing.T) {
	missing := []driver.Check{
		{Name: "driver", Status: driver.Missing, Detail: "no kernel module is loaded", Remedy: "load it"},
		{Name: "attach", Status: driver.Limited, Detail: "not allowed"},
	}
	fine := []driver.Check{{Name: "driver", Status: driver.OK, Detail: "580.1"}}
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var checks atomic.Pointer[[]driver.Check]
		var calls atomic.Int32
		checks.Store(&missing)
		m := &machine{log: slog.New(slog.NewTextHandler(&log, nil)), drivers: loaded(presentDriver{}), examine: func() []driver.Check {
			calls.Add(1)
			return *checks.Load()
		}}
		want := []control.Problem{{Cause: "driver: no kernel module is loaded", Remedy: "load it"}}
		for range 3 {
			if got := m.problems(t.Context()); !slices.Equal(got, want) {
				t.Errorf("problems %+v", got)
			}
		}
		checks.Store(&fine)
		time.Sleep(examineAgain)
		if got := m.problems(t.Context()); len(got) != 0 {
			t.Errorf("problems of a loaded driver: %+v", got)
		}
		time.Sleep(time.Hour)
		m.problems(t.Context())
		if n := calls.Load(); n != 2 {
			t.Errorf("%d examinations; a working host needs no more than 2", n)
		}
		if text := log.String(); strings.Count(text, `msg="driver check" check=driver status=missing`) != 1 {
			t.Error(text)
		}
	})
}

// A device node that blocks delays a reader for a limited time, and the reader learns of it.
func TestBlockedExamination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		m := &machine{log: slog.New(slog.DiscardHandler), drivers: loaded(presentDriver{}), examine: func() []driver.Check { <-free; return nil }}
		begin := time.Now()
		if got := m.problems(t.Context()); len(got) != 1 || !strings.Contains(got[0].Cause, "did not answer") || time.Since(begin) != examineTime {
			t.Errorf("problems %+v after %v", got, time.Since(begin))
		}
		close(free)
		synctest.Wait()
		if got := m.problems(t.Context()); len(got) != 0 {
			t.Errorf("problems %+v", got)
		}
	})
}

// The status tells which file is in force, and whether it has changed.
func TestConfigState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := control.ConfigReply{Values: []control.ConfigValue{{Key: "policy", Value: "HPF", Source: control.SourceFile}, {Key: "record", Restart: true}}}
	o := Options{Dir: t.TempDir(), Virtual: true, ConfigFile: file, Config: config}
	o.Load = func() (Options, []string, error) {
		next := o
		next.Config.Values = []control.ConfigValue{{Key: "policy", Value: "HPF", Source: control.SourceFile}, {Key: "record", Value: "f", Restart: true}}
		return next, nil, nil
	}
	write("policy: HPF\n")
	d, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	root := control.Caller{User: identity.OnHost(os.Geteuid())}
	state := func() control.ConfigState {
		t.Helper()
		s, err := d.Stats(context.Background(), root)
		if err != nil {
			t.Fatal(err)
		}
		return s.Config
	}
	if s := state(); s.File != file || s.ReadNS == 0 || s.Changed || len(s.RunTime) != 0 {
		t.Errorf("at the start: %+v", s)
	}
	if _, err := d.Policy(t.Context(), root, control.PolicyRequest{Name: "FIFO"}); err != nil {
		t.Fatal(err)
	}
	write("policy: HPF # longer\n")
	if s := state(); !s.Changed || !slices.Equal(s.RunTime, []string{"policy"}) {
		t.Errorf("after a change: %+v", s)
	}
	if _, err := d.Reload(t.Context(), root, control.ReloadRequest{}); err != nil {
		t.Fatal(err)
	}
	if s := state(); s.Changed || !slices.Equal(s.Restart, []string{"record"}) {
		t.Errorf("after the reload: %+v", s)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if s := state(); !s.Changed || s.File != file {
		t.Errorf("without the file: %+v", s)
	}
}
