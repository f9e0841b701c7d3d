// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces files and renames those of a log. Readers see the old or the new content,
// never a part of it. The package knows nothing about what the files contain.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path. It does not wait for the disk. The temporary file has the name of the
// file at the start, and ends in .new.
func Write(path string, mode fs.FileMode, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new")
	if err != nil {
		return fmt.Errorf("write %s: %w; use a writable directory", path, WithoutPath(err))
	}
	err = errors.Join(write(f), f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, WithoutPath(err))
	}
	return nil
}

// Shift frees the name of the newest file of a log: it renames path to path.1, path.1 to path.2 and so on, and
// replaces the oldest of so many files.
func Shift(path string, files int) error {
	for i := files - 1; i > 0; i-- {
		if err := os.Rename(Numbered(path, i-1), Numbered(path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Numbered returns the name of the i-th newest file of a log.
func Numbered(path string, i int) string {
	if i == 0 {
		return path
	}
	return fmt.Sprintf("%s.%d", path, i)
}

// WithoutPath removes the name of a file from an error of package os.
func WithoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}
