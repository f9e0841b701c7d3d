// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"

	"xsched/internal/driver/nvidia/abi"
)

// alloc creates an object. It returns the handle, which stays hNew on failure, and the status.
func (f *rmFile) alloc(hRoot, hParent, hNew, class uint32, params []byte) (uint32, uint32) {
	if class == abi.NV01_ROOT || class == abi.NV01_ROOT_CLIENT {
		return f.allocClient(hNew)
	}
	c := f.clients[hRoot]
	if c == nil {
		return hNew, abi.NV_ERR_INVALID_CLIENT
	}
	parent := c.objects[hParent]
	if parent == nil {
		return hNew, abi.NV_ERR_INVALID_OBJECT_PARENT
	}
	if hNew != 0 && c.objects[hNew] != nil {
		return hNew, abi.NV_ERR_INSERT_DUPLICATE_NAME
	}
	if f.objects >= maxObjects {
		return hNew, abi.NV_ERR_INSUFFICIENT_RESOURCES
	}
	o := &object{handle: hNew, class: class, parent: parent, device: parent.device}
	if status := f.construct(c, o, params); status != abi.NV_OK {
		return hNew, status
	}
	if o.handle == 0 {
		for c.objects[c.next] != nil {
			c.next++
		}
		o.handle = c.next
	}
	c.objects[o.handle] = o
	parent.children = append(parent.children, o)
	f.objects++
	f.rm.objects++
	return o.handle, abi.NV_OK
}

func (f *rmFile) allocClient(hNew uint32) (uint32, uint32) {
	rm := f.rm
	if len(f.clients) >= maxClients {
		return hNew, abi.NV_ERR_INSUFFICIENT_RESOURCES
	}
	handle := hNew
	if handle == 0 {
		for rm.clients[rm.nextClient] != nil {
			rm.nextClient++
		}
		handle = rm.nextClient
		rm.nextClient++
	}
	if rm.clients[handle] != nil {
		return hNew, abi.NV_ERR_INSERT_DUPLICATE_NAME
	}
	c := &client{account: f.account, object: object{handle: handle, class: abi.NV01_ROOT_CLIENT, device: -1}, objects: map[uint32]*object{}, next: firstObject}
	c.objects[handle] = &c.object
	rm.clients[handle] = c
	f.clients[handle] = c
	rm.objects++
	return handle, abi.NV_OK
}

// construct initializes a new object by its class.
func (f *rmFile) construct(c *client, o *object, params []byte) uint32 {
	rm := f.rm
	switch {
	case o.class == abi.NV01_DEVICE_0:
		if o.parent != &c.object {
			return abi.NV_ERR_INVALID_OBJECT_PARENT
		}
		if len(params) != 0 && len(params) != bytesDeviceAlloc {
			return abi.NV_ERR_INVALID_PARAM_STRUCT
		}
		o.device = 0
		if len(params) > 0 {
			id := binary.LittleEndian.Uint32(params)
			if id >= uint32(len(rm.gpus)) {
				return abi.NV_ERR_INVALID_DEVICE
			}
			o.device = int(id)
		}
	case o.class == abi.NV20_SUBDEVICE_0:
		if o.parent.class != abi.NV01_DEVICE_0 {
			return abi.NV_ERR_INVALID_OBJECT_PARENT
		}
		if len(params) != 0 && len(params) != bytesSubdeviceAlloc {
			return abi.NV_ERR_INVALID_PARAM_STRUCT
		}
		if len(params) > 0 && binary.LittleEndian.Uint32(params) != 0 {
			return abi.NV_ERR_INVALID_ARGUMENT
		}
	case o.class == abi.KEPLER_CHANNEL_GROUP_A:
		if o.parent.class != abi.NV01_DEVICE_0 {
			return abi.NV_ERR_INVALID_OBJECT_PARENT
		}
		if len(params) != 0 && len(params) != bytesGroupAlloc {
			return abi.NV_ERR_INVALID_PARAM_STRUCT
		}
		copyGroup := false
		if len(params) > 0 {
			engine := binary.LittleEndian.Uint32(params[12:])
			copyGroup = engine >= engineTypeCopy0 && engine <= engineTypeCopyLast
		}
		rm.tokens++
		o.token = rm.tokens
		o.group = rm.gpus[o.device].AddGroup(f.account, copyGroup)
	case o.class&0xff == abi.ClassEndChannel && o.class > 0xff:
		if o.parent.group == nil {
			return abi.NV_ERR_INVALID_OBJECT_PARENT
		}
		if len(o.parent.group.Channels()) >= 64 {
			return abi.NV_ERR_INSUFFICIENT_RESOURCES
		}
		if o.parent.area != nil { // the new channel would have no submission memory
			return abi.NV_ERR_INVALID_STATE
		}
		rm.tokens++
		o.token = rm.tokens
		o.channel = rm.gpus[o.device].AddChannel(o.parent.group, discard{})
	case o.class&0xff == abi.ClassEndCompute && o.class > 0xff, o.class&0xff == abi.ClassEndCopy && o.class > 0xff:
		if !o.parent.isChannel() {
			return abi.NV_ERR_INVALID_OBJECT_PARENT
		}
		if o.class&0xff == abi.ClassEndCompute && o.parent.channel.Group().Copies() {
			return abi.NV_ERR_INVALID_CLASS
		}
	default:
		return abi.NV_ERR_INVALID_CLASS
	}
	return abi.NV_OK
}

// free removes an object and its descendants.
func (f *rmFile) free(hRoot, hObject uint32) uint32 {
	c := f.clients[hRoot]
	if c == nil {
		return abi.NV_ERR_INVALID_CLIENT
	}
	if hObject == hRoot {
		f.freeClient(c)
		return abi.NV_OK
	}
	o := c.objects[hObject]
	if o == nil {
		return abi.NV_ERR_INVALID_OBJECT_HANDLE
	}
	siblings := o.parent.children
	for i, other := range siblings {
		if other == o {
			o.parent.children = append(siblings[:i], siblings[i+1:]...)
			break
		}
	}
	f.destroy(c, o)
	return abi.NV_OK
}

func (f *rmFile) freeClient(c *client) {
	for _, o := range c.children {
		f.destroy(c, o)
	}
	delete(f.rm.clients, c.handle)
	delete(f.clients, c.handle)
	f.rm.objects--
}

// destroy destroys an object after its children.
func (f *rmFile) destroy(c *client, o *object) {
	for _, child := range o.children {
		f.destroy(c, child)
	}
	o.children = nil
	switch {
	case o.channel != nil:
		f.rm.gpus[o.device].RemoveChannel(o.channel)
	case o.group != nil:
		f.rm.gpus[o.device].RemoveGroup(o.group)
	}
	if o.memory > 0 {
		f.rm.used[o.device] -= o.memory
		o.memory = 0
	}
	if o.area != nil {
		o.area.close()
		o.area = nil
		f.rm.areas--
	}
	delete(c.objects, o.handle)
	f.objects--
	f.rm.objects--
}
