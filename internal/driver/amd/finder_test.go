// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

// realRings are the recorded rings, oldest first.
var realRings = []uint64{0x7f61c15a6000, 0x7f61c0400000, 0x7f61c0200000, 0x7f41b5a00000, 0x7f41b5200000}

// realMachine is the recorded dump with matching sysfs: five compute queues, numbered as created,
// and one copy queue. The process has pid 12 in its container.
func realMachine(t testing.TB) Sources {
	t.Helper()
	sysfs := fstest.MapFS{
		"topology/nodes/0/gpu_id":     file("0\n"),
		"topology/nodes/0/properties": file("simd_count 0\n"),
		"topology/nodes/2/gpu_id":     file("63420\n"),
		"topology/nodes/2/properties": file("simd_count 320\ngfx_target_version 90402\nlocation_id 1280\ndomain 0\n"),
		"proc/94314/pasid":            file("0\n"),
		"proc/94314/vram_63420":       file("1048576\n"),
	}
	for id, size := range []int{4096, 1 << 20, 1 << 20, 1 << 20, 1 << 20} {
		addQueue(sysfs, id, size, 0, uint64(100+10*id))
	}
	addQueue(sysfs, 5, 65536, 1, 150)
	return Sources{
		Sysfs: sysfs,
		Debug: fstest.MapFS{"mqds": {Data: unpack(t, "mi308x-mqds.txt.gz")}, "hqds": {Data: unpack(t, "mi308x-hqds.txt.gz")}},
		Proc:  fstest.MapFS{"94314/status": file("Name:\tpython\nNSpid:\t94314\t12\n"), "94314/cmdline": file("python\x00app.py\x00")},

		Ordered: true,
	}
}

// addQueue adds a queue of the process to sysfs, whose directory has an inode number.
func addQueue(sysfs fstest.MapFS, id, size, kind int, inode uint64) {
	folder := fmt.Sprintf("proc/94314/queues/%d", id)
	sysfs[folder] = &fstest.MapFile{Mode: fs.ModeDir | 0o555, Sys: &syscall.Stat_t{Ino: inode}}
	for name, v := range map[string]int{"size": size, "type": kind, "gpuid": 63420} {
		sysfs[folder+"/"+name] = file(fmt.Sprint(v))
	}
}

func TestFindJoinsRealDump(t *testing.T) {
	s := realMachine(t)
	for _, pid := range []int{94314, 12} { // the host's and the container's
		f, err := s.Find(pid)
		if err != nil {
			t.Fatal(err)
		}
		if f.PID != 94314 || len(f.PIDs) != 2 || f.PIDs[1] != 12 || f.Command != "python app.py" || len(f.Notes) != 0 {
			t.Errorf("%+v", f)
		}
		if len(f.Queues) != 6 {
			t.Fatalf("%d queues", len(f.Queues))
		}
		for i, q := range f.Queues[:5] {
			if q.Ring != realRings[i] || q.Unknown != "" || q.Read == nil || q.Write == nil || q.Priority == nil || q.Loaded == nil || strings.Join(q.Sources, " ") != "sysfs mqds hqds" {
				t.Errorf("queue %d is not matched: %+v", q.ID, q)
			}
		}
		if f.Queues[0].Bytes != 4096 || f.Queues[5].Ring != 0 || f.Queues[5].Type != "sdma" {
			t.Errorf("%+v", f.Queues)
		}
		if f.Queues[0].Target != "gfx942" || f.Queues[0].PCI != "0000:05:00.0" {
			t.Errorf("%s %s", f.Queues[0].Target, f.Queues[0].PCI)
		}
	}
}

func TestFindWithoutRights(t *testing.T) {
	s := realMachine(t)
	s.Debug = denied{}
	f, err := s.Find(94314)
	if err != nil || len(f.Queues) != 6 || len(f.Notes) != 2 {
		t.Fatalf("%+v %v", f, err)
	}
	for _, n := range f.Notes {
		if n.Text != "needs root" {
			t.Errorf("%+v", n)
		}
	}
	if q := f.Queues[0]; q.Ring != 0 || q.Active != nil || !strings.Contains(q.Unknown, "without root") {
		t.Error("unknown values are invented")
	}
}

type denied struct{}

func (denied) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

func TestFindFailures(t *testing.T) {
	if _, err := (Sources{Sysfs: fstest.MapFS{}, Debug: fstest.MapFS{}, Proc: fstest.MapFS{}}).Find(1); !errors.Is(err, ErrNoDriver) {
		t.Error(err)
	}
	s := realMachine(t)
	if _, err := s.Find(4711); !errors.Is(err, ErrNotListed) {
		t.Error(err)
	}
	s.Sysfs.(fstest.MapFS)["proc/555/pasid"] = file("0\n")
	s.Proc.(fstest.MapFS)["555/status"] = file("NSpid:\t555\t12\n")
	if _, err := s.Find(12); !errors.Is(err, ErrAmbiguous) {
		t.Error(err)
	}
}

func FuzzFind(f *testing.F) {
	f.Add("94314\t12", "0", "4096", "Process 1 PASID 0x8001:\n  SDMA queue on device f7bc\n")
	f.Fuzz(func(t *testing.T, pids, kind, size, mqds string) {
		s := Sources{
			Sysfs: fstest.MapFS{"proc/1/queues/0/type": file(kind), "proc/1/queues/0/size": file(size), "proc/1/queues/0/gpuid": file("63420")},
			Debug: fstest.MapFS{"mqds": file(mqds)},
			Proc:  fstest.MapFS{"1/status": file("NSpid:\t" + pids + "\n")},
		}
		if found, err := s.Find(1); err == nil && found.PID != 1 {
			t.Error(found.PID)
		}
	})
}
