// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// total is how long a target has run, over all recorded runs.
type total struct {
	Seconds int64  `json:"seconds"`
	Inputs  int64  `json:"inputs"`
	Last    string `json:"last"` // date
}

func readRecord(file string) (map[string]total, error) {
	out := map[string]total{}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	return out, err
}

// record adds results without failures to the record.
func record(done []result, file string) error {
	all, err := readRecord(file)
	if err != nil {
		return err
	}
	for _, r := range done {
		if r.err == nil {
			t := all[r.String()]
			all[r.String()] = total{t.Seconds + int64(r.took.Seconds()), t.Inputs + r.inputs, today()}
		}
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// Limits of the archive: the corpus is kept in the repository.
const (
	keepInputs = 400      // of one target, the smallest
	keepBytes  = 16 << 10 // of one input
)

// pack writes the corpus to an archive. Equal corpora give equal archives.
func pack(dir, file string) error {
	byTarget := map[string][]string{}
	sizes := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Size() <= keepBytes {
			folder := filepath.Dir(path)
			byTarget[folder] = append(byTarget[folder], path)
			sizes[path] = info.Size()
		}
		return nil
	})
	if err != nil {
		return err
	}
	var keep []string
	for _, paths := range byTarget {
		slices.SortFunc(paths, func(a, b string) int {
			if sizes[a] != sizes[b] {
				return int(sizes[a] - sizes[b])
			}
			return strings.Compare(a, b)
		})
		keep = append(keep, paths[:min(len(paths), keepInputs)]...)
	}
	slices.Sort(keep)
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	z, _ := gzip.NewWriterLevel(out, gzip.BestCompression)
	w := tar.NewWriter(z)
	for _, path := range keep {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(text)), ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), z.Close(), out.Close())
}

// unpack adds the archive's inputs to the corpus.
func unpack(file, dir string) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		name := filepath.FromSlash(h.Name)
		if !filepath.IsLocal(name) || h.Size > keepBytes {
			return fmt.Errorf("%s: bad entry %q", file, h.Name)
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		text, err := io.ReadAll(io.LimitReader(r, keepBytes))
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
}

const (
	tableBegin = "<!-- fuzz table: written by `make fuzz-table` -->\n"
	tableEnd   = "<!-- end of fuzz table -->\n"
)

// writeTable replaces the table of trust boundaries in a Markdown file.
func writeTable(targets []target, records, file string) error {
	totals, err := readRecord(records)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(text), tableBegin)
	_, tail, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no markers for the table", file)
	}
	return os.WriteFile(file, []byte(head+tableBegin+table(targets, totals)+tableEnd+tail), 0o644)
}

func table(targets []target, totals map[string]total) string {
	var b strings.Builder
	b.WriteString("\n| boundary | input from | fuzz target | minutes | inputs | last run |\n|---|---|---|---:|---:|---|\n")
	for _, faces := range facing {
		for _, t := range targets {
			if t.faces != faces {
				continue
			}
			n := totals[t.String()]
			last := n.Last
			if last == "" {
				last = "never"
			}
			fmt.Fprintf(&b, "| %s | %s | `%s` %s | %.0f | %s | %s |\n", t.boundary, t.faces, t.pkg, t.name, float64(n.Seconds)/60, thousands(n.Inputs), last)
		}
	}
	return b.String() + "\n"
}

// thousands prints a number in thousands or millions.
func thousands(n int64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.1f M", float64(n)/1e6)
	case n >= 1000:
		return fmt.Sprintf("%d k", n/1000)
	}
	return fmt.Sprint(n)
}
