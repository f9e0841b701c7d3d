// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

const (
	prefix70    = ":4:rocvirtual.cpp           :1083: 20161701400 us: [pid:459769 tid: 0x7f8edc1c4400] "
	dispatch70  = "SWq=0x7f8edc1a8000, HWq=0x7f8acd200000, id=1, Dispatch Header = 0xb02 (type=2, barrier=1, acquire=1, release=1), setup=3, grid=[1024, 2, 1], workgroup=[32, 1, 1], private_seg_size=0, group_seg_size=0, kernel_obj=0x7f8ed23d8800, kernarg_address=0x7f8acce00000, completion_signal=0x0, correlation_id=0, rptr=3, wptr=7"
	dispatchOld = ":4:rocvirtual.cpp           :862 : 5697037855 us: 9174 : [tid:0x7f6309ffb6c0] HWq=0x229000, Dispatch Header = 0xb02 (type=2, barrier=1, acquire=1, release=1), setup=3, grid=[11008, 1, 1], workgroup=[256, 1, 1], private_seg_size=0, group_seg_size=0, kernel_obj=0x7f1234567800, kernarg_address=0x7f1, completion_signal=0x0"
)

func read(t testing.TB, text string, o Options) *Log {
	t.Helper()
	l, err := Read(context.Background(), strings.NewReader(text), o) // the fuzz engine cancels t.Context() early
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func open(t testing.TB, name string) []byte {
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

// TestDeletedFirst: a log that begins after the creation of its queues lists the rings that it deletes. A release that
// names software queues there has none to list.
func TestDeletedFirst(t *testing.T) {
	deletion := func(at int, ring string) string {
		return fmt.Sprintf(":3:rocdevice.cpp            :3200: 2016170%04d us: [pid:459769 tid: 0x7f8edc1c4400] Deleting hardware queue %s with refCount 0\n", at, ring)
	}
	created := prefix70 + "Created SWq=0x7f8edc1a8000 to map on HWq=0x7f8acd200000 with size 16384 with priority 2, cooperative: 0\n"
	l := read(t, deletion(1, "0x7f8acd200000")+deletion(2, "0x7f8acc600000")+created+prefix70+dispatch70+"\n"+deletion(3, "0x7f8acc400000"), Options{})
	p := l.Processes[0]
	found := map[string][2]uint64{}
	for _, q := range p.Queues {
		found[q.HWq] = [2]uint64{q.Created, q.Deleted}
	}
	want := map[string][2]uint64{"0x7f8acd200000": {1, 1}, "0x7f8acc600000": {0, 1}, "0x7f8acc400000": {0, 1}}
	if !maps.Equal(found, want) || p.LifeCount["deleted"] != 3 || p.Queues[0].Ended {
		t.Errorf("queues %v, want %v; %s", found, want, asJSON(t, p.LifeCount))
	}
	old := read(t, dispatchOld+"\n"+strings.ReplaceAll(deletion(1, "0x7f8acd200000"), "[pid:459769 tid: 0x7f8edc1c4400]", "9174 : [tid:0x7f6309ffb6c0]"), Options{}).Processes[0]
	if len(old.Queues) != 1 || old.LifeCount["deleted"] != 1 || old.Life[0].HWq != "" {
		t.Errorf("old release: %s", asJSON(t, old))
	}
}

// TestFailedLaunches: a log whose launches fail names the call, the error and the count instead of asking for
// another log level.
func TestFailedLaunches(t *testing.T) {
	line := func(message string) string {
		return ":3:hip_module.cpp           :678 : 8805779969 us: [pid:19349 tid:0x14dec9d33080] " + message + "\n"
	}
	text := strings.Repeat(line(" hipLaunchKernel ( 0x14debac11408, {1,1,1}, {256,1,1}, 0x7ffe02541e00, 0, stream:<null> ) ")+
		line("ihipLaunchKernel: Returned hipErrorInvalidValue : ")+
		line("hipLaunchKernel: Returned hipErrorInvalidValue : "), 30) +
		line("hipModuleLaunchKernel: Returned hipErrorLaunchFailure : : duration: 12 us") +
		line("hipGraphLaunch: Returned hipSuccess : ") + line("hipMalloc: Returned hipErrorOutOfMemory : ")
	l := read(t, text, Options{})
	want := []Failure{{"hipLaunchKernel", "hipErrorInvalidValue", 30}, {"hipModuleLaunchKernel", "hipErrorLaunchFailure", 1}}
	if l.Failed != 31 || l.Kernels != 0 || len(l.Processes) != 1 || !slices.Equal(l.Processes[0].Failures, want) {
		t.Fatalf("%d failed: %s", l.Failed, asJSON(t, l))
	}
	notes := strings.Join(l.notes(), "\n")
	if !strings.Contains(notes, "hipLaunchKernel failed with hipErrorInvalidValue 30 times") || strings.Contains(notes, "AMD_LOG_LEVEL") {
		t.Errorf("notes: %s", notes)
	}
}

func TestDispatchForms(t *testing.T) {
	for _, test := range []struct {
		name, line string
		check      func(*Log, *Process, *Queue) bool
	}{
		{"7.0", prefix70 + dispatch70, func(_ *Log, p *Process, q *Queue) bool {
			return p.PID == 459769 && q.HWq == "0x7f8acd200000" && q.ID == 1 && q.SWq[0] == "0x7f8edc1a8000" && q.Lag.Max == 4 &&
				q.Grids.Top[0] == GridCount{[3]uint32{1024, 2, 1}, [3]uint32{32, 1, 1}, 1} && q.Grids.Items.Max == 2048
		}},
		{"5.x", dispatchOld, func(_ *Log, p *Process, q *Queue) bool {
			return p.PID == 9174 && q.HWq == "0x229000" && q.ID == -1 && q.SWq == nil && q.Lag == nil && q.Grids.Items.Max == 11008
		}},
		{"2026", prefix70 + strings.Replace(strings.Replace(dispatch70, "id=1, ", "id=1, priority=2, virtual_pipe_id=3, ", 1), "correlation_id=0, ", "", 1), func(_ *Log, _ *Process, q *Queue) bool {
			return q.Priority == "high" && q.Lag.Max == 4 && q.Grids.Items.Max == 2048
		}},
		{"clusters", prefix70 + strings.Replace(strings.Replace(dispatch70, "type=2", "type=0", 1), "grid=[1024, 2, 1]", "cluster_count=[2, 1, 1], cluster_size=[2, 1, 1]", 1), func(_ *Log, _ *Process, q *Queue) bool {
			return q.Grids.Without == 1 && q.Lag.Max == 4
		}},
		{"no pid", ":4:rocvirtual.cpp           :1083: 20161701400 us:  " + dispatch70, func(_ *Log, p *Process, _ *Queue) bool { return p.PID == 77 }},
		{"32 bits wrapped", prefix70 + strings.Replace(strings.Replace(dispatch70, "rptr=3", "rptr=4294967290", 1), "wptr=7", "wptr=4", 1), func(_ *Log, _ *Process, q *Queue) bool { return q.Lag.Max == 10 }},
		{"duration behind it", prefix70 + dispatch70 + ": duration: 3 us", func(_ *Log, _ *Process, q *Queue) bool { return q.Lag.Max == 4 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := read(t, test.line+"\n", Options{PID: 77})
			if l.Kernels != 1 || l.Dispatches != 1 || l.DispatchLines != 1 || l.Lines != (Lines{Total: 1, Records: 1}) || len(l.Processes) != 1 || len(l.Processes[0].Queues) != 1 {
				t.Fatalf("got %s", asJSON(t, l))
			}
			if p := l.Processes[0]; !test.check(l, p, p.Queues[0]) {
				t.Errorf("got %s", asJSON(t, l))
			}
		})
	}
}

func TestQueueLife(t *testing.T) {
	p := ":3:rocdevice.cpp            :3048: %d us: [pid:459769 tid: 0x7f8edc1c4400] "
	l := read(t, fmt.Sprintf(p+"Created SWq=0x7f8edc1a8000 to map on HWq=0x7f8acd200000 with size 16384 with priority 2, cooperative: 0\n", 10)+
		fmt.Sprintf(p+"acquireQueue refCount: 0x7f8acd200000 (1)\n", 11)+
		fmt.Sprintf(p+"Selected queue refCount: 0x7f8acd200000 (2)\n", 12)+
		fmt.Sprintf(p+"releaseQueue refCount:0x7f8acd200000 (0)\n", 13)+
		fmt.Sprintf(p+"Deleting hardware queue 0x7f8acd200000 with refCount 0\n", 14)+
		fmt.Sprintf(p+"created hardware queue 0x7fcc33b06000 with size 8192 with priority 1, cooperative: 0\n", 15), Options{})
	process := l.Processes[0]
	if len(process.Queues) != 1 || process.LifeCount["created"] != 2 || process.LifeCount["deleted"] != 1 || len(process.Life) != 3 {
		t.Fatalf("got %s", asJSON(t, process))
	}
	q := process.Queues[0]
	if q.Created != 1 || q.Acquired != 2 || q.Released != 1 || q.Deleted != 1 || q.Size != 16384 || q.Priority != "high" {
		t.Errorf("got %+v", q)
	}
	if !q.Ended {
		t.Error("a deleted queue counts as living")
	}
	// The old record names the software queue, which is not a ring.
	if last := process.Life[2]; last.HWq != "" || last.SWq != "0x7fcc33b06000" || last.Size != 8192 || last.Priority != "normal" {
		t.Errorf("got %+v", last)
	}
}

func TestKernelNames(t *testing.T) {
	name := func(tid int, s string) string {
		return fmt.Sprintf(":3:rocvirtual.cpp           :3351: 20161701384 us: [pid:1 tid: 0x%x] ShaderName : %s\n", tid, s)
	}
	packet := func(tid, object int) string {
		return fmt.Sprintf(":4:rocvirtual.cpp           :1083: 20161701400 us: [pid:1 tid: 0x%x] %s\n", tid,
			strings.Replace(dispatch70, "kernel_obj=0x7f8ed23d8800", fmt.Sprintf("kernel_obj=0x%x", object), 1))
	}
	// Two threads alternate; then a graph replay submits without a name.
	l := read(t, name(1, "a(int)")+name(2, "b")+packet(2, 0xb)+packet(1, 0xa)+packet(3, 0xb)+packet(3, 0xc), Options{})
	got := fmt.Sprint(l.Processes[0].TopKernels)
	if want := "[{b 2} {(not named) 1} {a(int) 1}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if l.Processes[0].Threads != 3 || l.Launches != 2 || l.Kernels != 4 {
		t.Errorf("got %s", asJSON(t, l))
	}
}

func TestBrokenLines(t *testing.T) {
	api := ":3:hip_stream.cpp           :398 : 6306213494 us:  hipStreamSynchronize: Returned hipSuccess : "
	for _, test := range []struct {
		name, text string
		lines      Lines
		kernels    uint64
	}{
		{"text", "loss 0.3\n\n=====\nat 12:34:56 us: x\n", Lines{Total: 4, Text: 4}, 0},
		{"last line without its end", api + "\n" + api, Lines{Total: 2, Records: 2}, 0},
		{"carriage returns", api + "\r\n" + prefix70 + dispatch70 + "\r\n", Lines{Total: 2, Records: 2}, 1},
		{"cut in the prefix", prefix70[:40] + "\n", Lines{Total: 1, Damaged: 1, Cut: 1}, 0},
		{"cut before the header", prefix70 + dispatch70[:30] + "\n", Lines{Total: 1, Records: 1, Cut: 1}, 0},
		{"cut behind the header", prefix70 + dispatch70[:100] + "\n", Lines{Total: 1, Records: 1, Cut: 1}, 1},
		{"cut before the pointers", prefix70 + dispatch70[:strings.Index(dispatch70, ", rptr")] + "\n", Lines{Total: 1, Records: 1, Cut: 1}, 1},
		{"start lost", prefix70[20:] + dispatch70 + "\n", Lines{Total: 1, Damaged: 1}, 1},
		{"rubbish in the prefix", strings.Replace(api, ":398", ":3?8", 1) + "\n", Lines{Total: 1, Damaged: 1}, 0},
		{"hole", api + "\x00\x00\n", Lines{Total: 1, Damaged: 1}, 0},
		{"hole in a kernel", prefix70 + dispatch70 + "\x00\x00\n", Lines{Total: 1, Damaged: 1}, 1},
		{"two records", api + prefix70 + dispatch70 + "\n", Lines{Total: 1, Records: 1, Glued: 1}, 1},
		{"two kernels", prefix70 + dispatch70 + prefix70 + dispatch70 + "\n", Lines{Total: 1, Records: 1, Glued: 1}, 2},
		{"one cuts the other", prefix70 + dispatch70[:90] + prefix70 + dispatch70 + "\n", Lines{Total: 1, Records: 1, Glued: 1, Cut: 1}, 2},
		{"three", api + api + prefix70 + dispatch70 + "\n", Lines{Total: 1, Records: 1, Glued: 1}, 1},
		{"behind text", "loss 0.3" + prefix70 + dispatch70 + "\n", Lines{Total: 1, Records: 1, Glued: 1}, 1},
		{"one prefix, two kernels", prefix70 + dispatch70 + dispatch70 + "\n", Lines{Total: 1, Records: 1}, 2},
		{"endless", strings.Repeat("x", 3*maxLine) + "\n" + api + "\n", Lines{Total: 2, Records: 1, Text: 1, Long: 1}, 0},
		{"nothing", "", Lines{}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := read(t, test.text, Options{})
			if l.Lines != test.lines || l.Kernels != test.kernels {
				t.Errorf("got %+v, %d kernels; want %+v, %d", l.Lines, l.Kernels, test.lines, test.kernels)
			}
		})
	}
}

// TestRealLogs compares with a regular expression of the known prefix formats:
// matching lines are records, all others are application output.
func TestRealLogs(t *testing.T) {
	known := regexp.MustCompile(`^:[0-9]:[^:]*:[0-9]+ *: *[0-9]+d? us: (\[pid:[0-9]+ +tid: ?0x[0-9a-f]+\] | )`)
	for _, test := range []struct {
		name              string
		kernels, launches uint64
		barriers, created uint64
	}{
		{"mi308x-16-streams.amdlog.gz", 0, 96, 0, 4},
		{"mi308x-two-apps-head.amdlog.gz", 10, 10, 8, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := open(t, test.name)
			var want Lines
			for line := range strings.Lines(string(text)) {
				want.Total++
				if known.MatchString(line) {
					want.Records++
				} else {
					want.Text++
				}
			}
			l := read(t, string(text), Options{})
			if l.Lines != want {
				t.Errorf("got %+v, want %+v", l.Lines, want)
			}
			if l.Dispatches != test.kernels || l.Kernels != test.launches || l.Launches != test.launches || l.Barriers != test.barriers {
				t.Errorf("%d kernels, %d launches, %d barriers", l.Kernels, l.Launches, l.Barriers)
			}
			p := l.Processes[0]
			if len(l.Processes) != 1 || uint64(p.LifeCount["created"]) != test.created || len(p.Queues) != 4 {
				t.Errorf("got %s", asJSON(t, l.Processes))
			}
			if p.TopKernels[0].Name != "dummy_kernel(int*, int)" || p.TopKernels[0].Count != test.launches {
				t.Errorf("kernels %v", p.TopKernels)
			}
		})
	}
}

// mess is a log with every kind of line.
func mess(t testing.TB) string {
	api := ":3:hip_stream.cpp           :398 : 20161701399 us: [pid:459769 tid: 0x7f8edc1c4400] hipStreamSynchronize\n"
	return string(open(t, "mi308x-two-apps-head.amdlog.gz")) + strings.Repeat(api, 20) + prefix70 + dispatch70[:80] + "\n" + dispatchOld + "\n" + "a\x00b\n" + api[:50] + "\n" +
		prefix70 + dispatch70 + prefix70 + dispatch70 + "\n" + strings.Repeat("y", maxLine+1) + "\r\n" + strings.Repeat("z", 2*maxLine) + "\n" +
		strings.Repeat("Dispatch Header ", maxLine/10) + "\n" + string(open(t, "mi308x-16-streams.amdlog.gz")) + prefix70 + dispatch70
}

// TestChunkBoundaries checks that chunk size, read size and the number of
// workers do not change the result.
func TestChunkBoundaries(t *testing.T) {
	text := mess(t)
	want := asJSON(t, read(t, text, Options{Workers: 1, chunk: len(text) + 1}))
	for i, chunk := range []int{1, 100, 1000, 4096, 30011, 100003, 1 << 20} {
		workers := 1 + 2*(i%2)
		if got := asJSON(t, read(t, text, Options{Workers: workers, chunk: chunk})); got != want {
			t.Fatalf("chunks of %d, %d workers: the result differs", chunk, workers)
		}
	}
	for name, r := range map[string]io.Reader{
		"one byte at a time": iotest.OneByteReader(strings.NewReader(text)),
		"half":               iotest.HalfReader(strings.NewReader(text)),
		"data with EOF":      iotest.DataErrReader(strings.NewReader(text)),
	} {
		l, err := Read(t.Context(), r, Options{chunk: 5000})
		if err != nil {
			t.Fatal(err)
		}
		if asJSON(t, l) != want {
			t.Errorf("%s: the result differs", name)
		}
	}
}

func TestCompressed(t *testing.T) {
	text := mess(t)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	want := read(t, text, Options{})
	got := read(t, packed.String(), Options{})
	if !got.Compressed || got.Kernels != want.Kernels || got.Lines != want.Lines || got.Bytes != int64(len(text)) {
		t.Errorf("got %+v", got.Lines)
	}
	// A truncated archive: the readable part counts.
	got = read(t, packed.String()[:packed.Len()/2], Options{})
	if got.ReadError == "" || got.Lines.Total == 0 {
		t.Errorf("got %+v, error %q", got.Lines, got.ReadError)
	}
	if _, err := Read(t.Context(), strings.NewReader("\x1f\x8bxxxxxxxxxxxx"), Options{Name: "x"}); err == nil {
		t.Error("nothing can be read, but no error")
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	go cancel()
	if _, err := Read(ctx, io.MultiReader(strings.NewReader("xx"), r), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestTimeJumps(t *testing.T) {
	var b strings.Builder
	for _, at := range []uint64{1000000, 1000100, 1000090, 1000200, 9e15, 1000300, 1000400} {
		fmt.Fprintf(&b, ":4:rocvirtual.cpp           :1083: %010d us: [pid:1 tid: 0x1] %s\n", at, dispatch70)
	}
	p := read(t, b.String(), Options{}).Processes[0]
	if p.TimeJumps != 2 || p.Intervals.Count != 4 || p.Intervals.Max != 100 || p.RateHz != 10000 {
		t.Errorf("got %d jumps, %+v, %g/s", p.TimeJumps, p.Intervals, p.RateHz)
	}
	if n := len(p.Timeline.Kernels); n > 2 {
		t.Errorf("one broken time stretched the timeline to %d bins of %d us", n, p.Timeline.BinUS)
	}
}

// TestManyOfEverything reads a log with new names in every line.
func TestManyOfEverything(t *testing.T) {
	var b strings.Builder
	for i := range 20000 {
		p := fmt.Sprintf(" us: [pid:%d tid: 0x%x] ", i%700+1, i)
		fmt.Fprintf(&b, ":3:rocvirtual.cpp           :3351: %010d%sShaderName : kernel_%d\n", i*10, p, i)
		fmt.Fprintf(&b, ":4:rocvirtual.cpp           :1083: %010d%s%s\n", i*10+5, p,
			strings.NewReplacer("HWq=0x7f8acd200000", fmt.Sprintf("HWq=0x%x", i*4096+4096), "grid=[1024", fmt.Sprintf("grid=[%d", i)).Replace(dispatch70))
	}
	l := read(t, b.String(), Options{})
	if l.Kernels != 20000 || len(l.Processes) != maxProcesses || l.Dropped == 0 {
		t.Errorf("%d kernels, %d processes, %d dropped", l.Kernels, len(l.Processes), l.Dropped)
	}
	queues := 0
	for _, p := range l.Processes {
		queues += len(p.Queues)
	}
	if queues != maxQueues {
		t.Errorf("%d queues", queues)
	}
}

const (
	prefixCommand = ":4:command.cpp              :357 : %d us: [pid:459769 tid: 0x7f8edc1c4400] "
	command70     = "Command (KernelExecution) enqueued: 0x2095b30 to queue: 0x1952020"
)

// TestOnlyCommands reads logs whose mask selects commands alone.
func TestOnlyCommands(t *testing.T) {
	at := func(us int, message string) string { return fmt.Sprintf(prefixCommand, us) + message + "\n" }
	text := at(1000, command70) + at(1100, command70) + at(1150, "Command (InternalMarker) enqueued: 0x1 to queue: 0x1952020") +
		at(1200, strings.Replace(command70, "1952020", "1952fff", 1)) + at(1300, command70[:strings.Index(command70, " to queue")]) + // 5.x
		at(1400, command70[:36]) + // cut
		at(1500, command70)[60:] // its start is lost
	l := read(t, text, Options{})
	if l.Kernels != 6 || l.Commands != 6 || l.Dispatches != 0 || l.Launches != 0 || l.Lines != (Lines{Total: 7, Records: 6, Damaged: 1, Cut: 1}) {
		t.Fatalf("got %s", asJSON(t, l))
	}
	p := l.Processes[0]
	if p.Kernels != 5 || p.Basis != "command" || p.Intervals.Count != 4 || p.RateHz != 10000 || p.TopKernels != nil || len(p.Queues) != 0 {
		t.Errorf("got %s", asJSON(t, p))
	}
	if want := []StreamCount{{"0x1952020", 2}, {"0x1952fff", 1}}; fmt.Sprint(p.Streams) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", p.Streams, want)
	}
	var out bytes.Buffer
	if err := NewReport(l).WriteText(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"6 kernels enqueued", "process 459769: 5 kernels enqueued", "2  to the runtime's queue 0x1952020", "only records of enqueued kernels"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

// TestCommandsOfRealLog filters a real log as AMD_LOG_MASK=0x2 would.
func TestCommandsOfRealLog(t *testing.T) {
	var b strings.Builder
	for line := range strings.Lines(string(open(t, "mi308x-two-apps-head.amdlog.gz"))) {
		if strings.Contains(line, ":command.cpp ") {
			b.WriteString(line)
		}
	}
	l := read(t, b.String(), Options{})
	if l.Kernels != 10 || l.Commands != 10 || l.Processes[0].Basis != "command" || l.Lines.Cut+l.Lines.Damaged != 0 {
		t.Errorf("got %s", asJSON(t, l))
	}
}

// TestMixedBasis: a process without dispatch records counts beside one with them.
func TestMixedBasis(t *testing.T) {
	l := read(t, prefix70+dispatch70+"\n"+fmt.Sprintf(prefixCommand, 20161701400)+command70+"\n"+
		strings.Replace(fmt.Sprintf(prefixCommand, 1000), "459769", "12", 1)+command70+"\n", Options{})
	if l.Kernels != 2 || l.Dispatches != 1 || l.Commands != 2 || l.what() != "kernels" {
		t.Errorf("got %s", asJSON(t, l))
	}
}
