// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"xsched/internal/control"
)

// journalQuery is what a viewer asks of the journal.
type journalQuery struct {
	kinds   []string
	sinceNS int64
	max     int
	follow  bool
}

// defaultEntries is as many as `xsched logs` shows.
const defaultEntries = 200

func parseJournalQuery(r *http.Request) (q journalQuery, err error) {
	values := r.URL.Query()
	q.max = defaultEntries
	if text := values.Get("since_ns"); text != "" {
		if q.sinceNS, err = strconv.ParseInt(text, 10, 64); err != nil {
			return q, badf("since_ns %q is no number of nanoseconds; use such as 0", text)
		}
	}
	if text := values.Get("max"); text != "" {
		if q.max, err = strconv.Atoi(text); err != nil || q.max < 0 || q.max > control.JournalMax {
			return q, badf("max %q is not possible; use 0 to %d", text, control.JournalMax)
		}
	}
	if text := values.Get("kind"); text != "" {
		q.kinds = strings.Split(text, ",")
	}
	for _, kind := range q.kinds {
		if !slices.Contains(control.JournalKinds(), kind) {
			return q, badf("unknown kind %q; use %s", kind, strings.Join(control.JournalKinds(), ", "))
		}
	}
	q.follow = values.Get("follow") == "true"
	return q, nil
}

func (q *journalQuery) takes(e *control.JournalEntry) bool {
	return e.TimeNS >= q.sinceNS && (len(q.kinds) == 0 || slices.Contains(q.kinds, e.Kind))
}

// serveJournal sends the newest entries, and new ones to a viewer that follows.
func (s *Server) serveJournal(ctx context.Context, out *stream, r *http.Request) error {
	q, err := parseJournalQuery(r)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, answerLimit)
	j, err := s.daemon.Journal(asking, control.JournalRequest{Max: control.JournalMax})
	cancel()
	if err != nil {
		return err
	}
	entries := slices.DeleteFunc(j.Entries, func(e control.JournalEntry) bool { return !q.takes(&e) })
	if err := sendEntries(out, entries[max(0, len(entries)-q.max):]); err != nil || !q.follow {
		return err
	}
	return s.followJournal(ctx, out, &q, j.Next)
}

func (s *Server) followJournal(ctx context.Context, out *stream, q *journalQuery, since uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A viewer that lost its right loses the stream also while nothing happens.
	revoked := make(chan error, 1)
	go watchRight(ctx, s.access.keep, out.still, func(err error) { revoked <- err; cancel() })
	err := s.daemon.Events(ctx, control.EventsRequest{EveryMS: 250, With: control.PartJournal, Since: since}, func(name string, data []byte) error {
		var more control.Journal
		if name != control.PartJournal {
			return nil
		}
		if err := json.Unmarshal(data, &more); err != nil {
			return fmt.Errorf("read the daemon's reply: %w", err)
		}
		more.Entries = slices.DeleteFunc(more.Entries, func(e control.JournalEntry) bool { return !q.takes(&e) })
		if len(more.Entries) == 0 {
			return nil
		}
		return sendEntries(out, more.Entries)
	})
	select {
	case refused := <-revoked:
		out.fail(refused)
		return nil
	default:
		return err
	}
}

// sendEntries sends entries. Without any it shows the viewer that the stream is open.
func sendEntries(out *stream, entries []control.JournalEntry) error {
	lines := make([][]byte, 0, len(entries))
	for i := range entries {
		line, err := json.Marshal(&entries[i])
		if err != nil {
			return fmt.Errorf("write the journal: %w", err)
		}
		lines = append(lines, line)
	}
	return out.send(lines...)
}

// watchRight calls lost when the viewer has no right any more.
func watchRight(ctx context.Context, period time.Duration, still func() error, lost func(error)) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := still(); err != nil && ctx.Err() == nil {
			lost(err)
			return
		}
	}
}
