// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"

	"xsched/internal/driver/nvidia/abi"
)

// Transport carries RM requests to whoever answers them: the kernel driver,
// or the virtual GPU.
type Transport interface {
	// Accept says whether fd is the control file it claims to be.
	Accept(fd int) error
	// Open makes a control file of our own.
	Open() (*File, error)
	// Ioctl makes one request; arg and params are written back. It blocks as
	// long as the device does.
	Ioctl(ctx context.Context, f *File, request uint32, arg, params []byte) error
	// Find lists what may be control files of another process.
	Find(pid int) ([]Candidate, error)
}

// Driver is a transport, the release of whoever is behind it, and the evidence about that.
type Driver struct {
	transport Transport
	Virtual   bool
	system    System
	mps       *mpsWatch // nil: nobody looks
	// ungated: every GPU does everything, without evidence. The self-test is to provide it.
	ungated bool

	refresh sync.Mutex // one change of release at a time
	dir     string     // of probed levels
	tests   testStore  // of self-tests
	testing sync.Mutex // one self-test at a time
	log     *slog.Logger
	release atomic.Pointer[release]
}

func newDriver(t Transport, s System, virtual bool) (*Driver, error) {
	d := &Driver{transport: t, system: s, Virtual: virtual}
	v, err := d.readVersion()
	if err != nil {
		return nil, err
	}
	d.release.Store(newRelease(v))
	return d, nil
}

// ungatedCopy is the same driver without the need for evidence.
func (d *Driver) ungatedCopy() *Driver {
	c := &Driver{transport: d.transport, system: d.system, Virtual: d.Virtual, mps: d.mps, ungated: true}
	c.release.Store(d.release.Load())
	return c
}

// NewDriver is the kernel driver of this machine.
func NewDriver() (*Driver, error) {
	d, err := newDriver(kernelTransport{}, System{Root: "/"}, false)
	if err != nil {
		return nil, err
	}
	d.mps = &mpsWatch{system: d.system}
	return d, nil
}

// NewVirtualDriver is the virtual GPU behind a socket.
func NewVirtualDriver(socket string) *Driver {
	d, _ := newDriver(&virtualTransport{path: socket}, System{Root: filepath.Dir(socket)}, true) // a virtual one always has a version
	return d
}

// Accept says whether fd is a control file of this driver.
func (d *Driver) Accept(fd int) error { return d.transport.Accept(fd) }

// control makes one RM_CONTROL. The error is a Status where RM answered.
func (d *Driver) control(ctx context.Context, f *File, client, object, cmd uint32, params []byte) error {
	arg := abi.NVOS54{HClient: client, HObject: object, Cmd: cmd, ParamsSize: uint32(len(params))}
	if err := d.transport.Ioctl(ctx, f, abi.Request(abi.NV_ESC_RM_CONTROL, abi.Size[abi.NVOS54]()), abi.Bytes(&arg), params); err != nil {
		return err
	}
	if s := Status(arg.Status); s != NV_OK {
		return s
	}
	return nil
}

// newClient allocates an RM client on a file of our own; the kernel picks its number.
func (d *Driver) newClient(ctx context.Context, f *File) (uint32, error) {
	arg := abi.NVOS21{HClass: abi.NV01_ROOT_CLIENT}
	if err := d.transport.Ioctl(ctx, f, abi.Request(abi.NV_ESC_RM_ALLOC, abi.Size[abi.NVOS21]()), abi.Bytes(&arg), nil); err != nil {
		return 0, fmt.Errorf("allocate RM client: %w", err)
	}
	if s := Status(arg.Status); s != NV_OK {
		return 0, fmt.Errorf("allocate RM client: %w", s)
	}
	return arg.HObjectNew, nil
}

func (d *Driver) freeClient(ctx context.Context, f *File, client uint32) {
	// The file is closed next, which frees it anyway.
	arg := abi.NVOS00{HRoot: client, HObjectOld: client}
	_ = d.transport.Ioctl(ctx, f, abi.Request(abi.NV_ESC_RM_FREE, abi.Size[abi.NVOS00]()), abi.Bytes(&arg), nil)
}

// statusOf returns the RM status in err, if that is what it is.
func statusOf(err error) (Status, bool) {
	var s Status
	ok := errors.As(err, &s)
	return s, ok
}
