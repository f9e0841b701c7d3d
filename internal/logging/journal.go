// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// IsJournal reports that a file leads to systemd's journal, as JOURNAL_STREAM says.
func IsJournal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	device, inode, ok := strings.Cut(os.Getenv("JOURNAL_STREAM"), ":")
	var st unix.Stat_t
	if !ok || unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	return device == strconv.FormatUint(st.Dev, 10) && inode == strconv.FormatUint(st.Ino, 10)
}

// journal formats lines for the journal: each begins with its priority, and has no time and no level,
// because the journal keeps them.
type journal struct{ levels [4]slog.Handler }

// NewJournal returns a handler for systemd's journal.
func NewJournal(w io.Writer, level slog.Leveler) slog.Handler {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		_, level := a.Value.Any().(slog.Level)
		if len(groups) == 0 && (a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime || a.Key == slog.LevelKey && level) {
			return slog.Attr{}
		}
		return a
	}}
	var j journal
	for i, priority := range []int{7, 6, 4, 3} { // debug, info, warning, error
		j.levels[i] = slog.NewTextHandler(prefixed{w, fmt.Sprintf("<%d>", priority)}, options)
	}
	return &j
}

// at returns the handler of a level.
func (j *journal) at(level slog.Level) slog.Handler {
	return j.levels[min(max(int(level-slog.LevelDebug)/4, 0), len(j.levels)-1)]
}

// Enabled implements slog.Handler.
func (j *journal) Enabled(ctx context.Context, level slog.Level) bool {
	return j.at(level).Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (j *journal) Handle(ctx context.Context, r slog.Record) error {
	return j.at(r.Level).Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (j *journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	return j.each(func(h slog.Handler) slog.Handler { return h.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (j *journal) WithGroup(name string) slog.Handler {
	return j.each(func(h slog.Handler) slog.Handler { return h.WithGroup(name) })
}

func (j *journal) each(change func(slog.Handler) slog.Handler) slog.Handler {
	changed := *j
	for i := range changed.levels {
		changed.levels[i] = change(changed.levels[i])
	}
	return &changed
}

// prefixed adds a prefix to each line, in the same write.
type prefixed struct {
	w      io.Writer
	prefix string
}

func (p prefixed) Write(line []byte) (int, error) {
	if _, err := p.w.Write(append([]byte(p.prefix), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}
