// SPDX-License-Identifier: Apache-2.0

// Package keeper owns what operators set at run time: settings, hints and suspensions of processes, and
// grants, in memory and in a file for the next daemon. It must not know who may set what, nor apply it.
package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session"
	"xsched/internal/state"
)

// Keeper remembers what operators set at run time: for a reload of the configuration, for a process
// that connects again, and in a file for the next daemon. Only its own goroutine writes the file.
type Keeper struct {
	path string // empty: no file
	log  *slog.Logger
	boot string

	mu        sync.Mutex
	settings  map[string]Setting
	processes map[int]state.Process
	grants    map[string]json.RawMessage // by source; replaced, never changed
	granted   bool                       // grants differ from their file
	changed   uint64                     // number of the last change
	saved     uint64                     // number of the last change in the file, or that failed
	failed    bool                       // the last write; a further failure is not logged
	latest    map[int]*latest            // by the PIDs of requests in progress
	held      []state.Process            // processes that the file suspends; used by Save only, without the lock

	wake  chan struct{}
	hurry chan struct{} // an operator waits for the file
	done  chan struct{} // closed and replaced after each write

	write func(state.Data) error // state.Save
}

// latest is what the requests for one process share that are in progress.
type latest struct {
	requests int
	reading  uint64 // the latest that is kept
}

// Setting is what an operator has set for a key of the configuration.
type Setting struct {
	state.Setting
	Source string // control.SourceState or control.SourceRunTime
}

const (
	// savePause is the least time between two writes of the file. Between two writes that no operator
	// waits for, it is saveShare times the last write's duration as well: any user can change settings
	// of its own programs without end, and each change writes the whole file. With the settings of 900
	// programs, one write is 80 kB and takes 15 ms. A crash may lose this pause's changes of users.
	savePause     = 10 * time.Millisecond
	saveShare     = 20 // at most a twentieth of the time, as for scans of /proc
	savePauseMost = 10 * time.Second
	// saveAgain is the time until a failed write is repeated: a full disk gets room without a change of
	// the settings. One attempt a second costs little next to the operator's own requests.
	saveAgain = time.Second
	// SaveTime bounds how long a request of an operator waits for the file.
	SaveTime = time.Second
	// maxKept bounds the processes, and maxKeptPerUser those that a user has set hints for: no user takes
	// the place of the operator's settings. Processes that have ended count until the next write.
	maxKept        = 16384
	maxKeptPerUser = session.MaxSessionsPerUID
)

// Open loads the file. It always returns a keeper: without a usable file an empty one.
func Open(path string, log *slog.Logger) *Keeper {
	boot, _ := identity.BootID() // without one, nothing is of this boot
	k := &Keeper{
		path: path, log: log, boot: boot, settings: map[string]Setting{}, processes: map[int]state.Process{}, latest: map[int]*latest{},
		wake: make(chan struct{}, 1), hurry: make(chan struct{}, 1), done: make(chan struct{}),
		write: func(data state.Data) error { return state.Save(path, data) },
	}
	if path == "" {
		return k
	}
	data, err := state.Load(path)
	if err != nil {
		log.Warn("settings of the previous daemon are lost", "err", err)
	}
	granted, err := state.LoadGrants(state.GrantsFile(path))
	if err != nil {
		log.Warn("grants of the previous daemon are lost until their sources send them again", "err", err)
	}
	k.grants = granted.Sources
	k.held = heldIn(&data)
	for key, s := range data.Settings {
		k.settings[key] = Setting{s, control.SourceState}
	}
	if data.Boot != k.boot {
		return k
	}
	var detached []int
	for _, p := range data.Processes {
		if hasEnded(&p) {
			continue
		}
		if p.Attached {
			detached = append(detached, p.PID)
			continue
		}
		k.processes[p.PID] = p
	}
	if len(detached) > 0 {
		slices.Sort(detached)
		log.Warn("programs that were attached before the restart are unmanaged; run `xsched attach PID` for each", "pids", detached)
	}
	return k
}

// Grants returns the grants by source, as they are kept.
func (k *Keeper) Grants() map[string]json.RawMessage {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.grants
}

// Run writes the file after changes, until ctx ends.
func (k *Keeper) Run(ctx context.Context, part *health.Part) {
	for {
		part.End()
		var again <-chan time.Time
		if k.hasFailed() {
			again = time.After(saveAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-again:
		}
		part.Begin()
		began := time.Now()
		k.Save()
		part.End()
		if !k.rest(ctx, time.Since(began)) {
			return
		}
	}
}

// hasEnded reports that a process has ended.
func hasEnded(p *state.Process) bool {
	start, err := identity.Started(p.PID)
	return identity.MeansEnd(err) || err == nil && start != p.Start
}

// rest waits after a write of the given duration, until ctx ends.
func (k *Keeper) rest(ctx context.Context, took time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(savePause):
	}
	select {
	case <-ctx.Done():
		return false
	case <-k.hurry:
	case <-time.After(min(saveShare*took, savePauseMost) - savePause):
	}
	return true
}

func (k *Keeper) hasFailed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failed
}

// Save forgets processes that have ended, and writes the file if it is not current.
func (k *Keeper) Save() {
	k.mu.Lock()
	number := k.changed
	data, grants, granted := state.Data{Boot: k.boot, Settings: map[string]state.Setting{}}, k.grants, k.granted
	for key, s := range k.settings {
		data.Settings[key] = s.Setting
	}
	all := slices.Collect(maps.Values(k.processes))
	current := number == k.saved && !k.failed
	k.mu.Unlock()
	if current {
		return
	}
	var ended []state.Process
	for _, p := range all {
		if hasEnded(&p) {
			ended = append(ended, p)
			continue
		}
		data.Processes = append(data.Processes, p)
	}
	slices.SortFunc(data.Processes, func(a, b state.Process) int { return a.PID - b.PID })
	var err error
	if k.path != "" {
		err = k.replace(&data)
		if granted {
			err = errors.Join(err, state.SaveGrants(state.GrantsFile(k.path), state.Grants{Sources: grants}))
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range ended {
		if k.processes[p.PID].Start == p.Start {
			delete(k.processes, p.PID)
		}
	}
	if granted && err == nil && number == k.changed {
		k.granted = false
	}
	if k.saved = number; err != nil && !k.failed {
		k.log.Warn("settings will not survive a restart; make the directory writable or use --no-state", "err", err)
	}
	k.failed = err != nil
	close(k.done)
	k.done = make(chan struct{})
}

// replace writes the file. If that fails, as on a full disk, and the file suspends a program that has been
// resumed, the file goes: the next daemon would stop that program again.
func (k *Keeper) replace(data *state.Data) error {
	held := heldIn(data)
	err := k.write(*data)
	if err == nil {
		k.held = held
		return nil
	}
	for _, was := range k.held {
		if !slices.ContainsFunc(held, func(p state.Process) bool { return p.PID == was.PID && p.Start == was.Start }) {
			if os.Remove(k.path) == nil {
				k.held = nil
			}
			break
		}
	}
	return err
}

// heldIn returns the processes that a file with this content suspends.
func heldIn(data *state.Data) (held []state.Process) {
	for i := range data.Processes {
		if data.Processes[i].Held {
			held = append(held, data.Processes[i])
		}
	}
	return held
}

// touch requests a write. The caller holds the lock.
func (k *Keeper) touch() {
	k.changed++
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Flush waits until the file has all changes so far, or can't be written. A slow disk delays it by
// SaveTime at most.
func (k *Keeper) Flush(ctx context.Context) {
	timer := time.NewTimer(SaveTime)
	defer timer.Stop()
	k.mu.Lock()
	want := k.changed
	for k.path != "" && k.saved < want {
		select {
		case k.hurry <- struct{}{}:
		default:
		}
		done := k.done
		k.mu.Unlock()
		select {
		case <-done:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
	}
	k.mu.Unlock()
}

// Set remembers the value of a configuration key; over is the configured value with its source. The
// configured value itself ends the setting.
func (k *Keeper) Set(key, value, over string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, configured, _ := strings.Cut(over, " "); configured == value {
		if _, ok := k.settings[key]; !ok {
			return
		}
		delete(k.settings, key)
	} else {
		k.settings[key] = Setting{state.Setting{Value: value, Over: over}, control.SourceRunTime}
	}
	k.touch()
}

// SetGrants remembers the grants of all sources.
func (k *Keeper) SetGrants(sources map[string][]control.Grant) {
	kept := make(map[string]json.RawMessage, len(sources))
	for source, all := range sources {
		kept[source], _ = json.Marshal(all) // strings and numbers
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.grants, k.granted = kept, true
	k.touch()
}

// Overlay returns the settings that are newer than the configured values.
func (k *Keeper) Overlay(configured func(key string) (text string)) map[string]Setting {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := maps.Clone(k.settings)
	maps.DeleteFunc(out, func(key string, s Setting) bool { return configured(key) != s.Over })
	return out
}

// Prune forgets the settings that are older than the configured values.
func (k *Keeper) Prune(configured func(key string) (text string)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, s := range k.settings {
		if now := configured(key); now != s.Over {
			k.log.Info("the configuration has changed and replaces a run-time setting", "key", key, "was", s.Value, "now", now)
			delete(k.settings, key)
			k.touch()
		}
	}
}

// KeepLatest reads what is set for a process and keeps it. Of requests at the same time the latest reading
// counts, whichever comes last: a program that root has resumed must not be suspended by the next daemon.
func (k *Keeper) KeepLatest(pid int, operator bool, read func() (loop.Identity, loop.Kept, error)) {
	k.mu.Lock()
	l := k.latest[pid]
	if l == nil {
		l = &latest{}
		k.latest[pid] = l
	}
	l.requests++
	k.mu.Unlock()
	who, kept, err := read()
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil && kept.Reading >= l.reading {
		l.reading = kept.Reading
		k.keep(who, kept, who.Attached, operator)
	}
	if l.requests--; l.requests == 0 {
		delete(k.latest, pid)
	}
}

// Keep remembers what is set for a process; operator: by root or the daemon's user.
func (k *Keeper) Keep(who loop.Identity, kept loop.Kept, attached, operator bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keep(who, kept, attached, operator)
}

// keep is Keep under the lock.
func (k *Keeper) keep(who loop.Identity, kept loop.Kept, attached, operator bool) {
	if who.Program == nil || who.Program.Start == 0 {
		return
	}
	p := state.Process{
		PID: who.PID, Start: who.Program.Start, Hints: kept.Set.Texts(), Pinned: kept.Pinned.Texts(),
		Granted: int(kept.Granted), Held: kept.Held, Attached: attached,
	}
	for gpu, bytes := range kept.Evicted {
		if p.Evicted == nil {
			p.Evicted = map[string]int64{}
		}
		p.Evicted[gpu.String()] = int64(bytes)
	}
	if kept.Ceiling != nil {
		top := int(*kept.Ceiling)
		p.Ceiling = &top
	}
	old, had := k.processes[p.PID]
	if had = had && old.Start == p.Start; !operator && (!had || old.Account != "") {
		p.Account = who.User.Account().Key()
	}
	switch empty := kept.Empty() && !attached; {
	case empty && !had, had && !empty && reflect.DeepEqual(old, p):
		return
	case empty:
		delete(k.processes, p.PID)
	case !had && (len(k.processes) >= maxKept || p.Account != "" && k.count(p.Account) >= maxKeptPerUser):
		return
	default:
		k.processes[p.PID] = p
	}
	k.touch()
}

// count returns the number of processes that a user has set hints for. The caller holds the lock.
func (k *Keeper) count(account string) (n int) {
	for _, p := range k.processes {
		if p.Account == account {
			n++
		}
	}
	return n
}

// Release forgets the suspension of a process, and reports whether there was one.
func (k *Keeper) Release(pid int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, ok := k.processes[pid]
	if !ok || !p.Held {
		return false
	}
	p.Held = false
	k.processes[pid] = p
	k.touch()
	return true
}

// Forget forgets a process.
func (k *Keeper) Forget(pid int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.processes[pid]; ok {
		delete(k.processes, pid)
		k.touch()
	}
}

// Kept returns what was set for a process that connects.
func (k *Keeper) Kept(who loop.Identity) loop.Kept {
	k.mu.Lock()
	p, ok := k.processes[who.PID]
	k.mu.Unlock()
	var out loop.Kept
	if !ok || who.Program == nil || p.Start != who.Program.Start || p.Attached {
		return out
	}
	for name, bytes := range p.Evicted {
		if gpu, err := model.ParseDeviceID(name); err == nil && bytes > 0 {
			if out.Evicted == nil {
				out.Evicted = map[model.DeviceID]model.Bytes{}
			}
			out.Evicted[gpu] = model.Bytes(bytes)
		}
	}
	var err error
	if out.Set, err = model.ParseHintChange(p.Hints); err == nil {
		out.Pinned, err = model.ParseHintChange(p.Pinned)
	}
	if err != nil {
		k.log.Warn("hints of a process are lost", "pid", who.PID, "err", err)
		return loop.Kept{Held: p.Held, Evicted: out.Evicted}
	}
	out.Held = p.Held
	out.Granted = min(max(model.Priority(p.Granted), model.PriorityDefault), model.PriorityMax)
	if p.Ceiling != nil {
		top := min(max(model.Priority(*p.Ceiling), model.PriorityNever), model.PriorityMax)
		out.Ceiling = &top
	}
	return out
}
