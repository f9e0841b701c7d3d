// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	{`^cuMem(setD\w+Async|cpyDtoDAsync)`, "inside"},
	{`^cuMemcpyHtoDAsync_v2`, "hand"}, // small ones: shim/runtime/cuda/upload.c
	{`^cuMem(cpy|set|Prefetch|Discard|BatchDecompress)`, "copy"},
	{`WaitValue|BatchMemOp|WaitExternalSemaphores`, "await"},
	{`^cuMem(Alloc|AllocFromPool|Free|MapArray)Async|^cuMemFree_v2$|^cu\w*ArrayDestroy$`, "hand"}, // memory
	{`WriteValue|SignalExternalSemaphores|^cuStreamAttachMem|^cuGraphics(Unm|M)apResources|WaitEvent`, "pass capture"},
	{`^cuStreamQuery`, "query"},
	{`^cuStreamSynchronize`, "sync"},
	{`RecordEvent|^cuEventRecord`, "event"},
	{`[cC]apture`, "capture hand pass use"},
	{`^cuStream(Create|Destroy)|^cuGreenCtxStreamCreate`, "stream"},
	{`^cuCtx(Create|Destroy|Detach|Synchronize)|^cuDevicePrimaryCtx(Retain|Release|Reset)|^cuGreenCtxDestroy`, "hand"},
	{`^cuEvent(Query|Synchronize|Destroy|ElapsedTime)|^cuGetProcAddress`, "hand"},
	{`Async|_pt[sd][sz]$|Synchronize|Launch|Upload|^cuMemFree|^cu\w*ArrayDestroy$|^cu(Module|Library)Unload$`, "one of those above"},
}

// TestCUDAKinds: what submits or waits, to go by its name, is hooked by a kind that fits, or passes for a reason.
func TestCUDAKinds(t *testing.T) {
	known := map[string]call{}
	for _, c := range table(t, cuda) {
		known[c.symbol] = c
	}
	list, err := readEntries(root, cuda.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.entries {
		kinds := cudaKindsOf(e.name)
		c, hooked := known[e.name]
		switch {
		case kinds == "" || hooked && slices.Contains(strings.Fields(kinds), c.kind):
		case hooked:
			t.Errorf("%s is of kind %s, want one of: %s", e.name, c.kind, kinds)
		case e.class == "cannot" && !cudaNotWork.MatchString(e.name):
			t.Errorf("%s is not hooked, and does not pass for a reason", e.name)
		}
	}
}

// Names that resemble work and are none: a callback, a question, an inline function.
var cudaNotWork = regexp.MustCompile(`^cuDevice(Register|Unregister)AsyncNotification$|^cuStreamIsCapturing_ptsz$|^cuGetProcAddress_v2_ptsz$`)

func cudaKindsOf(symbol string) string {
	for _, k := range cudaKinds {
		if regexp.MustCompile(k.names).MatchString(symbol) {
			return k.kinds
		}
	}
	return ""
}

// TestCUDAClasses: what certain calls may do, by their names, whether they are hooked or not.
func TestCUDAClasses(t *testing.T) {
	list, err := readEntries(root, cuda.dir)
	if err != nil {
		t.Fatal(err)
	}
	for names, classes := range map[string]string{
		`^cuEGLStream(Consumer|Producer)`:  "shares",
		`^cu(Module|Library)Unload$`:       "unloads",
		`^cuGL(Unm|M)apBufferObject`:       "passes",
		`^cuGraphInstantiateWithParams`:    "passes",
		`Trim|^cuMemPoolDestroy$`:          "passes",
		`ResetPersisting|^cuFlushGPU`:      "passes",
		`^cuMemFree|^cuMemHostUnregister$`: "passes hooked",
		`^cuMemMapArrayAsync`:              "hooked",
		`^cuMemcpy(3D)?WithAttributes`:     "hooked",
		`^cuLaunchHostFunc`:                "hooked",
	} {
		found := 0
		for _, e := range list.entries {
			if !regexp.MustCompile(names).MatchString(e.name) {
				continue
			}
			found++
			if !slices.Contains(strings.Fields(classes), e.class) {
				t.Errorf("%s is of class %s, want one of: %s", e.name, e.class, classes)
			}
		}
		if found < 2 {
			t.Errorf("%s: only %d entry points", names, found)
		}
	}
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

// TestCUDAAsks: a name that suggests a wait, memory, code or another process is not taken for a mere question.
func TestCUDAAsks(t *testing.T) {
	list, err := readEntries(root, cuda.dir)
	if err != nil {
		t.Fatal(err)
	}
	waits := regexp.MustCompile(`Free|Destroy|Unload|Load|Alloc|Create|Unmap|Trim|Launch|cpy|Memset|Wait|Synchronize|Instantiate|Update$|Enable|Limit`)
	question := regexp.MustCompile(`^cu(\w*Get[A-Z]\w*|EventCreate|UserObjectCreate|MemRetainAllocationHandle|FuncIsLoaded)$`)
	others := regexp.MustCompile(`^cuIpc(Get|Open)|Import|Export(To|Pointer|$)|Peer[A-Z]\w*Access|^cuCtxEnablePeer|^cuMulticast(Create|Bind)|Register(Image|Buffer)|^cuMemHostRegister`)
	notOthers := regexp.MustCompile(`^cuGetExportTable$|^cuDeviceCanAccessPeer$`)
	asks, shares := 0, 0
	for _, e := range list.entries {
		asks += b2i(e.class == "asks")
		shares += b2i(e.class == "shares")
		if e.class == "asks" && waits.MatchString(e.name) && !question.MatchString(e.name) {
			t.Errorf("%s is listed as a call that returns at once", e.name)
		}
		if others.MatchString(e.name) && !notOthers.MatchString(e.name) && e.class != "shares" && e.class != "hooked" {
			t.Errorf("%s is %s: batches stay on where others may wait for this program", e.name, e.class)
		}
	}
	if asks < 150 || shares < 30 {
		t.Errorf("only %d questions and %d calls that share", asks, shares)
	}
}

// What a call does with an address or a handle of memory that can be away from the device.
var cudaAddresses = struct{ parameters, names, waits *regexp.Regexp }{
	parameters: regexp.MustCompile(`\bCUdeviceptr(_v2)?\b|CUmemGenericAllocationHandle|CUDA_(MEMCPY3D|MEMSET_NODE|BATCH_MEM_OP_NODE|RESOURCE_DESC)|CUgraphNodeParams`),
	// They answer with a description, or are about memory that never moves: of arrays, pools, code, the host and others.
	names: regexp.MustCompile(`^cuGraph\w*GetParams(_v2)?$|^cu(Tex|Surf)(Object|Ref)Get|^cuSurfObjectCreate$|^cuMemHostGet|` +
		`^cuMemPool|^cuIpc(Open|Close)MemHandle|^cu(Module|Library)Get|^cuGraphics|^cuExternalMemory|^cuMulticast(Create|AddDevice|Unbind)$|^cuMemImportFrom`),
	// Kinds of the table that wait while memory is away. Launches, copies and the like wait at the gate.
	waits: regexp.MustCompile(`^(about|await|pass|hand|launch|work|copy|inside)$`),
}

// TestCUDAAddresses: every call that takes the address of device memory, or a handle of it, waits while memory is
// away, or can't meet such memory.
func TestCUDAAddresses(t *testing.T) {
	texts, err := preprocessed(cuda.dir, filepath.Dir(vendorHeader(t, "cuda.h")))
	if err != nil {
		t.Fatal(err)
	}
	prototypes := map[string]string{}
	for _, m := range regexp.MustCompile(`\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;`).FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
		prototypes[m[1]] = m[2]
	}
	known := map[string]call{}
	for _, c := range table(t, cuda) {
		known[c.symbol] = c
	}
	found := 0
	for name, parameters := range prototypes {
		if !cudaAddresses.parameters.MatchString(parameters) || cudaAddresses.names.MatchString(name) {
			continue
		}
		found++
		if c, hooked := known[name]; !hooked || !cudaAddresses.waits.MatchString(c.kind) {
			t.Errorf("%s(%s) may reach the driver while memory is away", name, parameters)
		}
	}
	if found < 120 {
		t.Errorf("only %d calls that take addresses", found)
	}
}
