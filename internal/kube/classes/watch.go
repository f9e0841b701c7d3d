// SPDX-License-Identifier: Apache-2.0

package classes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// period is how often a file is read. The kubelet needs up to a minute to update the file of a ConfigMap.
const period = 5 * time.Second

// Watcher has the classes of a file and follows its changes.
type Watcher struct {
	path string
	text []byte
	file atomic.Pointer[File]
	said string // last error
}

// Open reads a file. Without a path, or if the file does not exist, the built-in classes count.
func Open(path string) (*Watcher, error) {
	w := &Watcher{path: path}
	text, err := w.read()
	if err != nil {
		return nil, fmt.Errorf("read the classes: %w", err)
	}
	f, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	w.text = text
	w.file.Store(f)
	return w, nil
}

// File returns the classes that count now.
func (w *Watcher) File() *File { return w.file.Load() }

// Run follows the file until the context ends and calls changed after a change. A file with a mistake
// changes nothing.
func (w *Watcher) Run(ctx context.Context, log *slog.Logger, changed func()) {
	if w.path == "" {
		return
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.look(log, changed)
		}
	}
}

// look reads the file once.
func (w *Watcher) look(log *slog.Logger, changed func()) {
	text, err := w.read()
	if err == nil && bytes.Equal(text, w.text) {
		w.said = ""
		return
	}
	var f *File
	if err == nil {
		f, err = Parse(text)
	}
	if err != nil {
		if w.said != err.Error() {
			w.said = err.Error()
			log.Error("classes not changed; the earlier ones count", "file", w.path, "err", err)
		}
		return
	}
	w.text, w.said = text, ""
	w.file.Store(f)
	log.Info("classes changed", "file", w.path, "classes", f.known())
	changed()
}

// read returns the file's text. A ConfigMap can be optional.
func (w *Watcher) read() ([]byte, error) {
	if w.path == "" {
		return []byte(Builtin), nil
	}
	text, err := os.ReadFile(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return []byte(Builtin), nil
	}
	return text, err
}
