// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// Restore is the data to free one RM client on one GPU through a duplicate of its file. The
// guardian keeps it.
type Restore struct {
	Client    uint32         `json:"client"`
	Subdevice uint32         `json:"subdevice"`
	Channels  []uint32       `json:"channels"`
	Groups    []RestoreGroup `json:"groups"`
}

// RestoreGroup is a channel group and its original timeslice.
type RestoreGroup struct {
	Handle uint32 `json:"handle"`
	OwnUS  uint64 `json:"own_us"`
}

// Restores reads the original timeslices on a GPU and returns the data to undo any operation there,
// with a duplicate of each file. Hidden objects are included.
func (s *Objects) Restores(ctx context.Context, gpu model.DeviceID) ([]Restore, []int, error) {
	list, files, err := s.restores(ctx, gpu)
	if err != nil {
		return nil, nil, err
	}
	var fds []int
	for _, f := range files {
		fd, err := f.dup()
		if err != nil {
			closeAll(fds)
			return nil, nil, err
		}
		fds = append(fds, fd)
	}
	return list, fds, nil
}

// restores is Restores with the session's own files.
func (s *Objects) restores(ctx context.Context, gpu model.DeviceID) ([]Restore, []*File, error) {
	defer s.locks.lock(gpu)()
	s.mu.Lock()
	us := s.collect(gpu, true)
	s.mu.Unlock()
	var out []Restore
	var files []*File
	for _, u := range us {
		r := Restore{Client: u.client.handle, Subdevice: u.subdevice}
		for _, o := range append(u.stop, u.others...) {
			r.Channels = append(r.Channels, o.handle)
		}
		for _, g := range u.compute {
			params := make([]byte, 8)
			err := s.driver.control(ctx, u.client.file, u.client.handle, g.handle, abi.NVA06C_CTRL_CMD_GET_TIMESLICE, params)
			if err != nil && !isGone(err) {
				return nil, nil, err
			}
			s.mu.Lock()
			if err != nil { // an attached process freed the group without a word
				g.proof = refuted
				s.mu.Unlock()
				continue
			}
			if !g.ownKnown {
				g.ownUS, g.ownKnown = s.ownFrom(binary.NativeEndian.Uint64(params)), true
				s.showSlices()
			}
			r.Groups = append(r.Groups, RestoreGroup{g.handle, g.ownUS})
			s.mu.Unlock()
		}
		out, files = append(out, r), append(files, u.client.file)
	}
	return out, files, nil
}

// The driver's timeslice of a compute group, measured on an H200, and the range in which a reading
// can be a program's own. XSched sets 1 us and 1 s, and a dead daemon may have left them.
const (
	defaultSliceUS  = 2048
	leastOwnSliceUS = 100
	mostOwnSliceUS  = 100_000
)

// ownFrom returns the timeslice to restore from the first reading. A program with the shim restores
// its timeslices itself; an attached one may have those of a daemon that died with its guardian. A
// release without records of attached programs leaves no trace of that but the value. Every value
// that the driver itself was seen to set is a power of two, and no policy gives one.
func (s *Objects) ownFrom(read uint64) uint64 {
	own := bits.OnesCount64(read) == 1 && read >= leastOwnSliceUS && read <= mostOwnSliceUS
	if s.everyChannel && !own {
		return defaultSliceUS
	}
	return read
}

// freeAll brings the process to a known state on every GPU: channels enabled, own timeslices. RM
// reports timeslices but not whether a channel is enabled, so its status counts there.
func (s *Objects) freeAll(ctx context.Context) (driver.Freed, error) {
	var done driver.Freed
	var failed error
	for _, gpu := range s.GPUs() {
		list, files, err := s.restores(ctx, gpu)
		failed = errors.Join(failed, err)
		for i, r := range list {
			err := s.driver.restore(ctx, files[i], r)
			if err == nil {
				err = s.driver.verifySlices(ctx, files[i], r)
			}
			if err != nil {
				failed = errors.Join(failed, err)
				continue
			}
			done.Queues += len(r.Channels)
			done.Slices += len(r.Groups)
		}
		s.settled(gpu, failed == nil)
	}
	return done, failed
}

// settled records the outcome of freeAll.
func (s *Objects) settled(gpu model.DeviceID, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.collect(gpu, true) {
		for _, o := range append(u.stop, u.others...) {
			o.stopped, o.stale = 0, !ok
		}
		for _, g := range u.compute {
			g.setUS, g.stale = 0, !ok
		}
	}
}

// verifySlices reads the restored timeslices back.
func (d *Driver) verifySlices(ctx context.Context, f *File, r Restore) error {
	for _, g := range r.Groups {
		params := make([]byte, 8)
		err := d.control(ctx, f, r.Client, g.Handle, abi.NVA06C_CTRL_CMD_GET_TIMESLICE, params)
		if isGone(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read timeslice of group %#x: %w", g.Handle, err)
		}
		if got := binary.NativeEndian.Uint64(params); got != g.OwnUS {
			return fmt.Errorf("the timeslice of group %#x is %d us after %d us were set", g.Handle, got, g.OwnUS)
		}
	}
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Restore resumes all channels unconditionally and sets the original timeslices. A failing part
// does not stop the rest. Objects that no longer exist count as restored; any other error asks for
// a retry.
func (d *Driver) Restore(ctx context.Context, f *File, r Restore) error {
	if err := d.restore(ctx, f, r); !lostDevice(err) {
		return err
	}
	return nil
}

// restore is Restore with a lost device as an error.
func (d *Driver) restore(ctx context.Context, f *File, r Restore) error {
	var err error
	for list := r.Channels; len(list) > 0; {
		n := min(len(list), abi.NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES)
		e := d.resume(ctx, f, r, list[:n])
		if isGone(e) {
			// One stale handle fails the whole list, so filter and retry.
			e = d.resume(ctx, f, r, d.present(ctx, f, r, list[:n]))
		}
		err = errors.Join(err, e)
		list = list[n:]
	}
	for _, g := range r.Groups {
		params := make([]byte, 8)
		binary.NativeEndian.PutUint64(params, g.OwnUS)
		if e := d.control(ctx, f, r.Client, g.Handle, abi.NVA06C_CTRL_CMD_SET_TIMESLICE, params); !isGone(e) {
			err = errors.Join(err, e)
		}
	}
	return err
}

const (
	lastTries = 5                    // attempts at the enable that follows a stop
	lastTime  = time.Second          // for all attempts; bounds a failing device
	lastPause = 2 * time.Millisecond // between attempts
)

// resume runs channels through enableFully. The stop inside is issued only after a successful enable,
// and the enable after it even past the deadline.
func (d *Driver) resume(ctx context.Context, f *File, r Restore, channels []uint32) error {
	if len(channels) == 0 {
		return nil
	}
	set := func(ctx context.Context, level model.Level) error {
		params := disableChannels(level != 0, false, r.Client, channels)
		return d.control(ctx, f, r.Client, r.Subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params)
	}
	var stopped error
	for _, level := range enableFully[:len(enableFully)-1] {
		err := set(ctx, level)
		if level != 0 {
			stopped = err // the stop may have taken effect
		} else if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	last := set(ctx, enableFully[len(enableFully)-1])
	for i := 1; i < lastTries && last != nil && !isGone(last) && ctx.Err() == nil; i++ {
		time.Sleep(lastPause)
		last = set(ctx, 0)
	}
	return errors.Join(stopped, last)
}

// present filters out channels that RM no longer knows.
func (d *Driver) present(ctx context.Context, f *File, r Restore, channels []uint32) []uint32 {
	var out []uint32
	for _, ch := range channels {
		if err := d.control(ctx, f, r.Client, ch, abi.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, make([]byte, 4)); !isGone(err) {
			out = append(out, ch)
		}
	}
	return out
}

func isGone(err error) bool {
	st, ok := statusOf(err)
	return ok && st.gone()
}

// lostDevice reports that the device itself is lost.
func lostDevice(err error) bool {
	for _, e := range []error{unix.EIO, unix.ENODEV, unix.EPIPE, unix.ECONNRESET, unix.ENOTCONN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
