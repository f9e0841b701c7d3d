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
	"xsched/internal/quarantine"
)

// Transport carries RM requests to the kernel driver or the virtual GPU.
type Transport interface {
	// Accept verifies that fd is a control file.
	Accept(fd int) error
	// Control describes a control file.
	Control() quarantine.Want
	// Copy duplicates a control file of another process, on behalf of an account.
	Copy(pidfd, fd int, account string) (int, error)
	// Open opens a control file of our own.
	Open() (*File, error)
	// Ioctl makes one request and writes back arg and params, blocking as long as the device.
	Ioctl(ctx context.Context, f *File, request uint32, arg, params []byte) error
	// Find lists candidate control files of another process.
	Find(pid int) ([]Candidate, error)
}

// Driver is a transport with the release behind it and the evidence about that release.
type Driver struct {
	transport Transport
	Virtual   bool
	system    System
	mps       *mpsWatch // nil: not watched
	// ungated: allow everything without evidence, for the self-test that produces it.
	ungated bool

	refresh sync.Mutex // one change of release at a time
	dir     string     // of the probed levels
	tests   testStore  // self-test results
	testing sync.Mutex // one self-test at a time
	// searches paces full searches of attached processes.
	searches searches
	scans    scanner
	log      *slog.Logger
	release  atomic.Pointer[release]
	// generation counts changes of the release and its evidence.
	generation atomic.Uint64
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

// ungatedCopy returns the driver without the evidence requirement.
func (d *Driver) ungatedCopy() *Driver {
	c := &Driver{transport: d.transport, system: d.system, Virtual: d.Virtual, mps: d.mps, ungated: true}
	c.release.Store(d.release.Load())
	return c
}

// NewDriver opens this machine's kernel driver.
func NewDriver() (*Driver, error) {
	d, err := newDriver(kernelTransport{}, System{Root: "/"}, false)
	if err != nil {
		return nil, err
	}
	d.mps = &mpsWatch{system: d.system}
	return d, nil
}

// NewVirtualDriver returns the virtual GPU behind a socket.
func NewVirtualDriver(socket string) *Driver {
	d, _ := newDriver(&virtualTransport{path: socket}, System{Root: filepath.Dir(socket)}, true) // a virtual driver always has a version
	return d
}

// Accept verifies that fd is a control file of this driver.
func (d *Driver) Accept(fd int) error { return d.transport.Accept(fd) }

// control makes one RM_CONTROL. The error is a Status if RM answered.
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

// newClient allocates an RM client on our own file; the kernel picks the handle.
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
	// Closing the file frees the client in any case.
	arg := abi.NVOS00{HRoot: client, HObjectOld: client}
	_ = d.transport.Ioctl(ctx, f, abi.Request(abi.NV_ESC_RM_FREE, abi.Size[abi.NVOS00]()), abi.Bytes(&arg), nil)
}

// statusOf returns the RM status in err, if any.
func statusOf(err error) (Status, bool) {
	var s Status
	ok := errors.As(err, &s)
	return s, ok
}
