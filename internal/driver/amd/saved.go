// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"xsched/internal/driver"
)

// sourcesFrom returns the sources below a root, with saved dumps in place of debugfs.
func sourcesFrom(from driver.InspectionSource) (Sources, error) {
	s := Sources{Sysfs: savedFiles{}, Debug: savedFiles{}, Proc: savedFiles{}}
	if from.Root != "" {
		s = SourcesAt(from.Root)
	}
	if len(from.Dumps) == 0 {
		return s, nil
	}
	saved := savedFiles{}
	for _, name := range from.Dumps {
		kind, err := kindOfDump(name)
		if err != nil {
			return s, fmt.Errorf("read dump: %w; save %s or %s of /sys/kernel/debug/kfd", err, mqdsFile, hqdsFile)
		}
		if twin := saved[kind]; twin != "" {
			return s, fmt.Errorf("read dump: %s and %s are both %s; give one", twin, name, kind)
		}
		saved[kind] = name
	}
	s.Debug = saved
	return s, nil
}

// kindOfDump recognizes a dump by its first line.
func kindOfDump(name string) (string, error) {
	file, err := openDump(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		switch text := strings.TrimSpace(lines.Text()); {
		case text == "":
		case strings.HasPrefix(text, "Process "):
			return mqdsFile, nil
		case strings.HasPrefix(text, "Node "):
			return hqdsFile, nil
		default:
			return "", fmt.Errorf("%s: %w", name, ErrFormat)
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return "", fmt.Errorf("%s is empty", name)
}

// savedFiles maps names of debugfs to saved files, which gzip may have compressed.
type savedFiles map[string]string

// Open implements fs.FS.
func (s savedFiles) Open(name string) (fs.File, error) {
	path, ok := s[name]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return openDump(path)
}

type savedFile struct {
	*os.File
	text io.Reader
}

// Read implements fs.File.
func (f savedFile) Read(p []byte) (int, error) { return f.text.Read(p) }

func openDump(name string) (fs.File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	b := bufio.NewReader(file)
	magic, err := b.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		_ = file.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if string(magic) != "\x1f\x8b" {
		return savedFile{file, b}, nil
	}
	text, err := gzip.NewReader(b)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return savedFile{file, text}, nil
}
