// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"fmt"
	"time"

	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// walk finds a process's RM objects through duplicates of its files. RM answers only for clients of
// the asking file, so every hit belongs to the process.
type walk struct {
	driver *Driver
	files  []*File
	into   *Objects
	budget time.Duration

	tried int // client numbers
	mine  int // clients with hardware queues
	mixed int // clients whose channels match no single GPU
}

// clients tries client numbers, newest first, with one control per number and file. Only hits have
// their handles walked.
func (w *walk) clients(ctx context.Context) error {
	newest, err := w.driver.newestClient(ctx)
	if err != nil {
		return err
	}
	return w.from(ctx, newest)
}

func (w *walk) from(ctx context.Context, newest uint32) (err error) {
	index := newest - firstClient
	if index >= maxClients {
		return fmt.Errorf("client number %#x is outside the known range", newest)
	}
	top := min(index+maxSpareWalk, maxClients-1)
	limit := time.Now().Add(w.budget)
	for i := range top + 1 {
		if w.late(limit) {
			if w.mine == 0 {
				return fmt.Errorf("%w: %d client numbers below %#x were tried in %v", ErrSearch, w.tried, newest, w.budget)
			}
			return nil
		}
		if limit, err = w.number(ctx, firstClient+top-i, newest, limit); err != nil {
			return err
		}
	}
	// Numbers above the newest predate a wrap-around, which takes a million clients: search
	// briefly.
	if again := time.Now().Add(againTime); again.Before(limit) {
		limit = again
	}
	for h := uint32(firstClient + maxClients - 1); h > firstClient+top && w.mine == 0 && !w.late(limit); h-- {
		if limit, err = w.number(ctx, h, newest, limit); err != nil {
			return err
		}
	}
	return nil
}

// late checks the clock on every 16th try.
func (w *walk) late(limit time.Time) bool { return w.tried&0xF == 0 && time.Now().After(limit) }

// number tries one client number on all files. After the first hit the returned limit shortens the
// walk.
func (w *walk) number(ctx context.Context, h, newest uint32, limit time.Time) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return limit, err
	}
	w.tried++
	if h == newest {
		return limit, nil // already found
	}
	for _, f := range w.files {
		found, err := w.client(ctx, f, h)
		if err != nil {
			return limit, err
		}
		if more := time.Now().Add(moreTime); found && more.Before(limit) {
			limit = more
		}
	}
	return limit, nil
}

// nothing explains why a successful walk found nothing to stop.
func (w *walk) nothing(why string) error {
	switch {
	case w.driver.mps.reason() != "":
		return fmt.Errorf("%w of its own: %s", ErrNoContext, w.driver.mps.reason())
	case why != "":
		return fmt.Errorf("%w that can be stopped: %s", ErrNoContext, why)
	case w.mixed > 0:
		return fmt.Errorf("%w that can be identified: it uses several GPUs, and its channels could not be matched to them", ErrNoContext)
	}
	return fmt.Errorf("%w: no hardware queue was found on its files", ErrNoContext)
}

// client walks the handles of one client number if it belongs to the file.
func (w *walk) client(ctx context.Context, f *File, client uint32) (found bool, err error) {
	err = w.driver.control(ctx, f, client, firstHandle, abi.NV2080_CTRL_CMD_GPU_GET_ID, make([]byte, 4))
	st, answered := statusOf(err)
	if err != nil && !answered {
		return false, err
	}
	if answered && st.foreign() {
		return false, nil
	}
	hits, top, err := w.handles(ctx, f, client, firstHandle)
	if err != nil {
		return false, err
	}
	if !w.attribute(ctx, f, client, hits) {
		return false, nil
	}
	fd, err := f.dup()
	if err != nil {
		return false, fmt.Errorf("duplicate control file: %w", err)
	}
	if err := w.into.AddClient(client, fd); err != nil {
		return false, err
	}
	w.into.setTop(client, top)
	for _, h := range hits {
		if h.parent == 0 && h.class != abi.NV20_SUBDEVICE_0 {
			continue // of an unknown GPU
		}
		if err := w.into.Alloc(client, h.parent, h.handle, h.class); err != nil {
			return false, err
		}
	}
	w.mine++
	return true, nil
}

// hit is a handle that answered a probe.
type hit struct {
	handle, class uint32
	parent        uint32 // identifies its GPU, set by attribute
	gpu           model.DeviceID
}

// anyChannel stands for all channel classes, which share a probe.
const anyChannel = 0xC000 | abi.ClassEndChannel

// handles finds a client's subdevices, groups and channels from a handle on, and the highest handle in
// use of any class.
func (w *walk) handles(ctx context.Context, f *File, client, from uint32) (hits []hit, top uint32, err error) {
	missing := 0
	for h := from; h < firstHandle+maxHandles && missing < handleGap; h++ {
		missing++
		for _, class := range []uint32{abi.NV20_SUBDEVICE_0, abi.KEPLER_CHANNEL_GROUP_A, anyChannel} {
			gpu, err := w.driver.probeObject(ctx, f, client, h, class)
			if err == nil {
				hits = append(hits, hit{handle: h, class: class, gpu: gpu})
				missing, top = 0, h
				break
			}
			st, answered := statusOf(err)
			if !answered {
				return nil, 0, err
			}
			if st.absent() {
				break // no such object, of any class
			}
			missing, top = 0, h
		}
	}
	return hits, top, nil
}

// attribute assigns groups and channels to GPUs and reports whether there is something to stop. RM
// does not reveal parents. With several GPUs, each running channel is enabled through every GPU's
// subdevice, and only its own accepts. A group precedes its channels, so it belongs to the GPU of
// the next channel. Objects that two GPUs claim are left alone.
func (w *walk) attribute(ctx context.Context, f *File, client uint32, hits []hit) bool {
	subdevice := map[model.DeviceID]uint32{}
	for _, h := range hits {
		if h.class == abi.NV20_SUBDEVICE_0 && subdevice[h.gpu] == 0 {
			subdevice[h.gpu] = h.handle
		}
	}
	if len(subdevice) == 0 {
		return false
	}
	var next uint32 // GPU of the channel above
	channels, groups := 0, 0
	for i := len(hits) - 1; i >= 0; i-- {
		h := &hits[i]
		switch h.class {
		case abi.NV20_SUBDEVICE_0:
			h.parent = subdevice[h.gpu]
		case abi.KEPLER_CHANNEL_GROUP_A:
			h.parent = next
			groups++
		default:
			h.parent = w.owner(ctx, f, client, h.handle, subdevice)
			next = h.parent
			if h.parent != 0 {
				channels++
			}
		}
	}
	if channels == 0 && groups > 0 && len(subdevice) > 1 {
		w.mixed++
	}
	return channels > 0 && groups > 0
}

// owner returns the subdevice that accepts a channel; 0: none or several.
func (w *walk) owner(ctx context.Context, f *File, client, channel uint32, subdevice map[model.DeviceID]uint32) uint32 {
	var owner uint32
	for _, sub := range subdevice {
		if len(subdevice) > 1 {
			params := disableChannels(false, false, client, []uint32{channel})
			if w.driver.control(ctx, f, client, sub, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params) != nil {
				continue
			}
		}
		if owner != 0 {
			return 0
		}
		owner = sub
	}
	return owner
}
