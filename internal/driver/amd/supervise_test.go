// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

// Package daemon tests the effect on processes with the virtual device.

// fakeDebugger records suspensions.
type fakeDebugger struct {
	stopped map[uint32]bool
	refuse  error // error of resume
	resumes int
}

func (d *fakeDebugger) Queues() ([]QueueSnapshot, error) { return nil, nil }
func (d *fakeDebugger) CaughtSoFar() uint64              { return 3 }

func (d *fakeDebugger) Suspend(gpu uint32, _ Kinds, _ uint32) ([]QueueResult, error) {
	d.stopped[gpu] = true
	return []QueueResult{{ID: 5}}, nil
}

func (d *fakeDebugger) Resume(gpu uint32) ([]QueueResult, error) {
	d.resumes++
	if d.refuse != nil {
		return nil, d.refuse
	}
	delete(d.stopped, gpu)
	if gpu == AllGPUs {
		clear(d.stopped)
	}
	return nil, nil
}

func memoryFile(t *testing.T) int {
	t.Helper()
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// tracing returns a supervisor with a page; far is later than any test.
func tracing(t *testing.T, prepare func(*wire.Page)) (*supervisor, *fakeDebugger, *wire.Page) {
	t.Helper()
	d := &fakeDebugger{stopped: map[uint32]bool{}}
	tr := &supervisor{debugger: d, stopped: map[uint32]struct{}{}}
	page, memfd, err := wire.NewPage(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(page.Release)
	if prepare != nil {
		prepare(page)
	}
	if r := tr.do(message{Op: "suspend"}, nil); r.Error == "" {
		t.Error("suspended before the page arrived")
	}
	if r := tr.do(message{Op: "page", Seq: 4}, []int{memfd}); r.Error != "" || r.Seq != 4 {
		t.Fatalf("%+v", r)
	}
	t.Cleanup(tr.page.Release)
	return tr, d, page
}

const far = model.Time(1) << 62

func suspendGPU(tr *supervisor, gpu uint32) error {
	return tr.do(message{Op: "suspend", order: order{GPU: gpu, Kinds: ComputeQueues}}, nil).failure()
}

// A suspension requires a live lease and a recent heartbeat.
func TestTracerObeysUnderALeaseOnly(t *testing.T) {
	tr, d, page := tracing(t, nil)
	for _, c := range []struct {
		what      string
		heartbeat model.Time
		deadline  model.Time
		fine      bool
	}{
		{"nothing is suspended", far, 0, false},
		{"the lease has run out", far, 1, false},
		{"the daemon is silent", clock.Now() - 2*wire.HeartbeatLimitNS, far, false},
		{"all is well", far, far, true},
	} {
		page.Heartbeat(c.heartbeat)
		page.WriteLease(1, c.deadline)
		if err := suspendGPU(tr, 7); (err == nil) != c.fine || err != nil && !errors.Is(err, ErrStale) {
			t.Errorf("%s: %v", c.what, err)
		}
		if d.stopped[7] != c.fine {
			t.Errorf("%s: suspended %v", c.what, d.stopped[7])
		}
	}
}

// A missing heartbeat ends all suspensions, with retries, and the ended lease permits no new one.
func TestTracerRecovers(t *testing.T) {
	for name, fall := range map[string]func(p *wire.Page){
		"silent": func(p *wire.Page) { p.Heartbeat(clock.Now() - 2*wire.HeartbeatLimitNS) },
		"late":   func(p *wire.Page) { p.WriteLeaseDeadline(1) },
	} {
		t.Run(name, func(t *testing.T) {
			tr, d, page := tracing(t, nil)
			page.Heartbeat(far)
			page.WriteLease(1, far)
			if err := errors.Join(suspendGPU(tr, 7), suspendGPU(tr, 8)); err != nil {
				t.Fatal(err)
			}
			tr.look()
			if len(d.stopped) != 2 || d.resumes != 0 {
				t.Fatal("ended under a lease that runs")
			}
			d.refuse = unix.EBUSY
			fall(page)
			for range 3 {
				tr.look()
			}
			if d.resumes != 3 || page.RecoveredEpoch() != 0 {
				t.Errorf("%d attempts, epoch %d", d.resumes, page.RecoveredEpoch())
			}
			d.refuse = nil
			tr.look()
			tr.look()
			if len(d.stopped) != 0 || d.resumes != 4 || page.RecoveredEpoch() != 1 || page.Recoveries() != 1 {
				t.Errorf("%v stopped, %d attempts, epoch %d, %d recoveries", d.stopped, d.resumes, page.RecoveredEpoch(), page.Recoveries())
			}
			page.Heartbeat(far)
			page.WriteLeaseDeadline(far)
			if err := suspendGPU(tr, 7); !errors.Is(err, ErrStale) || len(d.stopped) != 0 {
				t.Errorf("under the lease that was ended: %v", err)
			}
			page.WriteLease(2, far)
			if err := suspendGPU(tr, 7); err != nil {
				t.Error(err)
			}
			if r := tr.do(message{Op: "resume", order: order{GPU: 7}}, nil); r.Error != "" {
				t.Error(r.Error)
			}
			fall(page)
			tr.look()
			if d.resumes != 5 {
				t.Error("recovered with nothing suspended")
			}
		})
	}
}

// A replacement supervisor reports its predecessor's suspensions as void.
func TestReplacementVoidsOldLease(t *testing.T) {
	tr, _, page := tracing(t, func(p *wire.Page) { p.Heartbeat(far); p.WriteLease(9, far) })
	if page.RecoveredEpoch() != 9 || page.Recoveries() != 1 {
		t.Errorf("epoch %d, %d recoveries", page.RecoveredEpoch(), page.Recoveries())
	}
	if err := suspendGPU(tr, 7); !errors.Is(err, ErrStale) {
		t.Errorf("under the old lease: %v", err)
	}
	if r := tr.do(message{Op: "page"}, []int{memoryFile(t)}); r.Error == "" {
		t.Error("accepted a second page")
	}
	if _, _, first := tracing(t, nil); first.Recoveries() != 0 {
		t.Error("the first supervisor voided a lease")
	}
}

// A reply holds the maximum number of queues, and errors keep their class.
func TestTracerAnswers(t *testing.T) {
	queues := slices.Repeat([]QueueSnapshot{{Exceptions: 1 << 63, Ring: 1<<64 - 1, SaveAddress: 7, ID: 1<<32 - 1, SaveBytes: 3}}, 1024)
	results := slices.Repeat([]QueueResult{{ID: 1<<32 - 1, Invalid: true}}, 1024)
	r := reply{Seq: 1<<64 - 1}
	var err, err2 error
	r.Queues, err = packList(queues)
	r.Results, err2 = packList(results)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if b, err := json.Marshal(r); err != nil || len(b) > seqpacket.MaxMessage {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[0]); _ = unix.Close(pair[1]) }()
	if err := seqpacket.Send(pair[0], r, nil); err != nil {
		t.Fatal(err)
	}
	var got reply
	if _, err := seqpacket.Receive(pair[1], &got); err != nil {
		t.Fatal(err)
	}
	if q, err := unpackList[QueueSnapshot](got.Queues); err != nil || !slices.Equal(q, queues) {
		t.Errorf("%d queues, %v", len(q), err)
	}
	if q, err := unpackList[QueueResult](got.Results); err != nil || !slices.Equal(q, results) {
		t.Errorf("%d results, %v", len(q), err)
	}
	if _, err := unpackList[QueueResult](make([]byte, 7)); err == nil {
		t.Error("accepted a partial entry")
	}
	for _, kind := range errorKinds() {
		e := fmt.Errorf("do it: %w", kind)
		if back := (reply{Error: e.Error(), traced: traced{Kind: kindOf(e)}}).failure(); !errors.Is(back, kind) || back.Error() != e.Error() {
			t.Errorf("%v became %v", e, back)
		}
	}
	if err := (reply{Error: "else"}).failure(); err == nil || err.Error() != "else" {
		t.Error(err)
	}
}
