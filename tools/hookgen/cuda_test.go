// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What a call does according to its name, and the kinds that account for it. The first match counts.
var cudaKinds = []struct {
	names string
	kinds string
}{
	{`^cuStreamGetCaptureInfo|^cuStreamUpdateCapture`, ""},
	{`^cuGraph(Exec)?(Add|Batch|Kernel|Mem|Host|Event|External|Child|Node)\w*`, ""},
	{`^cuStream(Get|Set|Copy)\w*`, ""},
	{`^cuLaunchHostFunc|^cuStreamAddCallback|^cuGraphUpload`, "work"},
	{`^cuLaunch|^cuGraphLaunch`, "launch hand"},
	{`^cuMem(cpy|set|Prefetch|Discard|BatchDecompress)`, "copy"},
	{`WaitValue|BatchMemOp|WaitExternalSemaphores`, "await"},
	{`WriteValue|SignalExternalSemaphores|^cuMem(Alloc|AllocFromPool|Free)Async|^cuStreamAttachMem|^cuGraphics(Unm|M)apResources|WaitEvent`, "pass capture"},
	{`^cuStreamQuery`, "query"},
	{`^cuStreamSynchronize`, "sync"},
	{`RecordEvent|^cuEventRecord`, "event"},
	{`Capture`, "capture hand pass use"},
	{`^cuStream(Create|Destroy)|^cuGreenCtxStreamCreate`, "stream"},
	{`^cuCtx(Create|Destroy|Detach|Synchronize)|^cuDevicePrimaryCtx(Retain|Release|Reset)|^cuGreenCtxDestroy`, "hand"},
	{`^cuEvent(Query|Synchronize|Destroy|ElapsedTime)|^cuGetProcAddress`, "hand"},
	{`Async|_pt[sd][sz]$|Synchronize|Launch|Upload|^cuMemFree|^cu\w*ArrayDestroy$|^cu(Module|Library)Unload$`, "one of those above"},
}

// Calls that submit or wait, and are not hooked; docs/platforms/nvidia.md has the details.
var cudaReasons = map[string]string{
	`^cuMemFree(_v2|Host)?$|^cu(Mipmapped)?ArrayDestroy$|^cu(Module|Library)Unload$`: "may wait for the device; never within a request of a program that cares for latency",
	`^cuMemMapArrayAsync`:                              "maps memory of sparse arrays: order, as allocation is",
	`^cuGL(Map|Unmap)BufferObject`:                     "deprecated interop with OpenGL, replaced by cuGraphicsMapResources: order",
	`^cuDevice(Register|Unregister)AsyncNotification$`: "a callback, nothing of a stream",
	`^cuGraphInstantiateWithParams`:                    "uploads the graph only if a flag asks for it; its launch is seen",
	`^cuStreamIsCapturing_ptsz$`:                       "a question",
}

// TestCUDATableIsComplete compares the table with the exports of the real library: what submits or waits is hooked
// by a kind that fits its name, or has a reason.
func TestCUDATableIsComplete(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "shim/runtime/cuda/testdata/names.txt"))
	if err != nil {
		t.Fatal(err)
	}
	known, exported, used := map[string]call{}, map[string]bool{}, map[string]bool{}
	for _, c := range table(t, cuda) {
		known[c.symbol] = c
	}
	for symbol := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n") {
		if strings.HasPrefix(symbol, "#") {
			continue
		}
		exported[symbol] = true
		kinds := cudaKindsOf(symbol)
		c, hooked := known[symbol]
		switch {
		case kinds == "" || hooked && slices.Contains(strings.Fields(kinds), c.kind):
		case hooked:
			t.Errorf("%s is of kind %s, want one of: %s", symbol, c.kind, kinds)
		default:
			found := false
			for names := range cudaReasons {
				if regexp.MustCompile(names).MatchString(symbol) {
					found, used[names] = true, true
				}
			}
			if !found {
				t.Errorf("%s is not in the table", symbol)
			}
		}
	}
	for symbol := range known {
		if !exported[symbol] {
			t.Errorf("%s is in the table, but the library has no such function", symbol)
		}
	}
	for names := range cudaReasons {
		if !used[names] {
			t.Errorf("no call needs the reason for %s", names)
		}
	}
	if len(exported) < 600 {
		t.Errorf("only %d names", len(exported))
	}
}

func cudaKindsOf(symbol string) string {
	for _, k := range cudaKinds {
		if regexp.MustCompile(k.names).MatchString(symbol) {
			return k.kinds
		}
	}
	return ""
}

// TestCUDADefaultStreams: a function for the default stream of the thread does what the other does.
func TestCUDADefaultStreams(t *testing.T) {
	calls := table(t, cuda)
	known := map[string]call{}
	for _, c := range calls {
		known[c.symbol] = c
	}
	threads := 0
	for _, c := range calls {
		name, _, found := strings.Cut(c.symbol, "_pt")
		if found != c.thread {
			t.Errorf("%s: default stream of the thread is %v, its name says %v", c.symbol, c.thread, found)
		}
		if !found {
			continue
		}
		threads++
		other := known[name]
		if other.kind != c.kind || other.detail != c.detail || other.api != c.api || !slices.Equal(other.types, c.types) {
			t.Errorf("%s is not as %s: have %s %s %s, want %s %s %s", c.symbol, name, c.api, c.kind, c.detail, other.api, other.kind, other.detail)
		}
	}
	if threads < 80 {
		t.Errorf("only %d functions for the default stream of the thread", threads)
	}
}
