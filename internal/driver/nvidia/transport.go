// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
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

// Driver is a transport and the layout of what it carries.
type Driver struct {
	transport Transport
	layout    *layout
	// Version is the driver's, for display.
	Version string
	Virtual bool

	levels *levelCache // nil: every GPU does everything, without asking
	mps    *mpsWatch   // nil: nobody looks
}

// NewDriver is the kernel driver of this machine, if it is one that was measured.
func NewDriver() (*Driver, error) {
	v, err := DriverVersion()
	if err != nil {
		return nil, err
	}
	g, err := find(v)
	if err != nil {
		return nil, err
	}
	return &Driver{
		transport: kernelTransport{}, layout: g.layout, Version: v,
		levels: &levelCache{}, mps: &mpsWatch{system: System{Root: "/"}},
	}, nil
}

// NewVirtualDriver is the virtual GPU behind a socket. It speaks the layout of 580.
func NewVirtualDriver(socket string) *Driver {
	return &Driver{transport: &virtualTransport{path: socket}, layout: &r580, Version: "virtual", Virtual: true, levels: &levelCache{}}
}

// Accept says whether fd is a control file of this driver.
func (d *Driver) Accept(fd int) error { return d.transport.Accept(fd) }

// control makes one RM_CONTROL. The error is a Status where RM answered.
func (d *Driver) control(ctx context.Context, f *File, client, object, cmd uint32, params []byte) error {
	arg := encodeControl(client, object, cmd, len(params))
	if err := d.transport.Ioctl(ctx, f, iowr(nvEscRMControl, nvControlBytes), arg, params); err != nil {
		return err
	}
	if s := controlStatus(arg); s != NV_OK {
		return s
	}
	return nil
}

// newClient allocates an RM client on a file of our own; the kernel picks its number.
func (d *Driver) newClient(ctx context.Context, f *File) (uint32, error) {
	arg := encodeAlloc(0, 0, 0, NV01_ROOT_CLIENT)
	if err := d.transport.Ioctl(ctx, f, iowr(nvEscRMAlloc, nvAllocBytes), arg, nil); err != nil {
		return 0, fmt.Errorf("allocate RM client: %w", err)
	}
	h, s := allocResult(arg)
	if s != NV_OK {
		return 0, fmt.Errorf("allocate RM client: %w", s)
	}
	return h, nil
}

func (d *Driver) freeClient(ctx context.Context, f *File, client uint32) {
	// The file is closed next, which frees it anyway.
	_ = d.transport.Ioctl(ctx, f, iowr(nvEscRMFree, nvFreeBytes), encodeFree(client, 0, client), nil)
}

// statusOf returns the RM status in err, if that is what it is.
func statusOf(err error) (Status, bool) {
	var s Status
	ok := errors.As(err, &s)
	return s, ok
}
