// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
	"xsched/internal/quarantine"
)

type fakeKind int

const (
	kindSub fakeKind = iota
	kindGroup
	kindChannel
)

type fakeObject struct {
	kind    fakeKind
	gpu     uint32
	slice   uint64
	stopped string // "": running; else the disables in effect, newest last: "2", "3", "33"
	touched bool   // named in a FIFO_DISABLE
	parked  bool   // left by "2" while alone: an enable alone does not resume it
}

// fakeRM answers like the driver: a client belongs to the file that created it. Files are
// identified by inode, so duplicates match.
type fakeRM struct {
	mu      sync.Mutex
	clients map[uint32]map[uint32]*fakeObject
	owner   map[uint32]uint64 // client -> inode
	calls   map[uint32]int    // by command
	lists   []int             // channels in each FIFO_DISABLE
	hook    func(cmd uint32)
	// enter is called before each control, without the lock.
	enter func(cmd, client, object uint32)

	// A FIFO_DISABLE may name clients of other files, unless ownOnly. partly: a refused one changes the
	// channels before the refused one.
	ownOnly, partly bool
	// inside is called while a FIFO_DISABLE of several clients is in progress.
	inside func(carrier uint32)
}

var _ Transport = (*fakeRM)(nil)

const measuredVersion = "580.159.04"

// gated returns a driver of the given version that requires evidence.
func gated(t Transport, version string) *Driver {
	d := &Driver{transport: t}
	d.release.Store(newRelease(version))
	return d
}

func newFakeRM() *fakeRM {
	return &fakeRM{clients: map[uint32]map[uint32]*fakeObject{}, owner: map[uint32]uint64{}, calls: map[uint32]int{}}
}

func inode(fd int) uint64 {
	var st unix.Stat_t
	_ = unix.Fstat(fd, &st)
	return st.Ino
}

func (r *fakeRM) Accept(int) error         { return nil }
func (r *fakeRM) Control() quarantine.Want { return quarantine.Want{} }
func (r *fakeRM) Copy(pidfd, fd int, _ string) (int, error) {
	return unix.PidfdGetfd(pidfd, fd, 0)
}
func (r *fakeRM) Open() (*File, error)          { return nil, os.ErrNotExist }
func (r *fakeRM) Find(int) ([]Candidate, error) { return nil, nil }
func (r *fakeRM) object(c, o uint32) *fakeObject {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clients[c][o]
}

func (r *fakeRM) Ioctl(ctx context.Context, f *File, request uint32, arg, params []byte) error {
	return f.use(func(fd int) error {
		cmd := binary.NativeEndian.Uint32(arg[8:])
		if r.hook != nil {
			r.hook(cmd)
		}
		if r.enter != nil {
			r.enter(cmd, binary.NativeEndian.Uint32(arg[0:]), binary.NativeEndian.Uint32(arg[4:]))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls[cmd]++
		binary.NativeEndian.PutUint32(arg[28:], uint32(r.control(fd, arg, params, cmd)))
		return nil
	})
}

func (r *fakeRM) control(fd int, arg, params []byte, cmd uint32) Status {
	client, handle := binary.NativeEndian.Uint32(arg[0:]), binary.NativeEndian.Uint32(arg[4:])
	if r.owner[client] != inode(fd) {
		return NV_ERR_INVALID_CLIENT
	}
	o := r.clients[client][handle]
	if o == nil {
		return NV_ERR_INVALID_OBJECT_HANDLE
	}
	kinds := map[uint32]fakeKind{
		abi.NV2080_CTRL_CMD_GPU_GET_ID: kindSub, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS: kindSub, abi.NVA06C_CTRL_CMD_GET_INFO: kindGroup,
		abi.NVA06C_CTRL_CMD_GET_TIMESLICE: kindGroup, abi.NVA06C_CTRL_CMD_SET_TIMESLICE: kindGroup,
		abi.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN: kindChannel,
	}
	if k, ok := kinds[cmd]; !ok || k != o.kind {
		return 0x24
	}
	switch cmd {
	case abi.NV2080_CTRL_CMD_GPU_GET_ID:
		binary.NativeEndian.PutUint32(params, o.gpu)
	case abi.NVA06C_CTRL_CMD_GET_TIMESLICE:
		binary.NativeEndian.PutUint64(params, o.slice)
	case abi.NVA06C_CTRL_CMD_SET_TIMESLICE:
		o.slice = binary.NativeEndian.Uint64(params)
	case abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS:
		return r.disable(fd, client, params)
	}
	return NV_OK
}

func (r *fakeRM) disable(fd int, carrier uint32, p []byte) Status {
	n := int(binary.NativeEndian.Uint32(p[4:]))
	var list []*fakeObject
	several, failed := false, NV_OK
	for i := range n {
		client := binary.NativeEndian.Uint32(p[24+4*i:])
		several = several || client != carrier
		o := r.clients[client][binary.NativeEndian.Uint32(p[280+4*i:])]
		switch {
		case o == nil || o.kind != kindChannel:
			failed = NV_ERR_INVALID_OBJECT_HANDLE
		case r.ownOnly && r.owner[client] != inode(fd):
			failed = NV_ERR_INSUFFICIENT_PERMISSIONS
		}
		if failed != NV_OK && !r.partly {
			return failed
		}
		if failed != NV_OK {
			break
		}
		list = append(list, o)
	}
	r.lists = append(r.lists, n)
	if several && r.inside != nil {
		r.inside(carrier)
	}
	for _, o := range list {
		o.touched = true
		switch {
		case p[0] == 0:
			o.stopped = o.stopped[:max(0, len(o.stopped)-1)]
		case p[8] == 1:
			o.stopped += "2"
			o.parked = true
		default:
			o.stopped += "3"
			o.parked = false
		}
	}
	return failed
}

// newContext creates and announces a client with a file, device 1 and subdevice 2. Its compute group
// has n channels, its copy group two.
func (r *fakeRM) newContext(t *testing.T, s *Objects, client, gpu uint32, n int) {
	t.Helper()
	fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	r.owner[client] = inode(fd)
	objs := map[uint32]*fakeObject{2: {kind: kindSub, gpu: gpu}, 10: {kind: kindGroup, slice: 2048}, 11: {kind: kindGroup, slice: 1024}}
	for i := range n {
		objs[uint32(100+i)] = &fakeObject{kind: kindChannel}
	}
	objs[90], objs[91] = &fakeObject{kind: kindChannel}, &fakeObject{kind: kindChannel}
	r.clients[client] = objs
	r.mu.Unlock()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.AddClient(client, fd))
	must(s.Alloc(client, client, 1, abi.NV01_DEVICE_0))
	must(s.Alloc(client, 1, 2, abi.NV20_SUBDEVICE_0))
	must(s.Alloc(client, 1, 11, abi.KEPLER_CHANNEL_GROUP_A)) // copy group first, deliberately
	must(s.Alloc(client, 11, 90, 0xC86F))
	must(s.Alloc(client, 11, 91, 0xC86F))
	must(s.Alloc(client, 1, 10, abi.KEPLER_CHANNEL_GROUP_A))
	for i := range n {
		must(s.Alloc(client, 10, uint32(100+i), 0xC86F))
	}
	must(s.Alloc(client, 100, 9000, 0xCBC0))
}

func newFake(t *testing.T) (*fakeRM, *Objects, *driver.Metrics) {
	r, m := newFakeRM(), &driver.Metrics{}
	s := NewObjects(&Driver{transport: r, ungated: true}, Limits{Clients: 4, Objects: 300}, m)
	t.Cleanup(s.Close)
	return r, s, m
}

const fakeGPU = 1 << 8 // bus 1

var fakeDevice = model.MakeDeviceID(0, 1, 0, 0)
