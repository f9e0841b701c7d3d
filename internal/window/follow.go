// SPDX-License-Identifier: Apache-2.0

package window

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Program is a program that the scheduler manages for the caller.
type Program struct {
	PID    int
	Active bool // it counts as the program of an active window
}

// Scheduler learns which programs belong to an active window.
type Scheduler interface {
	Programs(ctx context.Context) ([]Program, error)
	// SetActive succeeds for a program that has ended.
	SetActive(ctx context.Context, pid int, active bool) error
}

const (
	// refresh is how often the follower looks without a signal: programs start in a window without
	// one, and so does the keyboard focus move without a window manager.
	refresh = 500 * time.Millisecond
	// A display that can't be opened is tried again after firstRetry, then ever later up to lastRetry.
	firstRetry, lastRetry = 250 * time.Millisecond, 10 * time.Second
	// goodbye bounds how long the end of the follower waits for the scheduler.
	goodbye = 2 * time.Second
)

// Follower keeps a scheduler informed about the active windows of displays. It compares what should be
// with what the scheduler says, so programs, schedulers and X servers may come and go.
type Follower struct {
	// Displays returns the names of the displays to follow. It is asked again and again.
	Displays func() []string
	// PIDs, if not nil, names the process of the active window in each line, for desktops without X.
	// Its end is the end of the follower.
	PIDs      io.Reader
	Scheduler Scheduler
	Processes Processes
	Log       *slog.Logger

	states  map[string]*State // by display; nil: no connection
	members []int             // of the last pass
	set     map[int]bool      // programs that this follower has marked
	refused map[int]string    // programs that it may not mark, and why
	silent  string            // why the scheduler does not answer; empty: it does
}

// update is a new state of a display; nil: its connection has ended.
type update struct {
	display string
	state   *State
}

// Run follows until the context ends. Then no program counts as active any more.
func (f *Follower) Run(ctx context.Context) {
	f.states, f.set, f.refused = map[string]*State{}, map[int]bool{}, map[int]string{}
	updates := make(chan update)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A request that the end cuts off may have marked a program all the same, and the marks must be known to be
	// removed. So requests may take some time longer.
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(goodbye, cut) })()
	if f.PIDs != nil {
		go func() {
			f.read(ctx, updates)
			cancel()
		}()
	}
	ticker := time.NewTicker(refresh)
	defer ticker.Stop()
	watched := map[string]bool{}
	for {
		for _, name := range f.Displays() {
			if !watched[name] {
				watched[name] = true
				go f.watch(ctx, name, updates)
			}
		}
		select {
		case <-ctx.Done():
			f.leave(context.WithoutCancel(ctx))
			return
		case u := <-updates:
			f.states[u.display] = u.state
		case <-ticker.C:
		}
		f.apply(requests)
	}
}

// read reports the processes that PIDs names. A line without a PID means that no window is active.
func (f *Follower) read(ctx context.Context, updates chan<- update) {
	lines := bufio.NewScanner(f.PIDs)
	for lines.Scan() {
		text := strings.TrimSpace(lines.Text())
		state := &State{Manager: true}
		if pid, err := strconv.Atoi(text); err == nil && pid > 0 {
			state.Active, state.Windows = []ID{1}, []Window{{ID: 1, PID: pid}}
		} else if text != "" && (err != nil || pid < 0) {
			f.Log.Warn("a line is no PID, so no window is active", "line", text)
		}
		send(ctx, updates, update{"", state})
	}
	if err := lines.Err(); err != nil {
		f.Log.Warn("cannot read PIDs", "err", err)
	}
}

// watch reports the states of one display, over all X servers that serve it in turn.
func (f *Follower) watch(ctx context.Context, name string, updates chan<- update) {
	retry, said := firstRetry, false
	for ctx.Err() == nil {
		display, err := Open(name)
		if err != nil {
			if !said {
				said = true
				f.Log.Warn("cannot open the display, trying again", "display", name, "err", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(retry):
			}
			retry = min(2*retry, lastRetry)
			continue
		}
		f.Log.Info("following the display", "display", name)
		retry, said = firstRetry, false
		err = report(ctx, display, updates)
		display.Close()
		if ctx.Err() == nil {
			f.Log.Warn("lost the display", "display", name, "err", err)
			send(ctx, updates, update{display.Name(), nil})
		}
	}
}

// report sends the state of a display whenever it changes.
func report(ctx context.Context, display *Display, updates chan<- update) error {
	ticker := time.NewTicker(refresh)
	defer ticker.Stop()
	var last *State
	for {
		state, err := display.State(false)
		if err != nil {
			return err
		}
		if last == nil || !reflect.DeepEqual(*last, state) {
			last = &state
			send(ctx, updates, update{display.Name(), last})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, open := <-display.Changes():
			if !open {
				return ErrClosed
			}
		case <-ticker.C:
		}
	}
}

func send(ctx context.Context, updates chan<- update, u update) {
	select {
	case <-ctx.Done():
	case updates <- u:
	}
}

// apply makes the scheduler's programs agree with the active windows.
func (f *Follower) apply(ctx context.Context) {
	programs, err := f.Scheduler.Programs(ctx)
	if err != nil {
		if text := err.Error(); text != f.silent && ctx.Err() == nil {
			f.silent = text
			f.Log.Warn("cannot ask the scheduler, trying again", "err", err)
		}
		return
	}
	if f.silent != "" {
		f.silent = ""
		f.Log.Info("the scheduler answers again")
	}
	pids := make([]int, len(programs))
	for i := range programs {
		pids[i] = programs[i].PID
	}
	gone := func(pid int) bool { return !slices.Contains(pids, pid) }
	maps.DeleteFunc(f.set, func(pid int, _ bool) bool { return gone(pid) })
	maps.DeleteFunc(f.refused, func(pid int, _ string) bool { return gone(pid) })
	var members []int
	for name, state := range f.states {
		if state != nil {
			members = append(members, Members(name, state, pids, f.Processes)...)
		}
	}
	slices.Sort(members)
	members = slices.Compact(members)
	if !slices.Equal(members, f.members) {
		f.members = members
		f.Log.Info("programs of the active window", "pids", members)
	}
	for _, active := range []bool{true, false} { // so that one is active at any time
		for _, p := range programs {
			if want := slices.Contains(members, p.PID); want == active && p.Active != active {
				f.mark(ctx, p.PID, active)
			}
		}
	}
}

func (f *Follower) mark(ctx context.Context, pid int, active bool) {
	if err := f.Scheduler.SetActive(ctx, pid, active); err != nil {
		if f.refused[pid] != err.Error() && ctx.Err() == nil {
			f.refused[pid] = err.Error()
			f.Log.Warn("cannot mark the program", "pid", pid, "active", active, "err", err)
		}
		return
	}
	delete(f.refused, pid)
	if f.set[pid] = true; !active {
		delete(f.set, pid)
	}
}

// leave unmarks the programs that this follower has marked.
func (f *Follower) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	for pid := range maps.Clone(f.set) {
		f.mark(ctx, pid, false)
	}
}
