// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"

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

// Driver is a transport and what is known of whoever is behind it.
type Driver struct {
	transport Transport
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
	if _, err := find(v); err != nil {
		return nil, err
	}
	return &Driver{
		transport: kernelTransport{}, Version: v,
		levels: &levelCache{}, mps: &mpsWatch{system: System{Root: "/"}},
	}, nil
}

// NewVirtualDriver is the virtual GPU behind a socket.
func NewVirtualDriver(socket string) *Driver {
	return &Driver{transport: &virtualTransport{path: socket}, Version: "virtual", Virtual: true, levels: &levelCache{}}
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
