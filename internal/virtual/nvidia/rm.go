// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia/abi"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

// escVGMap is private: it maps the submission memory of a channel group. Hardware needs several
// ioctls and mmap calls for that.
const escVGMap = 0xE0

var (
	reqAlloc32 = abi.Request(abi.NV_ESC_RM_ALLOC, abi.Size[abi.NVOS21]())
	reqAlloc48 = abi.Request(abi.NV_ESC_RM_ALLOC, abi.Size[abi.NVOS64]())
	reqFree    = abi.Request(abi.NV_ESC_RM_FREE, abi.Size[abi.NVOS00]())
	reqControl = abi.Request(abi.NV_ESC_RM_CONTROL, abi.Size[abi.NVOS54]())
	reqVGMap   = abi.Request(escVGMap, 64)
)

// Sizes of the allocation parameters, and where the copy engines begin in
// NV2080_ENGINE_TYPE.
const (
	bytesDeviceAlloc    = 56
	bytesSubdeviceAlloc = 4
	bytesGroupAlloc     = 20
	engineTypeCopy0     = 9
	engineTypeCopyLast  = 28
)

const (
	firstClient = 0xc1d00000
	firstObject = 0x5c000001
	maxObjects  = 4096 // a file
	maxClients  = 64   // a file
)

// object is an RM object; a client is the object at the root.
type object struct {
	handle   uint32
	class    uint32
	parent   *object
	children []*object
	device   int

	group   *gpumodel.Group   // of a channel group
	channel *gpumodel.Channel // of a channel
	area    *area             // of a compute group whose memory was mapped
	token   uint32            // work-submit token of a channel, id of a group
	memory  uint64            // of a compute group: device memory of its context
}

func (o *object) isChannel() bool { return o.channel != nil }

// client is an RM client: it belongs to the file that created it.
type client struct {
	object
	account *gpumodel.Account
	objects map[uint32]*object
	next    uint32 // next handle to assign
}

// rmFile is an open file of the driver.
type rmFile struct {
	rm      *resourceManager
	account *gpumodel.Account
	uid     uint32
	clients map[uint32]*client
	objects int
	areas   map[uint64]*area // by number
	numbers uint64
}

// resourceManager is the state of the kernel driver: clients of all files, and the devices.
type resourceManager struct {
	gpus       []*gpumodel.GPU
	nextClient uint32
	clients    map[uint32]*client // of all files
	tokens     uint32
	objects    int
	areas      int
	capacity   uint64   // of each GPU
	used       []uint64 // by GPU
	faults     *gpumodel.Faults
	costs      gpumodel.Costs
	held       []heldControl
	// newArea creates the shared memory of a context; set by the server.
	newArea func(f *rmFile, o *object, lanes []*gpumodel.Group) (*area, error)
}

func newResourceManager(gpus []*gpumodel.GPU, faults *gpumodel.Faults) *resourceManager {
	return &resourceManager{
		gpus: gpus, nextClient: firstClient, clients: map[uint32]*client{}, faults: faults,
		capacity: DefaultMemory, used: make([]uint64, len(gpus)), costs: gpumodel.RemoteCosts(),
	}
}

func (rm *resourceManager) open(account *gpumodel.Account, uid uint32) *rmFile {
	return &rmFile{rm: rm, account: account, uid: uid, clients: map[uint32]*client{}, areas: map[uint64]*area{}}
}

// close frees all objects of the file.
func (f *rmFile) close() {
	for _, c := range f.clients {
		f.freeClient(c)
	}
}

// answer completes a request with the errno of the ioctl and descriptors to pass.
type answer func(errno int, fds ...int)

// ioctl executes a request and changes the bytes of p in place. It calls done exactly once, now or
// later, unless a fault suppresses the reply.
func (f *rmFile) ioctl(p vdevice.Packet, done answer) {
	bytes := int(p.Request >> 16 & 0x3fff)
	if len(p.Arg) != bytes {
		done(int(unix.EINVAL))
		return
	}
	// The sizes of requests are those of the structs, so decoding cannot fail.
	switch p.Request {
	case reqAlloc32:
		a, _ := abi.Decode[abi.NVOS21](p.Arg)
		if int(a.ParamsSize) != len(p.Params) {
			done(int(unix.EFAULT))
			return
		}
		a.HObjectNew, a.Status = f.alloc(a.HRoot, a.HObjectParent, a.HObjectNew, a.HClass, p.Params)
		copy(p.Arg, abi.Bytes(&a))
		done(0)
	case reqAlloc48:
		a, _ := abi.Decode[abi.NVOS64](p.Arg)
		if int(a.ParamsSize) != len(p.Params) {
			done(int(unix.EFAULT))
			return
		}
		a.HObjectNew, a.Status = f.alloc(a.HRoot, a.HObjectParent, a.HObjectNew, a.HClass, p.Params)
		copy(p.Arg, abi.Bytes(&a))
		done(0)
	case reqFree:
		a, _ := abi.Decode[abi.NVOS00](p.Arg)
		a.Status = f.free(a.HRoot, a.HObjectOld)
		copy(p.Arg, abi.Bytes(&a))
		done(0)
	case reqControl:
		if f.rm.faults.NeverAnswer[f.account.PID] {
			return
		}
		a, _ := abi.Decode[abi.NVOS54](p.Arg)
		if int(a.ParamsSize) != len(p.Params) {
			done(int(unix.EFAULT))
			return
		}
		f.rm.unlessHung(f.deviceOf(a), a.Cmd, func() {
			f.control(a, p.Params, func(status uint32) {
				a.Status = status
				copy(p.Arg, abi.Bytes(&a))
				done(0)
			})
		})
	case reqVGMap:
		f.mapCall(p, done)
	case reqVGMemory:
		f.memoryCall(p)
		done(0)
	default:
		done(int(unix.ENOTTY))
	}
}

// deviceOf returns the GPU of a control's object; -1: none.
func (f *rmFile) deviceOf(a abi.NVOS54) int {
	if c := f.clients[a.HClient]; c != nil {
		if o := c.objects[a.HObject]; o != nil {
			return o.device
		}
	}
	return -1
}

// heldControl is a control of a GPU that hangs.
type heldControl struct {
	vdevice.Held
	do func()
}

// unlessHung performs a control now, or when its GPU has stopped hanging.
func (rm *resourceManager) unlessHung(device int, command uint32, do func()) {
	if rm.faults.Hung[device] {
		rm.held = append(rm.held, heldControl{vdevice.Held{Device: device, Command: command}, do})
		return
	}
	do()
}

// answerHeld performs the controls that were held.
func (rm *resourceManager) answerHeld() {
	held := rm.held
	rm.held = nil
	for _, h := range held {
		h.do()
	}
}

// mapCall maps the submission memory of a compute group: hClient 0, hGroup 4, three
// copy groups 8; replies the device number 20, channels 24, VRAM bytes 32, and three
// descriptors (control, VRAM, doorbell) whose numbers the caller's side puts at 40, 44, 48.
func (f *rmFile) mapCall(p vdevice.Packet, done answer) {
	le := binary.LittleEndian
	status := func(code uint32) {
		le.PutUint32(p.Arg[52:], code)
		done(0)
	}
	c := f.clients[le.Uint32(p.Arg)]
	if c == nil {
		status(abi.NV_ERR_INVALID_CLIENT)
		return
	}
	o := c.objects[le.Uint32(p.Arg[4:])]
	if o == nil || o.group == nil || o.group.Copies() || len(o.group.Channels()) == 0 {
		status(abi.NV_ERR_INVALID_OBJECT_HANDLE)
		return
	}
	if o.area != nil {
		status(abi.NV_ERR_INVALID_STATE)
		return
	}
	var lanes []*gpumodel.Group
	for i := range 3 {
		lane := c.objects[le.Uint32(p.Arg[8+4*i:])]
		if lane == nil || lane.group == nil || !lane.group.Copies() || lane.device != o.device {
			status(abi.NV_ERR_INVALID_OBJECT_HANDLE)
			return
		}
		lanes = append(lanes, lane.group)
	}
	a, err := f.rm.newArea(f, o, lanes)
	if err != nil {
		status(abi.NV_ERR_INSUFFICIENT_RESOURCES)
		return
	}
	o.area = a
	f.rm.areas++
	le.PutUint32(p.Arg[20:], uint32(o.device))
	le.PutUint32(p.Arg[24:], uint32(len(a.channels)))
	le.PutUint32(p.Arg[28:], uint32(a.number))
	le.PutUint64(p.Arg[32:], uint64(len(a.vram)))
	le.PutUint32(p.Arg[52:], abi.NV_OK)
	done(0, a.fds()...)
	a.sent()
}
