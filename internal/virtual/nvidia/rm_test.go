// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

// kernel is a driver without a process: requests are function calls, time is simulated.
type kernel struct {
	t   *testing.T
	rm  *resourceManager
	gpu []*gpumodel.GPU
}

func newKernel(t *testing.T) *kernel {
	k := &kernel{t: t}
	for range 2 {
		k.gpu = append(k.gpu, gpumodel.NewGPU(0, gpumodel.DefaultCosts(), nil, nil))
	}
	k.rm = newResourceManager(k.gpu, &gpumodel.Faults{NeverAnswer: map[int]bool{}})
	k.rm.newArea = func(*rmFile, *object, []*gpumodel.Group) (*area, error) {
		return &area{doorbell: -1, send: [2]int{-1, -1}}, nil
	}
	return k
}

func (k *kernel) open() *rmFile { return k.rm.open(&gpumodel.Account{PID: 1}, 1000) }

// ioctl performs a request to its end and returns errno.
func (k *kernel) ioctl(f *rmFile, request uint32, arg, params []byte) int {
	k.t.Helper()
	errno, answered := 0, 0
	f.ioctl(vdevice.Packet{Request: request, Arg: arg, Params: params}, func(e int, _ ...int) { errno, answered = e, answered+1 })
	for _, g := range k.gpu {
		g.Advance(g.Now().Add(10 * time.Millisecond))
	}
	if answered != 1 {
		k.t.Fatalf("request %#x answered %d times", request, answered)
	}
	return errno
}

func words(values ...uint32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// alloc uses the short form for odd handles, so that both are exercised.
func (k *kernel) alloc(f *rmFile, root, parent, object, class uint32, params []byte) (handle, status uint32) {
	k.t.Helper()
	le := binary.LittleEndian
	request, size, at := reqAlloc48, 48, 40
	arg := append(words(root, parent, object, class), make([]byte, 32)...)
	if object%2 == 1 {
		request, size, at = reqAlloc32, 32, 28
		le.PutUint32(arg[24:], uint32(len(params)))
	} else {
		le.PutUint32(arg[32:], uint32(len(params)))
	}
	if errno := k.ioctl(f, request, arg[:size], params); errno != 0 {
		k.t.Fatalf("alloc: errno %d", errno)
	}
	return le.Uint32(arg[8:]), le.Uint32(arg[at:])
}

func (k *kernel) must(handle, status uint32) uint32 {
	k.t.Helper()
	if status != abi.NV_OK {
		k.t.Fatalf("status %#x", status)
	}
	return handle
}

func (k *kernel) control(f *rmFile, client, object, command uint32, params []byte) uint32 {
	k.t.Helper()
	arg := append(words(client, object, command, 0), make([]byte, 16)...)
	binary.LittleEndian.PutUint32(arg[24:], uint32(len(params)))
	if errno := k.ioctl(f, reqControl, arg, params); errno != 0 {
		k.t.Fatalf("control %#x: errno %d", command, errno)
	}
	return binary.LittleEndian.Uint32(arg[28:])
}

func (k *kernel) free(f *rmFile, root, object uint32) uint32 {
	k.t.Helper()
	arg := words(root, 0, object, 0)
	if errno := k.ioctl(f, reqFree, arg, nil); errno != 0 {
		k.t.Fatalf("free: errno %d", errno)
	}
	return binary.LittleEndian.Uint32(arg[12:])
}

// tree is a small context.
type tree struct{ client, device, subdevice, group, channel uint32 }

func (k *kernel) tree(f *rmFile, device uint32) tree {
	k.t.Helper()
	var o tree
	o.client = k.must(k.alloc(f, 0, 0, 0, abi.NV01_ROOT_CLIENT, nil))
	o.device = k.must(k.alloc(f, o.client, o.client, 0x5c000002, abi.NV01_DEVICE_0, append(words(device), make([]byte, 52)...)))
	o.subdevice = k.must(k.alloc(f, o.client, o.device, 0x5c000003, abi.NV20_SUBDEVICE_0, words(0)))
	o.group = k.must(k.alloc(f, o.client, o.device, 0x5c000004, abi.KEPLER_CHANNEL_GROUP_A, make([]byte, bytesGroupAlloc)))
	o.channel = k.must(k.alloc(f, o.client, o.group, 0x5c000005, 0xC86F, nil))
	k.must(k.alloc(f, o.client, o.channel, 0x5c000006, 0xCBC0, nil))
	return o
}

func disable(on byte, client uint32, channels ...uint32) []byte {
	p := make([]byte, 536)
	p[0] = on
	binary.LittleEndian.PutUint32(p[4:], uint32(len(channels)))
	for i, c := range channels {
		binary.LittleEndian.PutUint32(p[24+4*i:], client)
		binary.LittleEndian.PutUint32(p[280+4*i:], c)
	}
	return p
}

func TestControls(t *testing.T) {
	k := newKernel(t)
	f := k.open()
	o := k.tree(f, 1)
	slice := func() uint64 {
		p := make([]byte, 8)
		if s := k.control(f, o.client, o.group, abi.NVA06C_CTRL_CMD_GET_TIMESLICE, p); s != abi.NV_OK {
			t.Fatalf("status %#x", s)
		}
		return binary.LittleEndian.Uint64(p)
	}
	if got := slice(); got != 2048 {
		t.Errorf("timeslice %d", got)
	}
	for _, us := range []uint64{1, 777, 1000000} {
		if s := k.control(f, o.client, o.group, abi.NVA06C_CTRL_CMD_SET_TIMESLICE, binary.LittleEndian.AppendUint64(nil, us)); s != abi.NV_OK || slice() != us {
			t.Errorf("set %d: status %#x, got %d", us, s, slice())
		}
	}
	id := make([]byte, 4)
	if s := k.control(f, o.client, o.subdevice, abi.NV2080_CTRL_CMD_GPU_GET_ID, id); s != abi.NV_OK || binary.LittleEndian.Uint32(id) != 0x200 {
		t.Errorf("gpu id %#x of the second device", id)
	}
	table := []struct {
		name           string
		client, object uint32
		command        uint32
		params         []byte
		want           uint32
	}{
		{"schedule", o.client, o.group, abi.NVA06C_CTRL_CMD_GPFIFO_SCHEDULE, []byte{1, 0, 0}, abi.NV_OK},
		{"group probe", o.client, o.group, abi.NVA06C_CTRL_CMD_GET_INFO, make([]byte, 4), abi.NV_OK},
		{"group probe of a channel", o.client, o.channel, abi.NVA06C_CTRL_CMD_GET_INFO, make([]byte, 4), abi.NV_ERR_INVALID_COMMAND},
		{"channel probe", o.client, o.channel, abi.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, make([]byte, 4), abi.NV_OK},
		{"channel probe of a group", o.client, o.group, abi.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, make([]byte, 4), abi.NV_ERR_INVALID_COMMAND},
		{"pci probe", o.client, o.subdevice, ctrlBusGetPCIInfo, make([]byte, 16), abi.NV_OK},
		{"preempt", o.client, o.group, ctrlGroupPreempt, make([]byte, 8), abi.NV_OK},
		{"interleave by a user", o.client, o.group, ctrlGroupSetInterleave, words(1), abi.NV_ERR_INSUFFICIENT_PERMISSIONS},
		{"no such client", o.client + 1, o.group, abi.NVA06C_CTRL_CMD_GET_INFO, make([]byte, 4), abi.NV_ERR_INVALID_CLIENT},
		{"no such object", o.client, 0x5c0000ff, abi.NVA06C_CTRL_CMD_GET_INFO, make([]byte, 4), abi.NV_ERR_INVALID_OBJECT_HANDLE},
		{"no such command", o.client, o.group, 0xA06C01FF, nil, abi.NV_ERR_INVALID_COMMAND},
		{"timeslice 0", o.client, o.group, abi.NVA06C_CTRL_CMD_SET_TIMESLICE, make([]byte, 8), abi.NV_ERR_INVALID_ARGUMENT},
		{"timeslice of 4 bytes", o.client, o.group, abi.NVA06C_CTRL_CMD_SET_TIMESLICE, make([]byte, 4), abi.NV_ERR_INVALID_PARAM_STRUCT},
		{"disable", o.client, o.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, disable(1, o.client, o.channel), abi.NV_OK},
		{"enable", o.client, o.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, disable(0, o.client, o.channel), abi.NV_OK},
		{"disable nothing", o.client, o.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, disable(1, o.client), abi.NV_ERR_INVALID_ARGUMENT},
		{"disable short", o.client, o.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, make([]byte, 535), abi.NV_ERR_INVALID_PARAM_STRUCT},
		{"disable a foreign client's", o.client, o.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, disable(1, o.client+7, o.channel), abi.NV_ERR_INVALID_CLIENT},
		{"disable a group", o.client, o.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, disable(1, o.client, o.group), abi.NV_ERR_INVALID_OBJECT_HANDLE},
	}
	for _, row := range table {
		if got := k.control(f, row.client, row.object, row.command, row.params); got != row.want {
			t.Errorf("%s: status %#x, want %#x", row.name, got, row.want)
		}
	}
	// One bad pair: nothing changes.
	if s := k.control(f, o.client, o.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, disable(1, o.client, o.channel, 0x5c0000ff)); s != abi.NV_ERR_INVALID_OBJECT_HANDLE {
		t.Errorf("status %#x", s)
	}
	if c := f.clients[o.client].objects[o.channel].channel; !c.Enabled() {
		t.Error("a refused call stopped a channel")
	}
	many := disable(1, o.client, o.channel)
	binary.LittleEndian.PutUint32(many[4:], 65)
	if s := k.control(f, o.client, o.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, many); s != abi.NV_ERR_INVALID_ARGUMENT {
		t.Errorf("65 channels: status %#x", s)
	}
}

// One FIFO_DISABLE_CHANNELS may name clients of several files, as on an H200, unless a fault forbids it.
func TestDisableAcrossFiles(t *testing.T) {
	k := newKernel(t)
	a, b := k.rm.open(&gpumodel.Account{PID: 1}, 1000), k.rm.open(&gpumodel.Account{PID: 2}, 1000)
	x, y, far := k.tree(a, 0), k.tree(b, 0), k.tree(b, 1)
	both := disable(1, x.client, x.channel, y.channel)
	binary.LittleEndian.PutUint32(both[28:], y.client)
	enabled := func(f *rmFile, o tree) bool { return f.clients[o.client].objects[o.channel].channel.Enabled() }
	ask := func(params []byte) uint32 {
		return k.control(a, x.client, x.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params)
	}
	if s := ask(both); s != abi.NV_OK || enabled(a, x) || enabled(b, y) {
		t.Errorf("status %#x", s)
	}
	if a.account.Disables != 1 || b.account.Disables != 1 {
		t.Errorf("%d and %d disables", a.account.Disables, b.account.Disables)
	}
	if s := ask(disable(1, far.client, far.channel)); s != abi.NV_ERR_INVALID_OBJECT_HANDLE || !enabled(b, far) {
		t.Errorf("another GPU's channel: status %#x", s)
	}
	k.rm.faults.OwnClients = true
	both[0] = 0
	if s := ask(both); s != abi.NV_ERR_INVALID_CLIENT || enabled(a, x) || enabled(b, y) {
		t.Errorf("another file's channel: status %#x", s)
	}
}

func TestObjects(t *testing.T) {
	k := newKernel(t)
	f, other := k.open(), k.open()
	o := k.tree(f, 0)
	if o.client != firstClient {
		t.Errorf("first client %#x", o.client)
	}
	second := k.must(k.alloc(other, 0, 0, 0, abi.NV01_ROOT, nil))
	if second != firstClient+1 {
		t.Errorf("second client %#x", second)
	}
	status := func(f *rmFile, root, parent, object, class uint32, params []byte) uint32 {
		_, s := k.alloc(f, root, parent, object, class, params)
		return s
	}
	for _, row := range []struct {
		name string
		got  uint32
		want uint32
	}{
		{"client of another file", status(other, o.client, o.client, 0, abi.NV01_DEVICE_0, nil), abi.NV_ERR_INVALID_CLIENT},
		{"third device", status(f, o.client, o.client, 0, abi.NV01_DEVICE_0, append(words(2), make([]byte, 52)...)), abi.NV_ERR_INVALID_DEVICE},
		{"device of 8 bytes", status(f, o.client, o.client, 0, abi.NV01_DEVICE_0, make([]byte, 8)), abi.NV_ERR_INVALID_PARAM_STRUCT},
		{"handle in use", status(f, o.client, o.client, o.group, abi.NV01_DEVICE_0, nil), abi.NV_ERR_INSERT_DUPLICATE_NAME},
		{"subdevice of a group", status(f, o.client, o.group, 0, abi.NV20_SUBDEVICE_0, nil), abi.NV_ERR_INVALID_OBJECT_PARENT},
		{"channel of a device", status(f, o.client, o.device, 0, 0xC86F, nil), abi.NV_ERR_INVALID_OBJECT_PARENT},
		{"no such parent", status(f, o.client, 0x99, 0, abi.KEPLER_CHANNEL_GROUP_A, nil), abi.NV_ERR_INVALID_OBJECT_PARENT},
		{"no such class", status(f, o.client, o.device, 0, 0x1234, nil), abi.NV_ERR_INVALID_CLASS},
		{"free unknown", k.free(f, o.client, 0x99), abi.NV_ERR_INVALID_OBJECT_HANDLE},
		{"free in another file", k.free(other, o.client, o.group), abi.NV_ERR_INVALID_CLIENT},
		{"free a group", k.free(f, o.client, o.group), abi.NV_OK},
		{"its channel is gone", k.control(f, o.client, o.channel, abi.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, make([]byte, 4)), abi.NV_ERR_INVALID_OBJECT_HANDLE},
		{"free the client", k.free(f, o.client, o.client), abi.NV_OK},
		{"it is gone", k.free(f, o.client, o.client), abi.NV_ERR_INVALID_CLIENT},
	} {
		if row.got != row.want {
			t.Errorf("%s: status %#x, want %#x", row.name, row.got, row.want)
		}
	}
	k.tree(f, 0)
	f.close()
	other.close()
	if k.rm.objects != 0 || k.gpu[0].Groups() != 0 {
		t.Errorf("%d objects and %d groups left", k.rm.objects, k.gpu[0].Groups())
	}
	if errno := k.ioctl(f, abi.Request(0x77, 16), make([]byte, 16), nil); errno != int(unix.ENOTTY) {
		t.Errorf("unknown request: errno %d", errno)
	}
	if errno := k.ioctl(f, reqControl, make([]byte, 16), nil); errno != int(unix.EINVAL) {
		t.Errorf("short argument: errno %d", errno)
	}
}

// FuzzPacket feeds packets to the decoder and the driver: nothing a client sends may crash it.
func FuzzPacket(f *testing.F) {
	head := func(request uint32, arg, params []byte) []byte {
		return append(append(words(format.Magic, request, uint32(len(arg)), uint32(len(params))), arg...), params...)
	}
	alloc := append(words(0, 0, 0, abi.NV01_ROOT_CLIENT), make([]byte, 32)...)
	f.Add(head(reqAlloc48, alloc, nil))
	f.Add(head(reqControl, append(words(firstClient, 0x5c000003, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, 0, 0, 0, 536), 0, 0, 0, 0), disable(1, firstClient, 0x5c000005)))
	f.Add(head(reqFree, words(firstClient, 0, firstClient, 0), nil))
	f.Add([]byte("VGIO"))
	f.Fuzz(func(t *testing.T, data []byte) {
		k := newKernel(t)
		file := k.open()
		o := k.tree(file, 0)
		_ = o
		p, err := format.Decode(data)
		if err != nil {
			return
		}
		file.ioctl(p, func(errno int, _ ...int) {
			if got := len(vdevice.EncodeReply(errno, p.Arg, p.Params)); got != vdevice.ReplyHeader+len(p.Arg)+len(p.Params) {
				t.Fatalf("reply of %d bytes", got)
			}
		})
		for _, g := range k.gpu {
			g.Advance(g.Now().Add(time.Second))
		}
		file.close()
		if k.rm.objects != 0 {
			t.Fatalf("%d objects left", k.rm.objects)
		}
	})
}

// FuzzRing feeds ring contents to a context's memory.
func FuzzRing(f *testing.F) {
	f.Add(uint64(1), make([]byte, entryBytes))
	f.Add(uint64(ringEntries+1), []byte{1, 0, 0, 0})
	entry := make([]byte, entryBytes)
	entry[0] = byte(gpumodel.WorkCopy)
	for i := 16; i < 40; i++ {
		entry[i] = 0xff
	}
	f.Add(uint64(2), append(entry, entry...))
	f.Fuzz(func(t *testing.T, put uint64, data []byte) {
		g := gpumodel.NewGPU(0, gpumodel.DefaultCosts(), nil, nil)
		a := &area{gpu: g, account: &gpumodel.Account{}, doorbell: -1, send: [2]int{-1, -1}, changed: func(*area) {}}
		a.vram = make([]byte, 1<<16)
		a.control = make([]byte, headerBytes+channelBytes)
		group := g.AddGroup(a.account, false)
		ch := &areaChannel{area: a, base: headerBytes}
		ch.channel = g.AddChannel(group, ch)
		a.channels = []*areaChannel{ch}
		g.Schedule(group)
		copy(a.control[headerBytes+headerBytes:], data)
		store64(a.control, headerBytes+offsetPut, put)
		for _, s := range a.collect(model.Time(time.Second), nil) {
			g.Advance(s.at)
			g.Submit(s.ch.channel, s.work)
		}
		g.Advance(model.Time(3 * time.Hour))
		a.flush()
	})
}

// Constants of vgpu.h equal those of this package.
func TestLayout(t *testing.T) {
	header, err := os.ReadFile(filepath.Join(sourceDir, "vgpu.h"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{
		"VG_IOCTL_MAGIC": uint64(format.Magic), "VG_MAX_ARG": uint64(format.MaxArg), "VG_MAX_PARAMS": uint64(format.MaxParams), "VG_ESC_MAP": escVGMap, "VG_ESC_MEMORY": escVGMemory,
		"VG_AREA_MAGIC": areaMagic, "VG_RING": ringEntries, "VG_HEADER_BYTES": headerBytes, "VG_CHANNEL_BYTES": channelBytes,
		"VG_ENTRY_BYTES": entryBytes, "VG_BLOCK_NS": blockNS, "VG_NO_ADDRESS": noAddress,
	}
	for name, value := range want {
		m := regexp.MustCompile(`#define ` + name + ` (\w+)`).FindSubmatch(header)
		if m == nil {
			t.Errorf("%s is not in vgpu.h", name)
			continue
		}
		got, err := strconv.ParseUint(strings.TrimRight(string(m[1]), "ul"), 0, 64)
		if err != nil || got != value {
			t.Errorf("%s is %s in vgpu.h, %d here", name, m[1], value)
		}
	}
	if time.Duration(blockNS) != gpumodel.DefaultCosts().Block {
		t.Error("block times differ")
	}
}
