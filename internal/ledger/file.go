// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"xsched/internal/atomicfile"
	"xsched/internal/health"
	"xsched/internal/model"
	"xsched/internal/state"
)

const (
	version = 1
	// SavePeriod is the time between two writes of the current hour: a daemon that is killed loses no more. The
	// file of the past, which is larger, changes once an hour.
	SavePeriod = 5 * time.Second
	// idlePeriods is how many of these pass between two writes while no program uses a GPU.
	idlePeriods = 12
	// maxBuckets of a file: those that compact keeps, and some of a clock that was set.
	maxBuckets = HoursKept + DaysKept + 48
)

// PastFile and HourFile return the files next to a file of state.
func PastFile(path string) string { return strings.TrimSuffix(path, ".json") + "-usage.json" }

// HourFile has the current hour.
func HourFile(path string) string { return strings.TrimSuffix(path, ".json") + "-usage-hour.json" }

// content is what both files have.
type content struct {
	Version int `json:"version"`
	// Closed is how many hours were complete so far. The current hour counts, so the file of an hour that is
	// in the file of the past already has no larger number.
	Closed  uint64          `json:"closed"`
	Buckets []bucketContent `json:"buckets"`
}

type bucketContent struct {
	Start    int64 `json:"start"`
	Length   int64 `json:"length"`
	Watched  int64 `json:"watched"`
	Capacity int64 `json:"capacity"`
	Rows     []row `json:"rows"`
}

type row struct {
	Key
	Amounts
}

// Open returns the ledger that a previous daemon kept next to a file of state. Without a usable file it is
// empty. With an empty path nothing is kept.
func Open(path string, now model.Time, wall time.Time, log *slog.Logger) *Ledger {
	l := New(now, wall, log)
	if l.path = path; path == "" {
		return l
	}
	past, err := state.LoadAs(PastFile(path), file{}, parse)
	if err != nil {
		log.Warn("the usage of earlier hours is lost", "err", err)
	}
	hour, err := state.LoadAs(HourFile(path), file{}, parse)
	if err != nil {
		log.Warn("the usage of the current hour is lost", "err", err)
	}
	l.past, l.closed, l.saved = past.buckets, past.closed, past.closed
	if len(hour.buckets) == 1 && hour.closed > past.closed {
		// The first sample closes it if its hour is over.
		l.hour, l.closed, l.saved = hour.buckets[0], hour.closed-1, hour.closed-1
	}
	return l
}

// file is a file that was read.
type file struct {
	closed  uint64
	buckets []*bucket
}

// parse reads and checks the content of a file.
func parse(text []byte) (file, error) {
	var c content
	if err := json.Unmarshal(text, &c); err != nil {
		return file{}, fmt.Errorf("%w: %w", state.ErrCorrupt, err)
	}
	bad := func(format string, args ...any) (file, error) {
		return file{}, fmt.Errorf("%w: %s", state.ErrCorrupt, fmt.Sprintf(format, args...))
	}
	if c.Version != version {
		return bad("version %d, want %d", c.Version, version)
	}
	if len(c.Buckets) > maxBuckets {
		return bad("%d hours and days", len(c.Buckets))
	}
	out := file{closed: c.Closed}
	for i := range c.Buckets {
		b, ok := c.Buckets[i].bucket()
		if !ok || i > 0 && compareBuckets(out.buckets[i-1], b) >= 0 {
			return bad("bad rows from %d on", c.Buckets[i].Start)
		}
		out.buckets = append(out.buckets, b)
	}
	return out, nil
}

func (c *bucketContent) bucket() (*bucket, bool) {
	if c.Length != hourLength && c.Length != dayLength || c.Start < 0 || c.Start > 1<<40 || c.Start%c.Length != 0 || !valid(c.Watched, c.Capacity) || len(c.Rows) > maxRows+1 {
		return nil, false
	}
	b := newBucket(c.Start, c.Length)
	b.watched, b.capacity = c.Watched, c.Capacity
	for _, r := range c.Rows {
		_, twice := b.rows[r.Key]
		if a := &r.Amounts; twice || !valid(a.Ran, a.Open, a.Waited, a.Requests, a.Judged, a.Met) || !validText(r.Owner, r.Pod, r.Program, r.GPU) {
			return nil, false
		}
		b.rows[r.Key] = r.Amounts
	}
	return b, true
}

func valid(all ...int64) bool {
	return !slices.ContainsFunc(all, func(n int64) bool { return n < 0 || n > maxAmount })
}

// write replaces a file. With sync it is on the disk then: after a power failure the past is still there.
func write(path string, closed uint64, buckets []*bucket, sync bool) error {
	c := content{Version: version, Closed: closed, Buckets: make([]bucketContent, 0, len(buckets))}
	for _, b := range buckets {
		all := bucketContent{b.start, b.length, b.watched, b.capacity, make([]row, 0, len(b.rows))}
		for _, k := range slices.SortedFunc(maps.Keys(b.rows), compareKeys) {
			all.Rows = append(all.Rows, row{k, b.rows[k]})
		}
		c.Buckets = append(c.Buckets, all)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("save usage: %w", err)
	}
	return atomicfile.Write(path, 0o600, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false) // six bytes for one
		if err := e.Encode(c); err != nil {
			return err
		}
		if f, ok := w.(*os.File); ok && sync {
			return f.Sync()
		}
		return nil
	})
}

// Run writes the files, until ctx ends. The last Save is the caller's.
func (l *Ledger) Run(ctx context.Context, part *health.Part) {
	tick := time.NewTicker(SavePeriod)
	defer tick.Stop()
	for n := 0; ; n++ {
		part.End()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		part.Begin()
		if l.active() || n%idlePeriods == 0 {
			l.Save()
		}
	}
}

// active reports whether programs used a GPU since the last write.
func (l *Ledger) active() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// Save writes what has changed. The past comes first: an hour is in one of the files at any time. One
// goroutine at a time may call it.
func (l *Ledger) Save() {
	if l.path == "" {
		return
	}
	l.mu.Lock()
	past, hour, closed, old := l.past, l.hour.clone(), l.closed, l.closed != l.saved
	l.used = false
	l.mu.Unlock()
	var err error
	if old {
		err = l.write(PastFile(l.path), closed, past, true)
	}
	if err == nil {
		err = l.write(HourFile(l.path), closed+1, []*bucket{hour}, false)
	}
	if err != nil && !l.failed {
		l.log.Warn("the usage of programs is not saved; make room on the disk", "err", err)
	}
	if l.failed = err != nil; !l.failed {
		l.mu.Lock()
		l.saved = closed
		l.mu.Unlock()
	}
}
