// SPDX-License-Identifier: Apache-2.0

package vnvidia

import "encoding/binary"

// alloc creates an object and returns its handle.
func (f *rmFile) alloc(hRoot, hParent, hNew, class uint32, params []byte) (uint32, uint32) {
	if class == classRoot || class == classRootClient {
		return f.allocClient(hNew)
	}
	c := f.clients[hRoot]
	if c == nil {
		return 0, nvInvalidClient
	}
	parent := c.objects[hParent]
	if parent == nil {
		return 0, nvInvalidObjectParent
	}
	if hNew != 0 && c.objects[hNew] != nil {
		return 0, nvInsertDuplicateName
	}
	if f.objects >= maxObjects {
		return 0, nvInsufficientResources
	}
	o := &object{handle: hNew, class: class, parent: parent, device: parent.device}
	if status := f.construct(c, o, params); status != nvOK {
		return 0, status
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
	return o.handle, nvOK
}

func (f *rmFile) allocClient(hNew uint32) (uint32, uint32) {
	rm := f.rm
	if len(f.clients) >= maxClients {
		return 0, nvInsufficientResources
	}
	handle := hNew
	if handle == 0 {
		for rm.taken[rm.nextClient] {
			rm.nextClient++
		}
		handle = rm.nextClient
		rm.nextClient++
	}
	if rm.taken[handle] {
		return 0, nvInsertDuplicateName
	}
	c := &client{object: object{handle: handle, class: classRootClient, device: -1}, objects: map[uint32]*object{}, next: firstObject}
	c.objects[handle] = &c.object
	rm.taken[handle] = true
	f.clients[handle] = c
	rm.objects++
	return handle, nvOK
}

// construct fills a new object according to its class.
func (f *rmFile) construct(c *client, o *object, params []byte) uint32 {
	rm := f.rm
	switch {
	case o.class == classDevice:
		if o.parent != &c.object {
			return nvInvalidObjectParent
		}
		if len(params) != 0 && len(params) != bytesDeviceAlloc {
			return nvInvalidParamStruct
		}
		o.device = 0
		if len(params) > 0 {
			id := binary.LittleEndian.Uint32(params)
			if id >= uint32(len(rm.gpus)) {
				return nvInvalidDevice
			}
			o.device = int(id)
		}
	case o.class == classSubdevice:
		if o.parent.class != classDevice {
			return nvInvalidObjectParent
		}
		if len(params) != 0 && len(params) != bytesSubdeviceAlloc {
			return nvInvalidParamStruct
		}
		if len(params) > 0 && binary.LittleEndian.Uint32(params) != 0 {
			return nvInvalidArgument
		}
	case o.class == classGroup:
		if o.parent.class != classDevice {
			return nvInvalidObjectParent
		}
		if len(params) != 0 && len(params) != bytesGroupAlloc {
			return nvInvalidParamStruct
		}
		copyGroup := false
		if len(params) > 0 {
			engine := binary.LittleEndian.Uint32(params[12:])
			copyGroup = engine >= engineTypeCopy0 && engine <= engineTypeCopyLast
		}
		rm.tokens++
		o.token = rm.tokens
		o.group = rm.gpus[o.device].AddGroup(f.account, copyGroup)
	case o.class&0xff == suffixChannel && o.class > 0xff:
		if o.parent.group == nil {
			return nvInvalidObjectParent
		}
		if len(o.parent.group.Channels()) >= 64 {
			return nvInsufficientResources
		}
		if o.parent.area != nil { // a channel without submission memory would be one more state
			return nvInvalidState
		}
		rm.tokens++
		o.token = rm.tokens
		o.channel = rm.gpus[o.device].AddChannel(o.parent.group, discard{})
	case o.class&0xff == suffixCompute && o.class > 0xff, o.class&0xff == suffixCopy && o.class > 0xff:
		if !o.parent.isChannel() {
			return nvInvalidObjectParent
		}
		if o.class&0xff == suffixCompute && o.parent.channel.Group().Copies() {
			return nvInvalidClass
		}
	default:
		return nvInvalidClass
	}
	return nvOK
}

// free removes an object and all that hangs on it.
func (f *rmFile) free(hRoot, hObject uint32) uint32 {
	c := f.clients[hRoot]
	if c == nil {
		return nvInvalidClient
	}
	if hObject == hRoot {
		f.freeClient(c)
		return nvOK
	}
	o := c.objects[hObject]
	if o == nil {
		return nvInvalidObjectHandle
	}
	siblings := o.parent.children
	for i, other := range siblings {
		if other == o {
			o.parent.children = append(siblings[:i], siblings[i+1:]...)
			break
		}
	}
	f.destroy(c, o)
	return nvOK
}

func (f *rmFile) freeClient(c *client) {
	for _, o := range c.children {
		f.destroy(c, o)
	}
	delete(f.rm.taken, c.handle)
	delete(f.clients, c.handle)
	f.rm.objects--
}

// destroy ends an object, its children first.
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
	if o.area != nil {
		o.area.close()
		o.area = nil
		f.rm.areas--
	}
	delete(c.objects, o.handle)
	f.objects--
	f.rm.objects--
}
