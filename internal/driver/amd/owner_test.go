// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/model"
)

// twoNodes is a machine with one plain GPU, and one in two partitions that share an address.
var twoNodes = fstest.MapFS{
	"topology/nodes/0/gpu_id":     file("0\n"),
	"topology/nodes/0/properties": file("cpu_cores_count 2\n"),
	"topology/nodes/1/gpu_id":     file("100\n"),
	"topology/nodes/1/properties": file("location_id 256\ndomain 0\n"),
	"topology/nodes/2/gpu_id":     file("200\n"),
	"topology/nodes/2/properties": file("location_id 512\ndomain 1\n"),
	"topology/nodes/3/gpu_id":     file("201\n"),
	"topology/nodes/3/properties": file("location_id 512\ndomain 1\n"),
}

func resolve(o *Owner) map[model.DeviceID]driver.Capability {
	caps, _ := o.Resolve(context.Background())
	return caps
}

func why(o *Owner) string {
	reason, _ := o.Why()
	return reason
}

func known(o *Owner) bool {
	_, known := o.Why()
	return known
}

func announce(o *Owner, id, gpu, kind uint32) {
	o.Queue(KFDEvent{Kind: KFDQueue, ID: id, GPUID: gpu, Type: kind, Ring: uint64(id) << 12, RingBytes: 4096, Priority: 7})
}

func TestOwnerPlaces(t *testing.T) {
	o := NewOwner(twoNodes, &driver.Metrics{})
	if known(o) || len(resolve(o)) != 0 || why(o) == "" {
		t.Error("queues known before any announcement")
	}
	announce(o, 0, 100, 2)
	announce(o, 1, 100, 1)
	announce(o, 2, 201, 0)
	first, second := model.MakeDeviceID(0, 1, 0, 0), model.MakeDeviceID(1, 2, 0, 0)
	caps := resolve(o)
	if len(caps) != 2 || caps[first].MaxLevel != model.LevelDeactivate || caps[second].Route != RouteOwner || caps[first].Reason == "" {
		t.Fatalf("%+v", caps)
	}
	queues, late := o.Queues()
	if len(queues) != 3 || late != 0 || queues[1].Type != "sdma" || queues[2].Device != second {
		t.Errorf("%+v", queues)
	}
	o.Queue(KFDEvent{Kind: KFDGone, ID: 0})
	if caps := resolve(o); len(caps) != 1 {
		t.Errorf("a copy queue alone gives level 2: %+v", caps)
	}
	announce(o, 5, 999, 2)
	resolve(o)
	if why := why(o); !strings.Contains(why, "999") {
		t.Errorf("%q does not name the missing GPU", why)
	}
	blind := NewOwner(fstest.MapFS{}, &driver.Metrics{})
	announce(blind, 0, 100, 2)
	if len(resolve(blind)) != 0 || !strings.Contains(why(blind), "topology") {
		t.Errorf("%q", why(blind))
	}
}

// slowTopology counts reads and blocks them until released.
type slowTopology struct {
	fs.FS
	reads   atomic.Int32
	reading chan struct{}
	goOn    chan struct{}
}

func (s *slowTopology) ReadDir(name string) ([]fs.DirEntry, error) {
	if s.reads.Add(1) == 1 {
		close(s.reading)
		<-s.goOn
	}
	return fs.ReadDir(s.FS, name)
}

// Invented GPU ids cost one read of the topology, and readers never wait for it.
func TestOwnerOnUnknownGPUs(t *testing.T) {
	topology := &slowTopology{FS: twoNodes, reading: make(chan struct{}), goOn: make(chan struct{})}
	o := NewOwner(topology, &driver.Metrics{})
	for id := range uint32(MaxKFDQueues) {
		announce(o, id, 1000+id, 2)
	}
	resolved := make(chan int)
	go func() { resolved <- len(resolve(o)) }()
	<-topology.reading
	asked := make(chan struct{})
	go func() {
		o.Caught()
		known(o)
		why(o)
		close(asked)
	}()
	select {
	case <-asked:
	case <-time.After(10 * time.Second):
		t.Error("a reader waits for the kernel")
	}
	close(topology.goOn)
	if n := <-resolved; n != 0 || topology.reads.Load() != 1 {
		t.Errorf("%d GPUs after %d looks at the topology", n, topology.reads.Load())
	}
}

// fakeShim answers orders immediately with the given results in turn.
func fakeShim(o *Owner, results ...int32) *[]Order {
	var told []Order
	o.Connect(func(order Order) error {
		told = append(told, order)
		result := int32(1)
		if len(results) > 0 {
			result, results = results[0], results[1:]
		}
		if !o.Answer(Done{Sequence: order.Sequence, Result: result, BeginNS: 1, EndNS: 2001}) {
			return errors.New("no order waits for the answer")
		}
		return nil
	})
	return &told
}

func TestOwnerTarget(t *testing.T) {
	metrics := &driver.Metrics{}
	o := NewOwner(twoNodes, metrics)
	announce(o, 2, 200, 2)
	resolve(o)
	gpu := model.MakeDeviceID(1, 2, 0, 0)
	told := fakeShim(o)
	target := o.Target(gpu)
	stop, run := model.Desired{Suspend: model.LevelDeactivate}, model.Desired{}
	ctx := context.Background()
	if err := target.Apply(ctx, stop); err != nil {
		t.Fatal(err)
	}
	// An order covers both partitions and compute queues only; a repetition does nothing.
	if err := target.Apply(ctx, stop); err != nil || len(*told) != 2 {
		t.Fatalf("%v %+v", err, *told)
	}
	for i, id := range []uint32{200, 201} {
		if w := (*told)[i]; w.Kind != OrderPause || w.GPUID != id || w.Queues != OrderCompute {
			t.Errorf("%+v", w)
		}
	}
	target.Invalidate()
	if err := errors.Join(target.Apply(ctx, stop), target.Apply(ctx, run)); err != nil || len(*told) != 6 || (*told)[5].Kind != OrderResume {
		t.Errorf("%v %+v", err, *told)
	}
	if metrics.Suspends.Load() != 2 || metrics.Resumes.Load() != 1 {
		t.Errorf("%d suspends, %d resumes", metrics.Suspends.Load(), metrics.Resumes.Load())
	}
	fakeShim(o, -int32(unix.ESTALE), -int32(unix.ETIME))
	if err := target.Apply(ctx, stop); !errors.Is(err, ErrStale) {
		t.Errorf("stale: %v", err)
	}
	if err := target.Apply(ctx, stop); !errors.Is(err, unix.ETIME) {
		t.Errorf("the driver's error: %v", err)
	}
	// A pending order fails when the connection ends, and the process then runs.
	o.Connect(func(Order) error { return nil })
	late := make(chan error, 1)
	go func() { late <- target.Apply(ctx, stop) }()
	time.Sleep(10 * time.Millisecond)
	o.Disconnect()
	o.Disconnect()
	if err := <-late; !errors.Is(err, ErrLeft) {
		t.Errorf("after the end: %v", err)
	}
	if err := target.Apply(ctx, run); err != nil {
		t.Errorf("resume after the disconnect: %v", err)
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if err := target.Apply(short, stop); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if o.Answer(Done{Sequence: 1}) {
		t.Error("accepted an answer twice")
	}
}

func TestJoinAnnounced(t *testing.T) {
	seven, eleven := uint32(7), uint32(11)
	read := uint64(3)
	f := Found{Queues: []FoundQueue{
		{ID: 0, Type: "compute", GPUID: 100, Bytes: 4096, Sources: []string{"sysfs"}},
		{ID: 1, Type: "compute", GPUID: 100, Bytes: 4096, Ring: 0x9000, Read: &read, Priority: &eleven, Sources: []string{"sysfs", "mqds"}},
		{ID: -1, Type: "compute", GPUID: 100, Bytes: 4096, Ring: 0x1000, Read: &read, Sources: []string{"mqds"}},
	}}
	f.JoinAnnounced([]Announced{
		{ID: 0, GPUID: 100, Ring: 0x1000, Bytes: 4096, PCI: "0000:01:00.0", Priority: &seven},
		{ID: 1, GPUID: 100, Ring: 0x2000, Bytes: 4096, Priority: &seven},
		{ID: 2, GPUID: 100, Ring: 0x3000, Bytes: 4096, Copies: true},
	})
	if len(f.Queues) != 3 {
		t.Fatalf("%+v", f.Queues)
	}
	// The ring assigns the descriptor without an id to queue 0.
	if q := f.Queues[0]; q.Ring != 0x1000 || q.Read == nil || *q.Priority != 7 || q.PCI == "" || strings.Join(q.Sources, "+") != "sysfs+shim+mqds" {
		t.Errorf("%+v", q)
	}
	// A dump matched to the wrong ring is corrected and reported.
	if q := f.Queues[1]; q.Ring != 0x2000 || q.Read != nil || *q.Priority != 7 || len(f.Notes) != 1 {
		t.Errorf("%+v %+v", q, f.Notes)
	}
	if q := f.Queues[2]; q.ID != 2 || q.Type != "sdma" {
		t.Errorf("%+v", q)
	}
}

// The daemon's state stays bounded for any announcements and answers.
func FuzzOwner(f *testing.F) {
	f.Add([]byte{1, 0, 100, 2, 2, 0, 0, 0, 3, 1, 1, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		o := NewOwner(twoNodes, &driver.Metrics{})
		told := fakeShim(o)
		for len(script) >= 4 {
			op, id, gpu, kind := script[0]%4, uint32(script[1]), uint32(script[2]), uint32(script[3])
			script = script[4:]
			switch op {
			case 0:
				o.Queue(KFDEvent{Kind: KFDGone, ID: id})
			case 1:
				o.Queue(KFDEvent{Kind: KFDQueue, ID: id, GPUID: gpu, Type: kind, RingBytes: 4096, Late: kind & 1})
			case 2:
				if o.Answer(Done{Sequence: uint64(id), Result: int32(gpu)}) {
					t.Error("accepted an unsolicited answer")
				}
			default:
				for gpu := range resolve(o) {
					if err := o.Target(gpu).Apply(context.Background(), model.Desired{Suspend: model.Level(kind % 4)}); err != nil {
						t.Error(err)
					}
				}
			}
			if queues, _ := o.Queues(); len(queues) > 256 {
				t.Fatal("more queues than were announced")
			}
		}
		for _, order := range *told {
			if order.GPUID == 0 {
				t.Error("an order for every GPU")
			}
		}
	})
}

// TestQueuesOfOneUser: the programs of one user announce a number of queues together, and another user has its own.
func TestQueuesOfOneUser(t *testing.T) {
	var all shares
	fill := func(uid int) *Owner {
		o := NewOwner(nil, &driver.Metrics{})
		o.share = all.of(identity.OnHost(uid))
		for id := range uint32(MaxKFDQueues + 1) {
			o.Queue(KFDEvent{Kind: KFDQueue, ID: id})
		}
		return o
	}
	var owners []*Owner
	total := 0
	for range 2 * maxUserQueues / MaxKFDQueues {
		owners = append(owners, fill(1000))
		total += len(owners[len(owners)-1].queues)
	}
	if total != maxUserQueues {
		t.Errorf("one user has %d queues, want %d", total, maxUserQueues)
	}
	if n := len(fill(1001).queues); n != MaxKFDQueues {
		t.Errorf("another user has %d queues", n)
	}
	owners[0].Queue(KFDEvent{Kind: KFDGone, ID: 0})
	owners[0].Queue(KFDEvent{Kind: KFDGone, ID: 0})
	if n := len(fill(1000).queues); n != 1 {
		t.Errorf("%d queues have the place of the one that is gone", n)
	}
	for _, o := range owners {
		o.Close()
		o.Close()
		o.Queue(KFDEvent{Kind: KFDQueue, ID: 1})
	}
	if n := all.used[identity.OnHost(1000)]; n != 1 {
		t.Errorf("%d queues are counted, want 1", n)
	}
}
