// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// The kernel's ioctl needs no descriptor, but the virtual GPU's needs a socket pair for the reply. A
// process at its descriptor limit must still be able to resume others, so some pairs are reserved.
const reservedPairs = 4

// pair is a socket pair for one reply at a time.
type pair struct{ ours, theirs int }

func newPair() (pair, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	return pair{p[0], p[1]}, err
}

func (p pair) close() {
	_ = unix.Close(p.ours)
	_ = unix.Close(p.theirs)
}

// reserve holds the reserved pairs of this process.
type reserve struct {
	fill sync.Once
	free chan pair
}

var reserved = reserve{free: make(chan pair, reservedPairs)}

// prepare fills the reserve once, while descriptors are available.
func (r *reserve) prepare() {
	r.fill.Do(func() {
		for range reservedPairs {
			if p, err := newPair(); err == nil {
				r.free <- p
			}
		}
	})
}

// take returns a reserved pair, waiting for one in use.
func (r *reserve) take(ctx context.Context) (pair, error) {
	select {
	case p := <-r.free:
		return p, nil
	case <-ctx.Done():
		return pair{}, ctx.Err()
	}
}

// give returns a pair. A pair that may still receive a late reply is replaced.
func (r *reserve) give(p pair, clean bool) {
	if !clean {
		p.close()
		var err error
		if p, err = newPair(); err != nil {
			return
		}
	}
	r.free <- p
}

// outOfFiles reports a descriptor limit of the process or of the system.
func outOfFiles(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

// hungUp reports that the device closed a control file. Our own end of a reserved pair stays open, so
// its reader sees no end when the device dies.
func hungUp(f *File) bool {
	gone := false
	err := f.use(func(fd int) error {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
		return nil
	})
	return gone || err != nil
}
