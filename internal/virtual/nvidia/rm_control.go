// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"
	"time"

	"xsched/internal/model"
)

// From ctrla06c.h, ctrl2080fifo.h, ctrl2080gpu.h, ctrl2080bus.h and ctrlc36f.h:
const (
	ctrlGroupSchedule      = 0xA06C0101
	ctrlGroupSetTimeslice  = 0xA06C0103
	ctrlGroupGetTimeslice  = 0xA06C0104
	ctrlGroupPreempt       = 0xA06C0105
	ctrlGroupGetInfo       = 0xA06C0106
	ctrlGroupSetInterleave = 0xA06C0107
	ctrlFifoDisable        = 0x2080110B
	ctrlGPUGetID           = 0x20800142
	ctrlBusGetPCIInfo      = 0x20801801
	ctrlChannelGetToken    = 0xC36F0108

	fifoDisableMax = 64
	maxSliceUS     = 1 << 40
)

// controlCall is a control being performed.
type controlCall struct {
	file   *rmFile
	gpu    *GPU
	object *object
	params []byte
	reply  func(status uint32)
}

// at answers once the device says so.
func (c *controlCall) at(model.Time) { c.reply(nvOK) }

// controls: what kind of object a command is for, the size of its parameters, and how it is done.
var controls = map[uint32]struct {
	fits  func(*object) bool
	bytes int
	do    func(*controlCall)
}{
	ctrlGroupSchedule:      {isGroup, 3, doSchedule},
	ctrlGroupSetTimeslice:  {isGroup, 8, doSetTimeslice},
	ctrlGroupGetTimeslice:  {isGroup, 8, doGetTimeslice},
	ctrlGroupPreempt:       {isGroup, 8, doPreempt},
	ctrlGroupGetInfo:       {isGroup, 4, doGetToken},
	ctrlGroupSetInterleave: {isGroup, 4, doSetInterleave},
	ctrlFifoDisable:        {isSubdevice, 536, doFifoDisable},
	ctrlGPUGetID:           {isSubdevice, 4, doGetID},
	ctrlBusGetPCIInfo:      {isSubdevice, 16, doGetPCIInfo},
	ctrlChannelGetToken:    {(*object).isChannel, 4, doGetToken},
}

func isGroup(o *object) bool     { return o.group != nil }
func isSubdevice(o *object) bool { return o.class == classSubdevice }

// control performs a RM_CONTROL whose parameters were brought along.
func (f *rmFile) control(p ioctlPacket, reply func(status uint32)) {
	le := binary.LittleEndian
	c := f.clients[le.Uint32(p.Arg)]
	if c == nil {
		reply(nvInvalidClient)
		return
	}
	o := c.objects[le.Uint32(p.Arg[4:])]
	if o == nil {
		reply(nvInvalidObjectHandle)
		return
	}
	control, known := controls[le.Uint32(p.Arg[8:])]
	switch {
	case !known, !control.fits(o):
		reply(nvInvalidCommand)
	case len(p.Params) != control.bytes:
		reply(nvInvalidParamStruct)
	default:
		control.do(&controlCall{f, f.rm.gpus[o.device], o, p.Params, reply})
	}
}

func doSchedule(c *controlCall) {
	if c.params[0] != 0 {
		c.gpu.Schedule(c.object.group)
	}
	c.reply(nvOK)
}

func doSetTimeslice(c *controlCall) {
	value := binary.LittleEndian.Uint64(c.params)
	if value == 0 || value > maxSliceUS {
		c.reply(nvInvalidArgument)
		return
	}
	c.gpu.SetSlice(c.object.group, time.Duration(value)*time.Microsecond, c.at)
}

func doGetTimeslice(c *controlCall) {
	binary.LittleEndian.PutUint64(c.params, uint64(c.gpu.Slice(c.object.group)/time.Microsecond))
	c.reply(nvOK)
}

func doPreempt(c *controlCall) {
	c.gpu.Preempt(c.object.group)
	c.reply(nvOK)
}

func doGetToken(c *controlCall) {
	binary.LittleEndian.PutUint32(c.params, c.object.token)
	c.reply(nvOK)
}

// doSetInterleave: accepted from root, and without effect, as measured.
func doSetInterleave(c *controlCall) {
	switch {
	case c.file.uid != 0:
		c.reply(nvInsufficientPermissions)
	case binary.LittleEndian.Uint32(c.params) > 2:
		c.reply(nvInvalidArgument)
	default:
		c.reply(nvOK)
	}
}

func doGetID(c *controlCall) {
	binary.LittleEndian.PutUint32(c.params, uint32(c.object.device+1)<<8)
	c.reply(nvOK)
}

func doGetPCIInfo(c *controlCall) {
	le := binary.LittleEndian
	le.PutUint32(c.params, 0x233510DE)
	le.PutUint32(c.params[4:], 0x18BE10DE)
	le.PutUint32(c.params[8:], 0xA1)
	le.PutUint32(c.params[12:], 0x2335)
	c.reply(nvOK)
}

// doFifoDisable checks every pair before it changes anything.
func doFifoDisable(c *controlCall) {
	le := binary.LittleEndian
	disable, only, rewind := c.params[0] != 0, c.params[8] != 0, c.params[9] != 0
	n := le.Uint32(c.params[4:])
	if n == 0 || n > fifoDisableMax || le.Uint64(c.params[16:]) != 0 {
		c.reply(nvInvalidArgument)
		return
	}
	if rewind {
		c.reply(nvNotSupported)
		return
	}
	channels := make([]*Channel, n)
	for i := range channels {
		owner := c.file.clients[le.Uint32(c.params[24+4*i:])]
		if owner == nil {
			c.reply(nvInvalidClient)
			return
		}
		o := owner.objects[le.Uint32(c.params[280+4*i:])]
		if o == nil || !o.isChannel() || o.device != c.object.device {
			c.reply(nvInvalidObjectHandle)
			return
		}
		channels[i] = o.channel
	}
	if disable {
		c.file.account.Disables++
	} else {
		c.file.account.Enables++
	}
	c.gpu.Disable(channels, disable, only, c.at)
}
