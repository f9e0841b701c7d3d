// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// CacheDir returns the folder that Unpack writes to: $XSCHED_CACHE, else
// $XDG_CACHE_HOME/xsched, else ~/.cache/xsched; for root /var/cache/xsched.
func CacheDir() (string, error) { return cacheDir(os.Getenv, os.Geteuid()) }

func cacheDir(getenv func(string) string, uid int) (string, error) {
	dir := ""
	switch {
	case getenv("XSCHED_CACHE") != "":
		dir = getenv("XSCHED_CACHE")
	case uid == 0:
		// Not root's home: sudo keeps the caller's HOME and XDG_CACHE_HOME, and
		// a folder that somebody else owns must not hold what root preloads.
		return "/var/cache/xsched", nil
	case getenv("XDG_CACHE_HOME") != "":
		dir = filepath.Join(getenv("XDG_CACHE_HOME"), "xsched")
	case getenv("HOME") != "":
		dir = filepath.Join(getenv("HOME"), ".cache", "xsched")
	default:
		return "", errors.New("no cache folder: neither XSCHED_CACHE nor XDG_CACHE_HOME nor HOME is set; set XSCHED_CACHE")
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("cache folder %q is not an absolute path; set XSCHED_CACHE to one", dir)
	}
	return filepath.Clean(dir), nil
}

// Unpack makes the artefact available as a file and returns its path,
// <cache>/<content hash>/<name>. Concurrent calls are safe: the first one writes, and each reads
// the content back before using it.
func Unpack(name string) (string, error) {
	a, content, err := lookup(name)
	if err != nil {
		return "", err
	}
	root, err := CacheDir()
	if err != nil {
		return "", fmt.Errorf("unpack %s: %w", name, err)
	}
	return unpackInto(root, a, content)
}

// UnpackInto is Unpack with a folder instead of the cache, which it creates.
func UnpackInto(root, name string) (string, error) {
	a, content, err := lookup(name)
	if err != nil {
		return "", err
	}
	return unpackInto(root, a, content)
}

func unpackInto(root string, a artefact, content []byte) (string, error) {
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("unpack %s into %s: %w; set XSCHED_CACHE to a folder you own", a.name, root, cause(err))
	}
	if err := os.MkdirAll(filepath.Dir(root), 0o755); err != nil {
		return fail(err)
	}
	if err := ancestors(filepath.Dir(root)); err != nil {
		return fail(err)
	}
	cache, err := openDir(unix.AT_FDCWD, root)
	if err != nil {
		return fail(err)
	}
	defer cache.Close()

	sum := digest(content)
	made := unix.Faccessat(int(cache.Fd()), sum, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) != nil
	dir, err := openDir(int(cache.Fd()), sum)
	if err != nil {
		return fail(err)
	}
	defer dir.Close()

	path := filepath.Join(root, sum, a.name)
	if err := verify(dir, a, content); err == nil {
		return path, nil
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDiffers) {
		return fail(err)
	}
	if err := write(dir, a, content); err != nil {
		if made { // clean up; fails harmlessly if another process uses the folder
			_ = unix.Unlinkat(int(cache.Fd()), sum, unix.AT_REMOVEDIR)
		}
		return fail(err)
	}
	if err := verify(dir, a, content); err != nil {
		return fail(err)
	}
	return path, nil
}

// ancestors checks that no other user can replace the cache folder: root or this user owns every
// folder above it, and no one else may write there, unless it is sticky. This user's group is
// trusted, because many home folders are group-writable.
func ancestors(path string) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	for ; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok || owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to another user", path)
		}
		others := info.Mode()&0o002 != 0 || info.Mode()&0o020 != 0 && int(owner.Gid) != os.Getegid()
		if others && info.Mode()&fs.ModeSticky == 0 {
			return fmt.Errorf("others may write to %s", path)
		}
		if path == "/" {
			return nil
		}
	}
}

// openDir opens or creates a folder that only this user can change. Others may read it, because a
// program under `xsched run` may drop privileges and start children.
func openDir(parent int, name string) (*os.File, error) {
	if err := unix.Mkdirat(parent, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		// An existing folder on a read-only file system is still readable.
		if !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EACCES) {
			return nil, &fs.PathError{Op: "mkdir", Path: name, Err: err}
		}
		if unix.Faccessat(parent, name, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return nil, &fs.PathError{Op: "mkdir", Path: name, Err: err}
		}
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, errors.New("it is a symbolic link or not a folder")
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	dir := os.NewFile(uintptr(fd), name)
	if err := private(dir); err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// private checks that only this user and root can change the file or folder.
func private(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("unknown owner")
	}
	if uid := os.Geteuid(); int(stat.Uid) != uid && stat.Uid != 0 {
		return fmt.Errorf("it belongs to user %d, not to you (user %d)", stat.Uid, uid)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others may write to it (mode %#o)", info.Mode().Perm())
	}
	return nil
}

var errDiffers = errors.New("the existing file has different content")

// verify checks that the unpacked file is a private regular file with exactly the embedded content.
func verify(dir *os.File, a artefact, content []byte) error {
	fd, err := unix.Openat(int(dir.Fd()), a.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return errDiffers
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: a.name, Err: err}
	}
	file := os.NewFile(uintptr(fd), a.name)
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() != int64(len(content)) || private(file) != nil {
		return errDiffers
	}
	if info.Mode().Perm()&a.mode != a.mode {
		return errDiffers
	}
	found, err := io.ReadAll(io.LimitReader(file, int64(len(content))+1))
	if err != nil {
		return err
	}
	if !bytes.Equal(found, content) {
		return errDiffers
	}
	return nil
}

// write creates the file atomically: it syncs a private temporary file and renames it.
func write(dir *os.File, a artefact, content []byte) (err error) {
	temporary := fmt.Sprintf(".%s.%d.%s", a.name, os.Getpid(), rand.Text()[:8])
	fd, err := unix.Openat(int(dir.Fd()), temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: temporary, Err: err}
	}
	file := os.NewFile(uintptr(fd), temporary)
	defer func() {
		_ = file.Close()
		if err != nil {
			_ = unix.Unlinkat(int(dir.Fd()), temporary, 0)
		}
	}()
	if _, err = file.Write(content); err != nil {
		return err
	}
	if err = file.Chmod(a.mode); err != nil {
		return err
	}
	if err = file.Sync(); err != nil {
		return err
	}
	// Close before the rename: a file that is open for writing cannot be executed (ETXTBSY).
	if err = file.Close(); err != nil {
		return err
	}
	if err = unix.Renameat(int(dir.Fd()), temporary, int(dir.Fd()), a.name); err != nil {
		return &fs.PathError{Op: "rename", Path: a.name, Err: err}
	}
	_ = dir.Sync() // best effort: not every file system syncs folders
	return nil
}

// cause strips the operation and path, which the caller's message contains.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
