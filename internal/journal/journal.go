// SPDX-License-Identifier: Apache-2.0

// Package journal keeps the daemon's events in memory: preemptions, changes and their authors, faults,
// programs that joined or left. Changes and faults also go to the audit file, if there is one.
//
// Memory is bounded: each class of entries has a ring of its own, so that no class displaces another,
// and the changes of tenants do not displace those of the administrator. The entries that a user
// causes are limited in rate; suppressed ones are counted, and the count is an entry.
package journal

import (
	"cmp"
	"slices"
	"sort"
	"sync"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// Program is a process of an entry.
type Program struct {
	PID          int // in the daemon's PID namespace
	PIDNamespace uint64
	LocalPID     int // in that namespace
	User         identity.User
	Name         string // a short name, not the command line
	Pod          string // "namespace/pod/container"; empty: not in a known pod
}

// Entry is one event.
type Entry struct {
	Seq      uint64
	Time     time.Time
	Kind     string  // one of control.JournalKinds
	Program  Program // PID 0: none
	By       Program // the preempting program, or the author of a change
	Hand     bool    // preempted by a user
	Group    bool    // preempted with its group of pods, which Detail names
	Yield    bool    // preempted by the longer timeslices of another
	Duration time.Duration
	Count    uint64
	Bytes    int64 // of a move
	Back     bool  // the move was to the GPU
	Device   string
	What     string
	Before   string
	After    string
	Detail   string // completes the text
	// Cluster marks a change at the pace of a cluster's pods. It has a longer After and displaces no
	// change by hand.
	Cluster bool
}

// Sizes of the rings, in entries.
const (
	adminEntries      = 1024
	changeEntries     = 2048
	preemptionEntries = 4096
	presenceEntries   = 1024
	faultEntries      = 512
	clusterEntries    = 512
	moveEntries       = 1024
	maxText           = 160 // bytes of each text of an entry
	maxClusterText    = 1024
)

// ring holds the newest entries of a class, by number.
type ring struct {
	entries []Entry
	first   int
	most    int
}

func (r *ring) at(i int) *Entry { return &r.entries[(r.first+i)%len(r.entries)] }

func (r *ring) add(e Entry) {
	if len(r.entries) < r.most {
		r.entries = append(r.entries, e)
		return
	}
	r.entries[r.first] = e
	r.first = (r.first + 1) % r.most
}

// after appends the entries with a higher number, oldest first.
func (r *ring) after(seq uint64, out []Entry) []Entry {
	for i := sort.Search(len(r.entries), func(i int) bool { return r.at(i).Seq > seq }); i < len(r.entries); i++ {
		out = append(out, *r.at(i))
	}
	return out
}

// Options of New.
type Options struct {
	Clock func() time.Time
	// Admin reports whether a user administers the daemon.
	Admin func(identity.User) bool
	// Render returns an entry in the form of the audit file, without anything hidden.
	Render func(*Entry) control.JournalEntry
	File   *File // nil: no audit file
}

// Journal is safe for concurrent use.
type Journal struct {
	o Options

	mu    sync.Mutex
	seq   uint64
	rings [7]ring
	users map[identity.User]*account
}

// New returns an empty journal.
func New(o Options) *Journal {
	j := &Journal{o: o, users: map[identity.User]*account{}}
	for i, n := range []int{adminEntries, changeEntries, preemptionEntries, presenceEntries, faultEntries, clusterEntries, moveEntries} {
		j.rings[i].most = n
	}
	return j
}

func (j *Journal) ring(e *Entry) *ring {
	switch e.Kind {
	case control.JournalPreemption:
		return &j.rings[2]
	case control.JournalJoined, control.JournalLeft:
		return &j.rings[3]
	case control.JournalFault:
		return &j.rings[4]
	case control.JournalMove:
		return &j.rings[6]
	}
	switch {
	case e.Cluster:
		return &j.rings[5]
	case j.o.Admin(e.By.User):
		return &j.rings[0]
	}
	return &j.rings[1]
}

// Add adds an entry at the current time. user caused it, and is limited in rate.
func (j *Journal) Add(user identity.User, e Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.o.Clock()
	if !j.allow(now, user) {
		return
	}
	e.Time = now
	j.add(e, user)
}

// AddPreemptions adds entries that the history has limited already.
func (j *Journal) AddPreemptions(entries []Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range entries {
		j.add(e, e.By.User)
	}
}

// add adds an entry that user caused. Preconditions: j.mu is held.
func (j *Journal) add(e Entry, user identity.User) {
	most := maxText
	if e.Cluster {
		most = maxClusterText
	}
	e.After = control.Short(e.After, most)
	for _, s := range []*string{&e.What, &e.Before, &e.Detail, &e.Program.Name, &e.By.Name, &e.Device} {
		*s = control.Short(*s, maxText)
	}
	j.seq++
	e.Seq = j.seq
	j.ring(&e).add(e)
	if j.o.File != nil && audited(e.Kind) {
		j.o.File.Write(j.o.Render(&e), e.Cluster || !j.o.Admin(user))
	}
}

// audited reports whether entries of a kind go to the file.
func audited(kind string) bool {
	return kind == control.JournalChange || kind == control.JournalFault || kind == control.JournalSuppressed
}

// After returns the entries with a number above since, oldest first, and the highest number.
func (j *Journal) After(since uint64) (out []Entry, last uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if since >= j.seq {
		return nil, j.seq
	}
	for i := range j.rings {
		out = j.rings[i].after(since, out)
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return out, j.seq
}
