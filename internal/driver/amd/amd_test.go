// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"xsched/internal/driver"
)

func unpack(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// 16 streams share four rings of 1 MiB. The runtime created its own ring of 4 KiB first.
func TestRealMQDs(t *testing.T) {
	got, err := ParseMQDs(bytes.NewReader(unpack(t, "mi308x-mqds.txt.gz")))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].PID != 94314 || got[0].PASID != 94314 || len(got[0].Queues) != 5 {
		t.Fatalf("got %+v", got)
	}
	var sizes []uint64
	for i, q := range got[0].Queues {
		if q.Kind != KindCompute || q.GPUID != 0xf7bc || len(q.Rings) != 4 {
			t.Fatalf("queue %d: kind %s, gpu %x, %d rings", i, q.Kind, q.GPUID, len(q.Rings))
		}
		r, _ := q.Ring()
		for _, other := range q.Rings {
			if other.Address != r.Address || other.Bytes != r.Bytes {
				t.Errorf("queue %d: the XCCs have different rings", i)
			}
		}
		if !r.Active || !r.AQL || r.QueuePriority != 7 || r.PipePriority != 1 || r.SaveBytes == 0 {
			t.Errorf("queue %d: %+v", i, r)
		}
		sizes = append(sizes, r.Bytes)
	}
	if want := []uint64{1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096}; !slices.Equal(sizes, want) {
		t.Errorf("rings of %v bytes, want %v", sizes, want)
	}
	if r, _ := got[0].Queues[0].Ring(); r.Address != 0x7f41b5200000 || r.ReadReport != 0x7f61c1576080 || r.WritePoll != 0x7f61c1576038 {
		t.Errorf("got %+v", r)
	}
}

// The same rings occupy the hardware slots of the first GPU.
func TestRealHQDs(t *testing.T) {
	nodes, err := ParseHQDs(bytes.NewReader(unpack(t, "mi308x-hqds.txt.gz")))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[QueueKind]int{}
	for _, n := range nodes {
		for _, h := range n.Slots {
			kinds[h.Kind]++
		}
	}
	if len(nodes) != 8 || kinds[KindHIQ] != 32 || kinds[KindCompute] != 768 || kinds[KindSDMA] != 512 {
		t.Fatalf("%d nodes, slots %v", len(nodes), kinds)
	}
	if nodes[0].Node != 2 || nodes[0].GPUID != 0xf7bc {
		t.Errorf("node %d, gpu %x", nodes[0].Node, nodes[0].GPUID)
	}
	processes, err := ParseMQDs(bytes.NewReader(unpack(t, "mi308x-mqds.txt.gz")))
	if err != nil {
		t.Fatal(err)
	}
	for i, q := range processes[0].Queues {
		ring, _ := q.Ring()
		found := 0
		for _, h := range nodes[0].Slots {
			if h.Kind == KindCompute && h.Loaded() && h.Ring.Address == ring.Address && h.Ring.Bytes == ring.Bytes {
				found++
			}
		}
		if found != 4 { // one per XCC
			t.Errorf("queue %d with ring %x: in %d slots", i, ring.Address, found)
		}
	}
	for _, n := range nodes[1:] {
		for _, h := range n.Slots {
			if h.Kind == KindCompute && h.Loaded() {
				t.Errorf("gpu %x has a queue loaded: %+v", n.GPUID, h)
			}
		}
	}
}

// TestCutDump: wherever a dump is cut, the queues that precede are found as in the whole one. A cut within a line or
// a descriptor is named.
func TestCutDump(t *testing.T) {
	text := string(unpack(t, "mi308x-mqds.txt.gz"))
	all, err := ParseMQDs(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	third := 0 // where the third queue begins
	for range 3 {
		third += strings.Index(text[third+1:], "  Compute queue") + 1
	}
	for _, c := range []struct {
		cut, queues int
		named       bool
	}{
		{third + 5, 2, true},
		{third + len("  Compute queue on device f7bc\n") + 40, 2, true},
		{third + len("  Compute queue on device f7bc\n"+strings.Repeat(" ", 4)+strings.Repeat(" ", 82)), 2, true}, // at the end of its first line
		{third, 2, false},
		{len(text) - 1, len(all[0].Queues), false},
	} {
		got, err := ParseMQDs(strings.NewReader(text[:c.cut]))
		if errors.Is(err, ErrCut) != c.named || (err != nil) != c.named {
			t.Errorf("cut at %d: %v, want a cut: %v", c.cut, err, c.named)
		}
		if len(got) != 1 || !reflect.DeepEqual(got[0].Queues, all[0].Queues[:c.queues]) {
			t.Errorf("cut at %d: %d queues, want the first %d of %d", c.cut, len(got[0].Queues), c.queues, len(all[0].Queues))
		}
	}
}

// TestCutDumpOfProcess: a saved dump that is cut before a process or within its first queue does not mean that the
// process has no queue. A later cut leaves the queues before it, with a note.
func TestCutDumpOfProcess(t *testing.T) {
	text := string(unpack(t, "mi308x-mqds.txt.gz"))
	name := filepath.Join(t.TempDir(), "mqds")
	for cut, c := range map[int]struct {
		table, note string
	}{
		120:           {"", "the dump is cut"},
		len(text) - 5: {"mqds", "the dump is cut"},
	} {
		if err := os.WriteFile(name, []byte(text[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		i, err := kernelDriver{}.Inspect(driver.InspectionSource{Dumps: []string{name}}, 94314)
		if err != nil {
			t.Fatal(err)
		}
		var table strings.Builder
		i.WriteTable(&table)
		if strings.Contains(table.String(), "no queue") || !strings.Contains(table.String(), c.table) || !strings.Contains(fmt.Sprint(i.Notes()), c.note) {
			t.Errorf("cut at %d: %s; notes %v", cut, &table, i.Notes())
		}
	}
}

// TestUnknownSize: a queue whose size no source states has "-" in the table.
func TestUnknownSize(t *testing.T) {
	var table strings.Builder
	(&inspection{found: &Found{Queues: []FoundQueue{{ID: 7, Type: "compute", Ring: 0x1000, Sources: []string{"log"}}}}}).WriteTable(&table)
	lines := strings.Split(table.String(), "\n")
	for i, name := range strings.Fields(lines[1]) {
		if found := strings.Fields(lines[2])[i]; name == "BYTES" && found != "-" {
			t.Errorf("BYTES %s in\n%s", found, &table)
		}
	}
}

func TestDumpForms(t *testing.T) {
	words := "    00000000: c0310800 00000000 00000000 00000000 00000000 00000000 00000000 00000000\n"
	got, err := ParseMQDs(strings.NewReader("Process 12 PASID 0x8001:\n  SDMA queue on device f7bc\n" + words + "  Compute queue on device 1\n" + words + "Process 13 PASID 7:\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].PASID != 0x8001 || got[0].Queues[0].Kind != KindSDMA || len(got[0].Queues[1].Rings) != 0 || got[1].PID != 13 {
		t.Errorf("got %+v", got)
	}
	for _, text := range []string{words, "Process x PASID 1:\n", "  Compute queue on device f7bc\n", "Process 1 PASID 1:\n  Other queue on device 1\n", "hello\n"} {
		if _, err := ParseMQDs(strings.NewReader(text)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{words, "Node x, gpu_id 1:\n", " CP Pipe 0, Queue 0\n", "Node 1, gpu_id 1:\n CP Pipe\n", "Node 1, gpu_id 1:\n Something 1\n"} {
		if _, err := ParseHQDs(strings.NewReader(text)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", text, err)
		}
	}
	// Chips with one XCC omit the instance.
	nodes, err := ParseHQDs(strings.NewReader("Node 1, gpu_id 4a:\n  HIQ on MEC 2 Pipe 0 Queue 0\n CP Pipe 1, Queue 2\n"))
	if err != nil || len(nodes[0].Slots) != 2 || nodes[0].Slots[0].MEC != 2 || nodes[0].Slots[1].Pipe != 1 || nodes[0].Slots[1].Queue != 2 {
		t.Errorf("got %+v, %v", nodes, err)
	}
}

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

func TestReadProcess(t *testing.T) {
	root := fstest.MapFS{
		"proc/94314/pasid":                       file("94314\n"),
		"proc/94314/vram_63420":                  file("1048576\n"),
		"proc/94314/sdma_63420":                  file("12\n"),
		"proc/94314/stats_63420/evicted_ms":      file("3\n"),
		"proc/94314/counters_63420/faults":       file("4\n"),
		"proc/94314/counters_63420/page_in":      file("5\n"),
		"proc/94314/counters_63420/page_out":     file("6\n"),
		"proc/94314/queues/0/size":               file("4096"),
		"proc/94314/queues/0/type":               file("0"),
		"proc/94314/queues/0/gpuid":              file("63420"),
		"proc/94314/queues/10/size":              file("1048576"),
		"proc/94314/queues/10/type":              file("1"),
		"proc/94314/queues/10/gpuid":             file("63420"),
		"proc/94314/queues/2/size":               file("1"), // disappears
		"proc/94314/something_new":               file("x"),
		"topology/nodes/0/gpu_id":                file("0\n"),
		"topology/nodes/0/properties":            file("cpu_cores_count 96\n"),
		"topology/nodes/2/gpu_id":                file("63420\n"),
		"topology/nodes/2/name":                  file("ip discovery\n"),
		"topology/nodes/2/properties":            file("simd_count 320\nsimd_per_cu 4\ngfx_target_version 90402\nlocation_id 1288\ndomain 0\ncapability 749776512\n"),
		"topology/nodes/2/mem_banks/0/something": file("heap_type 1\n"),
	}
	p, err := ReadProcess(root, 94314)
	if err != nil {
		t.Fatal(err)
	}
	if want := []ProcQueue{{ID: 0, Bytes: 4096, GPUID: 63420}, {ID: 10, Bytes: 1 << 20, Type: 1, GPUID: 63420}}; !slices.Equal(p.Queues, want) {
		t.Errorf("queues %+v, want %+v", p.Queues, want)
	}
	if want := []ProcGPU{{63420, 1 << 20, 12, 3, -1, 4, 5, 6}}; !slices.Equal(p.GPUs, want) || p.PASID != 94314 {
		t.Errorf("gpus %+v, want %+v", p.GPUs, want)
	}
	if s := p.Queues[1].Type.String() + QueueType(9).String(); s != "sdmatype 9" {
		t.Errorf("types %s", s)
	}
	if _, err := ReadProcess(root, 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	nodes, err := ReadTopology(root)
	if err != nil || len(nodes) != 2 || nodes[0].IsGPU() || !nodes[1].IsGPU() {
		t.Fatalf("got %+v, %v", nodes, err)
	}
	if n := nodes[1]; n.Target() != "gfx942" || n.PCI() != "0000:05:01.0" || n.Properties["capability"]&CapDebugFirmware == 0 {
		t.Errorf("%s at %s", n.Target(), n.PCI())
	}
	root["proc/94314/queues/0/size"] = file("many")
	if _, err := ReadProcess(root, 94314); !errors.Is(err, ErrFormat) {
		t.Errorf("got %v", err)
	}
}

func TestParseNSpid(t *testing.T) {
	got, err := ParseNSpid([]byte("Name:\tpython\nNSpid:\t94314\t107\t12\nVmPeak:\t1\n"))
	if err != nil || !slices.Equal(got, []int{94314, 107, 12}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"", "NSpid:\n", "NSpid:\tx\n"} {
		if _, err := ParseNSpid([]byte(text)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzDumps(f *testing.F) {
	f.Add("Process 1 PASID 1:\n  Compute queue on device 1\n    00000000: c0310800 00000000\n")
	f.Add("Node 1, gpu_id 4a:\n CP Pipe 1, Queue 2\n    0000c914: 00000000\n    0000c918: 00000000\n")
	f.Add(string(unpack(f, "mi308x-mqds.txt.gz")[:6000]))
	f.Fuzz(func(t *testing.T, text string) {
		processes, err := ParseMQDs(strings.NewReader(text))
		if err == nil {
			for _, p := range processes {
				for _, q := range p.Queues {
					// A size beyond 64 bits reads as 0.
					if r, ok := q.Ring(); ok && (r.Bytes == 4 || r.Bytes&(r.Bytes-1) != 0) {
						t.Errorf("ring of %d bytes", r.Bytes)
					}
				}
			}
		}
		nodes, _ := ParseHQDs(strings.NewReader(text))
		for _, n := range nodes {
			for _, h := range n.Slots {
				_ = h.Loaded()
			}
		}
	})
}

func FuzzSysfs(f *testing.F) {
	f.Add("simd_count 320\nlocation_id 1288\ngfx_target_version 90402\n")
	f.Add("4096")
	f.Add("NSpid:\t1\t2\n")
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := ParseNumber([]byte(text)); err == nil && v < 0 {
			t.Errorf("%q is %d", text, v)
		}
		properties, _ := ParseProperties([]byte(text))
		n := Node{Properties: properties}
		_, _ = n.Target(), n.PCI()
		_, _ = ParseNSpid([]byte(text))
		root := fstest.MapFS{"proc/1/queues/0/size": file(text), "proc/1/queues/0/type": file("0"), "proc/1/queues/0/gpuid": file("1"), "proc/1/pasid": file(text)}
		_, _ = ReadProcess(root, 1)
	})
}
