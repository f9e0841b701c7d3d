// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// Restore is all that is needed to set one RM client on one GPU free again,
// by whoever holds a duplicate of its file: what the guardian remembers.
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

// Restores reads the original timeslices of everything on a GPU and returns
// what undoes whatever may be done to it, with a duplicate of each file. What is hidden
// is part of it.
func (s *Objects) Restores(ctx context.Context, gpu model.DeviceID) ([]Restore, []int, error) {
	s.ops.Lock()
	defer s.ops.Unlock()
	s.mu.Lock()
	us := s.collect(gpu, true)
	s.mu.Unlock()
	var out []Restore
	var fds []int
	for _, u := range us {
		r := Restore{Client: u.client.handle, Subdevice: u.subdevice}
		for _, o := range append(u.stop, u.others...) {
			r.Channels = append(r.Channels, o.handle)
		}
		for _, g := range u.compute {
			params := make([]byte, 8)
			if err := s.driver.control(ctx, u.client.file, u.client.handle, g.handle, abi.NVA06C_CTRL_CMD_GET_TIMESLICE, params); err != nil {
				closeAll(fds)
				return nil, nil, err
			}
			s.mu.Lock()
			if !g.ownKnown {
				g.ownUS, g.ownKnown = binary.NativeEndian.Uint64(params), true
				s.showSlices()
			}
			r.Groups = append(r.Groups, RestoreGroup{g.handle, g.ownUS})
			s.mu.Unlock()
		}
		fd, err := u.client.file.dup()
		if err != nil {
			closeAll(fds)
			return nil, nil, err
		}
		out, fds = append(out, r), append(fds, fd)
	}
	return out, fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Restore lets all channels go on, whatever was done to them, and sets the original
// timeslices. A part that fails doesn't keep the rest from being done. What is gone, with its
// process or with the device, counts as done; any other error means that it is to be tried again.
func (d *Driver) Restore(ctx context.Context, f *File, r Restore) error {
	var err error
	for list := r.Channels; len(list) > 0; {
		n := min(len(list), abi.NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES)
		e := d.letGo(ctx, f, r, list[:n])
		if isGone(e) {
			// One bad handle spoils the whole list: without those that are gone.
			e = d.letGo(ctx, f, r, d.present(ctx, f, r, list[:n]))
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
	if lostDevice(err) {
		return nil
	}
	return err
}

const (
	lastTries = 5                    // for the enable that follows a stop
	lastTime  = time.Second          // for all of them, where a device can be given up on
	lastPause = 2 * time.Millisecond // between two of them
)

// letGo brings channels through goOnSure. The stop in it is made only where enabling has just
// worked, and the enable after it is made even if nobody has time any more.
func (d *Driver) letGo(ctx context.Context, f *File, r Restore, channels []uint32) error {
	if len(channels) == 0 {
		return nil
	}
	set := func(ctx context.Context, level model.Level) error {
		params := disableChannels(level != 0, false, r.Client, channels)
		return d.control(ctx, f, r.Client, r.Subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params)
	}
	var stopped error
	for _, level := range goOnSure[:len(goOnSure)-1] {
		err := set(ctx, level)
		if level != 0 {
			stopped = err // it may have come through all the same
		} else if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	last := set(ctx, goOnSure[len(goOnSure)-1])
	for i := 1; i < lastTries && last != nil && !isGone(last) && ctx.Err() == nil; i++ {
		time.Sleep(lastPause)
		last = set(ctx, 0)
	}
	return errors.Join(stopped, last)
}

// present leaves out the channels that RM does not know any more.
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

// lostDevice says that there is no device any more to be stopped on.
func lostDevice(err error) bool {
	for _, e := range []error{unix.EIO, unix.ENODEV, unix.EPIPE, unix.ECONNRESET, unix.ENOTCONN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
