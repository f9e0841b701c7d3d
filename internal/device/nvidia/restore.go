// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

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
			if err := s.driver.control(ctx, u.client.file, u.client.handle, g.handle, NVA06C_CTRL_CMD_GET_TIMESLICE, params); err != nil {
				closeAll(fds)
				return nil, nil, err
			}
			s.mu.Lock()
			if !g.ownKnown {
				g.ownUS, g.ownKnown = binary.NativeEndian.Uint64(params), true
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
// timeslices. A part that fails (its object is gone) doesn't keep the rest from being done.
func (d *Driver) Restore(ctx context.Context, f *File, r Restore) error {
	var err error
	for list := r.Channels; len(list) > 0; {
		n := min(len(list), d.layout.disableMax)
		e := d.letGo(ctx, f, r, list[:n])
		if e != nil {
			// One bad handle spoils the whole list: without those that are gone.
			e = d.letGo(ctx, f, r, d.present(ctx, f, r, list[:n]))
		}
		err = errors.Join(err, e)
		list = list[n:]
	}
	for _, g := range r.Groups {
		params := make([]byte, 8)
		binary.NativeEndian.PutUint64(params, g.OwnUS)
		e := d.control(ctx, f, r.Client, g.Handle, NVA06C_CTRL_CMD_SET_TIMESLICE, params)
		if st, ok := statusOf(e); !ok || !st.gone() {
			err = errors.Join(err, e)
		}
	}
	return err
}

func (d *Driver) letGo(ctx context.Context, f *File, r Restore, channels []uint32) error {
	if len(channels) == 0 {
		return nil
	}
	for _, level := range goOnSure {
		params := d.layout.encodeDisable(level != 0, false, r.Client, channels)
		if err := d.control(ctx, f, r.Client, r.Subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params); err != nil {
			return err
		}
	}
	return nil
}

// present leaves out the channels that RM does not know any more.
func (d *Driver) present(ctx context.Context, f *File, r Restore, channels []uint32) []uint32 {
	var out []uint32
	for _, ch := range channels {
		if d.control(ctx, f, r.Client, ch, NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, make([]byte, 4)) == nil {
			out = append(out, ch)
		}
	}
	return out
}
