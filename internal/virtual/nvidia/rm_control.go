// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"
	"time"

	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// Commands that XSched does not use, from ctrla06c.h and ctrl2080bus.h.
const (
	ctrlGroupPreempt       = 0xA06C0105
	ctrlGroupSetInterleave = 0xA06C0107
	ctrlBusGetPCIInfo      = 0x20801801

	maxSliceUS = 1 << 40

	// branch is the driver's whose layouts and behaviour this one has.
	branch = 580
)

// controlCall is a control command in progress.
type controlCall struct {
	file   *rmFile
	gpu    *gpumodel.GPU
	object *object
	params []byte
	reply  func(status uint32)
}

// at replies when the device has completed the command.
func (c *controlCall) at(model.Time) { c.reply(abi.NV_OK) }

// controls maps a command to its kind of object, parameter size and implementation.
var controls = map[uint32]struct {
	fits  func(*object) bool
	bytes int
	do    func(*controlCall)
}{
	abi.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE:              {isGroup, 3, doSchedule},
	abi.NVA06C_CTRL_CMD_SET_TIMESLICE:                {isGroup, abi.Size[abi.Timeslice](), doSetTimeslice},
	abi.NVA06C_CTRL_CMD_GET_TIMESLICE:                {isGroup, abi.Size[abi.Timeslice](), doGetTimeslice},
	ctrlGroupPreempt:                                 {isGroup, 8, doPreempt},
	abi.NVA06C_CTRL_CMD_GET_INFO:                     {isGroup, abi.Size[abi.GroupInfo](), doGetToken},
	ctrlGroupSetInterleave:                           {isGroup, 4, doSetInterleave},
	abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS:        {isSubdevice, abi.Size[abi.DisableChannels](), doFifoDisable},
	abi.NV2080_CTRL_CMD_GPU_GET_ID:                   {isSubdevice, abi.Size[abi.GPUID](), doGetID},
	abi.NV2080_CTRL_CMD_FB_GET_INFO_V2:               {isSubdevice, abi.FBInfoBytes(branch), doGetMemory},
	ctrlBusGetPCIInfo:                                {isSubdevice, 16, doGetPCIInfo},
	abi.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN: {(*object).isChannel, abi.Size[abi.WorkSubmitToken](), doGetToken},
}

func isGroup(o *object) bool     { return o.group != nil }
func isSubdevice(o *object) bool { return o.class == abi.NV20_SUBDEVICE_0 }

// control executes an RM_CONTROL.
func (f *rmFile) control(a abi.NVOS54, params []byte, reply func(status uint32)) {
	c := f.clients[a.HClient]
	if c == nil {
		reply(abi.NV_ERR_INVALID_CLIENT)
		return
	}
	o := c.objects[a.HObject]
	if o == nil {
		reply(abi.NV_ERR_INVALID_OBJECT_HANDLE)
		return
	}
	control, known := controls[a.Cmd]
	switch {
	case !known, !control.fits(o):
		reply(abi.NV_ERR_INVALID_COMMAND)
	case len(params) != control.bytes:
		reply(abi.NV_ERR_INVALID_PARAM_STRUCT)
	default:
		control.do(&controlCall{f, f.rm.gpus[o.device], o, params, reply})
	}
}

func doSchedule(c *controlCall) {
	if c.params[0] != 0 {
		c.gpu.Schedule(c.object.group)
	}
	c.reply(abi.NV_OK)
}

func doSetTimeslice(c *controlCall) {
	value := binary.LittleEndian.Uint64(c.params)
	if value == 0 || value > maxSliceUS {
		c.reply(abi.NV_ERR_INVALID_ARGUMENT)
		return
	}
	c.gpu.SetSlice(c.object.group, time.Duration(value)*time.Microsecond, c.at)
}

func doGetTimeslice(c *controlCall) {
	binary.LittleEndian.PutUint64(c.params, uint64(c.gpu.Slice(c.object.group)/time.Microsecond))
	c.reply(abi.NV_OK)
}

func doPreempt(c *controlCall) {
	c.gpu.Preempt(c.object.group)
	c.reply(abi.NV_OK)
}

func doGetToken(c *controlCall) {
	binary.LittleEndian.PutUint32(c.params, c.object.token)
	c.reply(abi.NV_OK)
}

// doSetInterleave accepts the command from root without effect, as measured on hardware.
func doSetInterleave(c *controlCall) {
	switch {
	case c.file.uid != 0:
		c.reply(abi.NV_ERR_INSUFFICIENT_PERMISSIONS)
	case binary.LittleEndian.Uint32(c.params) > 2:
		c.reply(abi.NV_ERR_INVALID_ARGUMENT)
	default:
		c.reply(abi.NV_OK)
	}
}

func doGetID(c *controlCall) {
	binary.LittleEndian.PutUint32(c.params, uint32(c.object.device+1)<<8)
	c.reply(abi.NV_OK)
}

func doGetMemory(c *controlCall) {
	ask, _ := abi.Decode[abi.GetFBInfo](c.params[:abi.Size[abi.GetFBInfo]()]) // the size was checked
	if ask.FbInfoListSize != 1 || ask.FbInfoList.Index != abi.NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE {
		c.reply(abi.NV_ERR_INVALID_ARGUMENT)
		return
	}
	ask.FbInfoList.Data = uint32(c.file.rm.capacity >> 10)
	copy(c.params, abi.Bytes(&ask))
	c.reply(abi.NV_OK)
}

func doGetPCIInfo(c *controlCall) {
	le := binary.LittleEndian
	le.PutUint32(c.params, 0x233510DE)
	le.PutUint32(c.params[4:], 0x18BE10DE)
	le.PutUint32(c.params[8:], 0xA1)
	le.PutUint32(c.params[12:], 0x2335)
	c.reply(abi.NV_OK)
}

// doFifoDisable validates every pair before it changes any channel. As on an H200, the list may name
// clients of other files: the kernel passes it to the firmware, which knows no files.
func doFifoDisable(c *controlCall) {
	p, _ := abi.Decode[abi.DisableChannels](c.params) // the size was checked
	if p.NumChannels == 0 || p.NumChannels > abi.NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES || p.PRunlistPreemptEvent != 0 {
		c.reply(abi.NV_ERR_INVALID_ARGUMENT)
		return
	}
	if p.BRewindGpPut != 0 {
		c.reply(abi.NV_ERR_NOT_SUPPORTED)
		return
	}
	channels := make([]*gpumodel.Channel, p.NumChannels)
	owners := map[*gpumodel.Account]bool{}
	for i := range channels {
		owner := c.file.rm.clients[p.HClientList[i]]
		if owner == nil || c.file.rm.faults.OwnClients && c.file.clients[owner.handle] == nil {
			c.reply(abi.NV_ERR_INVALID_CLIENT)
			return
		}
		o := owner.objects[p.HChannelList[i]]
		if o == nil || !o.isChannel() || o.device != c.object.device {
			c.reply(abi.NV_ERR_INVALID_OBJECT_HANDLE)
			return
		}
		channels[i] = o.channel
		owners[owner.account] = true
	}
	disable := p.BDisable != 0
	for account := range owners {
		if disable {
			account.Disables++
		} else {
			account.Enables++
		}
	}
	c.gpu.Disable(channels, disable, p.BOnlyDisableScheduling != 0, c.at)
}
