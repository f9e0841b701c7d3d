// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoHolder reports a socket whose process was not found.
var ErrNoHolder = errors.New("the process behind the connection was not found")

// Bounds of one search. Users choose how many files they have open.
const (
	searchFiles = 1 << 17
	searchTime  = 10 * time.Second // only a stuck /proc takes so long; searchFiles bounds the work
)

// OfSocket identifies the processes of a uid that hold a socket of this machine, by its inode. All of
// them must have the same user. The search reads the open files of all processes of the uid.
// Peer.PIDFD is -1; Peer.PID is 0 if several processes hold the socket.
func OfSocket(inode uint64, uid int) (Peer, error) { return own().ofSocket(inode, uid) }

func (o *observer) ofSocket(inode uint64, uid int) (Peer, error) {
	none := Peer{PIDFD: -1, User: Nobody}
	dir, err := os.Open(o.proc)
	if err != nil {
		return none, fmt.Errorf("list processes: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close()
	if err != nil {
		return none, fmt.Errorf("list processes: %w", err)
	}
	link := fmt.Sprintf("socket:[%d]", inode)
	found, files, end := none, searchFiles, time.Now().Add(searchTime)
	tooMany := fmt.Errorf("%w: uid %d has too many open files", ErrNoHolder, uid)
	for _, name := range names {
		if files <= 0 || time.Now().After(end) {
			return none, tooMany
		}
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(o.proc+"/"+name, &st) != nil || int(st.Uid) != uid || !o.holds(pid, link, &files) {
			continue
		}
		p, err := o.holder(pid, link, uid)
		switch {
		case errors.Is(err, ErrEnded):
			continue
		case err != nil:
			return none, err
		case found.User == Nobody:
			found = p
		case found.User != p.User:
			return none, errors.New("processes of different users share the connection")
		default:
			found.PID, found.LocalPID, found.Admin = 0, 0, found.Admin && p.Admin
		}
	}
	switch {
	case files <= 0:
		return none, tooMany
	case found.User == Nobody:
		return none, ErrNoHolder
	}
	return found, nil
}

// holds reports whether a process has a file open, and counts the files that it looked at.
func (o *observer) holds(pid int, link string, files *int) bool {
	folder := fmt.Sprintf("%s/%d/fd", o.proc, pid)
	dir, err := os.Open(folder)
	if err != nil {
		return false
	}
	defer dir.Close()
	buf := make([]byte, 64)
	for *files > 0 {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			*files--
			if n, err := unix.Readlink(folder+"/"+name, buf); err == nil && string(buf[:n]) == link {
				return true
			}
		}
		if err != nil || len(names) == 0 {
			return false
		}
	}
	return false
}

// holder identifies a process that holds a file.
func (o *observer) holder(pid int, link string, uid int) (Peer, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return Peer{}, ErrEnded
	}
	defer func() { _ = unix.Close(pidfd) }()
	files := searchFiles
	if !o.holds(pid, link, &files) { // the pidfd may belong to a successor
		return Peer{}, ErrEnded
	}
	p, err := o.ofProcess(pid, pidfd, uid)
	p.PIDFD = -1
	return p, err
}
